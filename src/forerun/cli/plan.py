"""`forerun plan`: what passes cost here, what drafting could gain from that, and whether the vocabularies agree."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from forerun.cli.report import say

if TYPE_CHECKING:
    from rich.console import Console

    from forerun.planning import Prediction
    from forerun.runtime.select import Choice
    from forerun.types import CostCurve

LOOKUP = "lookup"
"""The drafter that costs nothing, so that the target's costs alone tell what it could gain."""
SAME = "same"
NOT_MEASURED = ("acceptance_by_depth", "measured", "best")
"""Parts of the document that are null until the planner is built."""


def _option(name: str, help: str, metavar: str | None = None) -> Any:
    return typer.Option(name, help=help, metavar=metavar, show_default=False)


@dataclass(frozen=True)
class _Measured:
    """A model by the name it was asked for. `gb_per_s`: what memory gave while it was measured."""

    name: str
    runtime: str
    curve: CostCurve
    gb_per_s: float


def plan(
    target: Annotated[str, typer.Argument(metavar="TARGET", help="A model, named as for generate", show_default=False)],
    drafts: Annotated[
        list[str] | None,
        typer.Argument(metavar="[DRAFT]...", help="Draft models to consider (default: none)", show_default=False),
    ] = None,
    context: Annotated[
        int | None, _option("--context", "Measure after N cached tokens, 1 or more (default: 128)", "N")
    ] = None,
    draft_vocabulary: Annotated[
        int | None, _option("--draft-vocabulary", "Cut the drafts' output heads as generate does", "N")
    ] = None,
    draft_requantise: Annotated[
        bool, _option("--draft-requantise", "Round the drafts' weights to 4 bits (native runtime)")
    ] = False,
    runtime: Annotated[
        str, _option("--runtime", "native, torch or auto, as for generate (default: auto)", "RUNTIME")
    ] = "auto",
    draft_runtime: Annotated[
        str, _option("--draft-runtime", "The same, for the drafts (default: auto)", "RUNTIME")
    ] = "auto",
    device: Annotated[str, _option("--device", "auto, cpu, cuda or cuda:N (default: auto)", "DEVICE")] = "auto",
    dtype: Annotated[
        str, _option("--dtype", "auto, or float32, bfloat16 or float16 on torch (default: auto)", "DTYPE")
    ] = "auto",
    quantize: Annotated[
        str | None,
        _option("--quantize", "Round the target's float weights to q4, q8_0 or bf16, as generate does", "FORM"),
    ] = None,
    mirror: Annotated[
        bool | None,
        _option("--mirror/--no-mirror", "Allow missing models to come from the package-index mirror"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document")] = False,
) -> None:
    """Measure what passes of a target and of drafts cost on this machine, and what drafting could gain from that.

    Also says whether a draft's vocabulary is the target's.

    Gains are predicted for assumed acceptances. Acceptance itself, real speed and the best choice are not measured
    here yet (null in --json); `forerun bench` measures them on real texts.
    """
    from forerun.checks import whole
    from forerun.cli.render import console
    from forerun.loading import choose_draft
    from forerun.models.progress import RichProgress
    from forerun.models.pull import resolve
    from forerun.models.tokenizer import load_tokenizer
    from forerun.planning import predict
    from forerun.runtime.select import choose

    if context is not None:
        whole("context", context, 1, None, "a whole number of tokens, at least 1")
    progress = RichProgress(console())
    common: dict[str, Any] = {"device": device, "dtype": dtype}
    files = resolve(target, mirror=mirror, progress=progress)
    tokenizer = load_tokenizer(files.path)
    of_target = choose(files.path, files.kind, runtime, quantize=quantize, **common)
    choices: dict[str, Choice] = {}
    verdicts: dict[str, str] = {}
    for draft in dict.fromkeys(drafts or ()):
        files = resolve(draft, mirror=mirror, progress=progress)
        verdicts[draft] = _verdict(tokenizer, load_tokenizer(files.path))
        if verdicts[draft] == SAME:
            choices[draft] = choose_draft(
                files, tokenizer, draft_runtime, vocabulary=draft_vocabulary, requantise=draft_requantise, **common
            )
    of_target.check()
    own = _measure(target, of_target, context, progress)
    found = {name: _measure(name, choice, context, progress) for name, choice in choices.items()}
    predictions = {LOOKUP: predict(own.curve, None)}
    predictions |= {name: predict(own.curve, one.curve) for name, one in found.items()}
    if as_json:
        print(json.dumps(_document(own, found, verdicts, predictions), allow_nan=False))
        return
    _print(_output(), own, found, verdicts, predictions)
    say(
        "predictions leave out the host's time and the fall of acceptance with depth. not measured yet: "
        f"{', '.join(NOT_MEASURED)}; forerun bench measures acceptance and speed on real texts"
    )


def _verdict(target: Any, draft: Any) -> str:
    """SAME, or what differs."""
    from forerun.errors import VocabularyMismatchError
    from forerun.models.vocabulary import require_same_vocabulary

    try:
        require_same_vocabulary(target, draft)
    except VocabularyMismatchError as error:
        return ". ".join(part for part in (error.fact, error.context) if part)
    return SAME


def _measure(name: str, choice: Choice, context: int | None, progress: Any) -> _Measured:
    """One model's costs, with what memory gave just before and after; it is let go of afterwards."""
    from forerun.bench.probe import BandwidthProbe
    from forerun.runtime.cost import measure_cost

    model = choice.load(progress)
    with closing(BandwidthProbe()) as probe:
        readings = [probe.measure()]
        curve = model.cost() if context is None else measure_cost(model, context=context)
        readings.append(probe.measure())
    return _Measured(name, choice.runtime, curve, sum(readings) / len(readings))


def _document(
    own: _Measured,
    drafts: Mapping[str, _Measured],
    verdicts: Mapping[str, str],
    predictions: Mapping[str, Sequence[Prediction]],
) -> dict[str, Any]:
    from forerun.planning import ACCEPTANCES

    everything = {own.name: own, **drafts}
    return {
        "target_cost_ms": _by_rows(own.curve),
        "draft_cost_ms": {name: _by_rows(one.curve) for name, one in drafts.items()},
        "acceptance_by_depth": None,
        "predicted": {
            name: {
                str(one.k): {
                    "round_ms": one.round_ms,
                    "break_even": one.break_even,
                    "speedup": {str(acceptance): one.speedup(acceptance) for acceptance in ACCEPTANCES},
                }
                for one in several
            }
            for name, several in predictions.items()
        },
        "measured": None,
        "best": None,
        "vocabulary": dict(verdicts),
        "context": {name: one.curve.context for name, one in everything.items()},
        "runtime": {name: one.runtime for name, one in everything.items()},
        "bandwidth_gb_per_s": {name: one.gb_per_s for name, one in everything.items()},
    }


def _by_rows(curve: CostCurve) -> dict[str, float]:
    return {str(rows): milliseconds for rows, milliseconds in curve.milliseconds.items()}


def _output() -> Console:
    from rich.console import Console

    from forerun.cli.render import WIDE

    return Console(
        file=sys.stdout, highlight=False, markup=False, width=None if sys.stdout.isatty() else WIDE, soft_wrap=True
    )


def _print(
    output: Console,
    own: _Measured,
    drafts: Mapping[str, _Measured],
    verdicts: Mapping[str, str],
    predictions: Mapping[str, Sequence[Prediction]],
) -> None:
    from forerun.planning import ACCEPTANCES

    for name, verdict in verdicts.items():
        output.print(f"vocabulary of {name}: {'the same as the target' if verdict == SAME else verdict}")
    for one in (own, *drafts.values()):
        _print_costs(output, one)
    for name, several in predictions.items():
        where = "lookup, in rounds where it finds something," if name == LOOKUP else name
        output.print(f"\nspeed-up by {where} if every draft token is accepted with probability")
        heads = ["k", "breaks even at", *(f"{acceptance:g}" for acceptance in ACCEPTANCES)]
        lines = [
            [
                str(one.k),
                "never" if one.break_even is None else f"{one.break_even:.2f}",
                *(f"{one.speedup(acceptance):.2f}x" for acceptance in ACCEPTANCES),
            ]
            for one in several
        ]
        _print_table(output, heads, lines)


def _print_costs(output: Console, one: _Measured) -> None:
    curve = one.curve
    output.print(
        f"\n{one.name} on the {one.runtime} runtime, after {curve.context} tokens; memory gave {one.gb_per_s:.1f} GB/s"
    )
    heads = ["rows", *(str(rows) for rows in curve.milliseconds)]
    times = ["ms a pass", *(f"{milliseconds:.2f}" for milliseconds in curve.milliseconds.values())]
    relative = ["of one row", *(f"{value / curve.at(1):.2f}x" for value in curve.milliseconds.values())]
    _print_table(output, heads, [times, relative])


def _print_table(output: Console, heads: Sequence[str], lines: Sequence[Sequence[str]]) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for place, head in enumerate(heads):
        table.add_column(head, justify="right" if place else "left", no_wrap=True)
    for line in lines:
        table.add_row(*line)
    output.print(table)
