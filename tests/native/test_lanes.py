"""The sixteen lanes: the same bits on every instruction set, and the right numbers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun import _native

from .tools_matrices import ISAS, same_bits

LAYERS = ["silu_multiply", "gelu_tanh_multiply", "add_scaled", "scale_and_cap", "rms_norm", "rotate"]
SPECIAL = np.array([0, -0.0, 1e-45, -1e-38, 88, -88, 87.4, -87.4, 1e38, -1e38, np.inf, -np.inf], np.float32)


def apply(name, x, y=None, isa=None):
    return _native.apply_layer(name, x, np.zeros_like(x) if y is None else y, isa=isa)


def random_bits(seed, size):
    """Floats of every exponent, infinities among them, NaNs not."""
    bits = np.random.default_rng(seed).integers(0, 1 << 32, size, dtype=np.uint64).astype(np.uint32)
    floats = bits.view(np.float32)
    return np.where(np.isnan(floats), np.float32(1.5), floats)


def same_numbers(a, b):
    """The same bits, but for NaNs: their payloads are the processor's affair."""
    nan = np.isnan(a)
    return np.array_equal(nan, np.isnan(b)) and same_bits(np.where(nan, 0, a), np.where(nan, 0, b))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", LAYERS)
def test_every_instruction_set_computes_the_same_bits(name, isa):
    rng = np.random.default_rng(1)
    for size in (2, 14, 16, 30, 32, 48, 130, 896, 1000):
        for x in (rng.standard_normal(size).astype(np.float32) * 8, random_bits(size, size), np.resize(SPECIAL, size)):
            y = rng.standard_normal(size).astype(np.float32)
            assert same_numbers(apply(name, x, y, isa), apply(name, x, y, "portable")), size


@given(st.integers(0, 2**32), st.integers(1, 40))
def test_random_floats(seed, half_size):
    x, y = random_bits(seed, 2 * half_size), random_bits(seed + 1, 2 * half_size)
    for name in LAYERS:
        results = [apply(name, x, y, isa) for isa in ISAS]
        assert all(same_numbers(result, results[-1]) for result in results), name


def test_halves_are_rounded_as_numpy_rounds_them():
    every = np.arange(65536, dtype=np.uint16).view(np.float16)
    every = every[~np.isnan(every)]
    exact = every.astype(np.float32)
    between = ((exact[1:] + exact[:-1]) / 2)[np.isfinite(exact[1:] + exact[:-1])]
    edges = np.array([65519.99, 65520, 65520.01, 1e-8, 2.98e-8, 2.9802322e-8, 6e-8], np.float32)
    x = np.concatenate([exact, between, np.nextafter(between, np.float32(9e9)), edges, -edges, random_bits(2, 4097)])
    with np.errstate(over="ignore"):
        expected = x.astype(np.float16).view(np.uint16)
    assert np.array_equal(_native.to_half(x), expected)


def test_nan_becomes_a_half_nan():
    bits = _native.to_half(np.full(20, np.nan, np.float32))
    assert np.isnan(bits.view(np.float16)).all()


@pytest.mark.parametrize("isa", ISAS)
def test_silu(isa):
    x = np.concatenate([np.linspace(-87, 87, 20001), np.geomspace(1e-30, 1, 1000)]).astype(np.float32)
    exact = x / (1 + np.exp(-x.astype(np.float64)))
    error = np.abs(apply("silu_multiply", x, np.ones_like(x), isa) - exact)
    assert np.all(error <= 4e-7 * np.abs(exact))
    # Far below zero silu vanishes; what is no number stays one.
    assert np.abs(apply("silu_multiply", np.full(16, -1e4, np.float32), np.ones(16, np.float32), isa)).max() < 1e-33
    for value in (np.nan, np.inf):
        assert not np.isfinite(apply("silu_multiply", np.full(3, value, np.float32), np.ones(3, np.float32), isa)).any()


@pytest.mark.parametrize("isa", ISAS)
def test_gelu(isa):
    x = np.concatenate([np.linspace(-9, 60, 200001), np.geomspace(1e-30, 1, 1000)]).astype(np.float32)
    u = np.sqrt(2 / np.pi) * (x + 0.044715 * x.astype(np.float64) ** 3)
    exact = x / (1 + np.exp(-2 * u))
    error = np.abs(apply("gelu_tanh_multiply", x, np.ones_like(x), isa) - exact)
    assert np.all(error <= 1e-5 * np.abs(exact))
    assert np.all(error <= 2e-7 * np.maximum(1, np.abs(x)))


