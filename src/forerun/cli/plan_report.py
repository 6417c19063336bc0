"""What a person sees of a plan: tables, from the document."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any, TextIO

from forerun.bench.doubts import longer
from forerun.cli.render import WIDE
from forerun.cli.report import say
from forerun.planning.vocabularies import in_words

Table = tuple[list[str], list[list[str]]]


def print_plan(document: Mapping[str, Any], target: str, file: TextIO) -> None:
    """All of it but the export."""
    for part in _parts(document, target):
        _print(part, file)


def print_export(exported: Mapping[str, Any]) -> None:
    """The settings alone on standard output, to be kept in a file; what they leave open on standard error."""
    say("")
    for note in exported["notes"]:
        say(f"note: {note}")
    say(f"for {exported['engine']}:")
    if exported["text"]:
        print(exported["text"], flush=True)


def print_simulation(document: Mapping[str, Any]) -> None:
    """A run of the policy, stretch by stretch."""
    asked = document["simulation"]
    for part in (
        f"sequences: {asked['sequences']}; acceptance {', '.join(f'{one:g}' for one in asked['acceptance'])}, swinging "
        f"by {asked['drift']:g}; a further row costs {asked['cost_slope']:g} passes, a draft token "
        f"{asked['draft_cost']:g}",
        (
            ["rounds", "mean k", "best k", "over plain", "best over plain", "of the best"],
            [
                [
                    f"{one['rounds'][0]}-{one['rounds'][1]}", f"{one['mean_k']:.1f}", str(one["best_k"]),
                    f"{one['over_plain']:.2f}x", f"{one['best_over_plain']:.2f}x", f"{100 * one['of_best']:.1f} %",
                ]
                for one in (*document["by_rounds"], document["steady"])
            ],
        ),
        "the last line is all of it but the first rounds; the best is the best fixed k of each round, from the truth",
    ):  # fmt: skip
        _print(part, sys.stdout)


def _parts(document: Mapping[str, Any], target: str) -> list[str | Table]:
    from_sheet = "device" in document
    parts: list[str | Table] = []
    parts += _sheet(document, target) if from_sheet else _here(document, target)
    for name in document["predicted"]:
        parts += _predictions(document, name)
    parts += _best(document)
    parts += document.get("doubts", ())
    if from_sheet:
        parts += _sheet_verdicts(document, target)
    parts += _load(document, "by_batch", "sequences at once", "best k and speed-up by batch")
    parts += _load(document, "by_context", "tokens of context", "best k and speed-up by context")
    return parts + _memory(document)


def _here(document: Mapping[str, Any], target: str) -> list[str | Table]:
    band, unit = document["bandwidth_gb_per_s"], document["unit_ms"]
    parts: list[str | Table] = [*in_words(document["vocabulary"])]
    prompts = document["prompts"]
    parts += [
        f"{prompts['count']} prompts of {min(prompts['tokens'])} to {max(prompts['tokens'])} tokens, "
        f"{prompts['written']} tokens written to each; memory gave {band['median']:.1f} GB/s "
        f"({band['low']:.1f} to {band['high']:.1f})",
        f"a pass of one row of the target took {unit['median']:.1f} ms ({unit['low']:.1f} to {unit['high']:.1f}): all "
        "figures are for the machine at the first of these speeds",
    ]
    if document["num_stalls"]:
        parts.append(f"passes and rounds that something interrupted, left out: {document['num_stalls']}")
    for name, costs in {target: document["target_cost_ms"], **document["draft_cost_ms"]}.items():
        parts += ["", f"{name} on the {document['runtime'][name]} runtime{_behind(document, name)}"]
        parts.append(_costs(costs, document["roofline"]["models"].get(name)))
    roof = document["roofline"]
    source = "given" if roof["tflops_are_given"] else "the most that matrices or passes reached here"
    parts += [
        "",
        f"roofline: {roof['gb_per_s']:.1f} GB/s (probe) and {roof['tflops']:.3g} TFLOP/s ({source})",
    ]
    for name, one in roof["models"].items():
        parts.append(
            f"  {name}: {one['weight_bytes'] / 1e9:.2f} GB of weights a pass, {2e-9 * one['parameters']:.2f} GFLOP a "
            f"row; arithmetic would bind from {math.ceil(one['ridge_rows'])} rows on"
        )
    parts += [f"{name} reads a prompt in {ms:.0f} ms, once" for name, ms in document["reading_ms"].items()]
    return parts


def _behind(document: Mapping[str, Any], name: str) -> str:
    context = document["context"].get(name)
    return f", behind {context} tokens" if context is not None else ""


def _costs(costs: Mapping[str, float], roof: Mapping[str, Any] | None) -> Table:
    """Passes by rows, and what binds them; with the roofline's own milliseconds where passes were measured."""
    heads = ["rows", *costs]
    lines = [
        ["ms a pass", *(_ms(value) for value in costs.values())],
        ["of one row", *(f"{value / costs['1']:.2f}x" for value in costs.values())],
    ]
    if roof is not None and "floor_ms" in roof:
        lines.append(["roofline, ms", *(f"{roof['floor_ms'][rows]:.1f}" for rows in costs)])
    if roof is not None:
        lines.append(["bound by", *(roof["bound"][rows] for rows in costs)])
    return heads, lines


