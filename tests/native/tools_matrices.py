"""Random stored weights of every format, and what theory allows a product to err by."""

from __future__ import annotations

import numpy as np
from gguf import GGMLQuantizationType, quants

from forerun import _native

BLOCKS = {  # inputs and bytes of one block
    "F32": (1, 4),
    "F16": (1, 2),
    "BF16": (1, 2),
    "Q4_0": (32, 18),
    "Q4_1": (32, 20),
    "Q5_0": (32, 22),
    "Q5_1": (32, 24),
    "Q8_0": (32, 34),
    "Q2_K": (256, 84),
    "Q3_K": (256, 110),
    "Q4_K": (256, 144),
    "Q5_K": (256, 176),
    "Q6_K": (256, 210),
    "IQ4_NL": (32, 18),
    "IQ4_XS": (256, 136),
    "MXFP4": (32, 17),
}
QUANTISED = [name for name, (inputs, _) in BLOCKS.items() if inputs > 1]
FLOATS = [name for name, (inputs, _) in BLOCKS.items() if inputs == 1]
HALVES_AT = {
    "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q2_K": [80, 82], "Q3_K": [108],
    "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "IQ4_NL": [0], "IQ4_XS": [0], "MXFP4": [],
}  # fmt: skip
"""Where the float16 scales of a block lie; MXFP4 has an exponent of 8 bits instead, its first byte."""
WITH_HALVES = [name for name in QUANTISED if HALVES_AT[name]]
ISAS = _native.usable_isas()


def sizes(name):
    """Outputs and inputs of matrices to try."""
    inputs = BLOCKS[name][0]
    return [(40, 512), (33, 768)] if inputs == 256 else [(40, 512), (17, 576), (50, 896), (3, 32)]


def random_stored(rng, name, num_outputs, num_inputs, scale=0.01):
    """Every code equally likely, scales normal: uint8 [num_outputs, bytes of a row]."""
    inputs, size = BLOCKS[name]
    if inputs == 1:
        weights = (rng.standard_normal((num_outputs, num_inputs)) * scale).astype(np.float32)
        if name == "BF16":
            return (weights.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
        return weights.astype(np.float32 if name == "F32" else np.float16).view(np.uint8)
    raw = rng.integers(0, 256, (num_outputs, num_inputs // inputs, size), dtype=np.uint8)
    for at in HALVES_AT[name]:
        halves = rng.standard_normal((*raw.shape[:2], 1)) * scale
        raw[:, :, at : at + 2] = halves.astype(np.float16).view(np.uint8)
    if name == "MXFP4":
        raw[:, :, 0] = rng.integers(116, 122, raw.shape[:2])
    return raw.reshape(num_outputs, -1)


def set_scales(stored, name, halves):
    """Replaces the float16 scales of every block by the bits in `halves`, in turn; MXFP4's by their exponents."""
    blocks = stored.reshape(-1, BLOCKS[name][1])
    if name == "MXFP4":
        exponents = (np.asarray(halves, np.uint16) >> 10 & 31) + 113
        blocks[:, 0] = np.resize(exponents, len(blocks))
    for at in HALVES_AT[name]:
        blocks[:, at : at + 2] = np.resize(np.asarray(halves, np.uint16), len(blocks))[:, None].view(np.uint8)
    return stored


def dequantise(name, stored):
    with np.errstate(invalid="ignore", over="ignore"):
        return quants.dequantize(stored, GGMLQuantizationType[name]).astype(np.float32)


def pack(name, stored, num_inputs, **options):
    return _native.pack_matrix(name, stored, num_inputs, **options)


def largest_steps(x):
    """The step that each activation is rounded to, and each block's unit: float64 [rows, inputs] (see packed.h)."""
    rows, num_inputs = x.shape
    steps, units = np.zeros(x.shape), np.zeros(x.shape)
    for at in range(0, num_inputs, 256):
        block = np.abs(x[:, at : at + 256].astype(np.float64))
        unit = block.max(1, keepdims=True) / 127 / 128
        groups = block.reshape(rows, -1, 32).max(2)
        lift = np.zeros(groups.shape)
        for power in range(7):
            lift += groups > 127.49 * unit * 2**power
        steps[:, at : at + 256] = np.repeat(unit * 2.0**lift, 32, axis=1)
        units[:, at : at + 256] = unit
    return steps, units


def product_bound(name, stored, weights, x):
    """How far products may be from exact ones: float64 [rows, outputs]."""
    size = np.abs(x.astype(np.float64)) @ np.abs(weights.astype(np.float64)).T
    if name in FLOATS:
        return size * x.shape[1] * 2.0**-24 + 1e-30
    steps, units = largest_steps(x)
    bound = (steps * 0.5001) @ np.abs(weights.astype(np.float64)).T + size * 1e-5
    if name in ("Q4_K", "Q5_K"):  # sums for the minima are kept to 16 units of a block: 8 at most are lost, by group
        minima = -dequantise(name, without_codes(name, stored))
        bound += (units * 8.001 / 32) @ np.abs(minima.astype(np.float64)).T
    return bound


def without_codes(name, stored):
    """Q4_K or Q5_K blocks with all codes 0: what is left are minus the minima."""
    bare = stored.copy().reshape(-1, BLOCKS[name][1])
    bare[:, 16:] = 0
    return bare.reshape(stored.shape)


def same_bits(a, b):
    return a.shape == b.shape and np.array_equal(a.view(np.uint32), b.view(np.uint32))
