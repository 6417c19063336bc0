"""`plan --simulate`: the real adaptive policy in a world of numbers, beside plain decoding and the best fixed choice.

A pass of r rows costs 1 + cost_slope (r - 1) passes of one row, a draft token `draft_cost` of them. Acceptance is the
same at every depth, or given by depth, and swings by `drift` to both sides as a sine of `PERIOD` rounds. No model, no
clock.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from functools import partial
from itertools import pairwise
from typing import Any

from forerun.checks import real, whole
from forerun.control.adaptive import AdaptiveLength
from forerun.control.cost import PassCost
from forerun.control.simulation import Source, World, simulate
from forerun.types import CostCurve

TARGET_MS, HOST_MS = 30.0, 0.3
ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 32, 64, 128, 256, 1024)
"""Rows at which the policy is told a curve."""
PERIOD = 400
"""Rounds of one swing."""
NUM_PARTS = 8
"""Stretches of the run that are told apart."""
SETTLING = 30
"""Rounds at the start that do not count as steady."""
LONGEST = 32
"""The longest fixed choice that the policy is set against: the longest it makes itself."""


@dataclass(frozen=True, slots=True)
class Simulation:
    """A world: see the module. `sequences` decode together for `rounds` rounds; the same `seed`, the same run."""

    acceptance: tuple[float, ...] = (0.8,)
    cost_slope: float = 0.05
    draft_cost: float = 0.1
    sequences: int = 1
    drift: float = 0.0
    rounds: int = 400
    seed: int = 0

    def __post_init__(self) -> None:
        whole("sequences", self.sequences, 1, 256, "1 to 256")
        real("cost_slope", self.cost_slope, 0.0, 1.0, "0 to 1")
        real("draft_cost", self.draft_cost, 0.0, 10.0, "0 to 10")
        real("drift", self.drift, 0.0, 1.0, "0 to 1")
        whole("rounds", self.rounds, 1, 100_000, "1 to 100000")
        whole("seed", self.seed, 0, None, "a whole number of at least 0")

    def world(self) -> World:
        """The world that the policy is put into."""

        def acceptance(number: int, sequence: int, depth: int) -> float:
            mean = self.acceptance[min(depth, len(self.acceptance) - 1)]
            return min(max(mean + self.drift * math.sin(2 * math.pi * number / PERIOD), 0.0), 1.0)

        return World(
            partial(self.pass_ms, TARGET_MS), partial(self.pass_ms, TARGET_MS * self.draft_cost),
            [Source("model", acceptance)], self.sequences, host_ms=HOST_MS,
        )  # fmt: skip

    def pass_ms(self, one_ms: float, rows: float) -> float:
        """Milliseconds of a pass of `rows` rows where one row takes `one_ms`."""
        return one_ms * (1.0 + self.cost_slope * (rows - 1.0))

    def policy(self) -> AdaptiveLength:
        """The policy, told the curves as a runtime measures them."""
        costs = [
            PassCost(CostCurve(0, {n: self.pass_ms(one_ms, n) for n in ROWS}))
            for one_ms in (TARGET_MS, TARGET_MS * self.draft_cost)
        ]
        return AdaptiveLength(*costs)


def simulated(asked: Simulation) -> dict[str, Any]:
    """The document: by stretch and in steady state, the policy's tokens a millisecond over plain decoding's and over
    those of the best fixed choice of each round, which knows the truth. The policy is told tokens that are drawn, and
    scored by what its choices bring on average."""
    world = asked.world()
    run = simulate(asked.policy(), world, asked.rounds, asked.seed)
    plain = asked.sequences / (world.target_ms(asked.sequences) + world.host_ms)
    bests = best_choices(world, 1 if asked.drift == 0 else asked.rounds)
    bests += bests[-1:] * (asked.rounds - len(bests))

    def part(start: int, end: int) -> dict[str, Any]:
        rate, spent = run.expected_rate(start, end), sum(run.usual_ms[start:end])
        best = sum(ms * one[0] for ms, one in zip(run.usual_ms[start:end], bests[start:end], strict=True)) / spent
        drafted = sum(run.num_drafted[start:end]) / (end - start) / asked.sequences
        return {
            "rounds": [start, end], "mean_k": drafted, "best_k": bests[(start + end) // 2][1],
            "over_plain": rate / plain, "best_over_plain": best / plain, "of_best": rate / best,
        }  # fmt: skip

    edges = [asked.rounds * place // NUM_PARTS for place in range(NUM_PARTS + 1)]
    return {
        "simulation": asdict(asked),
        "by_rounds": [part(start, end) for start, end in pairwise(edges) if end > start],
        "steady": part(min(SETTLING, asked.rounds - 1), asked.rounds),
    }


def best_choices(world: World, num_rounds: int) -> list[tuple[float, int]]:
    """[(tokens per millisecond, k)] of the best fixed choice of each round, where one source drafts for sequences that
    are all alike."""
    (source,), count = world.sources, world.num_sequences
    took_ms = [world.target_ms(count * (k + 1)) + k * world.draft_ms(count) + world.host_ms for k in range(LONGEST + 1)]
    found = []
    for number in range(num_rounds):
        tokens, reached = [1.0], 1.0
        for depth in range(LONGEST):
            reached *= source.acceptance(number, 0, depth)
            tokens.append(tokens[-1] + reached)
        rates = [count * one / ms for one, ms in zip(tokens, took_ms, strict=True)]
        k = max(range(LONGEST + 1), key=rates.__getitem__)  # the shorter one of equals
        found.append((rates[k], k))
    return found
