"""`forerun plan`: parse, refuse what can be refused early, then measure here or read a datasheet, and print."""

from __future__ import annotations

import json
import sys
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from forerun.cli.flags import Group, flag
from forerun.cli.plan_options import OUTPUT, RUNS, Here, Sheet, Simulated, acceptances, lengths
from forerun.cli.report import say
from forerun.errors import InputError, ParameterError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forerun.bench.workloads import RandomIds
    from forerun.llm import Prompt
    from forerun.planning.datasheet import Assumed
    from forerun.planning.devices import Device
    from forerun.planning.run import Asked

_SPELLED = {"name": "for"}
"""Fields whose flags have another name."""


def plan(
    here: Here,
    sheet: Sheet,
    world: Simulated,
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="TARGET", help="A model, named as for generate, or with --for a shape: 70b@16", show_default=False
        ),
    ] = None,
    drafts: Annotated[
        list[str] | None,
        typer.Argument(metavar="[DRAFT]...", help="Draft models or shapes to consider", show_default=False),
    ] = None,
    k: Annotated[
        str | None, flag("--k", "Speculation lengths, 0 to 64, for example 1,2,4 or 0-8 (default: 0-8)", RUNS, "LIST")
    ] = None,
    temperature: Annotated[
        float | None, flag("--temperature", "0 or more; 0 is greedy (default: 0.0)", RUNS, "T")
    ] = None,
    context: Annotated[
        int | None,
        flag("--context", "Cached tokens: 1 or more (default: those of the prompts; 1024 with --for)", RUNS, "N"),
    ] = None,
    sequences: Annotated[
        int | None,
        flag(
            "--sequences", "Sequences at once, for memory, with --for and --simulate: 1 or more (default: 1)", RUNS, "N"
        ),
    ] = None,
    flops: Annotated[
        float | None,
        flag(
            "--flops",
            "Peak arithmetic of the machine, above 0 (default: measured here; needed with --bandwidth)",
            RUNS,
            "TFLOP/s",
        ),
    ] = None,
    export: Annotated[
        str | None,
        flag(
            "--export",
            "Print nothing but the choice, as settings of vllm, sglang, tensorrt-llm or llama.cpp (the plan goes to "
            "standard error)",
            OUTPUT,
            "ENGINE",
        ),
    ] = None,
    plot: Annotated[Path | None, flag("--plot", "Draw the plan (needs matplotlib)", OUTPUT, "FILE.png")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document", rich_help_panel=OUTPUT)] = False,
) -> None:
    """What drafting is worth: measured on this machine, or predicted from a datasheet.

    Without --for, target and drafts are loaded. Passes, acceptance and speed are measured on prompts, and the speed of
    every k is predicted from passes and acceptance and printed beside the measured one. With --for (or --bandwidth and
    --flops) nothing is loaded, and models may be shapes: 70b@16 has 70 billion parameters of 16 bits. With --simulate
    there are no models at all: the adaptive policy runs in a world of numbers.
    """
    from forerun.bench.plot import check_plot
    from forerun.checks import real, whole, writable
    from forerun.planning.exports import check_engine

    if world.simulate:
        if target is not None:
            raise ParameterError("simulate", f"takes no models, and {target!r} was given", "leave it out")
        others = {
            "k": k, "temperature": temperature, "context": context, "flops": flops, "export": export, "plot": plot,
        }  # fmt: skip
        _simulate(world, sheet, here, sequences, others, as_json)
        return
    _refuse(world, "is for simulations", "add --simulate, or leave it out")
    if target is None:
        raise InputError("there is no TARGET", "", "forerun plan TARGET [DRAFT...]; see forerun plan --help")
    ks = lengths(k)
    names = list(dict.fromkeys(drafts or ()))
    for name, value in (("context", context), ("sequences", sequences)):
        if value is not None:
            whole(name, value, 1, None, "a whole number, at least 1")
    real("temperature", 0.0 if temperature is None else temperature, 0.0, 1e6, "0 or more")
    if export is not None:
        check_engine(export)
    if plot is not None:
        writable("plot", plot)
    check_plot(plot)
    if sheet.name is not None or sheet.bandwidth is not None:
        _refuse(here, "is for measuring here", "leave it out, or leave out --for and --bandwidth")
        device, assumed = _device(sheet, flops), _assumed(sheet, ks, context, sequences)
        document = _from_datasheet(target, names, device, assumed)
    else:
        _refuse(sheet, "is for machines that are not here", "add --for NAME, or --bandwidth GB/s and --flops TFLOP/s")
        asked = _asked(here, ks, temperature or 0.0, context, sequences, flops)
        document = _measured(target, names, here, asked, *_prompts(here))
    _finish(document, target, temperature or 0.0, export, plot, as_json)


def _simulate(
    world: Simulated, sheet: Sheet, here: Here, sequences: int | None, others: dict[str, Any], as_json: bool
) -> None:
    """The policy in a world of numbers, of which --acceptance and --sequences are part too."""
    from forerun.cli.plan_report import print_simulation
    from forerun.planning.simulate import Simulation, simulated

    remedy = "leave it out, or leave out --simulate"
    _refuse(here, "is for measuring", remedy)
    used = {"acceptance": sheet.acceptance} if sheet.acceptance is not None else {}
    given = {**{name: value for name, value in sheet.given().items() if name not in used}, **others}
    for name in _settings(given):
        raise ParameterError(_SPELLED.get(name, name), "is no part of a simulation", remedy)
    settings = {name: value for name, value in world.given().items() if name != "simulate"}
    asked = Simulation(acceptances(sheet.acceptance), **_settings({"sequences": sequences}), **settings)
    document = simulated(asked)
    if as_json:
        print(json.dumps(document, allow_nan=False))
    else:
        print_simulation(document)


