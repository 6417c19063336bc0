"""Changes to a row of logits before its temperature. Ids at or beyond the row's width are passed over."""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np

from forerun.arrays import asarray_like, namespace
from forerun.types import Array


class Edits(Protocol):
    """Each takes logits [width] that it may change and returns them, changed in place or anew. Ids are int64 [n]."""

    def penalise_repetition(self, logits: Array, ids: np.ndarray, penalty: float) -> Array:
        """Divide by the penalty where positive, multiply where negative."""
        ...

    def subtract(self, logits: Array, ids: np.ndarray, amounts: np.ndarray) -> Array:
        """One amount [n] float64 for each id, which are distinct."""
        ...

    def rule_out(self, logits: Array, ids: np.ndarray) -> Array:
        """Minus infinity for these ids."""
        ...

    def keep_only(self, logits: Array, mask: np.ndarray) -> Array:
        """Minus infinity where the mask [at least width] bool is false."""
        ...


class ArrayEdits:
    """The definitions, in the array API."""

    def penalise_repetition(self, logits: Array, ids: np.ndarray, penalty: float) -> Array:
        places = _on(ids, logits)
        xp = namespace(logits)
        values = xp.take(logits, places)
        logits[places] = xp.where(values < 0, values * penalty, values / penalty)
        return logits

    def subtract(self, logits: Array, ids: np.ndarray, amounts: np.ndarray) -> Array:
        places, amounts = _on(ids, logits), amounts[ids < logits.shape[0]]
        logits[places] = namespace(logits).take(logits, places) - asarray_like(amounts, logits, logits.dtype)
        return logits

    def rule_out(self, logits: Array, ids: np.ndarray) -> Array:
        logits[_on(ids, logits)] = -math.inf
        return logits

    def keep_only(self, logits: Array, mask: np.ndarray) -> Array:
        xp = namespace(logits)
        own = np.array(mask[: logits.shape[0]])  # a copy, because torch warns about arrays it may not write to
        return xp.where(asarray_like(own, logits, xp.bool), logits, -math.inf)


def _on(ids: np.ndarray, logits: Array) -> Array:
    """Those of the ids that the row has, where the row is."""
    return asarray_like(ids[ids < logits.shape[0]], logits, namespace(logits).int64)
