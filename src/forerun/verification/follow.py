"""Sample and follow: the target draws its own token at each row and moves on while the draft agrees."""

from __future__ import annotations

from collections.abc import Sequence

from forerun.randomness import Noise, Purpose
from forerun.sampling import Distribution
from forerun.topology import children_of
from forerun.types import Draft, Verdict
from forerun.verification.emit import emit


def follow(target_rows: Sequence[Distribution], draft: Draft, noise: Noise) -> Verdict:
    """Draw from p at the row after the committed text, and at the row of each node that is reached; move on while the
    draw is a child of that node. The first other draw is committed. Chains and trees alike: `target_rows[i + 1]`
    follows node i.

    Exact because the draft is fixed before the draw: the law of what is committed is p by construction. A set of
    children is met with probability p(set), the most any rule can for fixed tokens, and no q is needed. A draw is keyed
    by its depth, as a chain's. Greedy is the case of noise that returns the argmax, and the seeded mode that of shared
    Gumbel noise.
    """
    children = children_of(draft)
    path: tuple[int, ...] = ()
    while True:
        row = path[-1] + 1 if path else 0
        verdict = emit(target_rows[row], path, noise, Purpose.FOLLOW)
        agreeing = (child for child in children[row] if draft.tokens[child] == verdict.next_token)
        child = next(agreeing, None)
        if child is None:
            return verdict
        path = (*path, child)
