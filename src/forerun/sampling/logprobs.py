"""Log probabilities of chosen tokens and their likeliest alternatives, one row at a time."""

from __future__ import annotations

import math

from forerun.arrays import namespace, rank_and_top
from forerun.errors import NumericalError
from forerun.sampling.distribution import Distribution
from forerun.sampling.kinds import kind_of
from forerun.types import Array, LogprobsKind, TokenLogprob


def token_logprob(row: Distribution, token: int, num_top: int, kind: LogprobsKind) -> TokenLogprob:
    """The log probability of `token` in a row, and of the `num_top` likeliest tokens.

    "raw": log softmax of the model's own logits. "processed": log of the processed probabilities, in which ruled-out
    tokens have no entry and the one token of temperature 0 has 0.
    """
    if kind == "raw":
        return raw_logprob(row.raw_logits, token, num_top)
    ids, probs = row.pool
    place = token if ids is None else _place(ids, token)
    if place is None:
        ids, probs, place = None, row.probs, token
    rank, top = rank_and_top(probs, place, num_top, 0.0)

    def log_of(place: int) -> float:
        prob = float(probs[place])
        return math.log(prob) if prob > 0.0 else -math.inf

    tokens = top if ids is None else [int(ids[i]) for i in top]
    return _entry(token, log_of(place), rank, [(i, log_of(j)) for i, j in zip(tokens, top, strict=True)])


def raw_logprob(logits: Array, token: int, num_top: int) -> TokenLogprob:
    """`TokenLogprob` of log softmax(logits [vocab]): one pass, no vector as wide as the vocabulary is kept."""
    largest = float(namespace(logits).max(logits))
    if not math.isfinite(largest):
        raise NumericalError(f"a row of logits has {largest} as its largest value", "no log probability can be given")
    kind = kind_of(logits)
    normaliser = largest + kind.log_total(logits, largest)
    rank, top = kind.rank_and_top(logits, token, num_top)
    return _entry(token, float(logits[token]) - normaliser, rank, [(i, float(logits[i]) - normaliser) for i in top])


def _entry(token: int, logprob: float, rank: int, top: list[tuple[int, float]]) -> TokenLogprob:
    """Rounding may lift the log of a probability of 1 above 0."""
    listed = [(i, min(value, 0.0)) for i, value in top]
    if top and all(i != token for i, _ in top):
        listed.append((token, min(logprob, 0.0)))
    return TokenLogprob(token, min(logprob, 0.0), rank, tuple(listed))


def _place(ids: Array, token: int) -> int | None:
    places = namespace(ids).nonzero(ids == token)[0]
    return int(places[0]) if places.shape[0] else None
