"""The parts of the page for cells' claims, phases, depths and acceptance."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from forerun.bench.acceptance import beside_quoted
from forerun.bench.cells.table import claims, verdicts
from forerun.bench.depth import COLUMNS as DEPTHS
from forerun.bench.depth import rows_of as depth_rows
from forerun.bench.page.groups import ORIGINS
from forerun.bench.page.svg import Point, lines, stacks
from forerun.bench.page.tables import figure, grid, number, percent, table
from forerun.bench.phases import COLUMNS as PHASES
from forerun.bench.phases import rows_of
from forerun.bench.phases import title as phases_title


def verdict_part(document: Mapping[str, Any]) -> str:
    """Whether the two claims hold, and each cell's ratios."""
    verdict = document.get("verdict")
    if not verdict:
        return ""
    items = []
    for text, answer, places in verdicts(verdict):
        kind = {"yes": "good", "NO": "bad"}.get(answer, "")
        rest = "".join(f"<p>{escape(place)}</p>" for place in places)
        rest = f"<details><summary>in {len(places)} places</summary>{rest}</details>" if rest else ""
        items.append(f'<li class="{kind}">{escape(text)}: {answer}{rest}</li>')
    columns = ("cell", "policy", "speed", "over plain", "never slower", "over the best", "near it", "the best")
    return f'<ul class="verdicts">{"".join(items)}</ul>' + table(columns, claims(document["cells"]))


def phases_part(found: Mapping[str, Any]) -> str:
    """k over the steps of every phase, one after the other, and a table."""
    parts = []
    for step, sides in found["steps"].items():
        series: dict[str, list[Point]] = {}
        for side, phases in sides.items():
            at = 0
            for number_, phase in enumerate(phases):
                if any(phase["k"]):
                    name = phase["phase"] if len(sides) < 3 else f"{side}, {phase['phase']}"
                    series[f"{number_ + 1}. {name}" if step == "content" else name] = [
                        (float(at + i), float(k)) for i, k in enumerate(phase["k"])
                    ]
                at += len(phase["k"])
        plot = figure(lines(series, "steps", "draft tokens per sequence (k)"), f"k over the {step} step's phases")
        parts.append(f"<h3>{escape(phases_title(step, found))}</h3>" + grid([plot]) + _table(PHASES, rows_of(sides), 2))
    return "".join(parts)


def depth_part(found: Mapping[str, Any]) -> str:
    """Speed over plain by depth, one plot for each pattern, and what the drafters' own work takes."""
    patterns = dict.fromkeys(pattern for of_depth in found["depths"].values() for pattern in of_depth)
    plots = []
    for pattern in patterns:
        series: dict[str, list[Point]] = {}
        first: dict[str, list[Point]] = {}
        for depth, of_depth in found["depths"].items():
            if pattern in of_depth:
                for name, one in of_depth[pattern]["contenders"].items():
                    ratio = one["over_plain"]["decoding"]
                    if ratio is not None:
                        series.setdefault(name, []).append((float(depth), float(ratio["ratio"])))
                for name, cost in of_depth[pattern]["drafting"].items():
                    first.setdefault(f"{name}, first", []).append((float(depth), float(cost["first_ms"])))
                    first.setdefault(f"{name}, each after it", []).append((float(depth), float(cost["each_ms"])))
        plots.append(figure(lines(series, "tokens of context", "speed over plain", log_x=True), f"{pattern} prompts"))
        plots.append(
            figure(lines(first, "tokens of context", "ms", log_x=True), f"A proposal's own time, {pattern} prompts")
        )
    return grid(plots) + _table(DEPTHS, depth_rows(found), 3)


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]], num_names: int) -> str:
    """A printed table, in which the first few columns together name a row."""

    def line(cells: Sequence[str]) -> list[str]:
        return [", ".join(cells[:num_names]), *cells[num_names:]]

    return table(line(columns), map(line, rows))


def acceptance_part(found: Mapping[str, Any]) -> str:
    """Acceptance by workload and temperature, with what is usually quoted."""
    low, high = found["quoted"]
    series = {
        workload: [
            (float(temperature), 100 * row["acceptance_rate"])
            for temperature, row in rows.items()
            if row["acceptance_rate"] is not None
        ]
        for workload, rows in found["workloads"].items()
    }
    ends = sorted({x for points in series.values() for x, _ in points})
    for name, value in (("quoted, from", low), ("quoted, to", high)):
        series[name] = [(x, 100 * value) for x in (ends[:1] + ends[-1:])]
    curves = [
        figure(
            lines(
                {
                    f"temperature {temperature}": [
                        (float(depth), 100 * rate) for depth, rate in enumerate(row["acceptance_by_depth"], start=1)
                    ]
                    for temperature, row in rows.items()
                },
                "depth", "accepted, %",
            ),
            f"{workload}: acceptance by depth",
        )
        for workload, rows in found["workloads"].items()
    ]  # fmt: skip
    origins = [
        (f"{workload} {temperature}", row["origins"])
        for workload, rows in found["workloads"].items()
        for temperature, row in rows.items()
    ]
    rows_ = [
        [
            f"{workload}, {temperature}", row["rule"], percent(row["acceptance_rate"]),
            " to ".join(percent(q) for q in row["interval"]) or "–",
            beside_quoted(row["acceptance_rate"], found["quoted"]), number(row["tokens_per_pass"]),
            " ".join(f"{100 * rate:.0f}" for rate in row["acceptance_by_depth"]) or "–",
        ]
        for workload, rows in found["workloads"].items()
        for temperature, row in rows.items()
    ]  # fmt: skip
    plot = figure(lines(series, "temperature", "accepted, %"), f"Acceptance at k = {found['k']} by temperature")
    tokens = figure(stacks(origins, ORIGINS, "% of tokens"), "Tokens by origin")
    columns = ("workload, temperature", "rule", "accepted", "95 %", "quoted", "tokens/pass", "by depth, %")
    return grid([plot, tokens, *curves]) + table(columns, rows_)
