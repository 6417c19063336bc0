"""Tokens per round, break-even, and the textbooks' formulas: by hand, by limits, and by property."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.planning.arithmetic import (
    break_even,
    even,
    textbook_from_acceptance,
    textbook_from_accepted,
    tokens_per_pass,
)

SHARES = st.floats(0.0, 1.0)
LENGTHS = st.integers(1, 16)
RATIOS = st.floats(0.0, 2.0)


def test_tokens_per_pass_by_hand() -> None:
    assert tokens_per_pass([0.9, 0.5], 0) == 1.0
    assert tokens_per_pass([0.9, 0.5], 1) == pytest.approx(1.9)
    assert tokens_per_pass([0.9, 0.5], 2) == pytest.approx(1.9 + 0.45)
    assert tokens_per_pass([0.9, 0.5], 3) == pytest.approx(1.9 + 0.45 + 0.225), "the last depth goes on"
    assert tokens_per_pass([], 3) == 1.0


@given(st.floats(0.0, 0.999), LENGTHS)
def test_one_acceptance_is_the_geometric_sum(a: float, k: int) -> None:
    assert even(a, k) == pytest.approx((1 - a ** (k + 1)) / (1 - a))


@given(st.lists(SHARES, min_size=1, max_size=8), LENGTHS)
def test_more_tokens_never_commit_less(acceptance: list[float], k: int) -> None:
    assert 1.0 <= tokens_per_pass(acceptance, k) <= tokens_per_pass(acceptance, k + 1) <= k + 2


@given(SHARES, SHARES, LENGTHS)
def test_higher_acceptance_never_commits_less(one: float, other: float, k: int) -> None:
    low, high = sorted((one, other))
    assert even(low, k) <= even(high, k)


@given(LENGTHS, st.floats(0.01, 20.0))
def test_break_even_is_where_drafting_is_as_fast(k: int, ratio: float) -> None:
    """The speed-up is 1 there, below 1 under it and not below 1 above it; None and 0 exactly where they belong."""
    point = break_even(k, ratio)
    if point is None:
        assert even(1.0, k) < ratio
    elif point == 0.0:
        assert ratio <= 1.0
    else:
        assert even(point, k) / ratio == pytest.approx(1.0)
        assert even(0.99 * point, k) / ratio < 1.0
        assert even(min(1.01 * point, 1.0), k) / ratio >= 1.0 - 1e-12


def test_break_even_by_hand() -> None:
    assert break_even(1, 1.3) == pytest.approx(0.3)  # 1 + a = 1.3
    assert break_even(2, 1.75) == pytest.approx(0.5)  # 1 + a + a^2
    assert break_even(3, 4.0) == pytest.approx(1.0)
    assert break_even(3, 4.001) is None
    assert break_even(3, 1.0) == 0.0


@given(LENGTHS, st.floats(1.0, 8.0), st.floats(1.0, 8.0))
def test_dearer_rounds_need_more_acceptance(k: int, one: float, other: float) -> None:
    low, high = (break_even(k, ratio) for ratio in sorted((one, other)))
    assert high is None or (low is not None and low <= high)


def test_textbooks_by_hand() -> None:
    assert textbook_from_accepted(3.0, 4, 0.25) == pytest.approx(4.0 / 2.0)
    assert textbook_from_acceptance(0.5, 2, 0.125) == pytest.approx((1 - 0.125) / (0.5 * 1.25))


@given(LENGTHS, RATIOS)
def test_textbooks_at_certain_acceptance(k: int, c: float) -> None:
    """a -> 1: both formulas tend to (k + 1) / (k c + 1), which is what is returned at 1."""
    limit = (k + 1) / (k * c + 1)
    assert textbook_from_acceptance(1.0, k, c) == pytest.approx(limit)
    assert textbook_from_acceptance(1 - 1e-9, k, c) == pytest.approx(limit, rel=1e-6)
    assert textbook_from_accepted(float(k), k, c) == pytest.approx(limit)
    assert textbook_from_acceptance(0.0, k, c) == pytest.approx(1 / (k * c + 1))


@given(SHARES, LENGTHS, RATIOS)
def test_textbooks_agree_where_accepted_follows_from_acceptance(a: float, k: int, c: float) -> None:
    assert textbook_from_accepted(even(a, k) - 1.0, k, c) == pytest.approx(textbook_from_acceptance(a, k, c))
