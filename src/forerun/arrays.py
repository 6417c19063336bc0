"""The few row operations that the array API standard leaves out, for numpy and torch alike.

Rows of logits are numpy arrays on a CPU and torch tensors on a GPU; sampling and verification are written once,
against `namespace(row)`.
"""

from __future__ import annotations

import math
from typing import Any

import array_api_compat.numpy as numpy_namespace
import numpy as np
from array_api_compat import array_namespace, is_torch_array

from forerun.types import Array


def namespace(row: Array) -> Any:
    """The array API namespace of `row` (array_api_compat's view of numpy or torch)."""
    return numpy_namespace if isinstance(row, np.ndarray) else array_namespace(row)


def kth_largest(row: Array, k: int) -> Array:
    """The k-th largest value (k from 1) of a row [n], in O(n): a threshold, so ties with it are included by `>=`."""
    if is_torch_array(row):
        return row.topk(k).values[-1]
    return np.partition(row, row.shape[0] - k)[row.shape[0] - k]


def descending(row: Array) -> tuple[Array, Array]:
    """(ids, values) of a row [n] from largest to smallest; equal values keep the lower id first."""
    xp = namespace(row)
    ids = xp.argsort(row, descending=True, stable=True)
    return ids, xp.take(row, ids)


def asarray_like(values: Any, row: Array, dtype: Any) -> Array:
    """`values` as an array of the same library and device as `row`."""
    xp = namespace(row)
    return xp.asarray(values, dtype=dtype, device=None if isinstance(row, np.ndarray) else row.device)


def zeros_like(row: Array, size: int) -> Array:
    """Zeros [size] of the same library, device and dtype as `row`."""
    xp = namespace(row)
    return xp.zeros(size, dtype=row.dtype, device=None if isinstance(row, np.ndarray) else row.device)


def arange_like(row: Array) -> Array:
    """0 .. len(row) - 1, int64, of the same library and device."""
    xp = namespace(row)
    return xp.arange(row.shape[0], dtype=xp.int64, device=None if isinstance(row, np.ndarray) else row.device)


def moved(values: Array, row: Array) -> Array:
    """`values` in the library and on the device of `row`, which may be another model's."""
    if is_torch_array(values):
        return values.to(row.device) if is_torch_array(row) else values.cpu().numpy()
    return asarray_like(values, row, namespace(row).float64) if is_torch_array(row) else values


def log_total(logits: Array, largest: float) -> float:
    """log of the sum of e^(logit - largest) of logits [n]: one pass, in the precision of the logits."""
    xp = namespace(logits)
    return math.log(float(xp.sum(xp.exp(logits - largest), dtype=xp.float64)))


def rank_and_top(values: Array, place: int, num_top: int, floor: float = -math.inf) -> tuple[int, list[int]]:
    """(rank, from 1, of the value at a place; places of the `num_top` largest values, largest first). Ties are ranked
    by the lower place, and values of at most `floor` are not listed."""
    xp = namespace(values)
    chosen = values[place]
    rank = 1 + int(xp.sum(xp.astype(values > chosen, xp.int64)))
    rank += int(xp.sum(xp.astype(values[:place] == chosen, xp.int64)))
    num_top = min(num_top, int(xp.sum(xp.astype(values > floor, xp.int64))))
    if num_top == 0:
        return rank, []
    pool = xp.nonzero(values >= kth_largest(values, num_top))[0]
    order, _ = descending(xp.take(values, pool))
    return rank, xp.take(pool, order[:num_top]).tolist()
