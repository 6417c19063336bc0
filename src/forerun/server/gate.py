"""What every request passes before anything reads it: its id, its key, its size, and the patience that it gets."""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import Callable
from time import perf_counter
from typing import Any
from uuid import uuid4

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from forerun.server.config import ServerConfig
from forerun.server.errors import ApiError, api_error, crowded, unauthorized
from forerun.server.telemetry import span

log = logging.getLogger("forerun.server")

OPEN_PATHS = ("/health", "/ready", "/version", "/", "/favicon.ico")
"""Paths that need no key: they tell nothing, and whoever watches a server has none."""

JSON = ("application/json",)
HEAD_S = 20.0
"""Seconds in which the head of a request has to be there once it has begun to come."""


class Connection(H11Protocol):
    """uvicorn's connection, which also ends clients that never finish the head of a request, and lets the gate end one
    that does not read."""

    _patience: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.app_state = {**self.app_state, "transport": transport, "connections": self.connections}
        self._patience = self.loop.call_later(HEAD_S, transport.abort)

    def data_received(self, data: bytes) -> None:
        before = self.cycle
        super().data_received(data)
        if self.cycle is not before:
            self._end_patience()
        elif self._patience is None and (self.cycle is None or self.cycle.response_complete):
            self._patience = self.loop.call_later(HEAD_S, self.transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_patience()
        super().connection_lost(exc)

    def _end_patience(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None


class _GoneError(Exception):
    """The client has hung up before its request was complete."""


class _Sent:
    """An ASGI `send` that adds the request's id, notes the status, and ends a client that does not read for too long:
    closing would wait for it, so its connection is aborted, which the application sees as any other end of it."""

    def __init__(
        self, send: Send, request_id: str, transport: asyncio.Transport | None, patience_s: float | None
    ) -> None:
        self._send, self._request_id, self._transport, self._patience_s = send, request_id, transport, patience_s
        self.status = 0

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message["headers"] = [*message.get("headers", ()), (b"x-request-id", self._request_id.encode())]
        if self._transport is None or self._patience_s is None:
            await self._send(message)
            return
        timer = asyncio.get_running_loop().call_later(self._patience_s, self._abort, self._transport)
        try:
            await self._send(message)
        finally:
            timer.cancel()

    def _abort(self, transport: asyncio.Transport) -> None:
        log.warning("a client does not read its answer", extra={"request_id": self._request_id})
        transport.abort()


class Gate:
    """ASGI middleware: request ids, API keys, the bound of bodies, and the time that clients get to send and read."""

    def __init__(
        self, app: ASGIApp, config: ServerConfig, note: Callable[[str, str, int], None] = lambda *_: None
    ) -> None:
        self._app, self._config, self._note = app, config, note  # note: told route, method and status of every answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        state: dict[str, Any] = scope.setdefault("state", {})
        headers = {name.lower(): value for name, value in scope["headers"]}
        state["request_id"], state["told"] = _request_id(headers), {}
        started = perf_counter()
        with span(scope["method"], scope["path"], headers) as end:
            sent = _Sent(send, state["request_id"], state.pop("transport", None), self._config.send_s or None)
            try:
                await self._pass(scope, headers, receive, sent)
            finally:
                ms, told = 1e3 * (perf_counter() - started), state["told"]
                end(sent.status, told)
                self._note(getattr(scope.get("route"), "path", "other"), scope["method"], sent.status)
                log.info(
                    "%s %s %d %.0f ms", scope["method"], scope["path"], sent.status, ms,
                    extra={"request_id": state["request_id"], "path": scope["path"], "status": sent.status,
                           "ms": round(ms, 1), **told},
                )  # fmt: skip

    async def _pass(self, scope: Scope, headers: dict[bytes, bytes], receive: Receive, sent: _Sent) -> None:
        """Let a request through, or refuse it; whatever it raises becomes an answer."""
        about = {"request_id": scope["state"]["request_id"]}
        try:
            if len(scope["state"].pop("connections", ())) > most_connections(self._config):
                raise crowded()
            self._check(scope, headers)
            body = await self._body(receive)
            self._check_kind(headers, body)
            await self._app(scope, _again(body, receive), sent)
        except _GoneError:
            log.info("a client has gone before its request was complete", extra=about)
        except Exception as error:
            found = api_error(error)
            if not isinstance(error, ApiError):
                log.exception("a request has failed", extra=about)
            if sent.status:
                raise
            await JSONResponse(found.body, found.status, found.headers)(scope, receive, sent)

    def _check(self, scope: Scope, headers: dict[bytes, bytes]) -> None:
        keys = self._config.api_keys
        if keys and scope["path"] not in OPEN_PATHS:
            kind, _, key = headers.get(b"authorization", b"").decode("latin-1").partition(" ")
            matches = [hmac.compare_digest(key.strip().encode("latin-1"), known.encode()) for known in keys]
            if kind.lower() != "bearer" or not any(matches):
                raise unauthorized()
            scope["state"]["tenant"] = f"key {matches.index(True)}"
        length = headers.get(b"content-length", b"0")
        if length.isdigit() and int(length[:20]) > self._config.max_body:
            raise self._too_large()

    async def _body(self, receive: Receive) -> bytes:
        """All of the request's body. What is too large is not kept, and what does not come is not waited for."""

        async def read() -> bytes:
            parts: list[bytes] = []
            size = 0
            while True:
                message = await receive()
                if message["type"] != "http.request":
                    raise _GoneError
                size += len(message.get("body", b""))
                if size > self._config.max_body:
                    raise self._too_large()
                parts.append(message.get("body", b""))
                if not message.get("more_body", False):
                    return b"".join(parts)

        try:
            return await asyncio.wait_for(read(), self._config.receive_s or None)
        except (asyncio.TimeoutError, TimeoutError):
            raise ApiError(
                408, f"the request did not come in {self._config.receive_s:g} seconds", code="request_timeout",
                headers={"Connection": "close"},
            ) from None  # fmt: skip

    def _check_kind(self, headers: dict[bytes, bytes], body: bytes) -> None:
        """Only JSON is read. A form that some page submits in a browser is not, so that it asks nothing unnoticed."""
        kind = headers.get(b"content-type", b"").decode("latin-1")
        if body and kind.partition(";")[0].strip().lower() not in JSON:
            raise ApiError(
                415, f"the body is {kind or 'of no named type'}; send JSON (header: Content-Type: application/json)",
                code="unsupported_media_type",
            )  # fmt: skip

    def _too_large(self) -> ApiError:
        most = self._config.max_body
        return ApiError(413, f"the request is larger than {most:,} bytes", code="request_too_large")


def most_connections(config: ServerConfig) -> int:
    """Connections that are served at once: of requests that are held, of those being refused, and some to watch."""
    return 4 * config.max_requests + 64


def _request_id(headers: dict[bytes, bytes]) -> str:
    """The id that the client gave, if it is a sane one, else a new one."""
    given = headers.get(b"x-request-id", b"").decode("latin-1")
    return given if given.isascii() and given.isprintable() and 0 < len(given) <= 128 else uuid4().hex


def _again(body: bytes, receive: Receive) -> Receive:
    """What was read, to be read once more; then what comes."""
    is_told = False

    async def again() -> Message:
        nonlocal is_told
        if is_told:
            return await receive()
        is_told = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again
