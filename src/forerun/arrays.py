"""The few row operations that the array API standard leaves out, for numpy and torch alike.

Rows of logits are numpy arrays on a CPU and torch tensors on a GPU; sampling and verification are written once,
against `namespace(row)`.
"""

from __future__ import annotations

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
