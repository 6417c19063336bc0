"""How fast this machine reads memory right now: the yardstick beside every measurement.

Decoding reads every weight once per pass, so its speed is the memory's, and on a shared machine that changes from
minute to minute (other tenants, clock, page placement). A figure without its probe cannot be compared with anything.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import numpy as np

MIN_BYTES = 256 << 20
MAX_BYTES = 1 << 30
TWO_REGIMES = 1.3
"""Probes whose 95th percentile is this many times their 5th come from two states of the machine."""


class BandwidthProbe:
    """Reads a buffer much larger than the last cache with every thread, for about `seconds`.

    The maximum of each thread's part is taken, the fastest reduction numpy has: it leaves the cores waiting for memory.
    """

    def __init__(self, num_threads: int | None = None, num_bytes: int | None = None, seconds: float = 0.05) -> None:
        self.num_threads = num_threads if num_threads is not None else available_cores()
        self.num_bytes = num_bytes if num_bytes is not None else min(max(MIN_BYTES, 4 * last_cache_bytes()), MAX_BYTES)
        self.seconds = seconds
        self._parts = np.array_split(np.ones(self.num_bytes // 8), self.num_threads)
        self._pool = ThreadPoolExecutor(self.num_threads)

    def measure(self) -> float:
        """Bytes read per nanosecond: GB/s."""
        start, num_read = perf_counter(), 0
        while True:
            for _ in self._pool.map(np.max, self._parts):
                pass
            num_read += self.num_bytes
            elapsed = perf_counter() - start
            if elapsed >= self.seconds:
                return num_read / 1e9 / elapsed

    def close(self) -> None:
        """Let the threads and the buffer go."""
        self._pool.shutdown()
        self._parts = []


@dataclass(frozen=True, slots=True)
class ProbeSummary:
    """All probes of a run, GB/s. `threshold` splits them into a slow and a fast regime; None: there is only one."""

    median: float
    low: float
    high: float
    threshold: float | None

    @classmethod
    def of(cls, readings: Sequence[float]) -> ProbeSummary:
        """Two regimes where the 5th and 95th percentile differ by more than TWO_REGIMES, parted half-way."""
        low, median, high = (float(q) for q in np.quantile(np.asarray(readings, dtype=np.float64), (0.05, 0.5, 0.95)))
        return cls(median, min(readings), max(readings), (low + high) / 2 if high > TWO_REGIMES * low else None)

    def regime(self, reading: float) -> str | None:
        """ "slow" or "fast" memory; None where there is one regime."""
        if self.threshold is None:
            return None
        return "slow" if reading < self.threshold else "fast"


def available_cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def last_cache_bytes() -> int:
    """Size of the largest cache of core 0, as Linux tells it; 0 if unknown."""
    largest = 0
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        try:
            text = path.read_text(encoding="ascii").strip()
            largest = max(largest, int(text.rstrip("KMG")) << {"K": 10, "M": 20, "G": 30}.get(text[-1], 0))
        except (OSError, ValueError):
            continue
    return largest
