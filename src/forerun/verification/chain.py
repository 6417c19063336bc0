"""Chain rejection sampling: Leviathan et al. (arXiv 2211.17192) Algorithm 1, Chen et al. (2302.01318) Algorithm 2.

The two papers state one rule with the letters swapped; here p is the target and q the draft.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from forerun.errors import ContractError
from forerun.randomness import Noise, Purpose
from forerun.sampling import Distribution
from forerun.types import Draft, Verdict
from forerun.verification.emit import UNUSABLE, emit, stuck

NEGLIGIBLE = 1e-12
"""Residual mass below this is rounding: p and q are equal, and p itself is drawn from."""


def chain(target_rows: Sequence[Distribution], draft: Draft, noise: Noise) -> Verdict:
    """Accept token x with probability min(1, p(x) / q(x)), in order; at the first rejection draw from the residual
    max(p - q, 0), normalised; after k acceptances draw the bonus token from p.

    One token is accepted with probability sum_x min(p(x), q(x)) = 1 - TV(p, q) (Leviathan Theorem 3.5).
    """
    for node, token in enumerate(draft.tokens):
        try:
            ratio = acceptance_ratio(target_rows[node], draft, node, token)
        except UNUSABLE:
            return stuck(tuple(range(node)))
        if not noise.accept(min(1.0, ratio), node):
            left = residual(target_rows[node], draft_row(draft, node), 1.0)
            return emit(left.distribution, tuple(range(node)), noise, Purpose.EMIT)
    k = len(draft.tokens)
    return emit(target_rows[k], tuple(range(k)), noise, Purpose.EMIT)


def draft_row(draft: Draft, node: int) -> Distribution:
    """q of a sampled draft's token `node`."""
    if draft.rows is None:
        raise ContractError("this rule needs the draft's rows of q")
    return draft.rows[node]


def acceptance_ratio(target_row: Distribution, draft: Draft, node: int, token: int) -> float:
    """p(x) / q(x) for the token that was drawn from q."""
    q = draft_row(draft, node).prob(token)
    if q <= 0.0:
        raise ContractError(
            f"draft token {token} has probability 0 under its own q", "it cannot have been drawn from it"
        )
    return target_row.prob(token) / q


@dataclass(frozen=True, slots=True)
class Residual:
    """What remains of p after q is taken away: its mass, and the distribution that is drawn from."""

    mass: float
    distribution: Distribution


def residual(target_row: Distribution, draft_row: Distribution, scale: float) -> Residual:
    """max(scale * p - q, 0), and the same normalised; p itself where less mass than rounding is left."""
    left = target_row.mass.minus(draft_row.mass, scale)
    enough = left.total > NEGLIGIBLE
    return Residual(left.total, Distribution.of(left, target_row.size) if enough else target_row)
