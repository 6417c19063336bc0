"""Errors as the OpenAI API has them: {"error": {"message", "type", "param", "code"}} and a status."""

from __future__ import annotations

from typing import Any

from starlette.exceptions import HTTPException

from forerun.errors import (
    ContextLengthError,
    ContractError,
    DeadlineError,
    ForerunError,
    InputError,
    NumericalError,
    ParameterError,
    UserCodeError,
)


class ApiError(HTTPException):
    """An answer that is an error."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(status, message, headers)
        self.status, self.message, self.kind, self.param, self.code = status, message, kind, param, code

    def __str__(self) -> str:
        return self.message

    @property
    def body(self) -> dict[str, Any]:
        """The document that is sent."""
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}


def api_error(error: BaseException) -> ApiError:
    """What a request is told of an error. Messages of unexpected ones stay in the log: they may tell of others."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, ContextLengthError):
        return ApiError(400, str(error), param="messages", code="context_length_exceeded")
    if isinstance(error, ParameterError):
        return ApiError(400, str(error), param=error.name, code="invalid_value")
    if isinstance(error, InputError):
        return ApiError(400, str(error))
    if isinstance(error, DeadlineError):
        return ApiError(504, str(error), kind="timeout_error", code="deadline_exceeded")
    if isinstance(error, (NumericalError, UserCodeError)):
        return ApiError(422, str(error), kind="generation_error", code="generation_failed")
    if isinstance(error, MemoryError):
        return ApiError(503, "there is not enough memory for this request now", kind="server_error", code="no_memory")
    if isinstance(error, ForerunError) and not isinstance(error, ContractError):
        return ApiError(500, str(error), kind="server_error", code="internal_error")
    return ApiError(
        500, "something went wrong in the server; its log says more", kind="server_error", code="internal_error"
    )


def not_found(path: str) -> ApiError:
    """Nothing is served at a path."""
    return ApiError(404, f"there is nothing at {path}", code="not_found")


def no_such_model(name: str, known: list[str]) -> ApiError:
    """A request names another model."""
    return ApiError(
        404, f"the model {name!r} is not served here. Served: {', '.join(known)}", param="model", code="model_not_found"
    )


def unauthorized() -> ApiError:
    """A key is missing, or is not one of ours."""
    return ApiError(
        401, "no valid API key was given (header: Authorization: Bearer KEY)", kind="authentication_error",
        code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"},
    )  # fmt: skip


def too_many(retry_after_s: int) -> ApiError:
    """The queue is full."""
    return ApiError(
        429, "the server has as many requests as it takes. Try again later", kind="rate_limit_error",
        code="queue_full", headers={"Retry-After": str(retry_after_s)},
    )  # fmt: skip


def crowded() -> ApiError:
    """There are more connections than are served."""
    return ApiError(
        429, "the server has as many connections as it takes. Try again later", kind="rate_limit_error",
        code="too_many_connections", headers={"Retry-After": "1", "Connection": "close"},
    )  # fmt: skip


def stopping() -> ApiError:
    """The server takes nothing new, or has ended what did not finish in time."""
    return ApiError(
        503, "the server is being stopped", kind="server_error", code="shutting_down", headers={"Retry-After": "5"}
    )


def failed() -> ApiError:
    """The thread that computes has ended."""
    return ApiError(
        503, "the server's worker has failed, so nothing can be computed; its log says more", kind="server_error",
        code="worker_failed",
    )  # fmt: skip
