"""Sampling parameters, and the processed probabilities they turn a row of logits into.

Order (fixed by the design): penalties, bias, bad words, minimum length, grammar [not built yet: refused by name],
temperature, top-k, top-p, min-p. Argmax is the limit at temperature 0. Rows are processed when looked at, never before.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from numbers import Integral, Real
from typing import Any

from forerun.arrays import asarray_like, descending, kth_largest, namespace
from forerun.errors import ContractError, NumericalError, ParameterError
from forerun.runtime.base import Rows
from forerun.types import Array

GREEDY_BELOW = 1e-5
"""Temperatures below this are treated as 0."""

NOT_BUILT = frozenset(
    {
        "allowed_token_ids", "bad_words", "best_of", "echo", "frequency_penalty", "grammar", "json_schema",
        "logit_bias", "logits_processors", "logprobs", "min_tokens", "n", "presence_penalty", "prompt_logprobs",
        "repetition_penalty", "response_format", "stop", "suffix", "top_logprobs", "typical_p",
    }
)  # fmt: skip
"""Parameters that exist elsewhere and are refused by name here, rather than silently ignored."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How one request is sampled. Unset parameters mean the same with and without speculation.

    temperature: 0 is greedy; 1.0 (the default, as in the OpenAI API) leaves the model's own distribution.
    top_k: keep the k most likely tokens, ties with the k-th included; 0 or -1 is off. top_p: keep the smallest set of
    most likely tokens whose mass reaches top_p, in (0, 1]. min_p: keep tokens of at least min_p times the largest
    probability, in [0, 1]. seed: a whole number from 0 to 2^64 - 1; the text is then a function of prompt, seed and
    parameters alone. max_tokens: None means until the context is full. stop_token_ids end the text like the model's
    own end-of-text ids, which `ignore_eos` ignores; the token that ended the text is left out of the result unless
    `include_stop_token`.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    max_tokens: int | None = None
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    include_stop_token: bool = False

    def __post_init__(self) -> None:
        real("temperature", self.temperature, 0.0, math.inf, "a number of at least 0 (0 is greedy)")
        real("top_p", self.top_p, 0.0, 1.0, "above 0 and at most 1 (1 is off)", open_low=True)
        real("min_p", self.min_p, 0.0, 1.0, "between 0 (off) and 1")
        whole("top_k", self.top_k, -1, None, "a whole number; 0 or -1 is off")
        if self.seed is not None:
            whole("seed", self.seed, 0, (1 << 64) - 1, "a whole number from 0 to 2^64 - 1, or None")
        if self.max_tokens is not None:
            whole("max_tokens", self.max_tokens, 0, None, "a whole number of at least 0, or None")
        if isinstance(self.stop_token_ids, (str, bytes)) or not isinstance(self.stop_token_ids, Sequence):
            raise ParameterError("stop_token_ids", f"a sequence of token ids is needed, not {self.stop_token_ids!r}")
        for token in self.stop_token_ids:
            whole("stop_token_ids", token, 0, None, "token ids are whole numbers of at least 0")
        object.__setattr__(self, "stop_token_ids", tuple(int(token) for token in self.stop_token_ids))
        # Plain numbers from here on: a numpy integer would overflow where a seed is mixed, a fraction has no exp.
        for name, plain in (("temperature", float), ("top_p", float), ("min_p", float), ("top_k", int)):
            object.__setattr__(self, name, plain(getattr(self, name)))
        for name in ("seed", "max_tokens"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, int(getattr(self, name)))
        for name in ("ignore_eos", "include_stop_token"):
            if not isinstance(getattr(self, name), bool):
                raise ParameterError(name, f"True or False is needed, not {getattr(self, name)!r}")

    @classmethod
    def from_keywords(cls, keywords: Mapping[str, Any]) -> SamplingParams:
        """Build from keyword arguments; unknown names are errors that name the nearest known one."""
        known = [field.name for field in fields(cls)]
        for name in keywords:
            if name in NOT_BUILT:
                raise ParameterError(name, "not built yet, so it is refused rather than ignored")
            if name not in known:
                near = difflib.get_close_matches(name, known, 1)
                raise ParameterError(
                    name,
                    "unknown parameter",
                    f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}",
                )
        return cls(**keywords)

    @property
    def is_greedy(self) -> bool:
        """Whether a row's token is its argmax."""
        return self.temperature < GREEDY_BELOW


def real(name: str, value: Any, low: float, high: float, need: str, *, open_low: bool = False) -> None:
    """Refuse a value that is not a finite number in [low, high] ((low, high] with `open_low`)."""
    try:
        number = float(value) if isinstance(value, Real) and not isinstance(value, bool) else math.nan
    except OverflowError:  # a whole number too large for a float
        number = math.inf
    if not (math.isfinite(number) and low <= number <= high) or (open_low and number <= low):
        raise ParameterError(name, f"{value!r} is not allowed", need)


def whole(name: str, value: Any, low: int, high: int | None, need: str) -> None:
    """Refuse a value that is not a whole number in [low, high]."""
    fine = isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= low
    if not fine or (high is not None and int(value) > high):
        raise ParameterError(name, f"{value!r} is not allowed", need)


