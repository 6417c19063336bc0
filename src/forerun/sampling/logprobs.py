"""Log probabilities of chosen tokens and their likeliest alternatives, one row at a time."""

from __future__ import annotations

import math

from forerun.arrays import descending, kth_largest, namespace
from forerun.errors import NumericalError
from forerun.sampling.distribution import Distribution
from forerun.types import Array, LogprobsKind, TokenLogprob


def token_logprob(row: Distribution, token: int, num_top: int, kind: LogprobsKind) -> TokenLogprob:
    """The log probability of `token` in a row, and of the `num_top` likeliest tokens.

    "raw": log softmax of the model's own logits. "processed": log of the processed probabilities, in which ruled-out
    tokens have no entry and the one token of temperature 0 has 0.
    """
    if kind == "raw":
        return raw_logprob(row.raw_logits, token, num_top)
    return _entry(_log(row.probs), token, num_top)


def raw_logprob(logits: Array, token: int, num_top: int) -> TokenLogprob:
    """`TokenLogprob` of log softmax(logits [vocab]): one pass, no vector as wide as the vocabulary is kept."""
    xp = namespace(logits)
    largest = float(xp.max(logits))
    if not math.isfinite(largest):
        raise NumericalError(f"a row of logits has {largest} as its largest value", "no log probability can be given")
    total = float(xp.sum(xp.exp(logits - largest), dtype=xp.float64))
    return _entry(logits, token, num_top, largest + math.log(total))


def _log(probs: Array) -> Array:
    xp = namespace(probs)
    return xp.where(probs > 0.0, xp.log(xp.where(probs > 0.0, probs, 1.0)), -math.inf)


def _entry(values: Array, token: int, num_top: int, normaliser: float = 0.0) -> TokenLogprob:
    """From log weights [vocab] and the log of their total. Ties are ranked by the lower id."""
    xp = namespace(values)
    chosen = values[token]
    rank = 1 + int(xp.sum(xp.astype(values > chosen, xp.int64)))
    rank += int(xp.sum(xp.astype(values[:token] == chosen, xp.int64)))
    top: list[tuple[int, float]] = []
    if num_top > 0:
        # Of ruled-out tokens none is listed, so that they need not be ranked either.
        num = min(num_top, int(xp.sum(xp.astype(values > -math.inf, xp.int64))))
        pool = xp.nonzero(values >= kth_largest(values, num))[0]
        order, best = descending(xp.take(values, pool))
        ids = xp.take(pool, order[:num]).tolist()
        top = [(i, min(v - normaliser, 0.0)) for i, v in zip(ids, best[:num].tolist(), strict=True)]
        if token not in ids:
            top.append((token, min(float(chosen) - normaliser, 0.0)))
    return TokenLogprob(token, min(float(chosen) - normaliser, 0.0), rank, tuple(top))
