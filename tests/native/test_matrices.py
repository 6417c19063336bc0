"""Products with repacked weights: exact where that is promised, bounded by theory elsewhere."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forerun import _native

from .tools_matrices import (
    BLOCKS,
    ISAS,
    QUANTISED,
    WITH_HALVES,
    dequantise,
    pack,
    product_bound,
    random_stored,
    same_bits,
    set_scales,
    sizes,
)

# -- products ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", BLOCKS)
def test_order_names_the_row_of_each_output(name):
    rng = np.random.default_rng(6)
    stored, order = random_stored(rng, name, 24, 256), rng.permutation(24)[:19].astype(np.uint32)
    x = rng.standard_normal((3, 256)).astype(np.float32)
    for rounding in ("none", "q4"):
        plain = pack(name, stored, 256, rounding=rounding)
        ordered = pack(name, stored, 256, order=order, rounding=rounding)
        assert same_bits(ordered.multiply(x), np.ascontiguousarray(plain.multiply(x)[:, order]))
        assert same_bits(ordered.row(7), plain.row(int(order[7])))


@pytest.mark.parametrize("kind", ["normal", "outliers", "tiny groups"])
@pytest.mark.parametrize("name", BLOCKS)
def test_products_err_by_no_more_than_theory_allows(name, kind):
    rng = np.random.default_rng(7)
    for num_outputs, num_inputs in sizes(name):
        stored = random_stored(rng, name, num_outputs, num_inputs)
        x = rng.standard_normal((5, num_inputs)).astype(np.float32)
        if kind == "outliers":
            x[:, rng.integers(0, num_inputs, 3)] *= 300
        if kind == "tiny groups":
            x[:, : num_inputs // 2] *= 1e-4
        weights = dequantise(name, stored)
        exact = x.astype(np.float64) @ weights.astype(np.float64).T
        error = np.abs(pack(name, stored, num_inputs).multiply(x) - exact)
        assert np.all(error <= product_bound(name, stored, weights, x))


@pytest.mark.parametrize("name", QUANTISED)
def test_whole_numbers_are_multiplied_exactly(name):
    """Activations that are whole steps lose nothing, so products are off by float32 roundings alone."""
    rng = np.random.default_rng(8)
    stored = random_stored(rng, name, 32, 512)
    x = rng.integers(-127, 128, (6, 512)).astype(np.float32)
    x[:, ::32] = 127  # every group's step is then exactly 1
    weights = dequantise(name, stored).astype(np.float64)
    product = pack(name, stored, 512).multiply(x)
    assert np.all(np.abs(product - x @ weights.T) <= 1e-6 * (np.abs(x) @ np.abs(weights).T))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", QUANTISED)
def test_the_largest_sums_fit(name, isa):
    """Every code and activation at an end of its range, signs together or apart."""
    rng = np.random.default_rng(23)
    ends = np.array([0x77, 0xFF] if name == "MXFP4" else [0x00, 0xFF], np.uint8)
    stored = rng.choice(ends, (32, random_stored(rng, name, 1, 512).shape[1]))
    stored[:2] = ends[:, None]
    set_scales(stored, name, [0x3C00, 0xBC00])
    x = np.where(rng.random((6, 512)) < np.array([0, 1, 0.5, 0.5, 0.5, 0.5])[:, None], 127, -127).astype(np.float32)
    x[4], x[5] = np.resize([127, 127, -127, -127], 512), np.resize([127, -127], 512)
    x[3, 32:256] /= 2  # groups with smaller steps beside one with the largest
    weights = dequantise(name, stored).astype(np.float64)
    product = pack(name, stored, 512).multiply(x, isa=isa)
    assert np.all(np.abs(product - x @ weights.T) <= 4e-6 * (np.abs(x) @ np.abs(weights).T))


@pytest.mark.parametrize("name", BLOCKS)
def test_every_input_meets_its_own_weight(name):
    num_inputs = 256 if BLOCKS[name][0] == 256 else 96
    stored = random_stored(np.random.default_rng(9), name, 21, num_inputs)
    x = np.eye(num_inputs, dtype=np.float32) * 127
    weights = dequantise(name, stored).astype(np.float64)
    product = pack(name, stored, num_inputs).multiply(x)
    largest = np.abs(weights).max() * 127
    assert np.abs(product - 127 * weights.T).max() <= 1e-6 * largest * (20 if name in ("Q4_K", "Q5_K") else 1)


@pytest.mark.parametrize("name", BLOCKS)
def test_a_row_is_the_same_bits_whatever_goes_with_it(name):
    """Any number of rows, any place among them, one thread or two, every instruction set."""
    rng = np.random.default_rng(10)
    num_outputs, num_inputs = (70, 768) if BLOCKS[name][0] == 256 else (70, 864)
    matrix = pack(name, random_stored(rng, name, num_outputs, num_inputs), num_inputs)
    x = rng.standard_normal((33, num_inputs)).astype(np.float32)
    alone = np.concatenate([matrix.multiply(x[i : i + 1], isa="portable", threads=1) for i in range(33)])
    for isa in ISAS:
        for rows in range(1, 34):
            first = int(rng.integers(0, 34 - rows))
            part = matrix.multiply(x[first : first + rows], isa=isa, threads=1 + rows % 2)
            assert same_bits(part, alone[first : first + rows]), (isa, rows, first)


@settings(max_examples=60)
@given(st.data())
def test_shapes(data):
    name = data.draw(st.sampled_from(list(BLOCKS)))
    inputs = BLOCKS[name][0]
    num_inputs = inputs * data.draw(st.integers(1, 70 if inputs == 1 else 2048 // inputs))
    num_outputs, rows = data.draw(st.integers(1, 80)), data.draw(st.integers(1, 40))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    stored = random_stored(rng, name, num_outputs, num_inputs)
    x = (rng.standard_normal((rows, num_inputs)) * 10 ** rng.uniform(-3, 3, (rows, 1))).astype(np.float32)
    weights, matrix = dequantise(name, stored), pack(name, stored, num_inputs)
    results = [matrix.multiply(x, isa=isa, threads=threads) for isa in ISAS for threads in (1, 2)]
    assert all(same_bits(result, results[0]) for result in results)
    exact = x.astype(np.float64) @ weights.astype(np.float64).T
    assert np.all(np.abs(results[0] - exact) <= product_bound(name, stored, weights, x))


@pytest.mark.parametrize("name", QUANTISED)
def test_many_panels_and_many_rows(name):
    """Enough work for every way of cutting it into pieces, batches and chunks."""
    rng = np.random.default_rng(11)
    matrix = pack(name, random_stored(rng, name, 1000, 1536), 1536)
    x = rng.standard_normal((67, 1536)).astype(np.float32)
    whole = matrix.multiply(x, threads=2)
    assert same_bits(matrix.multiply(x, threads=1), whole)
    for rows in (1, 8, 16, 17):
        assert same_bits(matrix.multiply(x[40 : 40 + rows], threads=2), whole[40 : 40 + rows])


@pytest.mark.parametrize("name", QUANTISED)
def test_a_power_of_two_goes_through_unchanged(name):
    rng = np.random.default_rng(12)
    matrix = pack(name, random_stored(rng, name, 16, 512), 512)
    x = rng.standard_normal((2, 512)).astype(np.float32)
    for power in (-60.0, -1.0, 40.0):
        factor = np.float32(2.0**power)
        assert same_bits(matrix.multiply(x * factor), matrix.multiply(x) * factor)


@pytest.mark.parametrize("name", BLOCKS)
def test_zeros_give_zeros_and_dust_counts_as_zero(name):
    stored = random_stored(np.random.default_rng(13), name, 16, 512)
    x = np.zeros((2, 512), np.float32)
    if name in QUANTISED:
        x[1] = 2.0**-101
    assert not pack(name, stored, 512).multiply(x).any()


# -- what is no number stays visible -----------------------------------------------------------------------------------


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", BLOCKS)
def test_a_bad_activation_spoils_its_row_and_no_other(name, value, isa):
    rng = np.random.default_rng(14)
    matrix = pack(name, random_stored(rng, name, 20, 768), 768)
    x = rng.standard_normal((9, 768)).astype(np.float32)
    clean = matrix.multiply(x, isa=isa)
    x[4, 700] = value
    spoiled = matrix.multiply(x, isa=isa)
    assert not np.isfinite(spoiled[4]).any()
    assert same_bits(np.delete(spoiled, 4, 0), np.delete(clean, 4, 0))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("half", [0x7C00, 0xFC00, 0x7E00, 0x7C01])
@pytest.mark.parametrize("name", WITH_HALVES)
def test_a_bad_scale_spoils_its_output_and_no_other(name, half, isa):
    rng = np.random.default_rng(15)
    stored = random_stored(rng, name, 20, 512)
    x = rng.standard_normal((3, 512)).astype(np.float32)
    clean = pack(name, stored, 512).multiply(x, isa=isa)
    spoiled = stored.copy()
    set_scales(spoiled[6:7], name, [half])
    product = pack(name, spoiled, 512).multiply(x, isa=isa)
    assert not np.isfinite(product[:, 6]).any()
    assert same_bits(np.delete(product, 6, 1), np.delete(clean, 6, 1))


@pytest.mark.parametrize("isa", ISAS)
def test_the_ends_of_an_exponent(isa):
    """MXFP4 knows no NaN: 0 and 1 are powers of two below the normal floats, 255 is a power of two like the others, and
    what overflows stays visible."""
    stored = np.zeros((4, 17), np.uint8)
    stored[:, 0], stored[:, 1] = [0, 1, 2, 228], 0x12  # 1 and 0.5, the rest 0
    x = np.zeros((2, 32), np.float32)
    x[0, 0], x[1, 16] = 2.0**110, 2.0**20
    exact = x.astype(np.float64) @ dequantise("MXFP4", stored).astype(np.float64).T
    exact[0, 3] = np.inf
    product = pack("MXFP4", stored, 32).multiply(x, isa=isa)
    with np.errstate(over="ignore"):
        assert np.allclose(product, exact.astype(np.float32), rtol=1e-6, atol=0)
    stored[3] = [255, *[0x77] * 16]
    assert same_bits(pack("MXFP4", stored, 32).row(3), np.full((1, 32), np.inf, np.float32))
    assert np.isinf(pack("MXFP4", stored, 32).multiply(x + np.float32(1), isa=isa)[:, 3]).all()
    stored[3, 1:] = 0  # times the largest power of two is 0, where infinity would make it NaN
    assert (pack("MXFP4", stored, 32).multiply(x + np.float32(1), isa=isa)[:, 3] == 0).all()


# -- what becomes of a product -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("rows", [1, 5, 30])
def test_biases_sums_and_several_matrices(rows, isa):
    rng = np.random.default_rng(16)
    matrices = [pack(n, random_stored(rng, n, size, 512), 512) for n, size in (("Q4_K", 37), ("Q6_K", 16), ("F16", 5))]
    x = rng.standard_normal((rows, 512)).astype(np.float32)
    plain = [matrix.multiply(x, isa=isa) for matrix in matrices]
    biases = [rng.standard_normal(37).astype(np.float32), None, rng.standard_normal(5).astype(np.float32)]
    start = [rng.standard_normal(product.shape).astype(np.float32) for product in plain]
    biased = [product if bias is None else product + bias for product, bias in zip(plain, biases, strict=True)]
    stored = _native.multiply(matrices, x, biases=biases, isa=isa, threads=2)
    added = _native.multiply(matrices, x, biases=biases, epilogue="add", start=start, isa=isa, threads=2)
    for result, total, product, before in zip(stored, added, biased, start, strict=True):
        assert same_bits(result, product)
        assert same_bits(total, before + product)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("rows", [1, 6, 25])
@pytest.mark.parametrize("name", ["silu_multiply", "gelu_tanh_multiply"])
def test_an_activation_of_one_times_another(name, rows, isa):
    rng = np.random.default_rng(17)
    gate = pack("Q5_0", random_stored(rng, "Q5_0", 45, 96, 0.1), 96)
    up = pack("Q8_0", random_stored(rng, "Q8_0", 45, 96), 96)
    x = rng.standard_normal((rows, 96)).astype(np.float32)
    biases = [rng.standard_normal(45).astype(np.float32) for _ in range(2)]
    a, b = (matrix.multiply(x, isa=isa) + bias for matrix, bias in zip((gate, up), biases, strict=True))
    (fused,) = _native.multiply([gate, up], x, biases=biases, epilogue=name, isa=isa)
    apart = _native.apply_layer(name, a.ravel(), b.ravel(), isa=isa).reshape(a.shape)
    assert same_bits(fused, apart)


# -- what is refused ---------------------------------------------------------------------------------------------------


def test_refusals_name_the_fact():
    stored = random_stored(np.random.default_rng(22), "Q4_K", 4, 512)
    with pytest.raises(ValueError, match=r"Q9_Z.*it reads F32"):
        pack("Q9_Z", stored, 512)
    with pytest.raises(ValueError, match=r"rows of 288 bytes.*256 weights take 144"):
        pack("Q4_K", stored, 256)
    with pytest.raises(ValueError, match="by 256 but a row has 500"):
        pack("Q4_K", stored, 500)
    with pytest.raises(ValueError, match="order names row 4 of 4"):
        pack("Q4_K", stored, 512, order=np.array([0, 4], np.uint32))
    with pytest.raises(ValueError, match="512 inputs was given rows of 256"):
        pack("Q4_K", stored, 512).multiply(np.zeros((1, 256), np.float32))
    with pytest.raises(ValueError, match="empty"):
        pack("Q4_K", stored[:0], 512)
    with pytest.raises(ValueError, match="mmx"):
        pack("Q4_K", stored, 512).multiply(np.zeros((1, 512), np.float32), isa="mmx")
    with pytest.raises(ValueError, match="by 32 but a row has 7"):
        pack("F32", np.zeros((2, 28), np.uint8), 7, rounding="q4")
    with pytest.raises(ValueError, match="0 rows"):
        pack("Q4_K", stored, 512).multiply(np.zeros((0, 512), np.float32))