def _sheet(document: Mapping[str, Any], target: str) -> list[str | Table]:
    device, assumed, memory = document["device"], document["assumed"], document["memory"]
    roof = document["roofline"][target]
    parts: list[str | Table] = [
        f"{device['title']}: {device['gb_per_s']:g} GB/s, {device['tflops']:g} TFLOP/s"
        + (f", {device['memory_gb']:g} GB" if device["memory_gb"] is not None else "")
        + f" ({device['source']})",
        f"assumed: {100 * assumed['efficiency']:g} % of these peaks, {assumed['overhead_ms']:g} ms to start a pass, "
        f"{assumed['cards']} card{'s' * (assumed['cards'] > 1)} at once, {assumed['context']} tokens of context, "
        f"{assumed['sequences']} sequence{'s' * (assumed['sequences'] > 1)} at once, "
        f"acceptance {', '.join(f'{one:g}' for one in assumed['acceptance'])}",
        f"{target}: {roof['weight_bytes'] / 1e9:.1f} GB of weights, {document['token_ms']:.1f} ms a "
        f"{'token' if assumed['sequences'] == 1 else 'pass'} without drafts",
    ]
    parts += in_words(document["vocabulary"])
    cards = memory["cards_needed"]
    if cards is not None:
        each = "fits into one card" if cards == 1 else f"needs {cards} cards"
        parts.append(
            f"memory: {memory['total_bytes'] / 1e9:.1f} GB with the drafts and the cache, of {memory['has_gb']:g} GB: "
            + each
            + (
                f"; times are those of one card after the other, each with its layers (--cards {cards}: all at once)"
                if cards > assumed["cards"]
                else ""
            )
        )
    for name, costs in {target: document["target_cost_ms"], **document["draft_cost_ms"]}.items():
        bound = document["roofline"][name]
        parts += ["", f"{name}: arithmetic binds from {math.ceil(bound['ridge_rows'])} rows on", _costs(costs, bound)]
    return parts


def _predictions(document: Mapping[str, Any], name: str) -> list[str | Table]:
    predicted, measured = document["predicted"][name], (document["measured"] or {}).get(name)
    depths = document["acceptance_by_depth"][name]
    what = "measured" if measured is not None else "assumed"
    parts: list[str | Table] = ["", f"{name}: acceptance by depth, {what}: " + _shares(depths)]
    heads = ["k", "tokens a pass", "ms a round", "tokens/s", "speed-up"]
    if measured is not None:
        heads += ["measured", "tokens/s", "speed-up", "predicted/measured"]
    heads += ["breaks even at", "textbook, accepted", "textbook, acceptance"]
    lines = []
    for k, one in predicted.items():
        line = [k, f"{one['tokens_per_pass']:.2f}", _ms(one["round_ms"])]
        line += [f"{one['tokens_per_s']:.1f}", f"{one['speedup']:.2f}x"]
        if measured is not None:
            real = measured[k]
            line += [f"{real['tokens_per_pass']:.2f}", f"{real['tokens_per_s']:.1f}", f"{real['speedup']:.2f}x"]
            line.append(f"{100 * (real['predicted_over_measured'] - 1):+.1f} %")
        even = one["break_even"]
        line.append("-" if k == "0" else "never" if even is None else f"{even:.2f}")
        line += [f"{one['textbook_accepted']:.2f}x", f"{one['textbook_acceptance']:.2f}x"]
        lines.append(line)
    parts.append((heads, lines))
    return parts


def _shares(depths: Sequence[float]) -> str:
    if not depths:
        return "nothing was drafted"
    return "  ".join(f"{depth}: {100 * share:.0f} %" for depth, share in enumerate(depths, 1))


def _best(document: Mapping[str, Any]) -> list[str | Table]:
    best = document["best"]
    if best["k"] == 0:
        return ["", "best: no drafts; none of these is faster than plain decoding"]
    measured = best.get("measured_speedup")
    text = f"best: {best['drafter']} with k = {best['k']}, predicted {best['speedup']:.2f}x"
    parts: list[str | Table] = ["", text + (f", measured {measured:.2f}x" if measured is not None else "")]
    ks = [int(k) for k in document["predicted"][best["drafter"]]]
    further = longer(ks)
    if best["k"] == max(ks) and further is not None:
        parts.append(f"k = {best['k']} is the longest that was tried: --k 0-{further} tries longer ones")
    return parts


