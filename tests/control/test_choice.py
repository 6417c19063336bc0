"""Choices against every choice there is, for batches small enough to try them all."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, product
from operator import mul
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.control.worlds import linear

from forerun.control.choice import LONGEST_ROUND, Choice, Option, Prices, _promising, choose

Options = Sequence[Sequence[Option]]


def draft_passes(first_ms: float, slope: float = 0.0) -> Any:
    """Passes that nobody rides in do not take place."""
    return lambda count: linear(first_ms, slope)(count) * min(count, 1.0)


def steps(width: int, each_ms: float) -> Any:
    """Passes that cost by whole blocks of rows, with straight lines between them as a table has."""
    return lambda rows: each_ms * max(1.0, rows / width) if rows > 0.0 else 0.0


def spent(options: Options, taken: Sequence[tuple[int, int] | None], prices: Prices, num_rows: int) -> Choice:
    """What a choice brings and takes, from the definitions."""
    tokens, rows, more_ms = float(len(options)), float(num_rows), 0.0
    passes: dict[int, float] = {}
    for of_one, chosen in zip(options, taken, strict=True):
        if chosen is None:
            continue
        option, length = of_one[chosen[0]], chosen[1]
        tokens += sum(option.value[:length])
        rows += sum(option.drafted[:length])
        for depth in range(option.num_free, length):
            passes[depth - option.num_free] = passes.get(depth - option.num_free, 0.0) + option.drafted[depth]
            more_ms += option.drafted[depth] * prices.token_ms
        more_ms += option.charge_ms if length > option.num_free else 0.0
    more_ms += sum(prices.draft_ms(count) for count in passes.values())
    total_ms = prices.target_ms(rows) + prices.step_ms + prices.row_ms * rows + more_ms
    return Choice(tuple(taken), tokens, total_ms)


def all_choices(options: Options) -> Any:
    every: list[list[tuple[int, int] | None]] = []
    for of_one in options:
        found: list[tuple[int, int] | None] = [None]
        for place, option in enumerate(of_one):
            found += [(place, length) for length in range(1, len(option.value) + 1)]
        every.append(found)
    return product(*every)


def best_of_all(options: Options, prices: Prices, num_rows: int) -> Choice:
    most_ms = LONGEST_ROUND * spent(options, [None] * len(options), prices, num_rows).milliseconds
    found = (spent(options, taken, prices, num_rows) for taken in all_choices(options))
    return max((one for one in found if one.milliseconds <= most_ms), key=lambda one: one.rate)


@st.composite
def option(draw: Any, longest: int = 4) -> Option:
    chances = draw(st.lists(st.floats(0.02, 0.99), min_size=1, max_size=longest))
    going = draw(st.lists(st.floats(0.5, 1.0), min_size=len(chances), max_size=len(chances)))
    is_open = draw(st.booleans())
    drafted = list(accumulate(going, mul)) if is_open else [1.0] * len(chances)
    value = [one * so_far for one, so_far in zip(accumulate(chances, mul), drafted, strict=True)]
    num_free = draw(st.integers(0, len(chances)))
    return Option(value, drafted, num_free, draw(st.sampled_from([0.0, 0.0, 3.0, 40.0])))


@st.composite
def prices(draw: Any) -> Prices:
    slope = draw(st.sampled_from([0.0, 0.02, 0.1, 0.3, 1.0]))
    target = draw(st.sampled_from([linear(30.0, slope), steps(8, 30.0)]))
    draft = draft_passes(30.0 * draw(st.sampled_from([0.02, 0.05, 0.2, 0.6])), slope)
    host = draw(st.sampled_from([(0.0, 0.0, 0.0), (0.5, 0.1, 0.2)]))
    return Prices(target, draft, *host)


@settings(max_examples=150)
@given(st.lists(option(6), max_size=3), prices())
def test_for_one_sequence_it_is_the_best_there_is(options: list[Option], priced: Prices) -> None:
    found = choose([options], priced, 1, 1, 100)
    assert found.rate == pytest.approx(best_of_all([options], priced, 1).rate, rel=0.005)


@settings(max_examples=100)
@given(st.lists(st.lists(option(3), max_size=2), min_size=2, max_size=3), prices())
def test_for_a_batch_it_is_nearly_the_best_there_is(options: list[list[Option]], priced: Prices) -> None:
    found = choose(options, priced, len(options), len(options), 100)
    assert found.rate >= 0.95 * best_of_all(options, priced, len(options)).rate


@settings(max_examples=100)
@given(st.lists(st.lists(option(3), max_size=2), min_size=1, max_size=3), prices())
def test_what_is_not_thought_of_is_in_no_best_choice(options: list[list[Option]], priced: Prices) -> None:
    num = len(options)
    left = _promising(options, priced, spent(options, [None] * num, priced, num), num)
    assert all(kept in (of_one, ()) for kept, of_one in zip(left, options, strict=True))
    assert best_of_all(left, priced, num).rate == pytest.approx(best_of_all(options, priced, num).rate)


@settings(max_examples=150)
@given(st.lists(st.lists(option(), max_size=3), min_size=1, max_size=5), prices(), st.integers(1, 8))
def test_it_says_what_it_takes_and_never_loses(options: list[list[Option]], priced: Prices, max_rows: int) -> None:
    num = len(options)
    found = choose(options, priced, num, num, max_rows)
    plain = spent(options, [None] * num, priced, num)
    again = spent(options, found.taken, priced, num)
    assert (found.num_tokens, found.milliseconds) == pytest.approx((again.num_tokens, again.milliseconds))
    assert found.rate >= plain.rate * (1 - 1e-12)
    assert found.milliseconds <= LONGEST_ROUND * plain.milliseconds * (1 + 1e-12)
    chosen = [(of_one[taken[0]], taken[1]) for of_one, taken in zip(options, found.taken, strict=True) if taken]
    rows = sum(sum(one.drafted[:length]) for one, length in chosen)
    assert rows <= max_rows + 1  # a row that is only likely counts as much as it is


def sure(acceptance: float, length: int, num_free: int = 0, charge_ms: float = 0.0) -> Option:
    return Option([acceptance ** (i + 1) for i in range(length)], [1.0] * length, num_free, charge_ms)


FLAT = Prices(linear(30.0, 0.0), draft_passes(1.5))


def test_nothing_is_drafted_where_nothing_pays() -> None:
    steep = Prices(linear(30.0, 1.0), draft_passes(6.0, 1.0))
    for options in ([[sure(0.9, 8)]], [[sure(0.9, 8)]] * 4, [[sure(0.9, 8, num_free=8)]], [[], []], [[]]):
        found = choose(options, steep, len(options), len(options), 100)
        assert found.taken == (None,) * len(options)
        assert found.num_tokens == len(options)


def test_the_textbook_length() -> None:
    """verification.md: acceptance .8, a draft pass of 5 %, flat costs: 8 tokens and 3.1 times the speed."""
    found = choose([[sure(0.8, 32)]], FLAT, 1, 1, 100)
    assert found.taken == ((0, 8),)
    assert found.rate * 30.0 == pytest.approx(3.1, abs=0.05)


def test_of_two_sources_the_one_that_pays_more() -> None:
    cheap, dear = sure(0.6, 4, num_free=4), sure(0.95, 8)
    assert choose([[cheap, dear]], FLAT, 1, 1, 100).taken[0] == (1, 8)
    slow = Prices(FLAT.target_ms, draft_passes(25.0))
    assert choose([[cheap, dear]], slow, 1, 1, 100).taken[0] == (0, 4)


def test_reading_first_must_pay() -> None:
    assert choose([[sure(0.8, 8, charge_ms=1.0)]], FLAT, 1, 1, 100).taken[0] is not None
    assert choose([[sure(0.8, 8, charge_ms=500.0)]], FLAT, 1, 1, 100).taken[0] is None


def test_a_pass_that_takes_place_anyway_is_taken_by_whom_it_would_not_pay_alone() -> None:
    draft = Prices(linear(30.0, 0.0), draft_passes(20.0))
    weak = sure(0.45, 3)
    assert choose([[weak]], draft, 1, 1, 100).taken == (None,)
    shared = choose([[weak]] + [[sure(0.98, 3)]] * 3, draft, 4, 4, 100)
    assert all(taken is not None for taken in shared.taken)


def test_scarce_rows_go_to_the_likeliest() -> None:
    options = [[sure(0.3, 4, num_free=4)], [sure(0.95, 4, num_free=4)], [sure(0.5, 4, num_free=4)]]
    found = choose(options, FLAT, 3, 3, 3)
    assert found.taken == (None, (0, 3), None)


def test_a_curve_that_is_dear_at_first_and_flat_behind() -> None:
    """One token never pays, many do: growing must not stop at the first loss."""
    jump = Prices(lambda rows: 30.0 if rows <= 1 else 45.0, draft_passes(0.5))
    found = choose([[sure(0.9, 16)]], jump, 1, 1, 100)
    assert found.taken[0] is not None
    assert found.taken[0][1] > 4


def test_a_step_of_the_curve_keeps_nobody_from_riding() -> None:
    """Sixty-four sequences share it: a pass of them all is worth its price, though the first row behind the step seems
    dear."""
    options = [[Option([0.9**i for i in range(1, 25)], [1.0] * 24)] for _ in range(64)]
    prices = Prices(lambda rows: 30.0 + 1.5 * (rows > 300.0) + 1.5 * (rows > 700.0), draft_passes(1.5))
    found = choose(options, prices, 64, 64, 4096)
    rates = {k: 64 * (1 + sum(options[0][0].value[:k])) / (prices.target_ms(64 * (k + 1)) + 1.5 * k) for k in range(25)}
    assert found.rate >= 0.99 * max(rates.values())


def test_a_sequence_alone_sees_past_a_step() -> None:
    """Rows in blocks of four: the fourth draft token begins a new one, which the next three share."""
    option = Option([0.98**i for i in range(1, 13)], [1.0] * 12)
    prices = Prices(lambda rows: 30.0 + 16.0 * ((rows - 1.0) // 4.0), draft_passes(1.0))
    found = choose([[option]], prices, 1, 1, 256)
    rates = {k: (1 + sum(option.value[:k])) / (prices.target_ms(k + 1.0) + k) for k in range(13)}
    assert found.taken == ((0, max(rates, key=rates.__getitem__)),)
    assert found.taken[0] is not None
    assert found.taken[0][1] >= 7


def test_no_more_rows_than_allowed_however_many_ride() -> None:
    options = [[Option([0.9 - 0.01 * i] * 8, [1.0] * 8)] for i in range(8)]
    found = choose(options, Prices(lambda rows: 30.0, draft_passes(0.5)), 8, 8, 19)
    assert sum(taken[1] for taken in found.taken if taken is not None) == 19
    assert [taken[1] for taken in found.taken if taken is not None][:3] == [3, 3, 3]  # the best of them ride last
