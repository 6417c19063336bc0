"""How a pull reports: a protocol of four verbs, a silent one and a bar for terminals.

Nothing here decides anything. A pull calls `start` once it knows how many bytes it will place, `advance` as they
arrive, `note` for a fact a person should see (source, licence, a wait, a fallback), `finish` when it stops.
"""

from __future__ import annotations

from typing import Any, Protocol


class Progress(Protocol):
    """What a pull reports to. `start` may come again after a failed source; it replaces the bar."""

    def start(self, total_bytes: int, label: str) -> None:
        """A file (or a set of files) of `total_bytes` begins; bytes already on disk are then advanced at once."""
        ...

    def advance(self, num_bytes: int) -> None:
        """`num_bytes` more are on disk (negative: a server made us begin again)."""
        ...

    def note(self, text: str) -> None:
        """One line a person should see."""
        ...

    def finish(self) -> None:
        """No more bytes will come; safe to call twice."""
        ...


class SilentProgress:
    """Reports nothing: the default of the Python API."""

    def start(self, total_bytes: int, label: str) -> None:
        """Nothing."""

    def advance(self, num_bytes: int) -> None:
        """Nothing."""

    def note(self, text: str) -> None:
        """Nothing."""

    def finish(self) -> None:
        """Nothing."""


class RichProgress:
    """A bar with speed and time left on standard error, so that standard output stays machine-readable.

    `console` is a `rich.console.Console`; rich is imported only here, since most of forerun never draws.
    """

    def __init__(self, console: Any = None) -> None:
        from rich.console import Console

        self.console = console if console is not None else Console(stderr=True)
        self._bar: Any = None
        self._task: Any = None

    def start(self, total_bytes: int, label: str) -> None:
        """Draw a new bar."""
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
            TransferSpeedColumn,
        )

        self.finish()
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
        )
        self._bar = Progress(*columns, console=self.console)
        self._task = self._bar.add_task(label, total=total_bytes)
        self._bar.start()

    def advance(self, num_bytes: int) -> None:
        """Move the bar; ignored when none is drawn."""
        if self._bar is not None:
            self._bar.advance(self._task, num_bytes)

    def note(self, text: str) -> None:
        """Print one line above the bar; never read as markup, since it may quote a foreign message."""
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def finish(self) -> None:
        """Leave the bar as it stands."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
