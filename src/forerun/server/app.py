"""The HTTP side: routes, keys, limits, and answers as they come."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from time import perf_counter
from typing import Any
from uuid import uuid4

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from forerun.result import Piece, Result
from forerun.server.answers import ChatChoice, CompletionChoice, Head, running_usage, speculation, usage
from forerun.server.config import ServerConfig
from forerun.server.errors import ApiError, api_error, no_such_model, not_found, unauthorized
from forerun.server.metrics import CONTENT_TYPE
from forerun.server.page import playground
from forerun.server.requests import ChatRequest, CompletionRequest, DetokenizeRequest, Sampled, TokenizeRequest
from forerun.server.sampling import Asked, understood
from forerun.server.service import Service, Ticket
from forerun.server.tools import ToolWish, wish_of
from forerun.version import __version__

log = logging.getLogger("forerun.server")

OPEN_PATHS = ("/health", "/ready", "/version", "/", "/favicon.ico")
"""Paths that need no key: they tell nothing, and whoever watches a server has none."""


def make_app(service: Service, config: ServerConfig) -> FastAPI:
    """The application over a service that is running."""
    app = FastAPI(title="forerun", version=__version__, docs_url="/docs", redoc_url=None)
    app.state.service = service
    if config.cors_origins:
        app.add_middleware(
            CORSMiddleware, allow_origins=list(config.cors_origins), allow_methods=["*"], allow_headers=["*"],
            expose_headers=["x-request-id"],
        )  # fmt: skip
    app.add_middleware(Gate, config=config, service=service)
    _add_errors(app)
    _add_status(app, service, config)
    _add_models(app, service, config)
    _add_generation(app, service, config)
    return app


class Gate:
    """Before anything else: a request's id, its key, and how much it may send."""

    def __init__(self, app: ASGIApp, config: ServerConfig, service: Service) -> None:
        self._app, self._config, self._service = app, config, service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {name.lower(): value for name, value in scope["headers"]}
        given = headers.get(b"x-request-id", b"").decode("latin-1")
        request_id = given if given.isprintable() and 0 < len(given) <= 128 else uuid4().hex
        scope.setdefault("state", {})["request_id"] = request_id
        started = perf_counter()
        status = 500

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", request_id.encode())]
            await asyncio.wait_for(send(message), self._config.send_s or None)

        try:
            self._check(scope, headers)
            await self._app(scope, self._bounded(receive), answer)
        except ApiError as error:
            await _json(error)(scope, receive, answer)
        except (asyncio.TimeoutError, TimeoutError):
            log.warning("a client does not read its answer", extra={"request_id": request_id})
        finally:
            route = getattr(scope.get("route"), "path", "other")
            self._service.metrics.note_response(route, scope["method"], status)
            log.info(
                "%s %s %d %.0f ms", scope["method"], scope["path"], status, 1e3 * (perf_counter() - started),
                extra={"request_id": request_id, "path": scope["path"], "status": status,
                       "ms": round(1e3 * (perf_counter() - started), 1)},
            )  # fmt: skip

    def _check(self, scope: Scope, headers: dict[bytes, bytes]) -> None:
        keys = self._config.api_keys
        if keys and scope["path"] not in OPEN_PATHS and scope["method"] != "OPTIONS":
            kind, _, key = headers.get(b"authorization", b"").decode("latin-1").partition(" ")
            matches = [hmac.compare_digest(key.strip().encode(), known.encode()) for known in keys]
            if kind.lower() != "bearer" or not any(matches):
                raise unauthorized()
            scope["state"]["tenant"] = f"key {matches.index(True)}"
        length = headers.get(b"content-length", b"0")
        if length.isdigit() and int(length) > self._config.max_body:
            raise self._too_large()

    def _bounded(self, receive: Receive) -> Receive:
        left = self._config.max_body

        async def bounded() -> Message:
            nonlocal left
            message = await receive()
            left -= len(message.get("body", b""))
            if left < 0:
                raise self._too_large()
            return message

        return bounded

    def _too_large(self) -> ApiError:
        most = self._config.max_body
        return ApiError(413, f"the request is larger than {most:,} bytes", code="request_too_large")


