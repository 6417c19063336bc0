"""Constraints: which tokens may come next, per row, with rollback.

One constraint follows one text. Draft tokens are taken with `advance`, so every verified row has its own mask, and what
was rejected is undone with `rollback`: after a round the constraint stands at the committed tokens and nothing else.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from forerun.errors import ContractError

Mask = npt.NDArray[np.bool_]
"""[vocabulary_size] bool, True where a token is legal; read-only."""


class Constraint(Protocol):
    """What one text may go on with. Not for use by two threads at once; different constraints are independent."""

    def advance(self, token: int) -> bool:
        """Take one more token. False, with nothing changed, if it is illegal here."""
        ...

    def rollback(self, num_tokens: int) -> None:
        """Undo the last `num_tokens` advances, end-of-text tokens included. ContractError if there are fewer."""
        ...

    def mask(self) -> Mask:
        """The tokens that `advance` would take. It is this state's own array and is never written to again, so it
        stays valid after later calls; asked twice, the same array comes back. All False after the end of the text."""
        ...

    @property
    def is_finished(self) -> bool:
        """Whether nothing may follow any more: the text is complete and no token can extend it, or an end-of-text
        token was taken. The text then ends even where the model has no end-of-text id."""
        ...


class Grammar(Protocol):
    """A compiled constraint. Choices and requests share it, and each text starts its own."""

    def start(self) -> Constraint:
        """A constraint at the beginning of a text, independent of every other."""
        ...


def require_taken(num_tokens: int, num_taken: int) -> None:
    """Raise ContractError unless `num_tokens` of `num_taken` advances can be undone."""
    if not 0 <= num_tokens <= num_taken:
        raise ContractError(
            f"a constraint was asked to undo {num_tokens} tokens",
            f"it has taken {num_taken}",
            "undo only tokens for which advance returned True",
        )
