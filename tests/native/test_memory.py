"""Memory of weights and caches: who gets which, and that it is given back."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from tests.native.decoders import build, feed, tiny

from .tools_matrices import dequantise, pack, random_stored, same_bits


def test_matrices_that_share_a_block_of_memory_keep_apart():
    """Small ones are put side by side into 32 MB; what no longer fits gets a block of its own."""
    rng = np.random.default_rng(24)
    stored = [random_stored(rng, "Q8_0", 1024, 9216) for _ in range(5)]  # 10 MB each
    matrices = [pack("Q8_0", data, 9216) for data in stored]
    del matrices[1]
    matrices.insert(1, pack("Q8_0", stored[1], 9216))
    for matrix, data in zip(matrices, stored, strict=True):
        for row in (0, 517, 1023):
            assert same_bits(matrix.row(row), dequantise("Q8_0", data[row : row + 1]))


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="asks /proc")
def test_what_is_freed_goes_back_to_the_system() -> None:
    """Weights and caches of tens of megabytes, again and again."""

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")

    stored = np.zeros((1024, 24576), np.uint8)
    model = tiny(num_layers=16, num_heads=8, num_kv_heads=8, head_size=128, num_embeddings=8, vocabulary_size=8)
    decoder, found = build(model), []
    for _ in range(4):
        pack("F32", stored, 6144)
        decoder.begin(0)
        feed(decoder, [(0, [1] * 400, 0, None)], 8)  # 28 MB
        decoder.free(0)
        found.append(resident())
    assert max(found) - found[0] < 12 << 20
