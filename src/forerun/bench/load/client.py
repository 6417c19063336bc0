"""One streamed completion over HTTP: when its chunks came, what they said, and how many tokens they held."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException, HTTPResponse, RemoteDisconnected
from time import perf_counter
from typing import Any
from urllib.parse import urlsplit

from forerun.bench.load.mix import Ask

TIMEOUT_S = 900.0
"""Without any byte for so long, a request has failed."""


@dataclass(slots=True)
class Answer:
    """What came of request number `index`. Times are `perf_counter` seconds; `arrivals` and `counts` have the time of
    every chunk with text, and its tokens (None: the server does not count by chunk). `end`: "done", "cut" (by the test,
    when its time was over) or "failed"."""

    index: int
    sent: float
    end: str = "failed"
    error: str | None = None
    text: str = ""
    finish_reason: str | None = None
    num_tokens: int | None = None
    num_prompt: int | None = None
    arrivals: list[float] = field(default_factory=list)
    counts: list[int | None] = field(default_factory=list)
    ids: set[str] = field(default_factory=set)

    @property
    def tokens_by_chunk(self) -> list[float]:
        """Tokens of every chunk: as counted, or the total spread evenly, or one each."""
        if self.counts and all(count is not None for count in self.counts):
            return [float(count or 0) for count in self.counts]
        chunks = len(self.arrivals)
        return [self.num_tokens / chunks if self.num_tokens is not None and chunks else 1.0] * chunks


class Client:
    """Asks one server, one request at a time, over one connection that is kept open. `cut` may be called from any
    thread: it ends what is being read."""

    def __init__(self, url: str, model: str | None = None) -> None:
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "127.0.0.1", parts.port or 80
        self._path = f"{parts.path.rstrip('/')}/v1/completions"
        self._extra = {} if model is None else {"model": model}
        self._connection: HTTPConnection | None = None
        self._socket: socket.socket | None = None
        self._is_cut = False

    def ask(self, index: int, ask: Ask) -> Answer:
        """Send and read to the end; never raises for what the server or the network do."""
        body = json.dumps({**self._extra, **ask.body}).encode()
        answer = Answer(index, perf_counter())
        try:
            response = self._send(body)
            if response.status != 200:
                answer.error = f"HTTP {response.status}: {response.read(500).decode(errors='replace')}"
                return answer
            self._read(response, answer)
        except (OSError, HTTPException, ValueError, KeyError, TypeError, AttributeError) as error:
            answer.error = f"{type(error).__name__}: {error}"
        finally:
            if answer.end != "done" or self._is_spent:
                self.close()
            if answer.end != "done" and self._is_cut:
                answer.end, answer.error = "cut", None
        return answer

    def cut(self) -> None:
        """End the request in flight, as a client that goes away does."""
        self._is_cut = True
        found = self._socket
        if found is not None:
            with suppress(OSError):
                found.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Hang up; the next request makes a new connection."""
        if self._connection is not None:
            self._connection.close()
        self._connection = self._socket = None

    def _send(self, body: bytes) -> HTTPResponse:
        """The response's head. A server may close a connection that it has answered on: then, as any client does, ask
        on another one."""
        is_used = self._connection is not None
        try:
            connection = self._connection or self._connect()
            connection.request("POST", self._path, body, {"Content-Type": "application/json"})
            return connection.getresponse()
        except (RemoteDisconnected, ConnectionError):
            if not is_used or self._is_cut:
                raise
            self.close()
            return self._send(body)

    @property
    def _is_spent(self) -> bool:
        """Whether the server has said that it closes the connection."""
        return self._connection is not None and self._connection.sock is None

    def _connect(self) -> HTTPConnection:
        found = HTTPConnection(self._host, self._port, timeout=TIMEOUT_S)
        found.connect()
        self._connection, self._socket = found, found.sock
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._is_cut:
            raise OSError("cut")
        return found

    def _read(self, response: HTTPResponse, answer: Answer) -> None:
        num_before = 0
        for data in events(response):
            if data == b"[DONE]":
                response.read()
                answer.end = "done" if answer.finish_reason is not None else "failed"
                if answer.end == "failed":
                    answer.error = answer.error or "the stream ended without a finish reason"
                return
            now, chunk = perf_counter(), json.loads(data)
            if chunk.get("error"):
                answer.error = str(chunk["error"].get("message", chunk["error"]))[:500]
                continue
            if chunk.get("id"):
                answer.ids.add(str(chunk["id"]))
            usage: dict[str, Any] = chunk.get("usage") or {}
            answer.num_prompt = usage.get("prompt_tokens", answer.num_prompt)
            total = usage.get("completion_tokens")
            if not chunk.get("choices"):
                answer.num_tokens = total if total is not None else answer.num_tokens
                continue
            (choice,) = chunk["choices"]
            answer.finish_reason = choice.get("finish_reason") or answer.finish_reason
            if total is not None:
                answer.num_tokens = total
            is_counted = total is not None and None not in answer.counts  # else it is only told at the end
            if choice["text"] or (is_counted and (total or 0) > num_before):
                answer.text += choice["text"]
                answer.arrivals.append(now)
                answer.counts.append(None if total is None else total - num_before)
                num_before = total or 0
        answer.error = "the stream ended without [DONE]"


def events(response: HTTPResponse) -> Iterator[bytes]:
    """The data of server-sent events as they arrive; comments are skipped."""
    rest = b""
    while piece := response.read1(65_536):
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                yield line[5:].strip()


def get(url: str, path: str, timeout_s: float = 10.0) -> tuple[int, Any]:
    """(status, document or None) of a GET; status 0 where there is no answer."""
    parts = urlsplit(url)
    connection = HTTPConnection(parts.hostname or "127.0.0.1", parts.port or 80, timeout=timeout_s)
    try:
        connection.request("GET", f"{parts.path.rstrip('/')}{path}")
        response = connection.getresponse()
        raw = response.read()
        try:
            return response.status, json.loads(raw)
        except ValueError:
            return response.status, None
    except (OSError, HTTPException):
        return 0, None
    finally:
        connection.close()
