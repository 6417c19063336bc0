"""What a run of the ladder comes to: the summary on the terminal, and the dated section of docs/log.md."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

from tests.ladder.cells import Done, Report, describe, duration, merge

from forerun.bench.hardware import commit, hardware, versions

TITLES = {
    1: "exact enumeration",
    2: "sampled law",
    3: "text on real weights",
    4: "invariance on real weights",
    5: "mutants",
}
WIDTH = 120


def of_level(report: Report, level: int) -> list[Done]:
    return [done for done in report.done if done.cell.level == level]


def levels(report: Report) -> list[int]:
    return sorted({cell.level for cell in report.cells})


def verdict(report: Report) -> str:
    """One line on the whole."""
    outcome = f"{len(report.failed)} of them FAILED" if report.failed else "none failed"
    ended = ", interrupted" if report.interrupted else ""
    return f"{len(report.done)} of {len(report.cells)} cells run in {duration(report.seconds)}{ended}; {outcome}"


def summary(report: Report) -> Iterator[str]:
    """One line a level, then what failed."""
    yield verdict(report)
    for level in levels(report):
        done = of_level(report, level)
        total = sum(cell.level == level for cell in report.cells)
        told = describe(merge(one.found.figures for one in done)) or "no figures"
        yield f"level {level} ({TITLES[level]}): {len(done)} of {total} cells, {told} ({duration(_seconds(done))})"
    for done in report.failed:
        yield f"FAILED level {done.cell.level}, {done.cell.name}: {done.found.failures[0]}"


def section(report: Report, command: str) -> str:
    """The section of the log: where and how it was run, one row a level, failures by name."""
    machine, installed = hardware(), versions()
    where = (
        f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gb']} GB, "
        f"{'GPU ' + machine['gpu'] if machine['gpu'] else 'no GPU'} ({' '.join(machine['isa'])}); "
        + ", ".join(f"{name} {installed[name]}" for name in ("python", "torch", "numpy") if installed.get(name))
    )
    rows = []
    for level in levels(report):
        done = of_level(report, level)
        total = sum(cell.level == level for cell in report.cells)
        told = describe(merge(one.found.figures for one in done)) or "-"
        rows.append(f"| {level} {TITLES[level]} | {len(done)} of {total} | {told} | {_seconds(done):.0f} |")
    failures = [f"- FAILED: level {one.cell.level}, {one.cell.name}: {one.found.failures[0]}" for one in report.failed]
    parts = [
        f"## {time.strftime('%Y-%m-%d')}: the ladder\n",
        textwrap.fill(f"`{command}`, commit {commit()}. {where}.", WIDTH, break_on_hyphens=False),
        f"\n{verdict(report)}.\n",
        "| level | cells | found | s |\n|---|---|---|---|\n" + "\n".join(rows),
        *(["\n" + "\n".join(failures)] if failures else []),
    ]
    return "\n".join(parts) + "\n"


def append(path: Path, text: str) -> None:
    """A blank line stands between sections."""
    before = path.read_text(encoding="utf-8").rstrip("\n") if path.exists() else "# Log of experiments"
    path.write_text(f"{before}\n\n{text}", encoding="utf-8")


def _seconds(done: list[Done]) -> float:
    return sum(one.seconds for one in done)
