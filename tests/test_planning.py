"""The arithmetic of `forerun plan`: predicted speed-ups, break-even acceptance."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from forerun.planning import LENGTHS, Prediction, predict, tokens_per_pass
from forerun.types import CostCurve

PRICES = st.floats(0.01, 1e3)


def test_tokens_per_pass() -> None:
    assert [tokens_per_pass(0.0, k) for k in range(4)] == [1, 1, 1, 1]
    assert [tokens_per_pass(1.0, k) for k in range(4)] == [1, 2, 3, 4]
    assert tokens_per_pass(0.5, 3) == 1.875
    for k in (1, 4, 8):
        assert tokens_per_pass(0.8, k) == pytest.approx((1 - 0.8 ** (k + 1)) / (1 - 0.8))


def test_a_pair_worked_by_hand() -> None:
    """t = 30, 33, 36, .. ms and a draft step of 6: with k = 4 a round costs 42 + 24 and 1.8 .. 5 tokens come of it."""
    target = CostCurve(128, {1: 30.0, 2: 33.0, 4: 39.0, 8: 51.0})
    draft = CostCurve(128, {1: 6.0, 2: 7.0})
    found = {one.k: one for one in predict(target, draft)}
    assert tuple(found) == LENGTHS
    assert (found[4].plain_ms, found[4].round_ms) == (30.0, 66.0)
    assert found[4].speedup(1.0) == pytest.approx(5 * 30 / 66)
    assert found[8].round_ms == pytest.approx(54 + 48)  # nine rows: beyond what was measured
    assert found[1].break_even == pytest.approx(9 / 30)
    free = {one.k: one for one in predict(target, None)}
    assert free[4].round_ms == 42.0
    assert free[1].break_even == pytest.approx(0.1)


def test_pairs_that_cannot_gain_and_that_cannot_lose() -> None:
    assert Prediction(3, plain_ms=10.0, round_ms=40.1).break_even is None
    assert Prediction(3, plain_ms=10.0, round_ms=40.0).break_even == pytest.approx(1.0)
    assert Prediction(3, plain_ms=10.0, round_ms=9.9).break_even == 0.0


@given(st.integers(1, 16), PRICES, PRICES)
def test_break_even_is_where_plain_decoding_is_as_fast(k: int, plain_ms: float, round_ms: float) -> None:
    prediction = Prediction(k, plain_ms, round_ms)
    point = prediction.break_even
    assume(point is not None)
    assert point is not None
    assert 0.0 <= point <= 1.0
    assert prediction.speedup(min(point + 1e-6, 1.0)) >= 1.0
    if point > 0.0:
        assert prediction.speedup(point) == pytest.approx(1.0, abs=1e-6)
        assert prediction.speedup(point * 0.99) < 1.0
