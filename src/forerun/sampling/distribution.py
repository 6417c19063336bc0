"""One row of a pass: its processed probabilities, worked out when first looked at."""

from __future__ import annotations

import math
from collections.abc import Callable

from forerun.arrays import arange_like, namespace
from forerun.errors import ContractError, NoLegalTokenError, NumericalError
from forerun.runtime.base import Rows
from forerun.sampling.filters import scaled
from forerun.sampling.kinds import kind_of
from forerun.sampling.mass import ArrayMass, Mass, certain, dense, support
from forerun.sampling.params import SamplingParams
from forerun.types import Array

Adjust = Callable[[Array], Array]
"""A copy of a row of logits [width] -> the same after penalties, bias, processors and masks."""

UNCHANGED = SamplingParams()


class Distribution:
    """Processed probabilities of one row, worked out when first looked at and then kept.

    `size` is the real vocabulary: logits beyond it are masked, and a row narrower than it has no mass there (a draft
    with a smaller head). `adjust` is what comes before the temperature, None where no parameter asks for anything.
    """

    __slots__ = ("_adjust", "_adjusted", "_index", "_mass", "_params", "_probs", "_rows", "size")

    def __init__(self, rows: Rows, index: int, params: SamplingParams, size: int, adjust: Adjust | None = None) -> None:
        self._rows: Rows | None = rows
        self._index, self._params, self.size, self._adjust = index, params, size, adjust
        self._adjusted: tuple[Array, int, float] | None = None  # logits [width], argmax, largest
        self._mass: Mass | None = None
        self._probs: Array | None = None

    @classmethod
    def explicit(cls, probs: Array) -> Distribution:
        """A distribution given by its probabilities [vocab]; any positive total, normalised here."""
        total = float(namespace(probs).sum(probs))
        if not (total > 0 and math.isfinite(total)):
            raise NumericalError(f"probabilities sum to {total}")
        size = int(probs.shape[0])
        return cls.of(ArrayMass(None, probs / total, size, 1.0), size)

    @classmethod
    def of(cls, mass: Mass, size: int) -> Distribution:
        """A distribution given by mass on ids below `size`, with a positive total."""
        new = cls.__new__(cls)
        new._rows, new._index, new._params, new._adjust, new._adjusted = None, 0, UNCHANGED, None, None
        new._mass, new._probs, new.size = mass, None, size
        return new

    @classmethod
    def certain(cls, token: int, like: Distribution) -> Distribution:
        """All mass on one token, in arrays of the kind that another row has."""
        array = like.mass.pool[1] if like._rows is None else like.raw_logits
        return cls.of(certain(token, like.size, array), like.size)

    def with_params(self, params: SamplingParams) -> Distribution:
        """The same row under other filters (what is adjusted before the temperature stays)."""
        return self if self._rows is None else Distribution(self._rows, self._index, params, self.size, self._adjust)

    @property
    def argmax(self) -> int:
        """The likeliest token; ties go to the lowest id. Temperature and filters never change it."""
        if self._rows is None:
            return int(namespace(self.probs).argmax(self.probs))
        return self._logits(self._rows)[1]

    @property
    def mass(self) -> Mass:
        """The processed probabilities, in the form of the row's kind of array."""
        if self._mass is None:
            rows = self._own_rows
            logits = self.raw_logits if self._adjust is None else self._logits(rows)[0]
            self._mass = kind_of(logits).mass(logits, self._params, lambda: self._logits(rows)[1:])
        return self._mass

    @property
    def pool(self) -> tuple[Array | None, Array]:
        """(ids [n] int64 ascending, their processed probabilities [n] float64) of the tokens that may have mass; ids
        None stands for 0..size - 1."""
        ids, probs = self.mass.pool
        if ids is None and probs.shape[0] < self.size:
            ids = namespace(probs).nonzero(probs >= 0.0)[0]
        return ids, probs

    @property
    def probs(self) -> Array:
        """Processed probabilities [size] float64."""
        if self._probs is None:
            self._probs = dense(self.mass, self.size)
        return self._probs

    @property
    def raw_logits(self) -> Array:
        """The model's own logits [width] of the real vocabulary, before any parameter."""
        return self._own_rows.matrix[self._index, : self.size]

    @property
    def confidence(self) -> float:
        """The raw row's probability of its likeliest token (before every parameter), in (0, 1].

        A function of the prefix alone, so it may decide how far to draft without biasing anything.
        """
        if self._rows is None:
            return float(namespace(self.probs).max(self.probs))
        logits = self.raw_logits
        return math.exp(-kind_of(logits).log_total(logits, self._raw_best(self._rows)[1]))

    @property
    def support(self) -> tuple[Array, Array]:
        """(ids [n] int64 ascending, log probabilities [n]) of the tokens that have mass."""
        return support(self.mass)

    @property
    def log_weights(self) -> tuple[Array, Array]:
        """(ids [n] int64 ascending, log probabilities up to one constant [n] float64) of the tokens that may have mass.
        Without filters these are scaled logits: nothing is exponentiated or normalised."""
        if not self._is_whole:
            return self.support
        logits, _, largest = self._logits(self._own_rows)
        return arange_like(logits), scaled(logits, self._params.temperature, largest)

    def prob(self, token: int) -> float:
        """Processed probability of one token."""
        return self.mass.prob(token)

    def draw(self, u: float) -> int:
        """The token of a uniform u in [0, 1)."""
        return self.mass.draw(u)

    def race(self, key: int) -> int:
        """The token whose log probability plus Gumbel noise of (key, id) is largest. Without filters nothing is
        normalised for it."""
        if not self._is_whole:
            return self.mass.race(key)
        logits, token, largest = self._logits(self._own_rows)
        return kind_of(logits).race(logits, self._params.temperature, token, largest, key)

    @property
    def _is_whole(self) -> bool:
        """Whether this is a softmax of logits that no filter cuts."""
        return self._rows is not None and not self._params.has_filter and not self._params.is_greedy

    @property
    def _own_rows(self) -> Rows:
        if self._rows is None:
            raise ContractError("a distribution that was given by its probabilities has no logits")
        return self._rows

    def _logits(self, rows: Rows) -> tuple[Array, int, float]:
        """(adjusted logits [width], argmax, largest)."""
        token, largest = self._raw_best(rows)
        if self._adjust is None:
            return self.raw_logits, token, largest
        if self._adjusted is None:
            raw = self.raw_logits
            xp = namespace(raw)
            logits = self._adjust(xp.asarray(raw, copy=True))
            token = int(xp.argmax(logits))
            largest = float(logits[token])
            if largest == -math.inf:
                raise NoLegalTokenError(
                    "no token is legal here",
                    "masks, biases and processors together rule out the whole vocabulary",
                    "loosen bad_words, allowed_token_ids, min_tokens, the grammar or the logits processors",
                )
            if not math.isfinite(largest):
                raise NumericalError(
                    f"a processed row of logits has {largest} as its largest value",
                    "a logits processor or a bias made it so",
                    "no token can be chosen from it",
                )
            self._adjusted = logits, token, largest
        return self._adjusted

    def _raw_best(self, rows: Rows) -> tuple[int, float]:
        token, largest = rows.best(self._index, self.size)
        if not math.isfinite(largest):
            raise NumericalError(
                f"a row of logits has {largest} as its largest value",
                "no token can be chosen from it",
                "the model or its dtype overflows: try dtype='float32'",
            )
        return token, largest
