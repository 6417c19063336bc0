"""What `forerun bench` measures beside its workloads: cells, phases, depths and acceptance, each to one document."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO

from forerun.bench.acceptance import print_acceptance, run_acceptance
from forerun.bench.cells.adversary import AdversarialDraft
from forerun.bench.cells.contenders import Make, adaptive_parts, contenders
from forerun.bench.cells.definitions import Cell, task_sets
from forerun.bench.cells.pool import append, entries_like, line_of, pooled, read_lines
from forerun.bench.cells.run import Measuring, check_prompts, run_cell
from forerun.bench.cells.table import print_cells
from forerun.bench.contexts import prompt_ids
from forerun.bench.curves import ModelPasses, measure_curves
from forerun.bench.depth import print_depths, run_depths
from forerun.bench.hardware import provenance
from forerun.bench.models import Loaded
from forerun.bench.phases import NUM_TOKENS, content_phases, load_phases, print_phases, run_phases
from forerun.bench.probe import BandwidthProbe, ProbeSummary
from forerun.bench.rounds import Prompts, Report
from forerun.bench.run import Settings
from forerun.bench.workloads import load_workload
from forerun.control import AdaptiveLength, FixedLength
from forerun.drafting import ModelDrafter
from forerun.errors import ParameterError
from forerun.runtime.base import Model
from forerun.sampling import SamplingParams

Printer = Callable[[Mapping[str, Any], TextIO], None]
NUM_SETS = 3
"""Sets of prompts of a cell, unless told otherwise."""


@dataclass(frozen=True, slots=True)
class Modes:
    """What was asked for beside workloads; None and () where it was not. `minutes` is for each cell, each depth
    and pattern, or each server of a level."""

    cells: tuple[Cell, ...] = ()
    phases: bool = False
    depths: tuple[int, ...] = ()
    patterns: tuple[str, ...] = ()
    acceptance: bool = False
    load: tuple[int, ...] = ()
    minutes: float = 5.0
    append: Path | None = None

    @property
    def name(self) -> str | None:
        """The one that was asked for."""
        asked = {"cells": self.cells, "phases": self.phases, "depth": self.depths, "acceptance": self.acceptance,
                 "load": self.load}  # fmt: skip
        return next((name for name, wanted in asked.items() if wanted), None)


@dataclass(frozen=True, slots=True)
class Bench:
    """What every mode is given."""

    loaded: Loaded
    settings: Settings
    command: str
    report: Report = lambda what, done, total: None

    @property
    def draft(self) -> Model | None:
        """The draft model, as stored or requantised, whichever was asked for."""
        return next(iter(self.loaded.drafts.values()), None)

    @property
    def policy(self) -> str:
        """The adaptive policy's settings."""
        return repr(AdaptiveLength.of(self.loaded.llm.engine.target, self.draft))

    def about(self) -> dict[str, Any]:
        """Where, when and how: what every document carries."""
        return {**provenance(self.command), "settings": asdict(self.settings)}


def measure_mode(
    bench: Bench, modes: Modes, prompts: Prompts, max_tokens: int | None = None
) -> tuple[dict[str, Any], Printer]:
    """The document of the mode that was asked for, and what prints it. `max_tokens` None: the mode's own default."""
    with closing(BandwidthProbe()) as probe:
        if modes.cells:
            return _cells(bench, modes, probe, max_tokens), print_cells
        if modes.phases:
            return _phases(bench, probe, max_tokens), print_phases
        if modes.depths:
            return _depths(bench, modes, probe, max_tokens or 96), print_depths
        return _acceptance(bench, probe, prompts, max_tokens or 96), print_acceptance


