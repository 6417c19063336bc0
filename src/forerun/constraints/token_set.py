"""Only tokens from a given set: the constraint behind `allowed_token_ids`."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from forerun.checks import inside, token_ids
from forerun.constraints.base import Mask, require_taken
from forerun.errors import ParameterError

PARAMETER = "allowed_token_ids"


class TokenSet:
    """A set of tokens as a grammar. Raises ParameterError for an empty set and for anything that is not the id of a
    token, 0 to `vocabulary_size` - 1."""

    def __init__(self, ids: Iterable[int], vocabulary_size: int) -> None:
        self._mask = _set_mask(ids, vocabulary_size)

    def start(self) -> TokenSetConstraint:
        return TokenSetConstraint._sharing(self._mask)


class TokenSetConstraint:
    """Every token of the text is from the set. Never finished: an end-of-text id is legal only if it is in the set,
    and whether it ends the text is the engine's to say."""

    __slots__ = ("_mask", "_num_taken")

    def __init__(self, ids: Iterable[int], vocabulary_size: int) -> None:
        self._mask, self._num_taken = _set_mask(ids, vocabulary_size), 0

    @classmethod
    def _sharing(cls, mask: Mask) -> TokenSetConstraint:
        new = cls.__new__(cls)
        new._mask, new._num_taken = mask, 0
        return new

    def advance(self, token: int) -> bool:
        if not (0 <= token < self._mask.shape[0] and self._mask[token]):
            return False
        self._num_taken += 1
        return True

    def rollback(self, num_tokens: int) -> None:
        require_taken(num_tokens, self._num_taken)
        self._num_taken -= num_tokens

    def mask(self) -> Mask:
        return self._mask

    @property
    def is_finished(self) -> bool:
        return False


def _set_mask(ids: Iterable[int], vocabulary_size: int) -> Mask:
    if isinstance(ids, (str, bytes)) or not isinstance(ids, Iterable):
        raise ParameterError(PARAMETER, f"token ids are needed, not {ids!r}", "give a list of whole numbers")
    mask = np.zeros(vocabulary_size, np.bool_)
    found = token_ids(PARAMETER, list(ids))
    inside(PARAMETER, found, vocabulary_size)
    mask[np.array(found, dtype=np.int64)] = True
    if not mask.any():
        raise ParameterError(PARAMETER, "the set is empty, so no token could follow", "give at least one token id")
    mask.flags.writeable = False
    return mask
