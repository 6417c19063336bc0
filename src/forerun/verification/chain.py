"""Chain rejection sampling: Leviathan et al. (arXiv 2211.17192) Algorithm 1, Chen et al. (2302.01318) Algorithm 2.

The two papers state one rule with the letters swapped; here p is the target and q the draft.
"""

from __future__ import annotations

from collections.abc import Sequence

from forerun.arrays import namespace
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
            return stuck(node)
        if not noise.accept(min(1.0, ratio), node):
            return emit(residual(target_rows[node], draft_row(draft, node), 1.0), node, noise, Purpose.EMIT)
    node = len(draft.tokens)
    return emit(target_rows[node], node, noise, Purpose.EMIT)


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


def residual(target_row: Distribution, draft_row: Distribution, scale: float) -> Distribution:
    """normalise(max(scale * p - q, 0)); p itself where less mass than rounding is left."""
    mass = residual_mass(target_row, draft_row, scale)
    xp = namespace(mass)
    return Distribution.explicit(mass) if float(xp.sum(mass)) > NEGLIGIBLE else target_row


def residual_mass(target_row: Distribution, draft_row: Distribution, scale: float) -> object:
    """max(scale * p - q, 0) [vocab], not normalised."""
    difference = scale * target_row.probs - draft_row.probs
    return namespace(difference).where(difference > 0.0, difference, 0.0)
