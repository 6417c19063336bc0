"""The adaptive policy in made-up worlds, for tests of what it decides upon: texts and laws."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from forerun.control import AdaptiveLength, PassCost
from forerun.types import CostCurve, Plan, Step


def flat(milliseconds: float) -> PassCost:
    return PassCost(CostCurve(0, dict.fromkeys((1, 2, 4, 8, 16), milliseconds)))


class Adaptive(AdaptiveLength):
    """In a world of made-up times: the clock of a test would make two runs of one path differ, and what is enumerated
    must be a function of its random decisions. `dear` makes drafting pay only where acceptance is good."""

    def __init__(self, dear: bool = False, **settings: Any) -> None:
        super().__init__(flat(10.0), flat(3.5 if dear else 0.5), **{"probe_share": 0.5, **settings})
        self.lengths: list[int] = []

    def plan(self, sequences: Any, prospects: Any, load: Any) -> list[Plan]:
        plans = super().plan(sequences, prospects, load)
        self.lengths += [plan.shape for plan in plans]
        return plans

    def meter(self, num_tokens: int, num_cached: float, milliseconds: float) -> None:
        super().meter(num_tokens, num_cached, 0.5)

    def update(self, rounds: Any, step: Step) -> None:
        num_fed = (step.num_sequences, step.num_tokens, step.num_rows, step.num_cached)
        super().update(rounds, Step(*num_fed, 1e-3 * sum(one.num_proposed for one in rounds), 1e-2, 1e-5, 1e-5))


class Viewing(Adaptive):
    """Has the draft model see another part of the text in each round: all of it, its end, or what it has seen, and
    sometimes read a piece of it and draft nothing."""

    def plan(self, sequences: Any, prospects: Any, load: Any) -> list[Plan]:
        more: dict[str, Any] = (
            {"most_unread": 0}, {"whole": True}, {"most_unread": 1}, {}, {"whole": True, "shape": 0, "read": 2}, {},
        )[self._num_rounds % 6]  # fmt: skip
        plans = super().plan(sequences, prospects, load)
        return [replace(plan, tree=None, **more) if plan.shape else plan for plan in plans]
