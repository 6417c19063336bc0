"""Exact verification: the theorems, without I/O and without models.

`verify` picks the rule by what the draft is: `block` (or `chain`) for a chain sampled from q, `traversal` (or
`recursive`) for a tree sampled from q, `follow` for everything whose tokens are fixed before the target's randomness is
used. One file per rule.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from forerun.errors import ContractError
from forerun.randomness import Noise
from forerun.sampling import Distribution
from forerun.topology import is_sound
from forerun.types import Draft, Verdict
from forerun.verification.block import block
from forerun.verification.chain import chain
from forerun.verification.follow import follow
from forerun.verification.recursive import recursive
from forerun.verification.traversal import traversal

Rule = Callable[[Sequence[Distribution], Draft, Noise], Verdict]
"""(target rows [nodes + 1], draft, noise) -> verdict. Pure: no row is changed, and rows not reached are not
processed."""

Rules = Mapping[Literal["sampled", "deterministic", "tree"], Rule]
"""The rule of each kind of draft: a sampled chain, anything deterministic, a sampled tree."""

DEFAULT_RULES: Rules = {"sampled": block, "deterministic": follow, "tree": traversal}
CHAIN_RULES: Rules = {"sampled": chain, "deterministic": follow, "tree": recursive}
RULES = {"block": DEFAULT_RULES, "chain": CHAIN_RULES}
"""The rule sets a user can name."""


def verify(target_rows: Sequence[Distribution], draft: Draft, noise: Noise, rules: Rules = DEFAULT_RULES) -> Verdict:
    """Accept a path of the draft and choose the target's own next token, so that the text's law is the target's.

    `target_rows` holds a distribution for each node and one before them: row 0 is p after the committed text, row i + 1
    p after node i and what leads to it.
    """
    num_nodes = len(draft.tokens)
    if len(target_rows) != num_nodes + 1:
        raise ContractError(f"{num_nodes} draft tokens need {num_nodes + 1} rows, not {len(target_rows)}")
    if draft.parents is not None and not is_sound(draft.parents, num_nodes):
        raise ContractError(f"a draft of {num_nodes} tokens has the parents {list(draft.parents)}")
    if draft.kind == "sampled" and len(draft.rows or ()) != num_nodes:
        raise ContractError("a sampled draft carries one row of q for each token")
    kind: Literal["sampled", "deterministic", "tree"] = draft.kind
    if kind == "sampled" and draft.parents is not None:
        kind = "tree"
    if kind not in rules:
        raise ContractError(f"these rules have none for drafts of the kind {kind!r}", f"they are for {list(rules)}")
    return rules[kind](target_rows, draft, noise)


__all__ = [
    "CHAIN_RULES",
    "DEFAULT_RULES",
    "RULES",
    "Rule",
    "Rules",
    "block",
    "chain",
    "follow",
    "recursive",
    "traversal",
    "verify",
]
