"""Float weights rounded while they are packed: to Q8_0 as the gguf package does, bit for bit, to bfloat16 as torch."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch
from gguf.quants import dequantize, quantize

from forerun._native import pack_matrix

FLOATS = ("F32", "F16", "BF16")


def stored(values: np.ndarray, type_name: str) -> np.ndarray:
    return np.ascontiguousarray(quantize(values, gguf.GGMLQuantizationType[type_name])).view(np.uint8)


def weights(rows: int, width: int, seed: int = 0) -> np.ndarray:
    """Of many sizes, with groups of zeros and of outliers, and halves that round away from zero."""
    generator = np.random.default_rng(seed)
    values = generator.normal(size=(rows, width)) * 10.0 ** generator.integers(-6, 4, (rows, 1))
    values[1, :32] = 0
    values[2, 5] = 1e4
    values[3, :32] = np.arange(-16, 16) + 0.5
    values[3, 31] = 127
    return values.astype(np.float32)


def unpacked(matrix: object) -> np.ndarray:
    return np.concatenate([matrix.row(i) for i in range(matrix.num_outputs)])  # type: ignore[attr-defined]


@pytest.mark.parametrize("type_name", FLOATS)
@pytest.mark.parametrize("width", [32, 96, 256, 288, 544])
def test_q8_0_is_what_the_gguf_package_makes(type_name: str, width: int) -> None:
    data = stored(weights(37, width), type_name)
    given = dequantize(data, gguf.GGMLQuantizationType[type_name]).astype(np.float32)
    matrix = pack_matrix(type_name, data, width, rounding="q8_0")
    assert matrix.layout == "Q8_0"
    q8_0 = gguf.GGMLQuantizationType.Q8_0
    expected = dequantize(quantize(given, q8_0), q8_0)
    np.testing.assert_array_equal(unpacked(matrix), expected)
    whole = pack_matrix("Q8_0", np.ascontiguousarray(quantize(given, q8_0)).view(np.uint8), width)
    x = np.random.default_rng(1).normal(size=(3, width)).astype(np.float32)
    np.testing.assert_array_equal(matrix.multiply(x), whole.multiply(x))


@pytest.mark.parametrize("type_name", FLOATS)
@pytest.mark.parametrize("width", [5, 32, 100])
def test_bf16_is_the_nearest_ties_to_even(type_name: str, width: int) -> None:
    values = weights(20, width) if width >= 32 else np.linspace(-3, 3, 20 * width, dtype=np.float32).reshape(20, width)
    bits = values.view(np.uint32)
    bits[4] = bits[4] & 0xFFFF0000 | 0x8000  # ties
    data = stored(values, type_name)
    given = dequantize(data, gguf.GGMLQuantizationType[type_name]).astype(np.float32)
    matrix = pack_matrix(type_name, data, width, rounding="bf16")
    assert matrix.layout == "BF16"
    np.testing.assert_array_equal(unpacked(matrix), torch.from_numpy(given).bfloat16().float().numpy())


def test_rows_are_chosen_before_they_are_rounded() -> None:
    values, order = weights(20, 64), np.array([7, 3, 3, 19], dtype=np.uint32)
    for rounding in ("q8_0", "bf16", "q4"):
        whole = unpacked(pack_matrix("F32", values.view(np.uint8), 64, rounding=rounding))
        some = unpacked(pack_matrix("F32", values.view(np.uint8), 64, order, rounding=rounding))
        np.testing.assert_array_equal(some, whole[order])


@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
def test_what_is_no_number_stays_visible(odd: float) -> None:
    values = weights(16, 64)
    values[5, 40] = odd
    q8_0 = unpacked(pack_matrix("F32", values.view(np.uint8), 64, rounding="q8_0"))
    assert np.isnan(q8_0[5, 32:]).all()
    assert np.isfinite(np.delete(q8_0, 5, axis=0)).all()
    assert np.isfinite(q8_0[5, :32]).all()
    bf16 = unpacked(pack_matrix("F32", values.view(np.uint8), 64, rounding="bf16"))
    np.testing.assert_array_equal(bf16[5, 40], np.float32(odd))


def test_bounds_of_the_types() -> None:
    """What rounds up past the largest bfloat16, and groups whose scale no float16 holds."""
    largest = np.full((1, 32), np.finfo(np.float32).max, dtype=np.float32)
    assert np.isinf(unpacked(pack_matrix("F32", largest.view(np.uint8), 32, rounding="bf16"))).all()
    assert not np.isfinite(unpacked(pack_matrix("F32", largest.view(np.uint8), 32, rounding="q8_0"))).any()
    dust = np.full((1, 32), 1e-42, dtype=np.float32)
    assert (unpacked(pack_matrix("F32", dust.view(np.uint8), 32, rounding="q8_0")) == 0).all()


def test_what_cannot_be_rounded() -> None:
    with pytest.raises(ValueError, match="rounded to Q8_0 by 32 but a row has 40"):
        pack_matrix("F32", np.zeros((2, 160), np.uint8), 40, rounding="q8_0")
    with pytest.raises(ValueError, match="none, q4, q8_0 or bf16"):
        pack_matrix("F32", np.zeros((2, 128), np.uint8), 32, rounding="q5")
