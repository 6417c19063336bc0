"""The roofline: a pass takes as long as its bytes or its arithmetic take, whichever is more (Williams et al., 2009).

A pass reads every weight once, whatever the rows, and the cached keys and values of every sequence; it multiplies and
adds once per weight and row. Few rows leave the arithmetic idle, and that is where verifying is free.
"""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter
from typing import Literal

import numpy as np

from forerun.planning.shapes import Shape

Bound = Literal["memory", "arithmetic", "overhead"]


@dataclass(frozen=True, slots=True)
class Pass:
    """Milliseconds of a pass: its bytes' and its arithmetic's, which overlap, and its overhead, which does not."""

    memory_ms: float
    arithmetic_ms: float
    overhead_ms: float

    @property
    def ms(self) -> float:
        """All of it."""
        return max(self.memory_ms, self.arithmetic_ms) + self.overhead_ms

    @property
    def bound(self) -> Bound:
        """What most of it goes to."""
        parts: dict[Bound, float] = {
            "memory": self.memory_ms, "arithmetic": self.arithmetic_ms, "overhead": self.overhead_ms,
        }  # fmt: skip
        return max(parts, key=lambda name: parts[name])


@dataclass(frozen=True, slots=True)
class Roofline:
    """A machine: GB/s, TFLOP/s, and the milliseconds that starting a pass costs whatever it computes."""

    gb_per_s: float
    tflops: float
    overhead_ms: float = 0.0

    def cost(self, shape: Shape, rows: float, sequences: int = 1, context: float = 0.0) -> Pass:
        """A pass of `rows` rows in all, of `sequences` sequences with `context` cached tokens each."""
        num_bytes = shape.weight_bytes + sequences * context * shape.cache_bytes
        return Pass(
            num_bytes / self.gb_per_s / 1e6, 2.0 * shape.parameters * rows / self.tflops / 1e9, self.overhead_ms
        )

    def ridge(self, shape: Shape) -> float:
        """Rows from which on arithmetic takes longer than reading the weights."""
        return self.cost(shape, 1).memory_ms / self.cost(shape, 1).arithmetic_ms


def measure_tflops(device: str = "cpu", seconds: float = 0.2) -> float:
    """What a square matrix product reaches here, TFLOP/s: of float32 with numpy, of bfloat16 with torch on a GPU.

    The native runtime multiplies 8-bit integers, of which a processor may do more."""
    if device.startswith("cuda"):
        return _measure_cuda(device, seconds)
    size = 1024
    one, other = np.ones((size, size), np.float32), np.ones((size, size), np.float32)
    np.matmul(one, other)
    start, count = perf_counter(), 0
    while count < 2 or perf_counter() - start < seconds:
        np.matmul(one, other)
        count += 1
    return 2e-12 * size**3 * count / (perf_counter() - start)


def _measure_cuda(device: str, seconds: float) -> float:
    import torch

    size = 8192
    one = torch.ones((size, size), dtype=torch.bfloat16, device=device)
    torch.mm(one, one)
    torch.cuda.synchronize(device)
    start, count = perf_counter(), 0
    while count < 2 or perf_counter() - start < seconds:
        torch.mm(one, one)
        torch.cuda.synchronize(device)
        count += 1
    return 2e-12 * size**3 * count / (perf_counter() - start)
