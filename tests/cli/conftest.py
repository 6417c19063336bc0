"""How the command line is run in tests: inside this process, as a subprocess, and on a pseudo-terminal."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cli.toys import patch
from typer.testing import CliRunner

SCRIPT = Path(__file__).with_name("toy_forerun.py")
PATIENCE_S = 60
"""Long enough for a loaded machine; only a hang is caught by it."""

Invoke = Callable[..., Any]


@pytest.fixture(autouse=True)
def quiet_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No colours, no cache and no debug output from the environment the tests run in."""
    for name in ("NO_COLOR", "FORCE_COLOR", "FORERUN_DEBUG", "FORERUN_MIRROR", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("FORERUN_HOME", str(tmp_path / "home"))


@pytest.fixture
def invoke(monkeypatch: pytest.MonkeyPatch) -> Invoke:
    """Run `forerun` with the toys in this process: invoke(*args, input=...)."""
    from forerun.cli import app

    patch(monkeypatch.setitem, monkeypatch.setattr)

    def run(*args: str, input: str | bytes | None = None) -> Any:
        return CliRunner().invoke(app, list(args), input=input, prog_name="forerun")

    return run


def start(*args: str, **settings: Any) -> subprocess.Popen[bytes]:
    """Start `forerun` with the toys as a process of its own."""
    settings = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **settings}
    return subprocess.Popen([sys.executable, str(SCRIPT), *args], **settings)


class Terminal:
    """`forerun` with the toys on a pseudo-terminal of its own."""

    def __init__(self, *args: str, **env: str) -> None:
        import pty

        self._master, slave = pty.openpty()
        self.process = start(
            *args,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            env={**os.environ, "TOY_TERMINAL": "1", **env},
        )
        os.close(slave)
        self.seen, self._data, self._read_to = "", b"", 0

    def read_until(self, text: str | None) -> str:
        """What appears after what was read before, through `text` (None: until the process ends); \\r\\n is \\n."""
        begun, deadline = self._read_to, time.monotonic() + PATIENCE_S
        while text is None or text not in self.seen[begun:]:
            chunk = self._more(deadline, text)
            if not chunk:
                assert text is None, f"ended without {text!r}: {self.seen!r}"
                self._read_to = len(self.seen)
                return self.seen[begun:]
            self._data += chunk
            self.seen = self._data.decode(errors="ignore").replace("\r\n", "\n")
        self._read_to = self.seen.index(text, begun) + len(text)
        return self.seen[begun : self._read_to]

    def _more(self, deadline: float, text: str | None) -> bytes:
        ready, _, _ = select.select([self._master], [], [], max(deadline - time.monotonic(), 0))
        assert ready, f"{text!r} never came: {self.seen!r}"
        try:
            return os.read(self._master, 4096)
        except OSError:  # Linux says EIO where the other side is gone
            return b""

    def type(self, text: str) -> None:
        """Press keys."""
        os.write(self._master, text.encode())

    def wait(self) -> int:
        """Read the rest; the exit code."""
        self.read_until(None)
        return self.process.wait(PATIENCE_S)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._master)


@pytest.fixture
def terminal() -> Iterator[Callable[..., Terminal]]:
    """Start `forerun` on a terminal: terminal(*args, **env)."""
    pytest.importorskip("pty", reason="this platform has no pseudo-terminals")
    opened: list[Terminal] = []

    def open_one(*args: str, **env: str) -> Terminal:
        opened.append(Terminal(*args, **env))
        return opened[-1]

    yield open_one
    for one in opened:
        one.close()
