"""Structured output: constraints on which tokens may come next, as masks per row with rollback.

Compiling a regex or a schema is `constraints.grammar`, over a `constraints.vocabulary`: those import the grammars'
library, which a request without a grammar never needs.
"""

from forerun.constraints.base import Constraint, Grammar, Mask
from forerun.constraints.token_set import TokenSet, TokenSetConstraint

__all__ = ["Constraint", "Grammar", "Mask", "TokenSet", "TokenSetConstraint"]
