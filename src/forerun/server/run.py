"""From a loaded LLM to a server that runs until it is told to stop, and then ends cleanly."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

from forerun.engine import KeptTexts
from forerun.errors import InputError
from forerun.llm import LLM
from forerun.server.app import make_app
from forerun.server.config import ServerConfig
from forerun.server.gate import Connection
from forerun.server.pace import Pacer, pass_ms
from forerun.server.service import Service

log = logging.getLogger("forerun.server")

KEEP_ALIVE_S = 10
"""Seconds that a connection without a request stays open."""

REFUSAL_S = 5
"""Seconds that clients get to read how their requests ended, once the server has given them up."""


def prepare(llm: LLM, config: ServerConfig) -> None:
    """Make an LLM that was loaded for one caller serve many: places, memory, pace, shared beginnings. Whatever has to
    be measured is measured here, and not while somebody waits."""
    scheduler = llm.engine.scheduler
    scheduler.max_sequences = config.max_running
    scheduler.max_cached = config.max_cached
    scheduler.pace = Pacer(pass_ms(llm), config.stall_ms)
    llm.engine.share(KeptTexts(llm.engine.target, config.max_kept, by_tenant=config.tenants))


def serve(llm: LLM, config: ServerConfig, name: str, ready: Callable[[str], Any] = lambda url: None) -> None:
    """Serve until SIGINT or SIGTERM, then let what runs finish for `drain_s` seconds. `ready` is told the address once
    requests are taken. InputError where the address is taken."""
    listening = bind(config)
    server = Server(llm, config, name, listening, ready)
    for warning in config.warnings:
        log.warning(warning)
    with _signals_noted():
        server.run(sockets=[listening])
    if not server.service.worker.is_alive:  # else a pass never ends, and the LLM cannot be closed
        llm.close()


class Server(uvicorn.Server):
    """uvicorn, whose requests are computed by a service that is started and stopped with it."""

    def __init__(
        self, llm: LLM, config: ServerConfig, name: str, listening: socket.socket,
        ready: Callable[[str], Any] = lambda url: None,
    ) -> None:  # fmt: skip
        self.service = Service(llm, config, name)
        self.url, self._ready = address(listening), ready
        super().__init__(
            uvicorn.Config(
                make_app(self.service, config),
                http=Connection,
                ws="none",
                log_config=None,
                access_log=False,
                lifespan="off",
                timeout_keep_alive=KEEP_ALIVE_S,
                timeout_graceful_shutdown=int(config.drain_s) + REFUSAL_S,
                h11_max_incomplete_event_size=64 * 1024,
            )
        )

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Take requests."""
        self.service.start()
        await super().startup(sockets)
        self._ready(self.url)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Take no more, and let what runs finish or fail. A second Ctrl-C waits for nothing."""
        stopping = asyncio.ensure_future(asyncio.to_thread(self.service.stop))
        await super().shutdown(sockets)
        while not stopping.done():
            if self.force_exit:
                self.service.worker.give_up()
                break
            await asyncio.wait({stopping}, timeout=0.1)


def address(listening: socket.socket) -> str:
    """The URL of a socket."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


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
            f"cannot listen at {config.host}:{config.port}: {error.strerror or error}", "",
            "name another --port or --host",
        ) from error  # fmt: skip
    return found


@contextmanager
def _signals_noted() -> Iterator[None]:
    """uvicorn raises the signal that stopped it again when it has ended: to have been told to stop is no failure."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
