"""The report a person reads. Everything in it comes from the document, losers included."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TextIO

from forerun.bench.doubts import doubts, has_interval
from forerun.bench.summary import PLAIN
from forerun.bench.variants import ADAPTIVE, DRAFT_MODELS

WIDTH = 300


def print_report(document: Mapping[str, Any], file: TextIO) -> None:
    """Where and how it was measured, one table per workload, and what follows from them."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    # As wide as the tables are: a figure cut short by the terminal's width is lost.
    console = Console(file=file, highlight=False, markup=False, soft_wrap=True, width=WIDTH)
    for line in head(document):
        console.print(line)
    for workload, figures in document["workloads"].items():
        console.print(f"\n{workload}: {title(document, workload)}")
        heads, lines = table_of(figures)
        table = Table(box=box.MARKDOWN, pad_edge=False)
        for place, column in enumerate(heads):
            table.add_column(column, justify="right" if place else "left", no_wrap=True)
        for cells in lines:
            table.add_row(*cells)
        console.print(table)
        for line in remarks(document, workload):
            console.print(line)
    for line in tail(document):
        console.print(line)


def head(document: Mapping[str, Any]) -> Iterator[str]:
    """Command, machine, versions, and the machine's speed."""
    machine, probe, versions = document["hardware"], document["probe"], document["versions"]
    yield f"command   {document['command']}"
    yield f"commit    {document['commit']}, {document['date']}"
    yield (
        f"hardware  {machine['cpu']}, {machine['cores']} cores, {machine['memory_gb']} GB, "
        f"{'GPU ' + machine['gpu'] if machine['gpu'] else 'no GPU'}; {' '.join(machine['isa']) or 'no known ISA flags'}"
    )
    yield "versions  " + ", ".join(f"{name} {version}" for name, version in versions.items() if version is not None)
    yield (
        f"memory    {probe['median']:.1f} GB/s (median of {probe['readings']} probes, {probe['low']:.1f} to "
        f"{probe['high']:.1f}, {probe['threads']} threads)"
    )
    if probe["threshold"] is not None:
        yield f"          two regimes, parted at {probe['threshold']:.1f} GB/s: figures of each are given below"
    for name, curve in document["cost_curve"].items():
        costs = "  ".join(f"{rows}: {ms:.1f}" for rows, ms in curve["ms"].items())
        speed = f"at {curve['probe_gb_s']:.1f} GB/s"
        yield f"t(rows)   {name}, ms per pass at {curve['context']} cached tokens, {speed}: {costs}"
    for name, floor in document["floor"].items():
        yield f"floor     {name}: {floor['bytes'] / 1e9:.2f} GB of weights a pass, {floor['ms']:.1f} ms at this speed"


