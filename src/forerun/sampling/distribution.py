"""One row of a pass: its processed probabilities, worked out when first looked at."""

from __future__ import annotations

import math
from collections.abc import Callable

from forerun.arrays import arange_like, asarray_like, namespace, zeros_like
from forerun.errors import ContractError, NoLegalTokenError, NumericalError
from forerun.runtime.base import Rows
from forerun.sampling.filters import processed_probs
from forerun.sampling.params import SamplingParams
from forerun.types import Array

Adjust = Callable[[Array], Array]
"""A copy of a row of logits [width] -> the same after penalties, bias, processors and masks."""


class Distribution:
    """Processed probabilities of one row, worked out when first looked at and then kept.

    `size` is the real vocabulary: logits beyond it are masked, and a row narrower than it has no mass there (a draft
    with a smaller head). `adjust` is what comes before the temperature, None where no parameter asks for anything.
    """

    __slots__ = ("_adjust", "_adjusted", "_index", "_params", "_pool", "_probs", "_rows", "size")

    def __init__(self, rows: Rows, index: int, params: SamplingParams, size: int, adjust: Adjust | None = None) -> None:
        self._rows: Rows | None = rows
        self._index, self._params, self.size, self._adjust = index, params, size, adjust
        self._adjusted: tuple[Array, int, float] | None = None  # logits [width], argmax, largest
        self._pool: tuple[Array | None, Array] | None = None
        self._probs: Array | None = None

    @classmethod
    def explicit(cls, probs: Array) -> Distribution:
        """A distribution given by its probabilities [vocab]; any positive total, normalised here."""
        xp = namespace(probs)
        total = float(xp.sum(probs))
        if not (total > 0 and math.isfinite(total)):
            raise NumericalError(f"probabilities sum to {total}")
        new = cls.__new__(cls)
        new._rows, new._index, new._params, new._adjust, new._adjusted = None, 0, SamplingParams(), None, None
        new._pool, new._probs, new.size = None, probs / total, int(probs.shape[0])
        return new

    def with_params(self, params: SamplingParams) -> Distribution:
        """The same row under other filters (what is adjusted before the temperature stays)."""
        return self if self._rows is None else Distribution(self._rows, self._index, params, self.size, self._adjust)

    @property
    def argmax(self) -> int:
        """The likeliest token; ties go to the lowest id. Temperature and filters never change it."""
        if self._rows is None:
            return int(namespace(self._probs).argmax(self._probs))
        return self._logits(self._rows)[1]

    @property
    def pool(self) -> tuple[Array | None, Array]:
        """(ids [n] int64 ascending, their processed probabilities [n] float64) of the tokens that may have mass; ids
        None stands for 0..size - 1."""
        if self._pool is None:
            if self._rows is None:
                return None, self._probs
            logits, token, largest = self._logits(self._rows)
            xp = namespace(logits)
            if self._params.is_greedy:
                one = asarray_like([1.0], logits, xp.float64)
                self._pool = asarray_like([token], logits, xp.int64), one
            else:
                self._pool = processed_probs(logits, self._params, largest)
                if self._pool[0] is None and logits.shape[0] < self.size:
                    self._pool = xp.nonzero(self._pool[1] >= 0.0)[0], self._pool[1]
        return self._pool

    @property
    def probs(self) -> Array:
        """Processed probabilities [size] float64."""
        if self._probs is None:
            ids, probs = self.pool
            if ids is not None:
                dense = zeros_like(probs, self.size)
                dense[ids] = probs
                probs = dense
            self._probs = probs
        return self._probs

    @property
    def raw_logits(self) -> Array:
        """The model's own logits [width] of the real vocabulary, before any parameter."""
        if self._rows is None:
            raise ContractError("a distribution that was given by its probabilities has no logits")
        return self._rows.matrix[self._index, : self.size]

    @property
    def confidence(self) -> float:
        """The raw row's probability of its likeliest token (before every parameter), in (0, 1].

        A function of the prefix alone, so it may decide how far to draft without biasing anything.
        """
        if self._rows is None:
            return float(namespace(self._probs).max(self._probs))
        largest = self._raw_best(self._rows)[1]
        logits = self.raw_logits
        xp = namespace(logits)
        return 1.0 / float(xp.sum(xp.exp(logits - largest)))

    @property
    def support(self) -> tuple[Array, Array]:
        """(ids [n] int64 ascending, log probabilities [n]) of the tokens that have mass."""
        ids, probs = self.pool
        xp = namespace(probs)
        places = xp.nonzero(probs > 0)[0]
        return places if ids is None else xp.take(ids, places), xp.log(xp.take(probs, places))

    @property
    def log_weights(self) -> tuple[Array, Array]:
        """(ids [n] int64 ascending, log probabilities up to one constant [n] float64) of the tokens that may have mass.
        Without filters these are scaled logits: nothing is exponentiated or normalised."""
        params = self._params
        has_filter = params.top_k > 0 or params.top_p < 1.0 or params.min_p > 0.0 or params.is_greedy
        if self._rows is None or has_filter:
            return self.support
        logits, _, largest = self._logits(self._rows)
        xp = namespace(logits)
        ids = arange_like(logits)
        return ids, (xp.astype(logits, xp.float64) - largest) / params.temperature

    def prob(self, token: int) -> float:
        """Processed probability of one token."""
        return float(self.probs[token])

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
