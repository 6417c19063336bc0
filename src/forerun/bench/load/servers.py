"""The servers of a load test: commands that it starts and ends itself, or addresses of ones that run."""

from __future__ import annotations

import os
import shlex
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from forerun.bench.load.client import get
from forerun.errors import ForerunError, ParameterError

START_S = 900.0
"""Loading weights takes long on a busy machine."""
STOP_S = 90.0
IDLE_S = 60.0
"""How long a server may go on computing after its clients have gone, before the next one is measured all the same."""
UNKNOWN_S = 0.5
"""The same for a server whose process is not known."""
OWN = "forerun"
NEED = "NAME=COMMAND with {port} in it, or NAME=http://HOST:PORT [pid=N]"


@dataclass(frozen=True, slots=True)
class ServerSpec:
    """A server that is to be measured. `command` has placeholders ({port}, {clients}, {context}, {target}, {draft},
    {python}); without one, it runs at `url` already, in process `pid` if that is known."""

    name: str
    command: tuple[str, ...] = ()
    url: str | None = None
    pid: int | None = None


def parse_server(text: str, own: Sequence[str]) -> ServerSpec:
    """A server from NAME=COMMAND or NAME=URL [pid=N]; the name alone that forerun has is its `own` command."""
    name, mark, rest = (part.strip() for part in text.partition("="))
    if text.strip() == OWN:
        return ServerSpec(OWN, tuple(own))
    try:
        words = shlex.split(rest)
    except ValueError as error:
        raise ParameterError("server", f"{text!r} cannot be read: {error}", NEED) from None
    if not name or not mark or not words:
        raise ParameterError("server", f"{text!r} is not allowed", NEED)
    if words[0].startswith("http://"):
        return ServerSpec(name, (), words[0].rstrip("/"), _pid(text, words[1:]))
    if not any("{port}" in word for word in words):
        raise ParameterError("server", f"the command of {name!r} has no {{port}}", NEED)
    return ServerSpec(name, tuple(words))


def own_command(target: str, draft: str | None, flags: Mapping[str, Any]) -> tuple[str, ...]:
    """`forerun serve` with the models of the bench; `flags` are further ones (None: not given, True: no value)."""
    words = ["{python}", "-m", "forerun", "serve", target, "--port", "{port}"]
    for name, value in {"--draft": draft, **flags}.items():
        if value is True:
            words.append(name)
        elif value not in (None, False):
            words += [name, str(value)]
    return tuple(words)


class Server:
    """A server that is measured. `with Server(spec, places) as one` starts it, waits until it answers and ends it."""

    def __init__(self, spec: ServerSpec, places: Mapping[str, Any]) -> None:
        self.name, self.spec, self.pid = spec.name, spec, spec.pid
        self.url = spec.url or ""
        self.model: str | None = None
        self.is_exact = False
        self.words: list[str] = []
        self._places = places
        self._process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None

    def __enter__(self) -> Server:
        try:
            if self.spec.command:
                self._start()
            self._wait()
            self._who()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: Any) -> None:
        process = self._process
        if process is not None and process.poll() is None:
            process.terminate()
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if self._log is not None:
            self._log.close()
        self._process = self._log = None

    @property
    def is_alive(self) -> bool:
        """Whether it runs, as far as one can tell."""
        return self._process is None or self._process.poll() is None

    def rss_mb(self) -> float | None:
        """Resident memory in MB (1e6 bytes); None where the process is not known."""
        return None if self.pid is None else resident_mb(self.pid)

    def cpu_s(self) -> float | None:
        """Processor seconds that it has used so far."""
        return None if self.pid is None else cpu_seconds(self.pid)

    def settle(self) -> None:
        """Wait until it computes nothing any more for clients that have gone."""
        deadline = time.monotonic() + IDLE_S
        before = self.cpu_s()
        while before is not None and time.monotonic() < deadline:
            time.sleep(0.3)
            now = self.cpu_s()
            if now is None or now - before < 0.03:
                return
            before = now
        if before is None:
            time.sleep(UNKNOWN_S)

    def _start(self) -> None:
        port = free_port()
        places = {"port": port, "python": sys.executable, **self._places}
        self.words = [_filled(word, places) for word in self.spec.command]
        self.url = f"http://127.0.0.1:{port}"
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the server
        try:
            self._process = subprocess.Popen(
                self.words, stdin=subprocess.DEVNULL, stdout=self._log, stderr=subprocess.STDOUT
            )
        except OSError as error:
            raise ForerunError(f"{self.name} cannot be started: {error}", shlex.join(self.words)) from error
        self.pid = self._process.pid

    def _wait(self) -> None:
        deadline = time.monotonic() + START_S
        while True:
            status, _ = get(self.url, "/health")
            if status == 200 or (status == 404 and get(self.url, "/v1/models")[0] == 200):
                return
            if not self.is_alive:
                raise ForerunError(f"{self.name} has ended before it answered", f"it said:\n{self.said()}")
            if not self.spec.command and status == 0:
                raise ForerunError(f"nothing answers at {self.url}", f"as {self.name}", "start it first")
            if time.monotonic() > deadline:
                raise ForerunError(f"{self.name} does not answer after {START_S:.0f} s", f"it said:\n{self.said()}")
            time.sleep(0.1)

    def _who(self) -> None:
        """Its name for the model, and whether it is forerun, whose texts can be told beforehand."""
        status, document = get(self.url, "/v1/models")
        listed = document.get("data") if status == 200 and isinstance(document, dict) else None
        if listed:
            self.model = str(listed[0].get("id"))
            self.is_exact = listed[0].get("owned_by") == OWN

    def said(self, most: int = 2000) -> str:
        """The end of what it printed."""
        if self._log is None:
            return ""
        size = os.fstat(self._log.fileno()).st_size
        return os.pread(self._log.fileno(), most, max(0, size - most)).decode(errors="replace").strip()


def free_port() -> int:
    """A port of this machine that nobody listens at."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def resident_mb(pid: int) -> float | None:
    """VmRSS of a process in MB (1e6 bytes), as Linux tells it; None elsewhere, or where it has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return None
    found = next((line for line in lines if line.startswith("VmRSS:")), None)
    return None if found is None else int(found.split()[1]) * 1024 / 1e6


def cpu_seconds(pid: int) -> float | None:
    """User and system time of a process; None where it is not told."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _filled(word: str, places: Mapping[str, Any]) -> str:
    for name, value in places.items():
        word = word.replace(f"{{{name}}}", str(value))
    return word


def _pid(text: str, words: Sequence[str]) -> int | None:
    if not words:
        return None
    digits = words[0].removeprefix("pid=")
    if len(words) > 1 or digits == words[0] or not digits.isdecimal():
        raise ParameterError("server", f"{text!r} is not allowed", NEED)
    return int(digits)