def processed_probs(logits: Array, params: SamplingParams, largest: float) -> Array:
    """Processed probabilities [vocab] float64 of a row of logits [vocab] whose largest value is `largest` (finite).

    Subtracting the largest before dividing keeps any temperature finite. top-k keeps logits at or above the k-th
    largest; top-p keeps a token if the mass of the likelier ones is below top_p; min-p compares with the largest
    probability (the definitions of transformers' warpers).
    """
    xp = namespace(logits)
    scaled = (xp.astype(logits, xp.float64) - largest) / params.temperature
    probs = xp.exp(scaled)
    if 0 < params.top_k < logits.shape[0]:
        probs = xp.where(logits >= kth_largest(logits, params.top_k), probs, 0.0)
    probs = probs / xp.sum(probs)
    if params.top_p < 1.0:
        probs = _nucleus(probs, params.top_p)
    if params.min_p > 0.0:
        probs = xp.where(probs >= params.min_p * xp.max(probs), probs, 0.0)
    return probs / xp.sum(probs)


def _nucleus(probs: Array, top_p: float) -> Array:
    """Zero every token whose likelier tokens already hold `top_p`. The nucleus is nearly always among the few
    likeliest tokens, so they alone are sorted, more only if needed."""
    xp = namespace(probs)
    size, count = probs.shape[0], min(256, probs.shape[0])
    while True:
        pool = xp.nonzero(probs >= kth_largest(probs, count))[0]
        order, values = descending(xp.take(probs, pool))
        sums = xp.cumulative_sum(values)
        if count == size or float(sums[-1]) >= top_p:
            break
        count = min(count * 8, size)
    num_kept = 1 + int(xp.sum(xp.astype(sums[:-1] < top_p, xp.int64)))
    kept = xp.take(pool, order[:num_kept])
    nucleus = xp.zeros_like(probs)
    nucleus[kept] = values[:num_kept]
    return nucleus


class Distribution:
    """Processed probabilities of one row, worked out when first looked at and then kept.

    `size` is the real vocabulary: logits beyond it are masked, and a row narrower than it has no mass there (a draft
    with a smaller head).
    """

    __slots__ = ("_index", "_params", "_probs", "_rows", "size")

    def __init__(self, rows: Rows, index: int, params: SamplingParams, size: int) -> None:
        self._rows: Rows | None = rows
        self._index, self._params, self.size = index, params, size
        self._probs: Array | None = None

    @classmethod
    def explicit(cls, probs: Array) -> Distribution:
        """A distribution given by its probabilities [vocab]; any positive total, normalised here."""
        xp = namespace(probs)
        total = float(xp.sum(probs))
        if not (total > 0 and math.isfinite(total)):
            raise NumericalError(f"probabilities sum to {total}")
        new = cls.__new__(cls)
        new._rows, new._index, new._params = None, 0, SamplingParams()
        new._probs, new.size = probs / total, int(probs.shape[0])
        return new

    @property
    def argmax(self) -> int:
        """The likeliest token; ties go to the lowest id. Temperature and filters never change it."""
        if self._rows is None:
            return int(namespace(self._probs).argmax(self._probs))
        return self._checked_best(self._rows)[0]

    @property
    def probs(self) -> Array:
        """Processed probabilities [size] float64."""
        if self._probs is None:
            if self._rows is None:
                raise ContractError("a distribution has neither rows nor probabilities")
            token, largest = self._checked_best(self._rows)
            logits = self._rows.matrix[self._index, : self.size]
            xp = namespace(logits)
            if self._params.is_greedy:
                probs = xp.astype(xp.zeros_like(logits), xp.float64)
                probs[token] = 1.0
            else:
                probs = processed_probs(logits, self._params, largest)
            if probs.shape[0] < self.size:
                missing = asarray_like([0.0] * (self.size - int(probs.shape[0])), probs, xp.float64)
                probs = xp.concat([probs, missing])
            self._probs = probs
        return self._probs

    @property
    def confidence(self) -> float:
        """The raw row's probability of its likeliest token (before temperature and filters), in (0, 1].

        A function of the prefix alone, so it may decide how far to draft without biasing anything.
        """
        if self._rows is None:
            return float(namespace(self._probs).max(self._probs))
        _, largest = self._checked_best(self._rows)
        logits = self._rows.matrix[self._index, : self.size]
        xp = namespace(logits)
        return 1.0 / float(xp.sum(xp.exp(logits - largest)))

    @property
    def support(self) -> tuple[Array, Array]:
        """(ids [n] int64, log probabilities [n]) of the tokens that have mass."""
        probs = self.probs
        xp = namespace(probs)
        ids = xp.nonzero(probs > 0)[0]
        return ids, xp.log(xp.take(probs, ids))

    def prob(self, token: int) -> float:
        """Processed probability of one token."""
        return float(self.probs[token])

    def _checked_best(self, rows: Rows) -> tuple[int, float]:
        token, largest = rows.best(self._index, self.size)
        if not math.isfinite(largest):
            raise NumericalError(
                f"a row of logits has {largest} as its largest value",
                "no token can be chosen from it",
                "the model or its dtype overflows: try dtype='float32'",
            )
        return token, largest
