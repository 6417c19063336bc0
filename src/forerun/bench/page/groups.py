"""What a workload of one document and a cell of another have in common: variants side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

from forerun.bench.cells.table import COLUMNS, rows_of
from forerun.bench.cells.table import title as cell_title
from forerun.bench.doubts import has_interval
from forerun.bench.page.svg import Point, columns, intervals, lines, stacks
from forerun.bench.page.tables import figure, grid, table
from forerun.bench.report import remarks, table_of, title
from forerun.bench.summary import PLAIN
from forerun.bench.variants import ADAPTIVE, PARTS

ORIGINS = ("drafted", "bonus", "recovered", "decoded")
SPENT = (*PARTS, "api")
"""What decoding's time goes to; "api" lies between engine and user."""


@dataclass(frozen=True, slots=True)
class Group:
    """Variants that wrote the same texts. `over_plain` is (ratio, low, high) by variant, `whole` the same of whole
    requests; the intervals are of `level` percent, None where there were too few prompts for any. `table`: columns and
    rows, `remarks` what is said below them. `probes` are (seconds, GB/s)."""

    name: str
    about: str
    level: int | None
    figures: Mapping[str, Mapping[str, Any]]
    over_plain: Mapping[str, tuple[float, float, float]]
    whole: Mapping[str, tuple[float, float, float]]
    table: tuple[Sequence[str], list[list[str]]]
    remarks: Sequence[str] = ()
    probes: list[Point] = field(default_factory=list)


def groups_of(document: Mapping[str, Any]) -> list[Group]:
    """The groups of a document of workloads or of cells."""
    found = []
    for name, figures in document.get("workloads", {}).items():
        decoding, whole = (
            {key: _of_prompts(f[over][PLAIN]) for key, f in figures.items() if f[over].get(PLAIN)}
            for over in ("speedup_over", "end_to_end_speedup_over")
        )
        level = 95 if all(has_interval(f["speedup_over"].get(PLAIN, {})) for f in figures.values()) else None
        said = [*remarks(document, name)]
        found.append(Group(name, title(document, name), level, figures, decoding, whole, table_of(figures), said))
    for name, figures in document.get("cells", {}).items():
        sides = figures["contenders"]
        decoding, whole = (
            {
                key: _ratio(f["over_plain"][metric], "ratio")
                for key, f in sides.items()
                if f["over_plain"][metric] and key != PLAIN
            }
            for metric in ("decoding", "whole")
        )
        probes = [(float(at), float(reading)) for at, reading in figures.get("probes", ())]
        rows = (COLUMNS, rows_of(figures))
        found.append(Group(name, cell_title(figures), 99, sides, decoding, whole, rows, (), probes))
    return found


def group_part(group: Group) -> str:
    """The group's plots and its table."""
    spread = "of too few prompts for intervals" if group.level is None else f"{group.level} % intervals"
    rows = [(name, *ratio) for name, ratio in group.over_plain.items()]
    whole = [(name, *ratio) for name, ratio in group.whole.items()]
    shares = [(name, f["share"]) for name, f in group.figures.items() if f.get("share")]
    origins = [(name, f["origins"]) for name, f in group.figures.items() if f.get("origins")]
    plots = [
        figure(intervals(rows, "speed over plain, decoding"), f"Decoding over plain, {spread}"),
        figure(intervals(whole, "speed over plain, whole"), "The same of whole requests, reading the prompt included"),
        figure(stacks(shares, [part for part in SPENT if any(part in s for _, s in shares)], "% of time"),
               "Where the time of decoding went"),
        figure(stacks(origins, ORIGINS, "% of tokens") if origins else "", "Where the tokens came from"),
        figure(lines(_depths(group.figures), "depth", "accepted, %"),
               "Acceptance by depth, where all before it was accepted"),
        *(figure(columns(counts, "draft tokens verified in a round (k)"), f"How long {name} drafted: rounds by k")
          for name, counts in _lengths(group.figures).items()),
        bandwidth(group.probes),
    ]  # fmt: skip
    said = "".join(f"<p>{escape(line)}</p>" for line in group.remarks)
    return grid(plots) + table(*group.table) + said


def bandwidth(readings: list[Point]) -> str:
    """The plot of a probe's readings (seconds, GB/s)."""
    return figure(lines({"GB/s": readings}, "seconds", "GB/s"), "Memory bandwidth while this was measured")


def _of_prompts(ratio: Mapping[str, Any]) -> tuple[float, float, float]:
    """A workload's ratio, without its interval where that is of too few prompts."""
    middle, low, high = _ratio(ratio, "median")
    return (middle, low, high) if has_interval(ratio) else (middle, middle, middle)


def _ratio(found: Mapping[str, Any], centre: str) -> tuple[float, float, float]:
    return float(found[centre]), float(found["low"]), float(found["high"])


def _depths(figures: Mapping[str, Mapping[str, Any]]) -> dict[str, list[Point]]:
    """The deepest curve of each drafter, and every adaptive one."""
    deepest: dict[str, str] = {}
    for name, found in figures.items():
        drafter = name.partition(" k=")[0]
        known = figures[deepest[drafter]]["acceptance_by_depth"] if drafter in deepest else ()
        if len(found.get("acceptance_by_depth") or ()) > len(known):
            deepest[drafter] = name
    return {
        name: [(float(depth), 100 * rate) for depth, rate in enumerate(figures[name]["acceptance_by_depth"], start=1)]
        for name in deepest.values()
    }


def _lengths(figures: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Rounds by k of the adaptive variants: a fixed one's need no picture."""
    return {
        name: found["k_histogram"]
        for name, found in figures.items()
        if name.startswith(ADAPTIVE) and found.get("k_histogram")
    }
