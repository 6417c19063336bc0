"""Stored weights and repacked ones: bit for bit what the gguf package says that a file holds."""

from __future__ import annotations

import numpy as np
import pytest

from forerun import _native

from .tools_matrices import (
    BLOCKS,
    HALVES_AT,
    QUANTISED,
    dequantise,
    pack,
    random_stored,
    same_bits,
    set_scales,
    sizes,
)

EXTREME_HALVES = [0x0000, 0x8000, 0x0001, 0x83FF, 0x0400, 0x7BFF, 0xFBFF, 0x3C00, 0x0401, 0x2E66]


@pytest.mark.parametrize("name", BLOCKS)
def test_stored_weights_decode_as_the_gguf_package_has_them(name):
    rng = np.random.default_rng(1)
    for num_outputs, num_inputs in sizes(name):
        stored = random_stored(rng, name, num_outputs, num_inputs)
        assert same_bits(_native.decode(name, stored, num_inputs), dequantise(name, stored))


@pytest.mark.parametrize("name", QUANTISED)
def test_extreme_scales_survive(name):
    stored = set_scales(random_stored(np.random.default_rng(2), name, 20, 512), name, EXTREME_HALVES)
    expected = dequantise(name, stored)
    assert same_bits(_native.decode(name, stored, 512), expected)
    matrix = pack(name, stored, 512)
    assert same_bits(np.concatenate([matrix.row(i) for i in range(20)]), expected)


@pytest.mark.parametrize("name", QUANTISED)
def test_every_bit_of_a_block_counts_as_the_gguf_package_has_it(name):
    """Blocks of nothing but one bit, and of all but one: no field is mistaken for another, here or in a tile."""
    inputs, size = BLOCKS[name]
    one_bit = np.packbits(np.eye(8 * size, dtype=np.uint8), axis=1, bitorder="little")
    for stored in (one_bit, ~one_bit):
        for at in HALVES_AT[name]:  # scales that hide no code, and neither infinity nor NaN
            stored[:, at : at + 2] = np.array([0x3C00 + at], np.uint16).view(np.uint8)
        matrix, expected = pack(name, stored, inputs), dequantise(name, stored)
        assert same_bits(_native.decode(name, stored, inputs), expected)
        assert same_bits(np.concatenate([matrix.row(i) for i in range(len(stored))]), expected)


@pytest.mark.parametrize("name", QUANTISED)
def test_random_bytes_are_the_weights_that_the_gguf_package_says(name):
    """Scales are any bits, infinities and NaN among them."""
    rng, (inputs, size) = np.random.default_rng(24), BLOCKS[name]
    stored = rng.integers(0, 256, (64, 1024 // inputs * size), dtype=np.uint8)
    expected = dequantise(name, stored)
    matrix = pack(name, stored, 1024)
    for found in (_native.decode(name, stored, 1024), np.concatenate([matrix.row(i) for i in range(64)])):
        assert np.array_equal(np.isnan(found), np.isnan(expected))
        assert same_bits(np.nan_to_num(found, nan=0.5), np.nan_to_num(expected, nan=0.5))


@pytest.mark.parametrize("bits", [np.uint16, np.uint32])
def test_every_kind_of_float_survives(bits):
    rng = np.random.default_rng(3)
    for name in ("F16", "BF16") if bits is np.uint16 else ("F32",):
        stored = rng.integers(0, 1 << 8 * bits(0).itemsize, (16, 64), dtype=np.uint64).astype(bits).view(np.uint8)
        expected = dequantise(name, stored)
        decoded = _native.decode(name, stored, 64)
        assert np.array_equal(np.isnan(decoded), np.isnan(expected))
        finite = ~np.isnan(expected)
        assert np.array_equal(decoded.view(np.uint32)[finite], expected.view(np.uint32)[finite])


@pytest.mark.parametrize("name", BLOCKS)
def test_repacking_changes_no_weight(name):
    rng = np.random.default_rng(4)
    for num_outputs, num_inputs in sizes(name):
        stored = random_stored(rng, name, num_outputs, num_inputs)
        matrix = pack(name, stored, num_inputs)
        assert (matrix.num_outputs, matrix.num_inputs, matrix.layout) == (num_outputs, num_inputs, name)
        rows = np.concatenate([matrix.row(i) for i in range(num_outputs)])
        assert same_bits(rows, dequantise(name, stored))


@pytest.mark.parametrize("name", BLOCKS)
def test_repacked_weights_are_no_larger_than_stored_ones(name):
    stored = random_stored(np.random.default_rng(5), name, 256, 1536)
    assert pack(name, stored, 1536).num_bytes <= stored.nbytes * 1.01
