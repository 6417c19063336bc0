"""Steps of load and of content: how long the policy takes to follow them, and whether any text stalls meanwhile.

Requests of a phase are submitted when those before have ended, to one policy and drafter for all of them. Prompts are
read beforehand, so that a gap between tokens is the drafting's doing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TextIO

import numpy as np

from forerun.bench.cells.batches import KeptPrompts, Moment, run_block
from forerun.bench.cells.contenders import Parts
from forerun.bench.rounds import Report
from forerun.bench.workloads import load_workload
from forerun.llm import LLM
from forerun.sampling import SamplingParams

NUM_TOKENS = 180
LOADS = (1, 8, 1, 12)
STALL = 5.0
"""A gap of more than so many medians is a stall."""
SMOOTHED = 5
"""Steps over which k is averaged before it is compared with where it settles."""
TOLERANCE, SHARE = 1.0, 0.25
"""k has arrived where it is within a token, or a quarter, of where it settles."""
COLUMNS = (
    "side", "phase", "tokens/s", "k", "settled after", "as before", "gap ms", "p99 ms", "largest ms", "stalls",
)  # fmt: skip
"""Of a step's table. "as before": steps until the third phase drafted as the first did."""


@dataclass(frozen=True, slots=True)
class Phase:
    """Requests submitted together."""

    name: str
    prompts: Sequence[Sequence[int]]
    temperature: float


def load_phases(llm: LLM, loads: Sequence[int] = LOADS) -> list[Phase]:
    """1 -> 8 -> 1 -> 12 requests of chat."""
    tasks = [task.encode(llm) for task in load_workload("chat")]
    return [
        Phase(f"{number + 1}: {load} at once", [tasks[(number + i) % len(tasks)] for i in range(load)], 0.7)
        for number, load in enumerate(loads)
    ]


def content_phases(llm: LLM) -> list[Phase]:
    """A file to be copied, a story that nobody can guess, another file."""
    edits, stories = load_workload("edit"), load_workload("creative")
    steps = (("copy", edits[0], 0.0), ("story", stories[0], 1.2), ("copy again", edits[1], 0.0))
    return [Phase(name, [task.encode(llm)], temperature) for name, task, temperature in steps]


def run_phases(
    llm: LLM,
    sides: Mapping[str, Parts],
    steps: Mapping[str, Sequence[Phase]],
    num_tokens: int = NUM_TOKENS,
    report: Report = lambda what, done, total: None,
) -> dict[str, Any]:
    """Figures of every phase, {step: {side: [figures]}}. Sides take turns phase by phase, and each keeps its policy
    from the first phase of a step to the last. Ctrl-C ends it; what there is is returned."""
    found: dict[str, Any] = {step: {side: [] for side in sides} for step in steps}
    kept = KeptPrompts(llm.engine.target)
    total = sum(len(phases) for phases in steps.values()) * len(sides)
    done, interrupted = 0, False
    try:
        for step, phases in steps.items():
            for phase in phases:
                for prompt in phase.prompts:
                    kept.read(prompt)
                for side, (drafter, policy) in sides.items():
                    report(f"{step}: {phase.name}, {side}", done, total)
                    params = SamplingParams(temperature=phase.temperature, max_tokens=num_tokens, ignore_eos=True)
                    block = run_block(llm, drafter, policy, phase.prompts, params, kept)
                    found[step][side].append({"phase": phase.name, **figures_of(block.moments, block.tokens_per_s)})
                    done += 1
    except KeyboardInterrupt:
        interrupted = True
    finally:
        kept.drop()
    for of_step in found.values():
        for phases_of_side in of_step.values():
            _compare_with_first(phases_of_side)
    return {"steps": found, "num_tokens": num_tokens, "interrupted": interrupted}


def figures_of(moments: Sequence[Moment], tokens_per_s: float) -> dict[str, Any]:
    """k over the steps of a phase, where it settled and after how many steps, and the gaps between a text's tokens."""
    k = [mean_k(moment) for moment in moments]
    settled = float(np.mean(k[len(k) // 2 :])) if k else 0.0
    found = gaps(moments)
    median = float(np.median(found)) if found else 0.0
    return {
        "tokens_per_s": tokens_per_s,
        "k": [round(value, 2) for value in k],
        "sources": _sources(moments),
        "settled_k": settled,
        "steps_to_settle": steps_until(k, settled),
        "gap_ms": {
            "median": 1e3 * median,
            "p99": 1e3 * float(np.quantile(found, 0.99)) if found else 0.0,
            "largest": 1e3 * max(found, default=0.0),
        },
        "stalls": sum(gap > STALL * median for gap in found),
        "gaps": len(found),
    }


def mean_k(moment: Moment) -> float:
    """Draft tokens per sequence in one step."""
    return sum(proposed for _, _, proposed, *_ in moment.rounds) / max(len(moment.rounds), 1)


def gaps(moments: Sequence[Moment]) -> list[float]:
    """Seconds between one delivery of tokens and the next of the same sequence."""
    times: dict[int, list[float]] = {}
    for moment in moments:
        for number, _, _, _, emitted, _ in moment.rounds:
            if emitted:
                times.setdefault(number, []).append(moment.at)
    return [later - earlier for of_sequence in times.values() for earlier, later in pairwise(of_sequence)]


def steps_until(k: Sequence[float], goal: float) -> int | None:
    """Steps until the mean of the next few k is near `goal` for the first time; None where it never is."""
    near = max(TOLERANCE, SHARE * goal)
    for start in range(len(k)):
        window = k[start : start + SMOOTHED]
        if abs(sum(window) / len(window) - goal) <= near:
            return start
    return None


def _sources(moments: Sequence[Moment]) -> dict[str, int]:
    found: dict[str, int] = {}
    for moment in moments:
        for _, source, proposed, *_ in moment.rounds:
            name = (source or "?") if proposed else "none"
            found[name] = found.get(name, 0) + 1
    return found


def _compare_with_first(phases: list[dict[str, Any]]) -> None:
    """In the third phase, which is like the first: steps until k was where it had settled then."""
    if len(phases) > 2:
        phases[2]["steps_to_first_phases_k"] = steps_until(phases[2]["k"], phases[0]["settled_k"])


def print_phases(document: Mapping[str, Any], file: TextIO) -> None:
    """A line for each phase and side."""
    for line in phase_lines(document["phases"]):
        print(line, file=file)


def phase_lines(found: Mapping[str, Any]) -> Iterator[str]:
    """The figures in words."""
    for step, sides in found["steps"].items():
        yield f"\n{title(step, found)}"
        for side, phase, *figures in (COLUMNS, *rows_of(sides)):
            cells = (f"{cell:>{max(len(column), 8)}}" for cell, column in zip(figures, COLUMNS[2:], strict=True))
            yield f"{side:10} {phase:16} {' '.join(cells)}"


def title(step: str, found: Mapping[str, Any]) -> str:
    """What was submitted."""
    return f"{step} step, {found['num_tokens']} tokens each"


def rows_of(sides: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """A line of COLUMNS for each side and phase of a step: the page shows the same."""
    return [
        (
            side, one["phase"], f"{one['tokens_per_s']:.1f}", f"{one['settled_k']:.2f}",
            _steps(one["steps_to_settle"]), _steps(one.get("steps_to_first_phases_k", "-")),
            *(f"{one['gap_ms'][part]:.1f}" for part in ("median", "p99", "largest")), str(one["stalls"]),
        )
        for side, phases in sides.items()
        for one in phases
    ]  # fmt: skip


def _steps(value: int | str | None) -> str:
    """How many steps something took."""
    return "never" if value is None else str(value)
