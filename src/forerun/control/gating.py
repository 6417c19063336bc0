"""When a draft is to end: how sure all tokens so far must be for one more to be worth its time.

Gates are shown confidences alone, so that ending a draft conditions on no token that is dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from forerun.control.acceptance import Forecast
from forerun.control.choice import LONGEST_ROUND, Choice, Option, Prices


@dataclass(frozen=True, slots=True)
class Company:
    """Who shares a round: `riders[j]` sequences are expected to draft in the draft model's pass j, of which the choice
    has `num_passes`; `num_drafting` sequences draft at all, and the pass has `num_rows` rows with what was chosen
    (where one drafts alone: without it). `spare_ms` is how much longer than chosen the round may take."""

    riders: Sequence[float]
    num_passes: int
    num_drafting: int
    num_rows: int
    spare_ms: float

    @classmethod
    def of(cls, options: Sequence[Sequence[Option]], best: Choice, num_rows: int, plain_ms: float) -> Company:
        """The company of a choice among `options`, whose round has `num_rows` rows and takes `plain_ms` without any
        draft."""
        riders: list[float] = []
        num_passes = 0
        for of_one, taken in zip(options, best.taken, strict=True):
            if taken is None or taken[1] <= of_one[taken[0]].num_free:
                continue
            option = of_one[taken[0]]
            num_passes = max(num_passes, taken[1] - option.num_free)
            for number, drafted in enumerate(option.drafted[option.num_free :]):
                if number == len(riders):
                    riders.append(0.0)
                riders[number] += drafted
        drafting = [taken[1] for taken in best.taken if taken is not None]
        spare_ms = LONGEST_ROUND * plain_ms - best.milliseconds
        return cls(riders, num_passes, len(drafting), num_rows + sum(drafting) * (len(drafting) > 1), spare_ms)

    def has_time(self, num_more: int, num_rows: int, prices: Prices) -> bool:
        """Whether all may draft so many tokens more, where a draft of `num_rows` was chosen for one of them."""
        rows = self.num_rows + num_rows * (self.num_drafting <= 1)
        more_ms = prices.target_ms(rows + num_more * self.num_drafting) - prices.target_ms(rows)
        return more_ms + num_more * prices.draft_ms(self.num_drafting) <= self.spare_ms

    def pass_ms(self, number: int, drafted: float, prices: Prices) -> float:
        """What one sequence's token costs in pass `number`, where it is expected with probability `drafted`.

        A pass that was chosen pays for itself: a token in it costs what it adds, which is all of the pass only where
        nobody else comes. Further ones happen if all who would ride in them want them, so everybody pays a share: were
        they to be had for what they add, everybody would go on because everybody else does.
        """
        others = max(self.riders[number] - drafted, 0.0) if number < len(self.riders) else 0.0
        if number >= self.num_passes:
            return prices.draft_ms(others + 1.0) / (others + 1.0)
        num_others = self.num_drafting - 1
        alone = max(1.0 - others / num_others, 0.0) ** num_others if num_others else 1.0
        more_ms = prices.draft_ms(others + 1.0) - prices.draft_ms(others)
        return alone * prices.draft_ms(1.0) + (1.0 - alone) * more_ms


def thresholds(expected: Forecast, num_free: int, company: Company, prices: Prices, rate: float) -> list[float]:
    """[i]: the probability that tokens 0..i are all accepted from which on token i + 1 is worth its time.

    Time is worth the tokens that the round at hand makes of it (`rate`, per millisecond); token i + 1 costs a row and
    its part of a pass of the draft model, and adds a token if it is accepted too, of which the best is hoped: what is
    never drafted is never seen.
    """
    is_alone = company.num_drafting <= 1
    least = []
    for i in range(len(expected.hopeful) - 1):
        rows = company.num_rows + (i + 1) * is_alone
        cost_ms = prices.target_ms(rows + 1) - prices.target_ms(rows) + prices.row_ms + prices.token_ms
        if i + 1 >= num_free:
            cost_ms += company.pass_ms(i + 1 - num_free, expected.drafted[i + 1], prices)
        least.append(rate * cost_ms / max(expected.hopeful[i + 1], 1e-9))
    return least