def table_of(figures: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """(columns, a line for each variant) of one workload: the page shows the same."""
    peers = [name for name in _baselines(figures) if name != PLAIN]
    heads = ["variant", "ms/token", "tokens/s", "end to end", "over plain (95 %)", *(f"over {peer}" for peer in peers)]
    heads += ["tokens/pass", "accepted", "by depth %", "draft/target/verify/host/api %", "same text"]
    return heads, [row(name, figure, peers) for name, figure in figures.items()]


def title(document: Mapping[str, Any], workload: str) -> str:
    """How much was measured."""
    settings, lengths = document["settings"], document["prompt_tokens"][workload]
    return (
        f"{len(lengths)} prompts of {min(lengths)} to {max(lengths)} tokens, rounds: {settings['rounds']}, "
        f"{settings['max_tokens']} tokens each, "
        + ("greedy" if settings["temperature"] == 0 else f"temperature {settings['temperature']}")
        + ", end of text ignored"
    )


def row(name: str, figure: Mapping[str, Any], peers: list[str]) -> list[str]:
    """One variant's line of the table."""
    over, share, text = figure["speedup_over"], figure.get("share"), figure["text"]
    end_to_end = figure["end_to_end_speedup_over"].get(PLAIN)
    return [
        name,
        f"{figure['ms_per_token']:.1f}",
        f"{figure['tokens_per_s']:.1f}",
        f"{figure['end_to_end_tokens_per_s']:.1f}" + (f" ({end_to_end['median']:.2f}x)" if end_to_end else ""),
        _interval(over.get(PLAIN)) if name != PLAIN else "1",
        *(f"{over[peer]['median']:.2f}x" if peer in over else "-" for peer in peers),
        _number(figure.get("tokens_per_pass")),
        _percent(figure.get("acceptance_rate")),
        " ".join(f"{100 * depth:.0f}" for depth in figure.get("acceptance_by_depth", ())) or "-",
        "/".join(f"{100 * part:.1f}" for part in share.values()) if share else "-",
        f"{text['equal_to_plain']} of {text['prompts']}" if text else "-",
    ]


def remarks(document: Mapping[str, Any], workload: str) -> Iterator[str]:
    """Below a workload's table: what to doubt, the best k, where a round's time went, regimes, peers' settings,
    differing texts."""
    yield from doubts(document, workload)
    figures, best = document["workloads"][workload], document["best"][workload]
    for drafter, winner in best.items():
        if drafter != "overall":
            found = drafter if drafter == ADAPTIVE else f"best k for {drafter}: {winner['k']}"
            yield f"{found}. {_against(winner)}"
    overall = best["overall"]["variant"]
    spent = ", ".join(f"{part} {ms:.2f}" for part, ms in figures[overall]["round_ms"].items())
    loser = "; no drafter beats plain decoding here" if overall == PLAIN else ""
    yield f"fastest: {overall}{loser}. ms per round: {spent}{_least(document, figures[overall])}"
    for regime in ("slow", "fast"):
        parts = [(name, f["regimes"][regime]) for name, f in figures.items() if regime in f["regimes"]]
        if parts:
            yield f"{regime} memory, ms/token (runs): " + ", ".join(_regime(name, part) for name, part in parts)
    computes = [f"{name} in {figure['dtype']}" for name, figure in figures.items() if figure.get("dtype")]
    if computes:
        yield f"computing: forerun in {document['settings']['dtype']}, {', '.join(computes)}"
    for name, figure in figures.items():
        if figure.get("setting"):
            tried = "; ".join(f"{_setting(one)}: {one['ms_per_token']:.0f} ms/token" for one in figure["tried"])
            yield f"{name} ran with {_setting(figure['setting'])}; tried on the shortest prompts: {tried}"
    for name, figure in figures.items():
        for difference in (figure["text"] or {}).get("differences", ()):
            yield (
                f"{name}, prompt {difference['prompt']}: differs from token {difference['position']} on "
                f"({difference['plain_token']} -> {difference['token']}); in the target's own row they are "
                f"{_number(difference['gap'], 4)} apart, its top two {_number(difference['top2_gap'], 4)}"
            )


def tail(document: Mapping[str, Any]) -> Iterator[str]:
    """What was not run."""
    if document["not_run"]:
        yield ""
    for name, reason in document["not_run"].items():
        yield f"not run: {name}: {reason}"
    if document["interrupted"]:
        yield "interrupted: the figures cover what was measured until then"


def _baselines(figures: Mapping[str, Any]) -> list[str]:
    return list(dict.fromkeys(name for figure in figures.values() for name in figure["speedup_over"]))


def _interval(ratio: Mapping[str, Any] | None) -> str:
    """With the interval, unless there were too few prompts for one."""
    if ratio is None:
        return "-"
    told = f" ({ratio['low']:.2f}-{ratio['high']:.2f})" if has_interval(ratio) else ""
    return f"{ratio['median']:.2f}x{told}"


def _against(winner: Mapping[str, Any]) -> str:
    """The ratios over every baseline: of decoding with its interval, and of the whole request."""
    parts = (f"{_interval(ratio)} over {name}" for name, ratio in winner["speedup_over"].items())
    whole = (f"{ratio['median']:.2f}x over {name}" for name, ratio in winner["end_to_end_speedup_over"].items())
    return f"decoding {', '.join(parts)}; end to end {', '.join(whole)}"


def _least(document: Mapping[str, Any], figure: Mapping[str, Any]) -> str:
    """What reading the weights alone takes in such a round, where that is known."""
    floor = document["floor"]
    drafter = figure["drafter"]
    if "target" not in floor or (drafter in DRAFT_MODELS and drafter not in floor):
        return ""
    draft_ms = figure["k"] * floor[drafter]["ms"] if drafter in DRAFT_MODELS else 0.0
    return f"; reading the weights alone takes {draft_ms + floor['target']['ms']:.1f}"


def _setting(setting: Mapping[str, Any]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in setting.items())


def _regime(name: str, part: Mapping[str, Any]) -> str:
    over = f" {part['speedup_over'][PLAIN]['median']:.2f}x" if PLAIN in part["speedup_over"] else ""
    return f"{name} {part['ms_per_token']:.1f}{over} ({part['measurements']})"


def _number(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.0f} %"
