"""Sample and follow: the target draws its own token at each row and moves on while the draft agrees."""

from __future__ import annotations

from collections.abc import Sequence

from forerun.randomness import Noise, Purpose
from forerun.sampling import Distribution
from forerun.types import Draft, Verdict
from forerun.verification.emit import emit


def follow(target_rows: Sequence[Distribution], draft: Draft, noise: Noise) -> Verdict:
    """Draw from p at row 0, 1, ...; accept while the draw is the draft token; the first other draw is committed.

    Exact because the draft is fixed before the draw: the law of what is committed is p by construction. It accepts
    with probability p(x), the most any rule can for a fixed token, and needs no q. Greedy is the case of noise that
    returns the argmax (longest prefix of argmaxes, then the argmax), and the seeded mode that of shared Gumbel noise.
    """
    for node, token in enumerate(draft.tokens):
        verdict = emit(target_rows[node], node, noise, Purpose.FOLLOW)
        if verdict.next_token != token:
            return verdict
    return emit(target_rows[len(draft.tokens)], len(draft.tokens), noise, Purpose.FOLLOW)
