"""Request bodies: strict JSON, and what is wrong with one in a line."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from forerun.server.errors import ApiError

MOST_VALUES = 500_000
"""Values in a body: to read one takes a microsecond, in which nobody else's text goes on."""

_TEXT = re.compile(rb'"(?:[^"\\]|\\.)*(?:"|\\?\Z)', re.DOTALL)  # to the end, if it has none: never tried twice


class ErrorPart(BaseModel):
    """What went wrong: in words, as a kind, the field it is about, and a code that programs can know."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorDocument(BaseModel):
    """Every answer that is an error."""

    error: ErrorPart


ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorDocument, "description": text}
    for status, text in {
        400: "The request cannot be served as written.",
        401: "No valid API key was given.",
        404: "There is no such model.",
        408: "The request did not come in time.",
        413: "The request is too large.",
        415: "The body is no JSON.",
        422: "The text cannot go on as it was asked for.",
        429: "The queue is full.",
        500: "The server is at fault.",
        503: "The server is being stopped, or has failed.",
        504: "The text was not done in time.",
    }.items()
}
"""What routes may answer with instead."""


class JsonRoute(APIRoute):
    """A route whose body is read by `read_json`."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_json(request: Request) -> Response:
            return await handle(_JsonRequest(request.scope, request.receive))

        return handle_json


class _JsonRequest(Request):
    async def json(self) -> Any:
        return read_json(await self.body())


def read_json(body: bytes) -> Any:
    """The JSON of a body. ApiError 400 for what is no JSON in UTF-8: Python would take NaN, and half a surrogate pair,
    which no text can hold."""
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _no_json(f"the body is not UTF-8: byte {error.start} begins no character") from error
    if _has_too_many(body):
        raise ApiError(
            413, f"the body has more than {MOST_VALUES:,} values. Send long prompts as text", code="request_too_large"
        )
    try:
        found = json.loads(text, parse_constant=_refuse)
    except RecursionError as error:
        raise _no_json("the body is nested too deeply") from error
    except ValueError as error:
        raise _no_json(f"the body is not JSON: {str(error)[:200]}") from error
    if "\\u" in text:
        try:
            _check_text(found)
        except UnicodeEncodeError as error:
            raise _no_json("the body has half of a surrogate pair, which is no character") from error
    return found


def _has_too_many(body: bytes) -> bool:
    """Whether there are more values than are read. Commas of texts are none of theirs, if it comes to that."""
    if _num_values(body) <= MOST_VALUES:
        return False
    return _num_values(_TEXT.sub(b"", body)) > MOST_VALUES


def _num_values(body: bytes) -> int:
    """At most so many: each but the first of a list or an object follows a comma, and these a bracket."""
    return body.count(b",") + body.count(b"[") + body.count(b"{")


def _no_json(message: str) -> ApiError:
    return ApiError(400, message, code="invalid_json")


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is no number of JSON")


def _check_text(value: Any) -> None:
    if isinstance(value, str):
        value.encode()
    elif isinstance(value, dict):
        for key, one in value.items():
            key.encode()
            _check_text(one)
    elif isinstance(value, list):
        for one in value:
            _check_text(one)


def invalid(error: RequestValidationError) -> ApiError:
    """What is wrong with a body, of everything that is the first."""
    first = error.errors()[0]
    names: list[str] = []
    for part in first["loc"][1:] if first["loc"][:1] == ("body",) else first["loc"]:
        if not isinstance(part, int) and not str(part).isidentifier():
            break  # the alternatives of a field that takes several kinds
        names.append(str(part))
    if names and len(names) > 1 and names[-1] in ("str", "int", "bool", "float"):
        names.pop()
    place = ".".join(names)
    return ApiError(400, f"{place or 'body'}: {first['msg']}", param=place or None, code="invalid_request")
