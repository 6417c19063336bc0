"""Temperature, top-k, top-p and min-p: the part of the processing that keeps a token for its probability alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forerun.arrays import descending, kth_largest, namespace
from forerun.types import Array

if TYPE_CHECKING:
    from forerun.sampling.params import SamplingParams


LEAST = -690.0
"""Weights of less than e^this are 0, so that no probability is subnormal: not even of a vocabulary of millions."""


def scaled(logits: Array, temperature: float, largest: float) -> Array:
    """(logits - largest) / temperature [n] float64, as a product with 1 / temperature."""
    xp = namespace(logits)
    return (xp.astype(logits, xp.float64) - largest) * (1.0 / temperature)


def processed_probs(logits: Array, params: SamplingParams, largest: float) -> tuple[Array | None, Array]:
    """Processed probabilities of a row of logits [vocab] whose largest value is `largest` (finite).

    (ids [n] int64 ascending, probabilities [n] float64) of the tokens that may have mass; ids None stands for the whole
    row. After top-k nothing else is looked at, which is what makes filters cheap over a large vocabulary.

    Subtracting the largest before dividing keeps any temperature finite. top-k keeps logits at or above the k-th
    largest; top-p keeps a token if the mass of the likelier ones is below top_p; min-p compares with the largest
    probability (the definitions of transformers' warpers).
    """
    xp = namespace(logits)
    ids = None
    if 0 < params.top_k < logits.shape[0]:
        ids = xp.nonzero(logits >= kth_largest(logits, params.top_k))[0]
        logits = xp.take(logits, ids)
    exponents = scaled(logits, params.temperature, largest)
    probs = xp.where(exponents < LEAST, 0.0, xp.exp(exponents))
    if params.top_p < 1.0:
        places = _nucleus(probs, params.top_p)
        ids, probs = places if ids is None else xp.take(ids, places), xp.take(probs, places)
    if params.min_p > 0.0:
        places = xp.nonzero(probs >= params.min_p * xp.max(probs))[0]
        ids, probs = places if ids is None else xp.take(ids, places), xp.take(probs, places)
    return ids, probs / xp.sum(probs)


def _nucleus(weights: Array, top_p: float) -> Array:
    """Places, ascending, of the tokens whose likelier tokens hold less than `top_p` of the mass. They are nearly always
    among the few likeliest, so those alone are sorted, more only if needed."""
    xp = namespace(weights)
    probs = weights / xp.sum(weights)
    size, count = probs.shape[0], min(256, probs.shape[0])
    while True:
        pool = xp.nonzero(probs >= kth_largest(probs, count))[0]
        order, values = descending(xp.take(probs, pool))
        sums = xp.cumulative_sum(values)
        if count == size or float(sums[-1]) >= top_p:
            break
        count = min(count * 8, size)
    num_kept = 1 + int(xp.sum(xp.astype(sums[:-1] < top_p, xp.int64)))
    return xp.sort(xp.take(pool, order[:num_kept]))
