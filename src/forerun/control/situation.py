"""What a round is chosen from: who decodes, what each sequence is offered, and what a round without drafts takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from forerun.control.acceptance import NEGLIGIBLE
from forerun.control.choice import Choice, Prices
from forerun.control.records import Offer
from forerun.drafting.base import SequenceView

SPAN = 16
"""Rows that the average price of one more row is taken over, where fewer sequences decode: single steps of a measured
curve are noise."""
QUARTER = 0.25
"""The share of a row's price that a token has to be worth to be thought of. As a bound, tokens a round: what adds that
much is thought of whatever rows cost."""


@dataclass(frozen=True, slots=True)
class Situation:
    """`texts` are the sequences that decode; `kinds[i]` and `offered[i]` are the kind of request and the offers of
    sequence i. A round without any draft has `num_rows` rows, those of prompts that are being read included, and takes
    `plain_ms` milliseconds."""

    texts: Sequence[SequenceView]
    kinds: Sequence[str]
    offered: Sequence[Sequence[Offer]]
    prices: Prices
    num_rows: int
    plain_ms: float

    @property
    def least_value(self) -> float:
        """Tokens that add less are not thought of: they would not pay for a quarter of a row, at the price that rows
        have on average from here on and time has in plain decoding."""
        prices, num_decoding = self.prices, len(self.texts)
        span = max(SPAN, num_decoding)
        row_ms = (prices.target_ms(self.num_rows + span) - prices.target_ms(self.num_rows)) / span + prices.row_ms
        return max(NEGLIGIBLE, min(QUARTER * row_ms * num_decoding / self.plain_ms, QUARTER))

    def needs_model(self, choice: Choice) -> bool:
        """Whether a draft model takes part in a choice among the offers: some draft is longer than what is free."""
        return any(
            taken is not None and taken[1] > found[taken[0]].prospect.num_free
            for taken, found in zip(choice.taken, self.offered, strict=True)
        )


def kind_of(sequence: SequenceView) -> str:
    """Requests whose drafts are accepted by different rules."""
    if sequence.params.is_greedy:
        return "greedy"
    return "sampled" if sequence.noise.kind == "sampled" else "seeded"