def _from_datasheet(target: str, drafts: list[str], device: Device, assumed: Assumed) -> dict[str, Any]:
    from forerun.planning.datasheet import document
    from forerun.planning.shapes import find_shape
    from forerun.planning.vocabularies import fits, verdicts

    shapes = {name: find_shape(name) for name in (target, *drafts)}
    found = verdicts(target, drafts)
    fitting = [shapes[draft] for draft in drafts if fits(found[draft])]
    return document(shapes[target], fitting, device, assumed) | {"vocabulary": found}


def _measured(
    target: str, drafts: list[str], here: Here, asked: Asked, prompts: Sequence[Prompt | RandomIds], notes: list[str]
) -> dict[str, Any]:
    from forerun.cli.render import console
    from forerun.models.progress import RichProgress
    from forerun.planning.prepare import Loading, prepare
    from forerun.planning.run import plan as measure

    of_loading = {field.name for field in fields(Loading)}
    loading = Loading(**{name: value for name, value in here.given().items() if name in of_loading})
    prepared = prepare(target, drafts, loading, RichProgress(console()))
    encoded, more = prepared.encode(prompts)
    for note in [*notes, *more]:
        say(note)
    found = measure(prepared.target, prepared.drafts, prepared.tokenizer, encoded, asked, _Progress())
    found["vocabulary"] = dict(prepared.verdicts)
    found["prompts"] = {"count": len(encoded), "tokens": [len(one) for one in encoded], "written": asked.num_tokens}
    return found


def _asked(
    here: Here, ks: tuple[int, ...], temperature: float, context: int | None, sequences: int | None, flops: float | None
) -> Asked:
    from forerun.planning.run import Asked

    given = {"num_tokens": here.max_tokens, "context": context, "sequences": sequences, "tflops": flops}
    return Asked(ks, temperature=temperature, **_settings(given))


def _prompts(here: Here) -> tuple[Sequence[Prompt | RandomIds], list[str]]:
    """What is generated from, and notes about what is left out."""
    from forerun.checks import whole
    from forerun.planning.prompts import check_utf8, read_prompts, workload_names, workload_prompts

    if here.num_prompts is not None:
        whole("num_prompts", here.num_prompts, 1, None, "a whole number of at least 1")
    own: list[Prompt] = []
    for text in here.prompt or ():
        check_utf8(text, "--prompt")
        own.append(text)
    if here.prompts is not None:
        own += read_prompts(here.prompts)
    if own:
        if here.workload is not None:
            raise ParameterError("workload", "was given together with prompts of yours", "give one of them")
        return own[: here.num_prompts], []
    return workload_prompts(workload_names(here.workload), here.num_prompts or 3)


def _finish(
    document: dict[str, Any], target: str, temperature: float, engine: str | None, plot: Path | None, as_json: bool
) -> None:
    from forerun.cli.plan_report import print_export, print_plan
    from forerun.planning.exports import Wish, export
    from forerun.planning.plot import write_plot

    best = document["best"]
    wish = Wish(best["drafter"], best["k"], target, best["drafter"], temperature)
    exported = None if engine is None else export(engine, wish)
    if exported is not None:
        document["export"] = {"engine": engine, "text": exported.text, "notes": exported.notes}
    if as_json:
        print(json.dumps(document, allow_nan=False))
    elif exported is None:
        print_plan(document, target, sys.stdout)
    else:
        print_plan(document, target, sys.stderr)
        print_export(document["export"])
    if plot is not None:
        write_plot(document, target, plot)
        say(f"wrote {plot}")


def _device(sheet: Sheet, flops: float | None) -> Device:
    from forerun.planning.devices import find_device, own_device

    if sheet.name is None:
        return own_device(sheet.bandwidth, flops, sheet.memory)
    for name, value in (("bandwidth", sheet.bandwidth), ("flops", flops), ("memory", sheet.memory)):
        if value is not None:
            raise ParameterError(name, "was given together with --for, which knows it", "give one of them")
    return find_device(sheet.name)


def _assumed(sheet: Sheet, ks: tuple[int, ...], context: int | None, sequences: int | None) -> Assumed:
    from forerun.planning.datasheet import Assumed

    given = {
        "context": context, "sequences": sequences, "cards": sheet.cards, "overhead_ms": sheet.overhead,
        "efficiency": sheet.efficiency,
    }  # fmt: skip
    return Assumed(acceptances(sheet.acceptance), ks, **_settings(given))


def _settings(given: dict[str, Any]) -> dict[str, Any]:
    """What was given: the rest keeps its default."""
    return {name: value for name, value in given.items() if value is not None}


def _refuse(group: Group, fact: str, remedy: str) -> None:
    """Refuse settings of the other kind of plan: none is left unused in silence."""
    given = group.given()
    if given:
        name = next(field.name for field in fields(group) if field.name in given)
        raise ParameterError(_SPELLED.get(name, name), fact, remedy)


class _Progress:
    """What is being done, on standard error: a line for each prompt, or one line that is rewritten on a terminal."""

    def __init__(self) -> None:
        self._stage, self._is_terminal = "", sys.stderr.isatty()

    def __call__(self, what: str, done: int, total: int) -> None:
        if self._is_terminal:
            sys.stderr.write(f"\r\x1b[K{done}/{total} {what}" if done < total else "\r\x1b[K")
            sys.stderr.flush()
        elif what.partition(":")[0] != self._stage:
            self._stage = what.partition(":")[0]
            say(f"{done}/{total} {self._stage}")
