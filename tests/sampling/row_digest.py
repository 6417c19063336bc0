"""Rows and filters that are hard for some step, and digests of what the native row processor makes of them: printed for
one instruction set when run, by `test_native_bits.py`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from forerun import _native
from forerun.sampling import SamplingParams, raw_logprob
from forerun.sampling.kinds import kind_of

FILTERS: list[dict[str, Any]] = [
    {}, {"temperature": 0.05}, {"temperature": 3.0}, {"top_k": 1}, {"top_k": 50}, {"top_k": 5_000}, {"top_p": 0.3},
    {"top_p": 0.95}, {"top_p": 0.9999}, {"min_p": 0.02}, {"min_p": 1.0}, {"top_k": 200, "top_p": 0.8},
    {"top_p": 0.9, "min_p": 0.01}, {"temperature": 0.8, "top_k": 50, "top_p": 0.95, "min_p": 0.02},
]  # fmt: skip
SIZES = [1, 17, 1_025, 9_000]


def shapes(size: int) -> Iterator[tuple[str, np.ndarray]]:
    """Rows of one width that are each hard for some step."""
    random = np.random.default_rng(size)
    ordinary = random.normal(0.0, 2.5, size).astype(np.float32)
    yield "ordinary", ordinary
    peaked = random.normal(0.0, 2.0, size).astype(np.float32) - 20
    peaked[random.integers(0, size, 40)] = random.uniform(-6, 0, 40)
    yield "peaked", peaked
    yield "coarse", np.round(ordinary).astype(np.float32)  # every value many times
    yield "ascending", np.linspace(-9, 4, size).astype(np.float32)
    yield "descending", np.linspace(4, -9, size).astype(np.float32)
    yield "flat", np.full(size, 1.5, dtype=np.float32)
    masked = np.full(size, -np.inf, dtype=np.float32)
    masked[size // 3 :: 97] = ordinary[size // 3 :: 97]
    yield "masked", masked
    last = np.full(size, -np.inf, dtype=np.float32)
    last[-1] = -40_000
    yield "one left", last


def digests() -> dict[str, str]:
    """{what: digest of its bits}, over rows of many shapes."""
    found: dict[str, Any] = {}

    def note(name: str, *values: Any) -> None:
        digest = found.setdefault(name, hashlib.sha256())
        for value in values:
            digest.update(np.asarray(value, dtype=np.float64).tobytes())

    for size in SIZES:
        rows = [row for _, row in shapes(size)]
        for row, other in zip(rows, [*rows[1:], rows[0]], strict=True):
            narrow = other[: max(size - 5, 1)].copy()
            narrow[0] = 0.0
            _one_row(row, narrow, note)
    return {name: digest.hexdigest() for name, digest in found.items()}


def _one_row(row: np.ndarray, other: np.ndarray, note: Callable[..., None]) -> None:
    kind, token = kind_of(row), int(row.argmax())
    top = float(row[token])
    note("log_total", kind.log_total(row, top), raw_logprob(row, token, 3).logprob)
    note("rank", *kind.rank_and_top(row, len(row) // 2, 20))
    for key in range(20):
        note("race", kind.race(row, 0.9, token, top, 2**63 + key))
    taken = kind.mass(other, SamplingParams(temperature=0.9), lambda: (int(other.argmax()), float(other.max())))
    for params in FILTERS:
        mass = kind.mass(row, SamplingParams(**params), lambda: (token, top))
        ids, probs = mass.pool
        note("pool", [] if ids is None else ids, probs, mass.total)
        note("draw", [mass.draw(u) for u in (0.0, 0.25, 0.75, 1 - 2.0**-53)], mass.race(5))
        left = mass.minus(taken, 0.7)
        note("minus", left.total)
        if left.total > 0.0:
            note("minus", left.pool[1], left.draw(0.5))


if __name__ == "__main__":
    print(json.dumps({"isa": _native.isa(), "digests": digests()}))