def _json(error: ApiError) -> JSONResponse:
    return JSONResponse(error.body, error.status, error.headers)


def _add_errors(app: FastAPI) -> None:
    async def told(request: Request, error: Exception) -> Response:
        found = api_error(error)
        if found.status >= 500:
            log.exception("a request has failed", exc_info=error)
        return _json(found)

    async def invalid(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"] if part not in ("body",))
        kind = "the body is no JSON" if first["type"] == "json_invalid" else f"{place or 'body'}: {first['msg']}"
        return _json(ApiError(400, kind, param=place or None, code="invalid_request"))

    async def http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        if error.status_code == 404:
            return _json(not_found(request.url.path))
        if error.status_code == 405:
            return _json(ApiError(405, f"{request.method} is not served at {request.url.path}", headers=dict(error.headers or {})))
        return _json(ApiError(error.status_code, str(error.detail)))

    app.add_exception_handler(ApiError, told)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, http)
    app.add_exception_handler(UnicodeDecodeError, lambda request, error: _json(ApiError(400, "the body is no UTF-8")))
    app.add_exception_handler(Exception, told)


def _add_status(app: FastAPI, service: Service, config: ServerConfig) -> None:
    @app.get("/health")
    async def health() -> Response:
        """Whether the process lives: 503 once its worker has ended."""
        is_alive = service.worker.is_alive
        return JSONResponse({"status": "ok" if is_alive else "the worker has ended"}, 200 if is_alive else 503)

    @app.get("/ready")
    async def ready() -> Response:
        """Whether requests are taken: 503 while it starts and stops."""
        return JSONResponse({"ready": service.worker.is_ready}, 200 if service.worker.is_ready else 503)

    @app.get("/version")
    async def version() -> dict[str, str]:
        return {"version": __version__}

    @app.get("/metrics")
    async def metrics() -> Response:
        service.refresh_metrics()
        return Response(service.metrics.text(), media_type=CONTENT_TYPE)

    if config.page:

        @app.get("/", include_in_schema=False)
        async def page() -> HTMLResponse:
            """The playground."""
            text, headers = playground()
            return HTMLResponse(text, headers=headers)


def _add_models(app: FastAPI, service: Service, config: ServerConfig) -> None:
    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [service.model_card(name) for name in service.names]}

    @app.get("/v1/models/{name:path}")
    async def model(name: str) -> dict[str, Any]:
        if name not in service.names:
            raise no_such_model(name, service.names)
        return service.model_card(name)

    @app.post("/tokenize")
    async def tokenize(request: TokenizeRequest) -> dict[str, Any]:
        """The token ids of a text or of messages."""
        if (request.prompt is None) == (request.messages is None):
            raise ApiError(400, "prompt: give either prompt or messages", param="prompt")
        ids = await asyncio.to_thread(service.tokens_of, request)
        found: dict[str, Any] = {"tokens": ids, "count": len(ids), "max_model_len": service.context_length}
        if request.return_token_strs:
            found["token_strs"] = [service.spelled(token) for token in ids]
        return found

    @app.post("/detokenize")
    async def detokenize(request: DetokenizeRequest) -> dict[str, str]:
        """The text of token ids."""
        return {"prompt": await asyncio.to_thread(service.text_of, request.tokens)}

    for path, instead in (("/v1/embeddings", "a model that embeds"), ("/v1/responses", "/v1/chat/completions")):
        app.add_api_route(path, _refusing(path, instead), methods=["POST"], include_in_schema=False)


def _refusing(path: str, instead: str) -> Callable[[], Awaitable[None]]:
    async def refuse() -> None:
        raise ApiError(501, f"{path} is not served here; use {instead}", code="not_served")

    return refuse