def _sheet_verdicts(document: Mapping[str, Any], target: str) -> list[str | Table]:
    parts: list[str | Table] = []
    for name, one in document["shrinks"].items():
        keeps = one["speedup"] / one["by_size_alone"]
        reasons = []
        if one["verifying"] > 1.02:
            reasons.append(
                f"verifying {one['k'] + 1} rows costs {one['verifying']:.2f} passes of one, bound by "
                f"{one['verifying_bound']}"
            )
        if one["drafting"] > one["drafting_by_size"] * 1.02 and one["drafting_bound"] is not None:
            reasons.append(
                f"{one['k']} draft passes cost {one['drafting']:.2f} of the target's where their weights are "
                f"{one['drafting_by_size']:.2f} of its, bound by {one['drafting_bound']}"
            )
        verdict = "holds" if keeps > 0.95 else "shrinks"
        parts.append(
            f"{name}, k = {one['k']}: the gain {verdict}: {one['by_size_alone']:.2f}x by size alone, "
            f"{one['speedup']:.2f}x here" + f" ({'; '.join(reasons)})" * bool(reasons)
        )
    for name, parameters in document["smallest_target"].items():
        if parameters is None:
            parts.append(f"{name} pays for no target, however large")
        else:
            at_once = document["assumed"]["sequences"]
            parts.append(
                f"{name} stops paying for targets below {_size(parameters)}, of as many bits each as {target}"
                + f", for {at_once} sequences at once" * (at_once > 1)
            )
    return parts


def _load(document: Mapping[str, Any], key: str, head: str, title: str) -> list[str | Table]:
    found = document[key]
    first = next(iter(found.values()))
    lines, any_star = [], False
    for name, loads in found.items():
        cells = []
        for one in loads.values():
            star = "*" if one.get("is_extrapolated") else ""
            any_star |= bool(star)
            cells.append(f"k={one['k']} {one['speedup']:.2f}x{star}")
        lines.append([name, *cells])
        longest = max(int(k) for k in document["predicted"][name])
        lines.append([f"  always k={longest}", *(f"{one['longest_speedup']:.2f}x" for one in loads.values())])
    if any_star:
        title += " (* extrapolated from the passes measured)"
    return ["", title, ([head, *first], lines)]


def _memory(document: Mapping[str, Any]) -> list[str | Table]:
    memory = document["memory"]
    if memory is None:
        return ["", "memory: not told, for the shape of a model is not known"]
    lines = [
        [name, *(f"{one[part] / 1e9:.3f}" for part in ("weights", "cache", "rows")), f"{sum(one.values()) / 1e9:.3f}"]
        for name, one in memory["need_bytes"].items()
    ]
    parts: list[str | Table] = ["", "memory, GB", (["model", "weights", "keys and values", "rows", "all"], lines)]
    if "has" in memory:
        has = memory["has"]
        told = [
            f"{has[key]:.1f} GB {word}" for key, word in (("total_gb", "in all"), ("free_gb", "free now")) if has[key]
        ]
        parts.append(
            f"for {memory['sequences']} sequence{'s' * (memory['sequences'] > 1)} of {memory['context']} tokens: "
            f"{memory['total_bytes'] / 1e9:.2f} GB; {has['what']} has {', '.join(told) or 'an unknown amount'}"
        )
        parts += [
            f"a token of context takes {n / 1e3:.1f} kB of {name}"
            for name, n in memory["cache_bytes_per_token"].items()
        ]
    elif memory["cache_is_estimated"]:
        parts.append("keys and values are estimated; give their shape as 70b@16:LAYERSxHEADSxSIZE")
    return parts


def _ms(value: float) -> str:
    """Milliseconds to three digits, and never in powers of ten."""
    return f"{value:.0f}" if value >= 1000 else f"{value:.3g}"


def _size(parameters: float) -> str:
    for unit, scale in (("billion", 1e9), ("million", 1e6)):
        if parameters >= scale:
            return f"{parameters / scale:.3g} {unit} parameters"
    return f"{parameters:.0f} parameters"


def _print(part: str | Table, file: TextIO) -> None:
    from rich.console import Console
    from rich.table import Table as Grid

    output = Console(file=file, highlight=False, markup=False, width=None if file.isatty() else WIDE, soft_wrap=True)
    if isinstance(part, str):
        output.print(part)
        return
    heads, lines = part
    grid = Grid(box=None, pad_edge=False, header_style="bold")
    for place, head in enumerate(heads):
        grid.add_column(head, justify="right" if place else "left", no_wrap=True)
    for line in lines:
        grid.add_row(*line)
    output.print(grid)
