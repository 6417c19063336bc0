"""Probability mass over token ids: what is drawn from, compared with a draft's, and taken away from.

Rows of numbers are held in whatever way their kind of array is fastest with; this is what verification asks of them.
`ArrayMass` is the reference: the definitions, in the array API.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np

from forerun.arrays import asarray_like, moved, namespace, zeros_like
from forerun.randomness import gumbel_argmax, inverse_cdf
from forerun.types import Array

Best = Callable[[], tuple[int, float]]
"""The likeliest token of a row and its logit, found when asked for; raises where no token can be chosen."""


class Mass(Protocol):
    """Mass on token ids 0 .. width - 1, known up to a factor; beyond the width there is none."""

    @property
    def total(self) -> float:
        """Of all mass. After `minus` it may be anything from 0 to the scale; elsewhere it means nothing."""
        ...

    @property
    def pool(self) -> tuple[Array | None, Array]:
        """(ids [n] int64 ascending, their probabilities [n] float64) of the tokens that may have mass; ids None stands
        for 0 .. n - 1."""
        ...

    def prob(self, token: int) -> float:
        """Probability of one token."""
        ...

    def draw(self, u: float) -> int:
        """The first token at which the running sum of probabilities exceeds u, for u in [0, 1)."""
        ...

    def race(self, key: int) -> int:
        """The token whose log probability plus Gumbel noise of (key, id) is largest."""
        ...

    def minus(self, other: Mass, scale: float) -> Mass:
        """max(scale * this - other, 0), of probabilities. `other` may be of another kind of array."""
        ...


class ArrayMass:
    """Mass given by weights [n] float64 of ids [n] int64 ascending, None for 0 .. n - 1. numpy or torch."""

    def __init__(self, ids: Array | None, weights: Array, width: int, total: float) -> None:
        self._ids, self._weights, self._width, self.total = ids, weights, width, total
        self._probs: Array | None = weights if total == 1.0 else None

    @property
    def pool(self) -> tuple[Array | None, Array]:
        if self._probs is None:
            self._probs = self._weights / self.total
        return self._ids, self._probs

    def prob(self, token: int) -> float:
        ids, probs = self.pool
        if ids is None:
            return float(probs[token]) if token < self._width else 0.0
        places = namespace(ids).nonzero(ids == token)[0]
        return float(probs[places[0]]) if places.shape[0] else 0.0

    def draw(self, u: float) -> int:
        place = inverse_cdf(self._weights, u)
        return place if self._ids is None else int(self._ids[place])

    def race(self, key: int) -> int:
        return gumbel_argmax(key, *support(self))

    def minus(self, other: Mass, scale: float) -> ArrayMass:
        taken = moved(dense(other, self._width), self._weights)
        difference = scale * dense(self, self._width) - taken
        xp = namespace(difference)
        left = xp.where(difference > 0.0, difference, 0.0)
        return ArrayMass(None, left, self._width, float(xp.sum(left)))


def support(mass: Mass) -> tuple[Array, Array]:
    """(ids [n] int64 ascending, log probabilities [n]) of the tokens that have mass."""
    ids, probs = mass.pool
    xp = namespace(probs)
    places = xp.nonzero(probs > 0)[0]
    return places if ids is None else xp.take(ids, places), xp.log(xp.take(probs, places))


def dense(mass: Mass, size: int) -> Array:
    """Probabilities [size] float64."""
    ids, probs = mass.pool
    if ids is None and probs.shape[0] == size:
        return probs
    filled = zeros_like(probs, size)
    if ids is None:
        num = min(size, int(probs.shape[0]))
        filled[:num] = probs[:num]
    else:
        inside = ids < size
        filled[ids[inside]] = probs[inside]
    return filled


def without(mass: Mass, token: int) -> Mass:
    """The same without one token. Its probability less 1 leaves nothing and the others' less 0 all, exactly, so every
    kind of mass has this by `minus`: what remains is known up to the factor that it is."""
    return mass.minus(ArrayMass(np.array([token]), np.ones(1), token + 1, 1.0), 1.0)


def certain(token: int, width: int, like: Array) -> ArrayMass:
    """All mass on one token, in arrays of the library and device of `like`."""
    xp = namespace(like)
    return ArrayMass(asarray_like([token], like, xp.int64), asarray_like([1.0], like, xp.float64), width, 1.0)
