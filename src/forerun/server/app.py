"""The application: what is served at which path, and how errors are told."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.middleware.cors import CORSMiddleware
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, JSONResponse, Response

from forerun.errors import ForerunError
from forerun.server.bodies import ERRORS, JsonRoute, invalid
from forerun.server.config import ServerConfig
from forerun.server.errors import ApiError, api_error, not_found
from forerun.server.gate import Gate
from forerun.server.generation import add_generation
from forerun.server.metrics import CONTENT_TYPE
from forerun.server.page import playground
from forerun.server.prompts import need_tokenizer, text_of, tokens_of
from forerun.server.requests import DetokenizeRequest, TokenizeRequest
from forerun.server.sampling import with_warnings
from forerun.server.service import Service
from forerun.version import __version__

log = logging.getLogger("forerun.server")

REFUSED = {
    "/v1/embeddings": "a model that embeds, in another server",
    "/v1/responses": "/v1/chat/completions",
    "/v1/audio/transcriptions": "/v1/chat/completions, which takes text",
    "/v1/images/generations": "/v1/chat/completions, which writes text",
}
"""Paths of the API that are not served, and what to use."""


def make_app(service: Service, config: ServerConfig) -> FastAPI:
    """The application over a service that is running."""
    app = FastAPI(title="forerun", version=__version__, docs_url=None, redoc_url=None)
    app.router.route_class = JsonRoute
    app.add_middleware(Gate, config=config, note=service.metrics.note_response)
    if config.cors_origins:  # outside the gate, so that pages can read its refusals too
        app.add_middleware(
            CORSMiddleware, allow_origins=list(config.cors_origins), allow_methods=["*"], allow_headers=["*"],
            expose_headers=["x-request-id", "retry-after"],
        )  # fmt: skip
    _add_errors(app)
    _add_status(app, service, config)
    _add_models(app, service)
    add_generation(app, service, config)
    return app


def _add_errors(app: FastAPI) -> None:
    async def told(request: Request, error: Exception) -> Response:
        found = api_error(error)
        if found.status >= 500 and not isinstance(error, ApiError):
            log.error("a request has failed", exc_info=error, extra={"request_id": request.state.request_id})
        return _json(found)

    async def wrong(request: Request, error: Exception) -> Response:
        return _json(invalid(error) if isinstance(error, RequestValidationError) else api_error(error))

    async def http(request: Request, error: Exception) -> Response:
        if not isinstance(error, HTTPException):
            return _json(api_error(error))
        if error.status_code == 404:
            return _json(not_found(request.url.path))
        if error.status_code == 405:
            return _json(
                ApiError(
                    405, f"{request.method} is not served at {request.url.path}", code="method_not_allowed",
                    headers=dict(error.headers or {}),
                )
            )  # fmt: skip
        return _json(ApiError(error.status_code, str(error.detail)))

    app.add_exception_handler(ApiError, told)
    app.add_exception_handler(ForerunError, told)
    app.add_exception_handler(RequestValidationError, wrong)
    app.add_exception_handler(HTTPException, http)


def _json(error: ApiError) -> JSONResponse:
    return JSONResponse(error.body, error.status, error.headers)


def _add_status(app: FastAPI, service: Service, config: ServerConfig) -> None:
    @app.get("/health", responses={503: {"description": "The thread that computes has ended."}})
    async def health() -> Response:
        """Whether the server can still compute: 503 once its worker has ended."""
        worker = service.worker
        status = "ok" if worker.is_alive else "stopped" if worker.failure is None else "the worker has failed"
        return JSONResponse({"status": status}, 200 if worker.is_alive else 503)

    @app.get("/ready", responses={503: {"description": "No requests are taken (any more)."}})
    async def ready() -> Response:
        """Whether requests are taken: 503 while it starts and stops."""
        return JSONResponse({"ready": service.worker.is_ready}, 200 if service.worker.is_ready else 503)

    @app.get("/version")
    async def version() -> dict[str, str]:
        """The version of forerun."""
        return {"version": __version__}

    @app.get(
        "/metrics",
        responses={
            **ERRORS,
            200: {"description": "Metrics for Prometheus.", "content": {"text/plain": {"schema": {"type": "string"}}}},
        },
        response_class=Response,
    )
    async def metrics() -> Response:
        """What Prometheus reads."""
        service.refresh_metrics()
        return Response(service.metrics.text(), media_type=CONTENT_TYPE)

    if config.page:

        @app.get("/", include_in_schema=False)
        async def page() -> HTMLResponse:
            """The playground."""
            text, headers = playground()
            return HTMLResponse(text, headers=headers)


def _add_models(app: FastAPI, service: Service) -> None:
    @app.get("/v1/models", responses=ERRORS)
    async def models() -> dict[str, Any]:
        """What the model is called here."""
        return {"object": "list", "data": [service.model_card(name) for name in service.names]}

    @app.get("/v1/models/{name:path}", responses=ERRORS)
    async def model(name: str) -> dict[str, Any]:
        """One of these."""
        service.require_model(name)
        return service.model_card(name)

    @app.post("/tokenize", responses=ERRORS)
    async def tokenize(request: TokenizeRequest) -> dict[str, Any]:
        """The token ids of a text or of messages."""
        service.require_model(request.model)
        if (request.prompt is None) == (request.messages is None):
            raise ApiError(400, "prompt: give either prompt or messages", param="prompt")
        ids = await service.read(lambda: tokens_of(service.llm, request))
        found: dict[str, Any] = {"tokens": ids, "count": len(ids), "max_model_len": service.context_length}
        if request.return_token_strs:
            found["token_strs"] = [service.spelling.text(token) for token in ids]
        return with_warnings(found, request)

    @app.post("/detokenize", responses=ERRORS)
    async def detokenize(request: DetokenizeRequest) -> dict[str, Any]:
        """The text of token ids."""
        service.require_model(request.model)
        return with_warnings({"prompt": await service.read(lambda: text_of(service.llm, request.tokens))}, request)

    @app.get("/tokenizer_info", responses=ERRORS)
    async def tokenizer_info() -> dict[str, Any]:
        """What lm-eval and others ask before they use /tokenize: the special tokens, and the chat template."""
        tokenizer = need_tokenizer(service.llm)
        return {**tokenizer.parts.special_tokens, "chat_template": tokenizer.chat_template}

    for path, instead in REFUSED.items():
        app.add_api_route(path, _refusing(path, instead), methods=["POST"], include_in_schema=False)


def _refusing(path: str, instead: str) -> Callable[[], Awaitable[None]]:
    async def refuse() -> None:
        # Not 501: clients try again what fails with 5xx.
        raise ApiError(404, f"{path} is not served here; use {instead}", code="not_served")

    return refuse
