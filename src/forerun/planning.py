"""What drafting would be worth, from measured costs: the arithmetic behind `forerun plan`.

With t(M) the target's cost of a pass of M rows, d the draft model's of one row, and an acceptance a that is the same at
every depth (Leviathan et al., arXiv 2211.17192, section 3), k draft tokens a round make

    speed-up = E * t(1) / (t(k + 1) + k * d),    E = 1 + a + ... + a^k tokens per pass

Rounds also cost the host some time, and acceptance falls with depth: both are left out here, so real figures are lower.
"""

from __future__ import annotations

from dataclasses import dataclass

from forerun.types import CostCurve

LENGTHS = (1, 2, 3, 4, 5, 6, 8)
"""Speculation lengths that are told about."""

ACCEPTANCES = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
"""Acceptances that speed-ups are told for."""


def tokens_per_pass(acceptance: float, k: int) -> float:
    """Tokens committed per target pass if each of k draft tokens is accepted with this probability, given that those
    before it were: accepted ones and the target's own."""
    return sum(acceptance**depth for depth in range(k + 1))


@dataclass(frozen=True, slots=True)
class Prediction:
    """A round with k draft tokens: milliseconds, and of them the target's `plain_ms` for one token."""

    k: int
    plain_ms: float
    round_ms: float

    def speedup(self, acceptance: float) -> float:
        """Speed relative to plain decoding."""
        return tokens_per_pass(acceptance, self.k) * self.plain_ms / self.round_ms

    @property
    def break_even(self) -> float | None:
        """The acceptance from which on drafting is not slower than plain decoding; None if even certain drafts are."""
        if self.speedup(1.0) < 1.0:
            return None
        low, high = 0.0, 1.0
        if self.speedup(low) >= 1.0:
            return 0.0
        while high - low > 1e-9:
            middle = (low + high) / 2
            low, high = (low, middle) if self.speedup(middle) >= 1.0 else (middle, high)
        return high


def predict(target: CostCurve, draft: CostCurve | None) -> list[Prediction]:
    """One prediction for each of LENGTHS. Without a draft model drafts are free: lookup in the text."""
    step_ms = 0.0 if draft is None else draft.at(1)
    return [Prediction(k, target.at(1), target.at(k + 1) + k * step_ms) for k in LENGTHS]
