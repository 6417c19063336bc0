"""The printed table of cells. Everything in it comes from the document."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TextIO

from forerun.bench.cells.figures import MIN_BLOCKS, NEAR_BEST, NEVER_SLOWER
from forerun.bench.summary import PLAIN
from forerun.bench.variants import PARTS

WIDTH = 300

COLUMNS = (
    "contender", "tokens/s", "whole", "over plain (99 %)", "whole over plain (99 %)", "blocks", "tokens/pass",
    "accepted", "by depth %", "draft/target/verify/host %", "sources",
)  # fmt: skip
"""Of a cell's table."""


def print_cells(document: Mapping[str, Any], file: TextIO) -> None:
    """A table of every cell's contenders, then the adaptive ones beside plain and the best fixed choice."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    console = Console(file=file, highlight=False, markup=False, soft_wrap=True, width=WIDTH)
    for name, figures in document["cells"].items():
        console.print(f"\n{name}: {title(figures)}")
        table = Table(box=box.MARKDOWN, pad_edge=False)
        for place, column in enumerate(COLUMNS):
            table.add_column(column, justify="right" if place else "left", no_wrap=True)
        for cells in rows_of(figures):
            table.add_row(*cells)
        console.print(table)
    console.print("\nadaptive drafting beside plain decoding and the best fixed choice of each cell (99 % intervals)")
    table = Table(box=box.MARKDOWN, pad_edge=False)
    for column in ("cell", "policy", "speed", "over plain", f">= {NEVER_SLOWER}", "over the best", f">= {NEAR_BEST}",
                   "the best"):  # fmt: skip
        table.add_column(column, no_wrap=True)
    for row in claims(document["cells"]):
        table.add_row(*row)
    console.print(table)
    for text, answer, places in verdicts(document["verdict"]):
        console.print(f"{text}: {answer}")
        for one in places:
            console.print(f"  {one}")


def rows_of(figures: Mapping[str, Any]) -> list[list[str]]:
    """A line of COLUMNS for each contender of a cell: the page shows the same."""
    return [_row(contender, figure, figures["dropped"]) for contender, figure in figures["contenders"].items()]


def claims(cells: Mapping[str, Any]) -> Iterator[list[str]]:
    """One row for each cell, policy and kind of speed."""
    for name, figures in cells.items():
        for policy, adaptive in figures["adaptive"].items():
            for metric, plain in adaptive["never_slower"].items():
                best = adaptive["near_best"][metric]
                yield [
                    name, policy.removeprefix("adaptive "), metric, interval(plain["ratio"]), plain["verdict"],
                    interval(best["ratio"]), best["verdict"], best["over"] or "-",
                ]  # fmt: skip


def verdicts(verdict: Mapping[str, Any]) -> Iterator[tuple[str, str, list[str]]]:
    """(the claim in words; "yes", "NO" or "not shown"; where it is broken or not known) of each of the two claims."""
    words = {
        "never_slower": f"no cell's 99 % interval lies below {NEVER_SLOWER}x plain",
        "near_best": f"at least {NEAR_BEST}x the best fixed choice of its cell",
    }
    for claim, text in words.items():
        found = verdict[claim]
        answer = "yes" if found["holds"] else "NO" if found["broken"] else "not shown"
        kinds = (("broken", "not so"), ("unmeasured", "not measured, or too little"))
        yield text, answer, [f"{word}: {place}" for kind, word in kinds for place in found[kind]]


def interval(ratio: Mapping[str, Any] | None) -> str:
    """A ratio with its interval, which so few blocks as get no verdict do not have."""
    if ratio is None:
        return "-"
    if min(ratio["blocks"]) < MIN_BLOCKS:
        return f"{ratio['ratio']:.3f} (too few)"
    return f"{ratio['ratio']:.3f} ({ratio['low']:.3f}-{ratio['high']:.3f})"


def title(figures: Mapping[str, Any]) -> str:
    """What a cell is, and how much of it was measured."""
    cell = figures["cell"]
    drafts = {"noise": ", a draft that knows nothing", "liar": ", a draft that is sure and wrong"}
    return (
        f"{cell['workload']}, temperature {cell['temperature']}, {cell['sequences']} at once of "
        f"{figures['num_tokens']} tokens behind {cell['context']}{drafts.get(cell['draft'], '')}; {figures['blocks']} "
        f"blocks in {figures['runs']} runs, {figures['unsteady']} left out as unsteady"
        + (", interrupted" if figures["interrupted"] else "")
    )


def _row(name: str, figure: Mapping[str, Any], dropped: Mapping[str, int]) -> list[str]:
    over, rate, share = figure["over_plain"], figure["acceptance_rate"], figure["share"]
    after = dropped.get(name)
    turn = "" if after is None else f" (dropped after turn {after})" if after else " (left out after earlier runs)"
    return [
        name + turn,
        f"{figure['tokens_per_s']:.1f}",
        f"{figure['whole_tokens_per_s']:.1f}",
        "1" if name == PLAIN else interval(over["decoding"]),
        "1" if name == PLAIN else interval(over["whole"]),
        str(figure["blocks"]),
        "-" if figure["tokens_per_pass"] is None else f"{figure['tokens_per_pass']:.2f}",
        "-" if rate is None else f"{100 * rate:.0f} %",
        " ".join(f"{100 * depth:.0f}" for depth in figure["acceptance_by_depth"]) or "-",
        "/".join(f"{100 * share.get(part, 0.0):.0f}" for part in PARTS),
        " ".join(f"{source or '?'} {times}" for source, times in figure["sources"].items()),
    ]
