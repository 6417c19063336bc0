"""Structured output: constraints on which tokens may come next, as masks per row with rollback.

The grammars' library is imported when a grammar is first compiled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from forerun.constraints.base import Constraint, Grammar, Mask
from forerun.constraints.token_set import TokenSet, TokenSetConstraint

if TYPE_CHECKING:
    from forerun.constraints.grammar import CompiledGrammar, GrammarConstraint, compile_json_schema, compile_regex
    from forerun.constraints.vocabulary import Vocabulary

_HOMES = {
    "CompiledGrammar": "forerun.constraints.grammar",
    "GrammarConstraint": "forerun.constraints.grammar",
    "Vocabulary": "forerun.constraints.vocabulary",
    "compile_json_schema": "forerun.constraints.grammar",
    "compile_regex": "forerun.constraints.grammar",
}

__all__ = [
    "CompiledGrammar",
    "Constraint",
    "Grammar",
    "GrammarConstraint",
    "Mask",
    "TokenSet",
    "TokenSetConstraint",
    "Vocabulary",
    "compile_json_schema",
    "compile_regex",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        import importlib

        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'forerun.constraints' has no attribute {name!r}")