def _cells(bench: Bench, modes: Modes, probe: BandwidthProbe, max_tokens: int | None) -> dict[str, Any]:
    """Every cell in turn; each one's blocks are kept as soon as it has ended."""
    llm, settings, about = bench.loaded.llm, bench.settings, bench.about()
    curves = _curves(bench, probe)
    earlier = read_lines(modes.append) if modes.append is not None and modes.append.exists() else []
    lines = []
    for cell in modes.cells:
        if cell.draft != "given" and bench.draft is None:
            continue
        num_tokens = max_tokens or cell.num_tokens
        tasks = load_workload(cell.workload)
        sets = task_sets(len(tasks), cell.sequences, settings.prompts)
        prompts = [
            [prompt_ids(llm, cell.workload, tasks[at], cell.context, at + number) for number, at in enumerate(together)]
            for together in sets
        ]
        check_prompts(cell.name, prompts, num_tokens, llm.engine.target.capabilities.context_length)
        params = SamplingParams(
            temperature=cell.temperature, seed=settings.seed, max_tokens=num_tokens, ignore_eos=True
        )
        draft = bench.draft
        if draft is not None and cell.draft != "given":
            draft = AdversarialDraft(draft, cell.draft)
        sides = contenders(draft, _adaptive(bench, draft), settings.draft_context)
        run_about = {
            "run": about["date"], **about, "target": settings.target, "draft": settings.draft, "num_tokens": num_tokens,
            "sampling": {"seed": settings.seed}, "policy": bench.policy,
        }  # fmt: skip
        before = entries_like(earlier, cell, run_about)
        how = Measuring(probe, 60 * modes.minutes, _told(bench.report, cell.name), earlier=before)
        run = run_cell(llm, sides, prompts, params, how)
        line = line_of(run, cell, run_about)
        if run.entries:
            lines.append(line)
            if modes.append is not None:
                append(modes.append, line)
        if run.interrupted:
            break
    found = pooled([*earlier, *lines])
    mine = [reading for line in lines for _, reading in line["probes"]]
    return {
        **about, "probe": _summary(mine, probe), "cost_curve": curves, "policy": bench.policy,
        "not_run": [] if bench.draft is not None else [cell.name for cell in modes.cells if cell.draft != "given"],
        "interrupted": any(line["interrupted"] for line in lines) or not lines, **found,
    }  # fmt: skip


def _phases(bench: Bench, probe: BandwidthProbe, max_tokens: int | None) -> dict[str, Any]:
    llm, readings = bench.loaded.llm, [probe.measure()]
    steps = {"load": load_phases(llm), "content": content_phases(llm)}
    sides = {"plain": (None, FixedLength(0)), "adaptive": _adaptive(bench, bench.draft)()}
    found = run_phases(llm, sides, steps, max_tokens or NUM_TOKENS, bench.report)
    readings.append(probe.measure())
    return _document(bench, probe, readings, {"phases": found, "policy": bench.policy})


def _depths(bench: Bench, modes: Modes, probe: BandwidthProbe, max_tokens: int) -> dict[str, Any]:
    params = SamplingParams(
        temperature=bench.settings.temperature, seed=bench.settings.seed, max_tokens=max_tokens, ignore_eos=True
    )
    readings = [probe.measure()]
    places = [(depth, pattern) for depth in modes.depths for pattern in modes.patterns]
    how = Measuring(probe, 60 * modes.minutes, bench.report)
    found = run_depths(bench.loaded.llm, bench.settings.drafters, places, max(bench.settings.k), params, how)
    readings.append(probe.measure())
    return _document(bench, probe, readings, {"depth": found, "policy": bench.policy})


def _acceptance(bench: Bench, probe: BandwidthProbe, prompts: Prompts, max_tokens: int) -> dict[str, Any]:
    if bench.draft is None:
        raise ParameterError("acceptance", "nothing drafts", "give --draft MODEL")
    drafter, readings = ModelDrafter(bench.draft, bench.settings.draft_context), [probe.measure()]
    found = run_acceptance(
        bench.loaded.llm, drafter, prompts, max(bench.settings.k), max_tokens, seed=bench.settings.seed,
        report=bench.report,
    )  # fmt: skip
    readings.append(probe.measure())
    return _document(bench, probe, readings, {"acceptance": found})


def _adaptive(bench: Bench, draft: Model | None) -> Make:
    return lambda: adaptive_parts(bench.loaded.llm.engine.target, draft, bench.settings.draft_context)


def _document(bench: Bench, probe: BandwidthProbe, readings: Sequence[float], found: dict[str, Any]) -> dict[str, Any]:
    interrupted = any(part["interrupted"] for part in found.values() if isinstance(part, dict))
    return {**bench.about(), "probe": _summary(readings, probe), "interrupted": interrupted, **found}


def _summary(readings: Sequence[float], probe: BandwidthProbe) -> dict[str, Any]:
    found = ProbeSummary.of(readings or [probe.measure()])
    return {**asdict(found), "readings": len(readings), "threads": probe.num_threads}


def _curves(bench: Bench, probe: BandwidthProbe) -> dict[str, Any]:
    """t(rows) of the models at the settings' context."""
    models = {"target": bench.loaded.llm.engine.target, **bench.loaded.drafts}
    limits = [limit for model in models.values() if (limit := model.capabilities.context_length) is not None]
    sides = {name: ModelPasses(model) for name, model in models.items()}
    return measure_curves(sides, probe, bench.settings.context, min(limits, default=None))


def _told(report: Report, cell: str) -> Report:
    return lambda what, done, total: report(f"{cell}, {what}", done, total)
