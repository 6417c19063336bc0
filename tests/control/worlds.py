"""Worlds that the simulation tests share, and scores of a policy in them.

A score is what the policy's choices bring on average (`Simulated.expected_rate`) over what the best fixed length brings
in the same world: the luck of single tokens is in neither. The policy itself learns from drawn tokens and noisy times.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from forerun.control import AdaptiveLength, PassCost
from forerun.control.acceptance import Acceptance
from forerun.control.simulation import Simulated, Source, World, best_rate, fixed_rate, simulate
from forerun.types import CostCurve

MEASURED = (1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 64, 128, 256)
TARGET_MS = 30.0


def linear(first_ms: float, slope: float) -> Callable[[float], float]:
    """Passes whose every further row costs `slope` of the first."""
    return lambda rows: first_ms * (1.0 + slope * (max(rows, 1.0) - 1.0))


def curve(cost: Callable[[float], float]) -> CostCurve:
    return CostCurve(0, {rows: cost(rows) for rows in MEASURED})


def always(acceptance: float) -> Callable[[int, int, int], float]:
    return lambda number, sequence, depth: acceptance


def world(
    acceptance: float | Callable[[int, int, int], float] = 0.8,
    slope: float = 0.02,
    draft: float = 0.2,
    sources: Sequence[Source] | None = None,
    **more: Any,
) -> World:
    """A target of 30 ms a pass, and one draft model that takes `draft` of that, unless other `sources` are given."""
    chances = acceptance if callable(acceptance) else always(acceptance)
    found = [Source("model", chances)] if sources is None else sources
    settings = {"host_ms": 0.05, "noise": 0.03, **more}
    return World(linear(TARGET_MS, slope), linear(TARGET_MS * draft, slope), found, **settings)


def policy(of: World, **settings: Any) -> AdaptiveLength:
    """One that has measured the world's costs, and room for as many rows as it likes: the oracle has, too."""
    costs = PassCost(curve(of.target_ms)), PassCost(curve(of.draft_ms))
    return AdaptiveLength(*costs, **{"max_rows": 4096, **settings})


@dataclass(frozen=True)
class Score:
    """Rates of a policy, each over that of the best fixed length: in the steady state and in rounds 30 to 60; and over
    plain decoding's from round 30 on, and in the first 30. `gain` is the best fixed length's over plain decoding."""

    steady: float
    converged: float
    over_plain: float
    first: float
    gain: float
    mean_k: float


def score(of: World, num_rounds: int, seeds: Sequence[int] = (0,), steady_from: int | None = None) -> Score:
    """Means over seeds."""
    steady_from = min(130, num_rounds // 2) if steady_from is None else steady_from
    best, plain = best_rate(of, 0)[0], fixed_rate(of, of.sources[0], 0, 0)
    runs = [simulate(policy(of), of, num_rounds, seed) for seed in seeds]

    def rate(start: int, end: int | None = None) -> float:
        return math.fsum(run.expected_rate(start, end) for run in runs) / len(runs)

    num_steady = (num_rounds - steady_from) * of.num_sequences * len(runs)
    return Score(
        steady=rate(steady_from) / best,
        converged=rate(30, 60) / best,
        over_plain=rate(30) / plain,
        first=rate(0, 30) / plain,
        gain=best / plain,
        mean_k=sum(sum(run.num_drafted[steady_from:]) for run in runs) / num_steady,
    )


def against_best(of: World, run: Simulated, start: int, end: int) -> float:
    """What rounds `start` .. `end` made of their time, over what the best fixed length of each round would have: an
    oracle that knows when the world changes."""
    best_tokens = best_ms = 0.0
    for number in range(start, end):
        rate, k, name = best_rate(of, number)
        source = next((source for source in of.sources if source.name == name), of.sources[0])
        tokens = expected_tokens(of, source, k, number)
        best_tokens += tokens
        best_ms += tokens / rate
    return run.expected_rate(start, end) / (best_tokens / best_ms)


def expected_tokens(of: World, source: Source, k: int, number: int) -> float:
    found = 0.0
    for sequence in range(of.num_sequences):
        reached = 1.0
        found += reached
        for depth in range(k):
            reached *= source.acceptance(number, sequence, depth)
            found += reached
    return found


def by_depth(known: Acceptance, source: str) -> list[float]:
    """Acceptance at each depth that was examined, over all tables of a source."""
    tables = [table.accepted for ((name, _), _), table in known._tables.items() if name == source]
    deepest = max(map(len, tables), default=0)
    shares = [[table[depth] for table in tables if depth < len(table)] for depth in range(deepest)]
    return [
        sum(share.hits for share in at) / total for at in shares if (total := sum(share.total for share in at))
    ]  # fmt: skip
