"""The native row processor against its reference, the array API: the same tokens, supports and probabilities.

`test_native_bits.py` compares instruction sets and neighbours bit by bit, `test_native_law.py` the law of texts.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.sampling.native_tools import ARRAYS, NATIVE, best, both, logits, spread
from tests.sampling.row_digest import FILTERS, shapes
from tests.sampling.tools import INF, random_rows

from forerun.randomness import derive_key, uniform
from forerun.sampling import SamplingParams
from forerun.sampling.mass import Mass

NEARLY_ONE = 1.0 - 2.0**-53
ORDINARY = [{}, {"temperature": 0.3}, {"top_k": 5}, {"top_p": 0.7}, {"min_p": 0.05}]


def assert_drawn_alike(native: Mass, reference: Mass, size: int, us: Any) -> None:
    """The same token for every u, but for sums that end within rounding of it."""
    ends = np.cumsum(spread(reference, size))
    for u in us:
        token, expected = native.draw(u), reference.draw(u)
        low, high = sorted((token, expected))
        assert token == expected or np.all(np.abs(ends[low:high] - u) < 1e-12), (u, token, expected)
        assert native.prob(token) > 0.0


def assert_alike(native: Mass, reference: Mass, size: int, keys: Any = range(3)) -> None:
    """One mass in two forms."""
    got, expected = spread(native, size), spread(reference, size)
    np.testing.assert_array_equal(got > 0, expected > 0)
    np.testing.assert_allclose(got, expected, rtol=1e-12, atol=0)
    assert math.fsum(got) == pytest.approx(1.0, abs=1e-12)
    for token in {0, size // 2, size - 1, int(expected.argmax())}:
        assert native.prob(token) == got[token]
        assert reference.prob(token) == expected[token]
    us = [0.0, 0.5, NEARLY_ONE, *(uniform(derive_key(size, key)) for key in keys)]
    assert_drawn_alike(native, reference, size, us)
    for key in keys:
        assert native.race(derive_key(key)) == reference.race(derive_key(key))


# -- processed probabilities -------------------------------------------------------------------------------------------


@st.composite
def filters(draw: Any) -> dict[str, Any]:
    return {
        "temperature": draw(st.sampled_from([1.0, 0.7, 1e-5, 1e-3, 40.0, 1e6, 1e30, 1e300]) | st.floats(0.01, 10.0)),
        "top_k": draw(st.sampled_from([0, 1, 2, 3, 10, 10**7])),
        "top_p": draw(st.sampled_from([1.0, 1.0, 1e-4, 0.1237, 0.7893, 0.99999]) | st.floats(0.01, 1.0)),
        "min_p": draw(st.sampled_from([0.0, 0.0, 1e-310, 0.1373, 0.8713, 1.0]) | st.floats(0.0, 1.0)),
    }


@settings(max_examples=500)
@given(logits(), filters())
def test_processed_probabilities_are_those_of_the_reference(row: np.ndarray, params: dict[str, Any]) -> None:
    native, reference = both(row, **params)
    assert_alike(native, reference, len(row))


WIDTHS = [1, 2, 15, 16, 17, 255, 1_023, 1_024, 1_025, 2_048, 4_099, 32_001, 151_936, 200_003]


@pytest.mark.parametrize("size", WIDTHS)
def test_rows_of_every_width_and_shape_are_those_of_the_reference(size: int) -> None:
    for turn, (name, row) in enumerate(shapes(size)):
        # The array reference takes 10 ms and more for a wide row, so each shape meets some of the filters there.
        for params in FILTERS if size < 5_000 else FILTERS[turn % 4 :: 4]:
            native, reference = both(row, **params)
            try:
                assert_alike(native, reference, size)
            except AssertionError as error:
                raise AssertionError(f"{name} under {params}: {error}") from error


def test_a_wide_draw_finds_each_token_at_its_place() -> None:
    """A flat row of 2^17: u = (i + 1/2) / 2^17 is token i, in whatever block it lies."""
    native, _ = both(np.zeros(1 << 17, dtype=np.float32))
    for i in [0, 1, 1_022, 1_023, 1_024, 50_000, (1 << 17) - 1, *np.random.default_rng(0).integers(0, 1 << 17, 500)]:
        assert native.draw((int(i) + 0.5) / (1 << 17)) == i
        assert native.draw(int(i) / (1 << 17)) == i  # edges belong to the right


@pytest.mark.parametrize("top", [0.0, 30_000.0, -1e4, 3e-5, 1e30])
@pytest.mark.parametrize("steps", [1, 7, 1_000])
def test_weights_end_at_the_same_exponent_at_every_scale(top: float, steps: int) -> None:
    """Sixteen logits side by side, down to e^-800 of the largest, at temperatures at which a step of their floats is a
    small or a large part of that."""
    unit = float(np.spacing(np.float32(abs(top)))) if top else 1.0
    temperature = max(unit * steps / 800.0, 1e-5)
    depths = np.concatenate([np.linspace(0, 800, 160), np.linspace(685, 695, 80), np.full(16, 689.5), np.full(16, 700)])
    row = (top - depths * temperature).astype(np.float32)
    row[::16] = np.float32(top)
    native, reference = both(row, temperature=temperature)
    assert_alike(native, reference, len(row))


@pytest.mark.parametrize("params", ORDINARY, ids=str)
def test_draws_of_no_mass_never_happen(params: dict[str, Any]) -> None:
    row = random_rows(1, 3_000, seed=4)[0]
    row[::2] = -INF
    native, _ = both(row, **params)
    for u in [0.0, NEARLY_ONE, 2.0**-53, *np.random.default_rng(0).random(500)]:
        assert native.prob(native.draw(float(u))) > 0.0
    for key in range(300):
        assert native.prob(native.race(key)) > 0.0


def test_frequencies_of_draws_are_the_probabilities() -> None:
    """20,000 draws of either kind: no token is off by more than 5 standard deviations."""
    row = random_rows(1, 12, seed=1)[0]
    native, _ = both(row, temperature=2.0)
    probs = spread(native, 12)
    for draws in ([native.draw(uniform(derive_key(i))) for i in range(20_000)], [native.race(derive_key(i))
                  for i in range(20_000)]):  # fmt: skip
        counts = np.bincount(draws, minlength=12)
        assert np.all(np.abs(counts - 20_000 * probs) <= 5 * np.sqrt(20_000 * probs * (1 - probs)) + 1e-9)


# -- Gumbel draws without a total --------------------------------------------------------------------------------------


@pytest.mark.parametrize("spread", [0.0, 0.5, 2.5, 10.0, 60.0, 2e37])
@pytest.mark.parametrize("size", [7, 1_024, 5_001, 151_936])
def test_pruned_races_are_the_argmax_over_all_ids(size: int, spread: float) -> None:
    random = np.random.default_rng(size)
    row = (random.normal(0.0, 1.0, size) * spread).astype(np.float32)
    row[random.random(size) < 0.1] = -INF
    row[size // 2] = 0.5
    token = int(row.argmax())
    for key in range(6 if size > 100_000 else 40):
        for temperature in (1e-3, 0.8, 1.0, 30.0, 1e37):
            asked = row, temperature, token, float(row[token]), derive_key(key)
            with np.errstate(over="ignore"):  # the reference's own pruning, in float32
                assert NATIVE.race(*asked) == ARRAYS.race(*asked)


def test_a_race_over_logits_is_the_race_over_their_probabilities() -> None:
    for row in random_rows(20, 400, seed=5):
        native, _ = both(row, temperature=0.7)
        token = int(row.argmax())
        for key in range(20):
            assert native.race(derive_key(key)) == NATIVE.race(row, 0.7, token, float(row[token]), derive_key(key))


# -- residuals ---------------------------------------------------------------------------------------------------------


@settings(max_examples=300)
@given(logits(), logits(), st.sampled_from(ORDINARY), st.sampled_from(ORDINARY), st.floats(0.0, 1.0))
def test_residuals_are_those_of_the_reference(
    p_row: np.ndarray, q_row: np.ndarray, p_params: Any, q_params: Any, scale: float
) -> None:
    """Either may be cut to few ids or not, and q may be narrower or wider than p."""
    (p, p_reference), (q, q_reference) = both(p_row, **p_params), both(q_row, **q_params)
    left, expected = p.minus(q, scale), p_reference.minus(q_reference, scale)
    assert left.total == pytest.approx(expected.total, rel=1e-12, abs=1e-13)  # what is subtracted is up to 1
    if expected.total > 1e-6:
        np.testing.assert_allclose(spread(left, len(p_row)), spread(expected, len(p_row)), rtol=1e-9, atol=1e-12)
        us = [0.0, 0.3, NEARLY_ONE, *(uniform(derive_key(key)) for key in range(3))]
        ends = np.cumsum(spread(expected, len(p_row)))
        for u in us:
            low, high = sorted((left.draw(u), expected.draw(u)))
            assert low == high or np.all(np.abs(ends[low:high] - u) < 1e-9)
        for token in range(len(p_row)):
            assert left.prob(token) == spread(left, len(p_row))[token]


@pytest.mark.parametrize("q_width", [151_936, 151_000, 32_000, 3])
@pytest.mark.parametrize("params", [{}, {"temperature": 0.8}, {"top_k": 60}, {"top_p": 0.9}], ids=str)
def test_wide_residuals_are_those_of_the_reference(q_width: int, params: dict[str, Any]) -> None:
    random = np.random.default_rng(q_width)
    p_row = random.normal(0.0, 2.5, 151_936).astype(np.float32)
    q_row = (p_row + random.normal(0.0, 0.5, 151_936)).astype(np.float32)[:q_width]
    (p, p_reference), (q, q_reference) = both(p_row, **params), both(q_row, **params)
    for scale in (1.0, 0.6):
        left, expected = p.minus(q, scale), p_reference.minus(q_reference, scale)
        assert left.total == pytest.approx(expected.total, rel=1e-11)
        assert [left.draw(u) for u in (0.1, 0.5, 0.9)] == [expected.draw(u) for u in (0.1, 0.5, 0.9)]


@pytest.mark.parametrize("params", ORDINARY, ids=str)
def test_equal_rows_leave_nothing_and_are_always_accepted(params: dict[str, Any]) -> None:
    row = random_rows(1, 5_000, seed=2)[0]
    p, q = both(row, **params)[0], both(row.copy(), **params)[0]
    assert p.minus(q, 1.0).total == 0.0
    assert p.minus(q, 0.5).total == 0.0
    assert all(p.prob(token) == q.prob(token) for token in range(0, 5_000, 37))


@pytest.mark.parametrize("params", ORDINARY, ids=str)
def test_pairs_of_different_kinds_meet(params: dict[str, Any]) -> None:
    """A torch target with a native draft, and the reverse; a greedy row among them."""
    p_row, q_row = random_rows(2, 40, seed=8)
    (p, p_reference), (q, q_reference) = both(p_row, **params), both(q_row, **params)
    asked = SamplingParams(**params)
    by_torch = [ARRAYS.mass(torch.from_numpy(row), asked, lambda row=row: best(row)) for row in (p_row, q_row)]
    expected = p_reference.minus(q_reference, 0.9)
    for left in (p.minus(by_torch[1], 0.9), by_torch[0].minus(q, 0.9), p.minus(q_reference, 0.9)):
        assert left.total == pytest.approx(expected.total, rel=1e-12)
        ids, probs = left.pool
        dense = np.zeros(40)
        dense[np.arange(40) if ids is None else np.asarray(ids)] = np.asarray(probs)
        np.testing.assert_allclose(dense, spread(expected, 40), rtol=1e-9, atol=1e-12)
