"""What the ladder is made of: cells, what they found, and one run of them with a line each.

A cell is the smallest part that is reported on its own. It never raises for what it set out to find: failures are
lines of text, and an exception is one more failure, so that one broken cell does not hide the others.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

from tests.real.loaded import DRAFTERS, LENGTHS, Length

UNITS = {"laws": 1.0, "sequences": 1.5e-6, "passes": 0.05}
"""Seconds that one unit of work takes, until the run itself has shown better."""
SHOWN = 12
"""Failures of one cell that are printed."""


@dataclass(frozen=True)
class Options:
    """What was asked for."""

    levels: tuple[int, ...] = (1, 2, 3, 4, 5)
    num_sequences: int = 1_000_000
    num_prompts: int = 40
    num_tokens: int = 24
    modes: tuple[str, ...] = ("greedy", "seeded")
    drafters: tuple[str, ...] = ("self", "lookup", "copy", "stack")
    lengths: tuple[Length, ...] = LENGTHS
    batches: tuple[int, ...] = (1, 3, 8)
    dtype: str = "bfloat16"


@dataclass(frozen=True)
class Found:
    """`failures` are lines for a person, `figures` values by a name of FIGURES; a cell's own line shows the
    figures, or `note` if there is one."""

    failures: Sequence[str] = ()
    figures: dict[str, Any] = field(default_factory=dict)
    note: str = ""


@dataclass(frozen=True)
class Cell:
    """`cost` is a guess in units of work; only the ratio to other cells of that unit matters once one was run."""

    level: int
    name: str
    run: Callable[[], Found]
    cost: float
    unit: str


def _pairs(values: Iterable[tuple[int, int]]) -> tuple[int, int]:
    some, total = zip(*values, strict=True)
    return sum(some), sum(total)


FIGURES: dict[str, tuple[Callable[[Any], Any], Callable[[Any], str]]] = {
    "laws": (sum, "{:,} laws".format),
    "deviation": (max, "largest deviation of a probability {:.1e}".format),
    "sequences": (sum, "{:,} sequences".format),
    "comparisons": (sum, "{:,} comparisons".format),
    "p": (min, "smallest p {:.2g}".format),
    "variation": (max, lambda pair: "largest total variation {:.5f} where {:.5f} is detectable".format(*pair)),
    "texts": (_pairs, lambda pair: "{:,} of {:,} texts as they must be".format(*pair)),
    **{name: (_pairs, lambda pair, n=name: f"{n} drafts accepted {_share(pair)}") for name in DRAFTERS},
    "killed": (_pairs, lambda pair: "{} of {} mutants killed".format(*pair)),
    "sound": (_pairs, lambda pair: "{} of {} scenarios spare the sound parts".format(*pair)),
    "weakest": (min, lambda pair: "weakest mutant: total variation {:.2g} ({})".format(*pair)),
}
"""By name: how values of several cells become one, and how a value is written. The order is that of a line."""


def _share(pair: tuple[int, int]) -> str:
    accepted, proposed = pair
    return f"{accepted:,} of {proposed:,} ({100 * accepted / proposed:.1f} %)" if proposed else "0 of 0"


def merge(several: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Figures of several cells as one."""
    all_figures = list(several)
    values = {name: [figures[name] for figures in all_figures if name in figures] for name in FIGURES}
    return {name: FIGURES[name][0](found) for name, found in values.items() if found}


def describe(figures: dict[str, Any]) -> str:
    return ", ".join(write(figures[name]) for name, (_, write) in FIGURES.items() if name in figures)


def duration(seconds: float) -> str:
    whole = round(seconds)
    if whole < 60:
        return f"{seconds:.1f} s"
    hours, minutes = whole // 3600, whole % 3600 // 60
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {whole % 60:02} s"


@dataclass(frozen=True)
class Done:
    """A cell that was run."""

    cell: Cell
    found: Found
    seconds: float


@dataclass
class Report:
    """A run, complete or not."""

    cells: Sequence[Cell]
    done: list[Done] = field(default_factory=list)
    interrupted: bool = False

    @property
    def failed(self) -> list[Done]:
        return [done for done in self.done if done.found.failures]

    @property
    def seconds(self) -> float:
        return sum(done.seconds for done in self.done)

    @property
    def rest_s(self) -> float:
        """What the cells that are left will take: their cost, at the speed of their level, or of their unit, so far."""
        return sum(cell.cost * self._speed(cell) for cell in self.cells[len(self.done) :])

    def _speed(self, cell: Cell) -> float:
        alike = [done for done in self.done if done.cell.level == cell.level]
        alike = alike or [done for done in self.done if done.cell.unit == cell.unit]
        work = sum(done.cell.cost for done in alike)
        return sum(done.seconds for done in alike) / work if work else UNITS[cell.unit]


def climb(cells: Sequence[Cell], write: Callable[[str], None]) -> Report:
    """Run the cells in order, writing one line for each and some for its failures; Ctrl-C ends it between lines."""
    report = Report(cells)
    try:
        for cell in cells:
            start = monotonic()
            found = _attempt(cell)
            report.done.append(Done(cell, found, monotonic() - start))
            for line in lines(report):
                write(line)
    except KeyboardInterrupt:
        report.interrupted = True
    return report


def lines(report: Report) -> list[str]:
    """The last cell's line, and one for each of its failures."""
    done = report.done[-1]
    verdict = "FAILED" if done.found.failures else "ok"
    told = done.found.note or describe(done.found.figures)
    left = f"{len(report.cells) - len(report.done)} cells left, about {duration(report.rest_s)}"
    head = f"[{duration(report.seconds)}] level {done.cell.level}, {done.cell.name}: {verdict}"
    line = f"{head}{', ' if told else ''}{told} ({duration(done.seconds)}; {left})"
    failures = [f"    {failure}" for failure in done.found.failures[:SHOWN]]
    return [line, *failures, *([f"    … {len(done.found.failures)} in all"] if len(failures) == SHOWN else [])]


def _attempt(cell: Cell) -> Found:
    try:
        return cell.run()
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        where = f"line {place.lineno} of {Path(place.filename).name}"
        return Found([f"{type(error).__name__}: {error} ({place.name}, {where})"])
