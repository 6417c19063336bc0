"""Exact verification: the theorems, without I/O and without models.

`verify` picks the rule by what the draft is: `block` (or `chain`) for tokens sampled from q, `follow` for everything
whose tokens are fixed before the target's randomness is used. One file per rule.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from forerun.errors import ContractError
from forerun.randomness import Noise
from forerun.sampling import Distribution
from forerun.types import Draft, Verdict
from forerun.verification.block import block
from forerun.verification.chain import chain
from forerun.verification.follow import follow

Rule = Callable[[Sequence[Distribution], Draft, Noise], Verdict]
"""(target rows [k + 1], draft, noise) -> verdict. Pure: no row is changed, and rows not reached are not processed."""

DEFAULT_RULES: Mapping[Literal["sampled", "deterministic"], Rule] = {
    "sampled": block,
    "deterministic": follow,
}
CHAIN_RULES: Mapping[Literal["sampled", "deterministic"], Rule] = {"sampled": chain, "deterministic": follow}
RULES = {"block": DEFAULT_RULES, "chain": CHAIN_RULES}
"""The rule sets a user can name."""


def verify(
    target_rows: Sequence[Distribution],
    draft: Draft,
    noise: Noise,
    rules: Mapping[Literal["sampled", "deterministic"], Rule] = DEFAULT_RULES,
) -> Verdict:
    """Accept a prefix of the draft and choose the target's own next token, so that the text's law is the target's.

    `target_rows` holds k + 1 distributions: row i is p after the committed text and the first i draft tokens.
    """
    if len(target_rows) != len(draft.tokens) + 1:
        raise ContractError(
            f"{len(draft.tokens)} draft tokens need {len(draft.tokens) + 1} rows, not {len(target_rows)}"
        )
    if draft.parents is not None:
        raise ContractError("tree drafts are not built yet")
    if draft.kind == "sampled" and len(draft.rows or ()) != len(draft.tokens):
        raise ContractError("a sampled draft carries one row of q for each token")
    return rules[draft.kind](target_rows, draft, noise)


__all__ = ["CHAIN_RULES", "DEFAULT_RULES", "RULES", "Rule", "block", "chain", "follow", "verify"]
