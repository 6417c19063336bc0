"""Which code works on which rows: the one place where the kind of array decides.

The first kind that takes a row is used: the native kernels for numpy float32 where the extension is built, the array
API for everything else (torch on a device, float64 toy models, or no extension).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from forerun import arrays
from forerun.arrays import arange_like
from forerun.randomness import gumbel_argmax
from forerun.sampling.edits import ArrayEdits, Edits
from forerun.sampling.filters import processed_probs, scaled
from forerun.sampling.mass import ArrayMass, Best, Mass, certain
from forerun.sampling.params import SamplingParams
from forerun.types import Array


@dataclass(frozen=True, slots=True)
class Kind:
    """What sampling does to a row of logits [width] whose likeliest token has the finite logit `largest`.

    mass: (logits, params, the way to find the likeliest token) -> processed probabilities. race: (logits, temperature,
    likeliest token, largest, key) -> the token whose logit / temperature plus Gumbel noise is largest. log_total:
    (logits, largest) -> log of the sum of e^(logit - largest). rank_and_top: (logits, token, num_top) -> the token's
    rank, from 1, and the ids of the num_top largest, ties by the lower id, without those of minus infinity.
    """

    takes: Callable[[Array], bool]
    edits: Edits
    mass: Callable[[Array, SamplingParams, Best], Mass]
    race: Callable[[Array, float, int, float, int], int]
    log_total: Callable[[Array, float], float]
    rank_and_top: Callable[[Array, int, int], tuple[int, list[int]]]


def _array_mass(logits: Array, params: SamplingParams, best: Best) -> ArrayMass:
    width, (token, largest) = int(logits.shape[0]), best()
    if params.is_greedy:
        return certain(token, width, logits)
    ids, probs = processed_probs(logits, params, largest)
    return ArrayMass(ids, probs, width, 1.0)


def _array_race(logits: Array, temperature: float, token: int, largest: float, key: int) -> int:
    return gumbel_argmax(key, arange_like(logits), scaled(logits, temperature, largest))


ARRAYS = Kind(lambda row: True, ArrayEdits(), _array_mass, _array_race, arrays.log_total, arrays.rank_and_top)


def _kinds() -> tuple[Kind, ...]:
    try:
        import forerun._native as _native
        from forerun.sampling import native
    except ImportError:
        return (ARRAYS,)
    own = Kind(
        native.takes,
        native.NativeEdits(),
        native.mass_of,
        _native.race_of_logits,
        _native.log_total,
        _native.rank_and_top,
    )
    return own, ARRAYS


KINDS = _kinds()


def kind_of(row: Array) -> Kind:
    """The kind of a row of logits."""
    for kind in KINDS:
        if kind.takes(row):
            return kind
    return ARRAYS