def _add_generation(app: FastAPI, service: Service, config: ServerConfig) -> None:
    @app.post("/v1/completions")
    async def completions(request: CompletionRequest, http: Request) -> Response:
        """Texts that go on from prompts."""
        _check_model(service, request)
        prompts = service.prompts_of(request)
        asked = _understood(service, config, request, http)
        head = Head("text_completion", service.name_for(request.model), service.fingerprint, "cmpl")
        ticket = await service.open(prompts, asked)
        choices = _completion_choices(service, request, asked, ticket)
        return await _answer(http, request, asked, head, ticket, choices, service)

    @app.post("/v1/chat/completions")
    async def chats(request: ChatRequest, http: Request) -> Response:
        """The next message of a conversation."""
        _check_model(service, request)
        wish = wish_of(request)
        asked = _understood(service, config, request, http, wish)
        chunk = "chat.completion.chunk" if request.stream else "chat.completion"
        head = Head(chunk, service.name_for(request.model), service.fingerprint, "chatcmpl")
        template = service.template_of(request, wish)
        ticket = await service.open([request.messages], asked, template)
        begins_inside = await asyncio.to_thread(service.begins_inside, request.messages, template)
        choices = [ChatChoice(i, wish, begins_inside, service.spelled) for i in range(asked.params.n)]
        return await _answer(http, request, asked, head, ticket, choices, service)


def _check_model(service: Service, request: Sampled) -> None:
    if request.model is not None and request.model not in service.names:
        raise no_such_model(request.model, service.names)


def _understood(
    service: Service, config: ServerConfig, request: CompletionRequest | ChatRequest, http: Request,
    wish: ToolWish | None = None,
) -> Asked:  # fmt: skip
    tenant = getattr(http.state, "tenant", None) if config.tenants else None
    return understood(
        request,
        default_max_tokens=config.default_max_tokens if isinstance(request, CompletionRequest) else None,
        deadline_s=config.deadline_s,
        sources=service.sources,
        tenant=tenant,
        schema=None if wish is None else wish.schema,
    )


def _completion_choices(
    service: Service, request: CompletionRequest, asked: Asked, ticket: Ticket
) -> list[CompletionChoice]:
    """One for each text: those of the first prompt, then those of the second, as in the OpenAI API."""
    return [
        CompletionChoice(number * asked.params.n + i, service.spelled, service.text_of(tokens) if request.echo else "")
        for number, tokens in enumerate(ticket.prompt_tokens)
        for i in range(asked.params.n)
    ]


async def _answer(
    http: Request, request: Sampled, asked: Asked, head: Head, ticket: Ticket,
    choices: Sequence[ChatChoice] | Sequence[CompletionChoice], service: Service,
) -> Response:  # fmt: skip
    if request.stream:
        events = _events(request, asked, head, ticket, choices)
        first = await _first(events, ticket)
        return StreamingResponse(_chained(first, events, ticket), media_type="text/event-stream", headers={"Cache-Control": "no-cache"})
    return await _whole(http, asked, head, ticket, choices)


async def _first(events: AsyncIterator[str], ticket: Ticket) -> str:
    """The first event, so that a request which fails at once gets its status and not a broken stream."""
    try:
        return await anext(events)
    except BaseException:
        ticket.close()
        raise


async def _chained(first: str, events: AsyncIterator[str], ticket: Ticket) -> AsyncIterator[str]:
    try:
        yield first
        async for event in events:
            yield event
    finally:
        ticket.close()


