"""Block verification: Sun et al., "Block Verification Accelerates Speculative Decoding" (arXiv 2403.10444).

Exact, and no rule accepts more tokens of one sampled chain; the default for sampled drafts.
"""

from __future__ import annotations

from collections.abc import Sequence

from forerun.arrays import namespace
from forerun.randomness import Noise, Purpose
from forerun.sampling import Distribution
from forerun.types import Draft, Verdict
from forerun.verification.chain import acceptance_ratio, draft_row, residual, residual_mass
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
    k = _num_usable(target_rows, len(draft.tokens))
    scale, accepted, accepted_scale = 1.0, 0, 1.0
    for node, token in enumerate(draft.tokens[:k]):
        scale = min(scale * acceptance_ratio(target_rows[node], draft, node, token), 1.0)
        num = node + 1
        threshold = scale if num == k else _threshold(target_rows[num], draft_row(draft, num), scale)
        if noise.accept(threshold, node):
            accepted, accepted_scale = num, scale
    if accepted == k:
        emitted = target_rows[k]
    else:
        emitted = residual(target_rows[accepted], draft_row(draft, accepted), accepted_scale)
    return emit(emitted, accepted, noise, Purpose.EMIT)


def _num_usable(target_rows: Sequence[Distribution], k: int) -> int:
    """Draft tokens before the first unusable row that the rule would look at. A function of the prefix that leads to
    that row, so cutting there conditions on nothing that is dropped."""
    for num in range(1, k):
        try:
            target_rows[num].argmax  # noqa: B018 - looking is what raises
        except UNUSABLE:
            return num
    return k


def _threshold(target_row: Distribution, draft_row: Distribution, scale: float) -> float:
    """h[i] of the row after prefix i, whose P[i] is `scale`."""
    if scale <= 0.0:
        return 0.0
    mass = residual_mass(target_row, draft_row, scale)
    r = float(namespace(mass).sum(mass))
    denominator = r + 1.0 - scale
    return r / denominator if denominator > 0.0 else 1.0
