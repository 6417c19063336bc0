"""Clients that misbehave, servers of their own process, and what a server holds: for tests and for `faults_run`."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import httpx
from tests.server.serving import PATIENCE_S, wait_for

COMPLETIONS = "/v1/completions"
ENDS = ("close", "reset", "half", "cut", "first", "whole")
"""How a rapid client ends: at once, with a reset, by sending no more, in the middle of its request, after the first
bytes of its answer, or at once without having asked for a stream."""

MANY_RULES = "\n".join(f'r{i} ::= "a"{{0,{i}}} r{(i + 1) % 400} | "b"' for i in range(400))
EXPLODING: list[dict[str, Any]] = [
    {"regex": "(a|b|ab)*c(a|b|ab){90}"},
    {"regex": "((((a{0,99}){0,99}){0,99}){0,99}){0,99}b"},
    {"regex": "(.{0,200}x){0,200}"},
    {"grammar": 'root ::= ("a" | "b" root){0,99} root2\nroot2 ::= ("c"{0,99} "d"){0,99}'},
    {"grammar": "root ::= " + " | ".join(f"r{i}" for i in range(400)) + "\n" + MANY_RULES},
    {"guided_json": {"allOf": [{"anyOf": [{"properties": {f"{s}{i}": {}}} for s in "ab"]} for i in range(30)]}},
    {"guided_json": {"type": "object", "properties": {f"p{i}": {"type": "integer"} for i in range(400)}}},
    {"guided_json": {"type": "array", "minItems": 900, "maxItems": 9000, "items": {"type": "string", "maxLength": 9}}},
    {"guided_json": {"enum": [f"{i * 7919}" for i in range(20_000)]}},
    {"guided_choice": [f"{i * 7919} of many" for i in range(20_000)]},
    {"guided_json": {"$ref": "#/$defs/a", "$defs": {
        "a": {"anyOf": [{"type": "array", "items": {"$ref": "#/$defs/a"}}, {"type": "null"}] * 40}}}},
]  # fmt: skip
"""Wishes whose states are many: to be refused, or to be followed in bounded time."""


class Client:
    """A connection of its own, spoken to byte by byte."""

    def __init__(self, url: str, buffer: int | None = None) -> None:
        host, port = url.removeprefix("http://").split(":")
        self.socket = socket.socket()
        if buffer is not None:  # before connecting, or it has no effect on the window
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        self.socket.settimeout(PATIENCE_S)
        self.socket.connect((host, int(port)))

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: Any) -> None:
        self.socket.close()

    def head(self, *lines: str, path: str = COMPLETIONS) -> None:
        """The head of a request; `lines` say how its body comes."""
        whole = (f"POST {path} HTTP/1.1", "Host: a", "Content-Type: application/json", *lines, "", "")
        self.socket.sendall("\r\n".join(whole).encode())

    def ask(self, path: str = COMPLETIONS, **body: Any) -> None:
        """A whole request."""
        sent = json.dumps(body).encode()
        self.head(f"Content-Length: {len(sent)}", path=path)
        self.socket.sendall(sent)

    def send(self, parts: Iterable[bytes]) -> int:
        """Bytes sent until there are no more parts or the server hangs up."""
        num = 0
        try:
            for part in parts:
                self.socket.sendall(part)
                num += len(part)
        except OSError:
            pass
        return num

    def rest(self) -> bytes:
        """What the server says until it hangs up."""
        found = b""
        try:
            while part := self.socket.recv(65536):
                found += part
        except ConnectionResetError:
            pass
        return found

    def reset(self) -> None:
        """End without a goodbye: the other side gets RST, as when a process is killed with unread data."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()


def cancel_rapidly(url: str, number: int, **body: Any) -> None:
    """Ask and go away, in the way that `number` stands for."""
    end = ENDS[number % len(ENDS)]
    with Client(url) as client:
        if end == "cut":
            client.head("Content-Length: 1000")
            client.socket.sendall(b'{"prompt": ')
            return
        client.ask(**{"prompt": f"the water is {number}", "max_tokens": 400, "stream": end != "whole", **body})
        if end == "reset":
            client.reset()
        elif end == "half":
            client.socket.shutdown(socket.SHUT_WR)
            client.rest()
        elif end == "first":
            client.socket.recv(1)


def cancel_many(url: str, num: int, num_threads: int = 8, **body: Any) -> None:
    """`num` rapid clients, of `num_threads` at once."""

    def some(first: int) -> None:
        for number in range(first, num, num_threads):
            try:
                cancel_rapidly(url, number, **body)
            except OSError as error:
                failures.append(error)

    failures: list[OSError] = []
    threads = [threading.Thread(target=some, args=(first,)) for first in range(num_threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures[:3]


class Process:
    """`forerun serve` in a process of its own, on a free port; leaving the block kills what still runs."""

    def __init__(self, *args: str, program: tuple[str, ...] = ("-m", "forerun")) -> None:
        self.popen = subprocess.Popen(
            [sys.executable, *program, "serve", *args, "--port", "0"],
            stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )  # fmt: skip
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)  # or the pipe fills, and the server stands
        self._reader.start()
        self.url = ""

    def _read(self) -> None:
        assert self.popen.stderr is not None
        for line in self.popen.stderr:
            self.lines.append(line.decode(errors="replace").rstrip())

    def __enter__(self) -> Process:
        try:
            wait_for(lambda: self._address() or self.popen.poll() is not None)
            self.url = self._address()
            assert self.url, self.lines
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: Any) -> None:
        self.popen.kill()
        self.popen.wait()
        self._reader.join()
        assert self.popen.stderr is not None
        self.popen.stderr.close()

    def _address(self) -> str:
        return next((line.split(" at ")[1].strip() for line in list(self.lines) if "serving " in line), "")

    def stop(self, number: int = signal.SIGTERM) -> None:
        """Send a signal, and go on."""
        self.popen.send_signal(number)

    def ended(self) -> int:
        """Its exit code, once it has ended."""
        code = self.popen.wait(PATIENCE_S)
        self._reader.join()
        return code

    def post(self, **body: Any) -> httpx.Response:
        return httpx.post(self.url + COMPLETIONS, json={"temperature": 0, **body}, timeout=PATIENCE_S)

    def figures(self) -> dict[str, int]:
        """What it holds now: of the system, and of the engine."""
        found = {"files": len(list(Path(f"/proc/{self.popen.pid}/fd").iterdir()))}
        status = Path(f"/proc/{self.popen.pid}/status").read_text("ascii")
        for name, word in (("threads", "Threads"), ("memory_kib", "VmRSS"), ("peak_kib", "VmHWM")):
            found[name] = int(re.search(rf"{word}:\s+(\d+)", status)[1])  # type: ignore[index]
        text = httpx.get(self.url + "/metrics", timeout=PATIENCE_S).text
        for gauge in ("requests_held", "sequences_running", "sequences_waiting", "cached_tokens", "kept_tokens"):
            found[gauge] = int(float(re.search(rf"^forerun_{gauge}{{.*}} (\S+)$", text, re.M)[1]))  # type: ignore[index]
        return found

    def settle(self) -> dict[str, int]:
        """The figures once nothing is held and every connection is closed but those that stay open for a while."""
        idle = ("requests_held", "sequences_running", "sequences_waiting", "cached_tokens")
        wait_for(lambda: not any(self.figures()[name] for name in idle))
        return self.figures()
