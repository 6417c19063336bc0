"""Rows of numpy float32 in the native row processor: the same numbers as the array reference, fused and unsorted.

Importing this fails where the extension is not built; `kinds.py` is the only one that does.
"""

from __future__ import annotations

import math

import numpy as np

import forerun._native as _native
from forerun.errors import NumericalError
from forerun.sampling.mass import Best, Mass
from forerun.sampling.params import SamplingParams
from forerun.types import Array


def takes(row: Array) -> bool:
    """Whether a row of logits [width] is one that the native kernels read in place."""
    return type(row) is np.ndarray and row.dtype == np.float32 and row.flags.c_contiguous


class NativeMass:
    """Mass in the extension's own form: a row after a softmax is its logits and the sums of their blocks' weights."""

    __slots__ = ("_native", "total")

    def __init__(self, native: _native.Mass) -> None:
        self._native, self.total = native, native.total

    @property
    def pool(self) -> tuple[np.ndarray | None, np.ndarray]:
        return self._native.pool()

    def prob(self, token: int) -> float:
        return self._native.prob(token)

    def draw(self, u: float) -> int:
        return self._native.draw(u)

    def race(self, key: int) -> int:
        return self._native.race(key)

    def minus(self, other: Mass, scale: float) -> NativeMass:
        return NativeMass(self._native.minus(_as_native(other), scale))


def _as_native(mass: Mass) -> _native.Mass:
    if isinstance(mass, NativeMass):
        return mass._native
    ids, probs = mass.pool
    ids = np.arange(probs.shape[0]) if ids is None else _on_cpu(ids)
    return _native.mass_of_list(int(probs.shape[0]) if ids.size == 0 else int(ids[-1]) + 1, ids, _on_cpu(probs))


def _on_cpu(values: Array) -> np.ndarray:
    return values if isinstance(values, np.ndarray) else np.asarray(values.cpu())


def mass_of(logits: np.ndarray, params: SamplingParams, best: Best) -> NativeMass:
    """Processed probabilities of a row. Without filters one pass finds the largest logit and the total."""
    if params.is_greedy:
        return NativeMass(_native.mass_of_list(len(logits), np.array(best()[:1]), np.ones(1)))
    top_k = params.top_k if 0 < params.top_k < len(logits) else 0
    if top_k or params.top_p < 1.0 or params.min_p > 0.0:
        largest = best()[1]
        return NativeMass(
            _native.mass_of_filters(logits, params.temperature, top_k, params.top_p, params.min_p, largest)
        )
    mass = _native.softmax(logits, params.temperature)
    if not math.isfinite(mass.total):
        best()  # says which value made it so
        raise NumericalError(f"the weights of a row sum to {mass.total}", "no token can be chosen from it")
    return NativeMass(mass)


class NativeEdits:
    """Edits in place."""

    def penalise_repetition(self, logits: np.ndarray, ids: np.ndarray, penalty: float) -> np.ndarray:
        _native.penalise_repetition(logits, ids, penalty)
        return logits

    def subtract(self, logits: np.ndarray, ids: np.ndarray, amounts: np.ndarray) -> np.ndarray:
        _native.subtract(logits, ids, amounts)
        return logits

    def rule_out(self, logits: np.ndarray, ids: np.ndarray) -> np.ndarray:
        _native.rule_out(logits, ids)
        return logits

    def keep_only(self, logits: np.ndarray, mask: np.ndarray) -> np.ndarray:
        _native.keep_only(logits, mask)
        return logits
