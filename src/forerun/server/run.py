"""From a loaded LLM to a server that runs until it is told to stop, and then ends cleanly."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from contextlib import asynccontextmanager
from typing import Any

import uvicorn

from forerun.engine import KeptTexts
from forerun.errors import InputError
from forerun.llm import LLM
from forerun.server.app import make_app
from forerun.server.config import ServerConfig
from forerun.server.pace import Pacer
from forerun.server.service import Service

log = logging.getLogger("forerun.server")


def prepare(llm: LLM, config: ServerConfig) -> None:
    """Make an LLM that was loaded for one caller serve many: places, memory, pace, shared beginnings."""
    scheduler = llm.engine.scheduler
    scheduler.max_sequences = config.max_running
    scheduler.max_cached = config.max_cached
    scheduler.pace = Pacer(llm.engine.target, config.stall_ms)
    llm.engine.share(KeptTexts(llm.engine.target, config.max_kept, by_tenant=config.tenants))


def serve(llm: LLM, config: ServerConfig, name: str, ready: Callable[[str], Any] = lambda url: None) -> None:
    """Serve until SIGINT or SIGTERM. `ready` is told the address once requests are taken."""
    service = Service(llm, config, name)
    app = make_app(service, config)

    @asynccontextmanager
    async def lifespan(_: Any) -> Any:
        service.start()
        try:
            yield
        finally:
            await asyncio.to_thread(service.stop)

    app.router.lifespan_context = lifespan
    listening = bind(config)
    host, port = listening.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    for warning in config.warnings:
        log.warning(warning)
    server = uvicorn.Server(
        uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            timeout_keep_alive=10,
            timeout_graceful_shutdown=int(config.drain_s) + 5,
            limit_concurrency=4 * config.max_requests,
            h11_max_incomplete_event_size=64 * 1024,
        )
    )
    started = server.startup

    async def startup(sockets: Any = None) -> None:
        await started(sockets)
        ready(f"http://{shown}:{port}")

    server.startup = startup  # type: ignore[method-assign]
    try:
        server.run(sockets=[listening])
    finally:
        llm.close()


def bind(config: ServerConfig) -> socket.socket:
    """A socket at the address. InputError where it is taken or not ours."""
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    found = socket.socket(family, socket.SOCK_STREAM)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind((config.host, config.port))
    except OSError as error:
        found.close()
        raise InputError(
            f"cannot listen at {config.host}:{config.port}: {error.strerror or error}", "", "name another --port or --host"
        ) from error
    return found
