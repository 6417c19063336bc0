"""Recursive rejection over trees: Chen et al., "Sequoia" (arXiv 2402.12374), after SpecInfer (2305.09781).

Children are sampled without replacement. The tree form of the chain rule.
"""

from __future__ import annotations

from collections.abc import Sequence

from forerun.randomness import Noise, Purpose
from forerun.sampling import Distribution
from forerun.topology import children_of
from forerun.types import Draft, Verdict
from forerun.verification.chain import acceptance_ratio, draft_row, residual
from forerun.verification.emit import UNUSABLE, emit, stuck


def recursive(target_rows: Sequence[Distribution], draft: Draft, noise: Noise) -> Verdict:
    """At each node that is reached, with R = p there, look at its children in the order they were drawn: accept child t
    with probability min(1, R(t) / D(t)) and go on from it, where D is what t was drawn from (q without the children
    before it, normalised: `draft.rows[t]`); else R becomes max(R - D, 0), normalised. After the last child draw from R.

    With one child per node it is `chain`, decision for decision. A first child is accepted with probability
    1 - TV(p, q), and if the children cover all that p can choose, one of them is.

    An unusable row (NaN, nothing legal) ends the tree there: what leads to it is accepted and nothing is chosen.
    """
    children = children_of(draft)
    path: tuple[int, ...] = ()
    while True:
        row = path[-1] + 1 if path else 0
        left, taken = target_rows[row], None
        for child in children[row]:
            try:
                ratio = acceptance_ratio(left, draft, child, draft.tokens[child])
            except UNUSABLE:
                return stuck(path)
            if noise.accept(min(1.0, ratio), child):
                taken = child
                break
            left = residual(left, draft_row(draft, child), 1.0).distribution
        if taken is None:
            return emit(left, path, noise, Purpose.EMIT)
        path = (*path, taken)
