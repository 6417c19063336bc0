"""Weights rounded anew to 4 bits for draft models."""

from __future__ import annotations

import numpy as np
import pytest

from .tools_matrices import ISAS, dequantise, pack, random_stored, same_bits


@pytest.mark.parametrize(
    ("name", "num_inputs"),
    [
        ("F32", 512),
        ("BF16", 576),
        ("F16", 896),
        ("Q5_0", 896),
        ("Q8_0", 576),
        ("Q6_K", 512),
        ("Q5_1", 576),
        ("Q5_K", 512),
    ],
)
def test_requantised_weights_lose_little(name, num_inputs):
    rng = np.random.default_rng(18)
    stored = random_stored(rng, name, 50, num_inputs)
    weights = dequantise(name, stored)
    matrix = pack(name, stored, num_inputs, rounding="q4")
    rows = np.concatenate([matrix.row(i) for i in range(50)])
    assert matrix.layout == "Q4_K"
    assert matrix.num_bytes * 8 <= 4.7 * 64 * num_inputs  # 50 outputs fill four panels of 16
    assert np.linalg.norm(rows - weights) / np.linalg.norm(weights) <= 0.085
    x = rng.standard_normal((3, num_inputs)).astype(np.float32)
    results = [matrix.multiply(x, isa=isa) for isa in ISAS]
    assert all(same_bits(result, results[0]) for result in results)
    exact = x.astype(np.float64) @ rows.astype(np.float64).T
    assert np.linalg.norm(results[0] - exact) <= 0.02 * np.linalg.norm(exact)


def test_weights_on_a_grid_of_four_bits_are_found_again():
    rng = np.random.default_rng(19)
    codes = rng.integers(0, 16, (16, 8, 32))
    codes[:, :, 0], codes[:, :, 1] = 0, 15
    weights = (0.5 * codes - 3.5).astype(np.float32).reshape(16, 256)
    rows = np.concatenate([pack("F32", weights.view(np.uint8), 256, rounding="q4").row(i) for i in range(16)])
    assert np.abs(rows - weights).max() <= 0.005


@pytest.mark.parametrize("kind", ["alike", "zero", "positive", "one"])
def test_odd_groups_survive_rounding(kind):
    weights = np.zeros((16, 64), np.float32)
    if kind == "alike":
        weights[:] = -0.25
    if kind == "positive":
        weights[:] = np.linspace(0.5, 1, 64, dtype=np.float32)
    if kind == "one":
        weights[:, 3] = 2
    rows = pack("F32", weights.view(np.uint8), 64, rounding="q4").row(5)
    # Without a minimum there are 15 steps to the largest weight; scales of 6 bits cost a little more.
    assert np.abs(rows - weights[5]).max() <= 0.036 * np.abs(weights).max() + 1e-9


@pytest.mark.parametrize("name", ["Q4_0", "Q4_1", "Q4_K", "Q2_K", "Q3_K", "IQ4_NL", "IQ4_XS", "MXFP4"])
def test_four_bits_and_fewer_are_left_alone(name):
    stored = random_stored(np.random.default_rng(20), name, 16, 256)
    matrix = pack(name, stored, 256, rounding="q4")
    assert matrix.layout == name
    assert same_bits(matrix.row(3), dequantise(name, stored)[3:4])


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_rounding_hides_no_bad_weight(value):
    weights = np.random.default_rng(21).standard_normal((16, 64)).astype(np.float32)
    weights[2, 40] = value
    matrix = pack("F32", weights.view(np.uint8), 64, rounding="q4")
    product = matrix.multiply(np.ones((1, 64), np.float32))
    assert np.isnan(product[0, 2])
    assert np.isfinite(np.delete(product[0], 2)).all()
