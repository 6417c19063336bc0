"""Block verification: Sun et al., "Block Verification Accelerates Speculative Decoding" (arXiv 2403.10444).

Exact, and no rule accepts more tokens of one sampled chain; the default for sampled drafts.
"""

from __future__ import annotations

from collections.abc import Sequence

from forerun.randomness import Noise, Purpose
from forerun.sampling import Distribution
from forerun.types import Draft, Verdict
from forerun.verification.chain import Residual, acceptance_ratio, draft_row, residual
from forerun.verification.emit import UNUSABLE, emit


def block(target_rows: Sequence[Distribution], draft: Draft, noise: Noise) -> Verdict:
    """Accept the longest prefix i whose own test passes: U[i] < h[i], every i looked at, the last success wins.

    With P[0] = 1 and P[i] = min(P[i-1] p_i(x_i) / q_i(x_i), 1):
    r[i] = sum_v max(P[i] p_{i+1}(v) - q_{i+1}(v), 0);  h[i] = r[i] / (r[i] + 1 - P[i]) for 0 < i < k (1 where both
    vanish);  h[k] = P[k]. Then the next token comes from p_{k+1} if all were accepted, else from
    normalise(max(P[n] p_{n+1} - q_{n+1}, 0)).

    An unusable row (NaN, nothing legal) ends the draft before it, as if no more had been drafted: the request fails
    only if what is committed leads to that row, as it would in plain decoding.
    """
    k = len(draft.tokens)
    scale, accepted, left = 1.0, 0, None
    for node, token in enumerate(draft.tokens):
        scale = min(scale * acceptance_ratio(target_rows[node], draft, node, token), 1.0)
        if scale <= 0.0:
            break  # no text of the target leads on from here, so the rows behind need not even be looked at
        num = node + 1
        behind = _usable(target_rows[num], draft_row(draft, num), scale) if num < k else None
        if behind is None:
            k = num
        if noise.accept(scale if behind is None else _threshold(behind.mass, scale), node):
            accepted, left = num, behind
        if num == k:
            break
    if accepted == k:
        return emit(target_rows[k], tuple(range(k)), noise, Purpose.EMIT)
    if left is None:
        left = residual(target_rows[0], draft_row(draft, 0), 1.0)
    return emit(left.distribution, tuple(range(accepted)), noise, Purpose.EMIT)


def _usable(target_row: Distribution, draft_row: Distribution, scale: float) -> Residual | None:
    """The residual, None where no token can be chosen from the target's row: a function of the prefix that leads to it,
    so ending the draft before an unusable one conditions on nothing that is dropped."""
    try:
        return residual(target_row, draft_row, scale)
    except UNUSABLE:
        return None


def _threshold(r: float, scale: float) -> float:
    """h[i] of a prefix i whose P[i] is `scale`, from the mass r[i] behind it."""
    denominator = r + 1.0 - scale
    return r / denominator if denominator > 0.0 else 1.0