@pytest.mark.parametrize("isa", ISAS)
def test_gelu_far_from_zero(isa):
    def gelu(value):
        return apply("gelu_tanh_multiply", np.full(19, value, np.float32), np.ones(19, np.float32), isa)

    assert np.abs(gelu(-1e4)).max() < 1e-33
    assert np.all(gelu(1e30) == np.float32(1e30))
    for value in (np.nan, np.inf, -np.inf):
        assert not np.isfinite(gelu(value)).any()


def capped(x, cap, isa, scale=1.0):
    """cap * tanh(scale * x / cap)"""
    return apply("scale_and_cap", x, np.resize(np.array([scale, cap], np.float32), x.shape), isa)


@pytest.mark.parametrize("isa", ISAS)
def test_tanh(isa):
    """To 3 ulp everywhere: of every 4,099th float, and of some that are special."""
    bits = np.arange(0, np.float32(200).view(np.uint32), 4099, dtype=np.uint32)
    near = np.concatenate([np.linspace(0.1, 10.1, 300001), [0.17328680, 0.5198604, 9.0, 9.01, 10.0, 1e38, np.inf]])
    positive = np.concatenate([bits.view(np.float32), near.astype(np.float32)])
    x = np.concatenate([positive, -positive])
    found, exact = capped(x, 1.0, isa), np.tanh(x.astype(np.float64))
    assert np.all(np.abs(found - exact) <= 3 * np.spacing(np.abs(exact).astype(np.float32)))
    assert np.abs(found).max() == 1.0
    assert np.isnan(capped(np.full(20, np.nan, np.float32), 1.0, isa)).all()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("cap", [1e-40, 1e-3, 30.0, 1e30])
def test_soft_caps(isa, cap):
    x = np.concatenate([np.geomspace(1e-30, 1e30, 997), -np.geomspace(1e-30, 1e30, 1003), [0.0]]).astype(np.float32)
    exact = np.float64(np.float32(cap)) * np.tanh(x.astype(np.float64) / np.float64(np.float32(cap)))
    found = capped(x, cap, isa)
    assert np.all(np.abs(found - exact) <= 5e-7 * np.abs(exact) + cap * 1e-44 + 1e-44)  # x / cap may be subnormal
    assert np.abs(found).max() <= np.float32(cap)
    assert same_bits(capped(x, cap, isa, 0.5), capped(x * np.float32(0.5), cap, isa))
    assert same_bits(capped(x, 0.0, isa, 0.125), x * np.float32(0.125))
    assert capped(np.array([np.inf, -np.inf], np.float32), cap, isa).tolist() == [np.float32(cap), -np.float32(cap)]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("size", [1, 15, 16, 576, 1001])
def test_rms_norm(isa, size):
    rng = np.random.default_rng(3)
    x, weight = (rng.standard_normal(size).astype(np.float32) for _ in range(2))
    exact = x / np.sqrt(np.mean(x.astype(np.float64) ** 2) + 1e-6) * weight
    assert np.allclose(apply("rms_norm", x, weight, isa), exact, rtol=1e-6, atol=0)
    small = x * np.float32(1e-3)  # where epsilon is as large as the mean square
    exact = small / np.sqrt(np.mean(small.astype(np.float64) ** 2) + 1e-6) * weight
    assert np.allclose(apply("rms_norm", small, weight, isa), exact, rtol=1e-6, atol=0)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("size", [1, 15, 16, 33])
def test_sums_with_a_scale(isa, size):
    x, y = (np.random.default_rng(i).standard_normal(size).astype(np.float32) for i in range(2))
    exact = y + x.astype(np.float64) * y[0]
    assert np.allclose(apply("add_scaled", x, y, isa), exact, rtol=1e-7, atol=1e-7)
    y[0] = 1.0
    assert same_bits(apply("add_scaled", x, y, isa), x + y)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("half", [1, 16, 32, 40])
def test_rotate(isa, half):
    rng = np.random.default_rng(4)
    x, angle = rng.standard_normal(2 * half).astype(np.float32), rng.uniform(-3, 3, half)
    turn = np.concatenate([np.cos(angle), np.sin(angle)]).astype(np.float32)
    turned = (x[:half] + 1j * x[half:]) * np.exp(1j * angle)
    exact = np.concatenate([turned.real, turned.imag])
    assert np.allclose(apply("rotate", x, turn, isa), exact, rtol=0, atol=1e-6)
