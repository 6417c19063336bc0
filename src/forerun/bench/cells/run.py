"""One cell, measured: blocks of all contenders in turn over the same loaded models, each between two probes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from time import perf_counter

from forerun.bench.cells.batches import KeptPrompts, run_block
from forerun.bench.cells.contenders import Contender
from forerun.bench.cells.entries import Entry
from forerun.bench.cells.ratios import gain_of
from forerun.bench.probe import BandwidthProbe
from forerun.bench.rounds import Report, turn_order
from forerun.bench.summary import PLAIN
from forerun.errors import InputError
from forerun.llm import LLM
from forerun.sampling import SamplingParams

PLAIN_EVERY = 4
"""Plain decoding and the adaptive ones get a block for every so many fixed choices of a turn: it is their ratio that is
to be known to a percent."""
HOPELESS = ((0, 0.7), (1, 0.8), (2, 0.9))
"""(times that every set of prompts was seen, share of the best fixed choice's speed): a fixed choice that is slower
than that takes no further part, so that the time goes to those that could be the best."""
FINALISTS = 3
"""Fixed choices that take part in a run that goes on from earlier ones: those that were the fastest until then."""


@dataclass(frozen=True, slots=True)
class Measuring:
    """How long, and with what: about `budget_s` seconds, at least one turn and at most `most_turns`, with a reading of
    `probe` between any two blocks. `report` gets (what is next, done, total). `earlier` are blocks of earlier runs:
    only the fixed choices that were the fastest in them get any in this one, and turns go on with the prompts that are
    next."""

    probe: BandwidthProbe
    budget_s: float
    report: Report = lambda what, done, total: None
    most_turns: int | None = None
    earlier: Sequence[Entry] = ()


@dataclass(slots=True)
class CellRun:
    """What was measured of a cell. `probes` are (seconds since the cell began, GB/s)."""

    entries: list[Entry] = field(default_factory=list)
    probes: list[tuple[float, float]] = field(default_factory=list)
    dropped: dict[str, int] = field(default_factory=dict)
    """Fixed choices that took no further part, and after which turn (0: earlier runs told)."""
    interrupted: bool = False


def run_cell(
    llm: LLM,
    contenders: Sequence[Contender],
    prompts: Sequence[Sequence[Sequence[int]]],
    params: SamplingParams,
    how: Measuring,
) -> CellRun:
    """Measure every contender on every set of prompts in turn. Ctrl-C ends it, and what was measured until then is
    returned."""
    found, probe, report = CellRun(), how.probe, how.report
    found.dropped.update(_beaten(how.earlier, contenders))
    kept = KeptPrompts(llm.engine.target)
    past = len({(entry.run, entry.turn) for entry in how.earlier})
    started = perf_counter()
    turn = 0
    try:
        for number, together in enumerate(prompts):
            report("reading prompts", number, len(prompts))
            for prompt in together:
                kept.read(prompt)
        started = perf_counter()
        _probe(found, probe, started)
        # What a first block does once: pages, caches, measured costs. It is not counted; fixed choices share a drafter.
        first = [contender for contender in contenders if contender.name not in found.dropped]
        for contender in {contender.name.partition(" k=")[0]: contender for contender in first}.values():
            report(f"warming up {contender.name}", 0, 1)
            run_block(llm, *contender.make(), prompts[0][:1], params, kept)
        while how.most_turns is None or turn < how.most_turns:
            spent, at = perf_counter() - started, (past + turn) % len(prompts)
            if turn and spent * (turn + 1) / turn > how.budget_s:
                break
            here = [contender for contender in contenders if contender.name not in found.dropped]
            order = _order(here, turn)
            for place, contender in enumerate(order):
                report(f"turn {turn + 1}: {contender.name}", place, len(order))
                before = found.probes[-1][1]
                block = run_block(llm, *contender.make(), prompts[at], params, kept)
                around = before, _probe(found, probe, started)
                found.entries.append(Entry(contender.name, at, turn, around, perf_counter() - started, block))
            turn += 1
            _drop_hopeless(found, here, turn // len(prompts), turn)
    except KeyboardInterrupt:
        found.interrupted = True
    finally:
        kept.drop()
    return found


def check_prompts(name: str, prompts: Sequence[Sequence[Sequence[int]]], num_tokens: int, limit: int | None) -> None:
    """Refuse prompts that leave no room for `num_tokens`."""
    longest = max(len(prompt) for together in prompts for prompt in together)
    if limit is not None and longest + num_tokens > limit:
        raise InputError(
            f"{num_tokens} tokens do not fit behind the prompts of {name}",
            f"they have up to {longest} tokens, and the context holds {limit}",
            "leave this one out, or take a model with a longer context",
        )


def _order(contenders: Sequence[Contender], turn: int) -> list[Contender]:
    """The contenders of a turn: fixed ones in a balanced order, the others in every gap between a few of them, in an
    order that is balanced as well."""
    fixed = [contender for contender in contenders if contender.is_fixed]
    others = [contender for contender in contenders if not contender.is_fixed]
    fixed = [fixed[place] for place in turn_order(len(fixed), turn)]
    groups = [fixed[start : start + PLAIN_EVERY] for start in range(0, len(fixed), PLAIN_EVERY)] or [[]]
    order: list[Contender] = []
    for number, group in enumerate(groups):
        order += [others[place] for place in turn_order(len(others), turn + number)]
        order += group
    return order


def _probe(found: CellRun, probe: BandwidthProbe, started: float) -> float:
    reading = probe.measure()
    found.probes.append((perf_counter() - started, reading))
    return reading


def _beaten(entries: Sequence[Entry], contenders: Sequence[Contender]) -> dict[str, int]:
    """Fixed choices that are not among the fastest of some blocks, as in `CellRun.dropped`. Those that have no block
    are not known to be slow."""
    scores = {}
    for name in (contender.name for contender in contenders if contender.is_fixed):
        speeds = [entry.block.tokens_per_s for entry in entries if entry.contender == name]
        if speeds:  # two that never met at one bandwidth are told apart by their speeds as they were
            gain = gain_of(entries, name, PLAIN)
            plain = [entry.block.tokens_per_s for entry in entries if entry.contender == PLAIN]
            scores[name] = gain if gain is not None else median(speeds) / median(plain or speeds)
    return dict.fromkeys(sorted(scores, key=scores.__getitem__, reverse=True)[FINALISTS:], 0)


def _drop_hopeless(found: CellRun, contenders: Sequence[Contender], times: int, turns: int) -> None:
    """Let fixed choices go that are clearly not the best one."""
    share = max(share for after, share in HOPELESS if times >= after)
    gains = {}
    for contender in contenders:
        gain = gain_of(found.entries, contender.name, PLAIN) if contender.is_fixed else None
        if gain is not None:
            gains[contender.name] = gain
    best = max(gains.values(), default=0.0)
    found.dropped.update({name: turns for name, gain in gains.items() if gain < share * best})