async def _events(
    request: Sampled, asked: Asked, head: Head, ticket: Ticket,
    choices: Sequence[ChatChoice] | Sequence[CompletionChoice],
) -> AsyncIterator[str]:  # fmt: skip
    """Server-sent events, the last one [DONE]. An error in the middle is an event of its own, and ends the stream."""
    options = request.stream_options
    wants_usage = options is not None and options.include_usage
    results: list[Result] = []
    is_first = True
    try:
        async for number, event in ticket.events():
            if isinstance(event, Result):
                results.append(event)
                continue
            for index, pieces in _by_choice(event.pieces, number, asked.params.n):
                choice = choices[index].add(pieces)
                if choice is None and not asked.explains:
                    continue
                if choice is None:
                    choice = choices[index].nothing()
                document = head.with_(choices=[choice])
                if wants_usage:
                    document["usage"] = None
                    if options is not None and options.continuous_usage_stats:
                        document["usage"] = running_usage(ticket.num_prompt, ticket.num_written)
                if asked.explains:
                    document["forerun"] = {
                        "tokens": [
                            {"text": piece.text, "token": piece.token, "origin": piece.origin}
                            for piece in pieces if piece.token is not None
                        ],
                        "rounds": [
                            {"proposed": proposed, "accepted": accepted}
                            for place, proposed, accepted in event.rounds if number * asked.params.n + place == index
                        ],
                    }  # fmt: skip
                if is_first and asked.warnings:
                    document["warnings"] = asked.warnings
                is_first = False
                yield _event(document)
        last = head.with_(choices=[])
        if asked.explains:
            last["speculation"] = speculation(results)
        if wants_usage:
            last["usage"] = usage(results)
        if wants_usage or asked.explains:
            yield _event(last)
        yield "data: [DONE]\n\n"
    except Exception as error:
        found = api_error(error)
        if is_first:
            raise found from error
        if found.status >= 500:
            log.exception("a stream has failed")
        yield _event(found.body)


def _event(document: dict[str, Any]) -> str:
    return f"data: {json.dumps(document, ensure_ascii=False, separators=(',', ':'))}\n\n"


def _by_choice(pieces: Sequence[Piece], number: int, n: int) -> list[tuple[int, list[Piece]]]:
    found: dict[int, list[Piece]] = {}
    for piece in pieces:
        found.setdefault(number * n + piece.choice, []).append(piece)
    return sorted(found.items())


async def _whole(
    http: Request, asked: Asked, head: Head, ticket: Ticket,
    choices: Sequence[ChatChoice] | Sequence[CompletionChoice],
) -> Response:  # fmt: skip
    """An answer in one piece. Whoever hangs up meanwhile has no use for it: the request is cancelled."""
    watching = asyncio.ensure_future(_hung_up(http))
    collecting = asyncio.ensure_future(_collect(asked, ticket, choices))
    try:
        await asyncio.wait({watching, collecting}, return_when=asyncio.FIRST_COMPLETED)
        if not collecting.done():
            raise ApiError(499, "the client has gone", code="client_closed")
        results = collecting.result()
    finally:
        for task in (watching, collecting):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await task
        ticket.close()
    document = head.with_(choices=[choice.whole() for choice in choices], usage=usage(results))
    if asked.explains:
        document["speculation"] = speculation(results)
    if asked.warnings:
        document["warnings"] = asked.warnings
    return JSONResponse(document)


async def _collect(
    asked: Asked, ticket: Ticket, choices: Sequence[ChatChoice] | Sequence[CompletionChoice]
) -> list[Result]:
    """Read to the end. With best_of the best texts are known then, and are the ones that are answered with."""
    results: list[Result] = []
    ranked = asked.params.ranks_choices
    async for number, event in ticket.events():
        if isinstance(event, Result):
            results.append(event)
            for place, one in enumerate(event.choices):
                choice = choices[number * asked.params.n + place]
                if isinstance(choice, CompletionChoice):
                    choice.begin(event.prompt_logprobs, ticket.prompt_tokens[number])
                if ranked or isinstance(choice, CompletionChoice):
                    choice.add(_pieces_of(one))
        elif isinstance(choices[0], ChatChoice):
            for index, pieces in _by_choice(event.pieces, number, asked.params.n):
                choices[index].add(pieces)
    return results


def _pieces_of(result: Result) -> list[Piece]:
    """The pieces of a finished text: the texts of its tokens are no longer known one by one, so the first has all."""
    entries = result.logprobs or ()
    found = [
        Piece(result.text if i == 0 else "", token, origin, None, entries[i] if entries else None)
        for i, (token, origin) in enumerate(zip(result.tokens, result.origins, strict=True))
    ]
    rest = result.text if not found else ""
    return [*found, Piece(rest, None, None, result.finish_reason)]


async def _hung_up(http: Request) -> None:
    while (await http.receive())["type"] != "http.disconnect":
        pass
