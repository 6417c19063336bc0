"""Costs that follow the machine, and are not led astray by single passes."""

from __future__ import annotations

import math
import random
import statistics
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.control.worlds import MEASURED, curve, linear

from forerun.control import AdaptiveLength
from forerun.control.cost import HostCost, PassCost, PassTable
from forerun.errors import ContractError
from forerun.types import CostCurve, Step


def cost(slope: float = 0.1) -> PassCost:
    return PassCost(curve(linear(30.0, slope)))


def warm(slope: float = 0.1) -> PassCost:
    """After twenty passes that took just what was measured."""
    found = cost(slope)
    for i in range(20):
        rows = MEASURED[i % 6]
        found.note(rows, 0.0, linear(30.0, slope)(rows))
    return found


def test_before_any_pass_it_is_the_curve() -> None:
    found = cost()
    for rows in (1, 2, 7, 20, 300):
        assert found.at(rows) == pytest.approx(linear(30.0, 0.1)(rows))


def test_the_first_pass_says_most_of_how_fast_the_machine_is_today() -> None:
    found = cost()
    found.note(1, 0.0, 45.0)
    assert 1.25 < found.factor < 1.5
    assert found.at(8) / linear(30.0, 0.1)(8) == pytest.approx(found.factor)


@pytest.mark.parametrize("factor", [0.1, 10.0, 1000.0])
def test_one_odd_pass_changes_nothing(factor: float) -> None:
    found = warm()
    before = [found.at(rows) for rows in MEASURED]
    found.note(4, 0.0, 39.0 * factor)
    found.note(4, 0.0, 39.0)
    found.note(4, 0.0, 39.0)
    assert [found.at(rows) for rows in MEASURED] == pytest.approx(before, rel=0.01)


def test_an_odd_first_pass_is_forgotten() -> None:
    found = cost()
    found.note(1, 0.0, 300.0)
    for _ in range(6):
        found.note(1, 0.0, 30.0)
    assert found.at(1) == pytest.approx(30.0, rel=0.05)


@given(st.floats(0.55, 1.8).filter(lambda factor: abs(math.log(factor)) > 0.15))
def test_a_new_speed_is_followed_within_six_passes(factor: float) -> None:
    found = warm()
    for _ in range(6):
        found.note(4, 0.0, 39.0 * factor)
    assert found.at(4) == pytest.approx(39.0 * factor, rel=0.12)
    assert found.at(1) == pytest.approx(30.0 * factor, rel=0.15)  # also where none was made


def test_a_factor_of_ten_is_followed_too() -> None:
    found = warm()
    for _ in range(20):
        found.note(1, 0.0, 300.0)
    assert found.at(1) == pytest.approx(300.0, rel=0.1)


def test_the_curve_is_bent_where_passes_are_made() -> None:
    """Four rows cost more than was measured, one row does not."""
    found, chance = cost(), random.Random(1)
    for _ in range(400):
        rows = chance.choice((1, 4))
        found.note(rows, 0.0, (30.0 if rows == 1 else 60.0) * math.exp(chance.gauss(0, 0.03)))
    assert found.at(4) / found.at(1) == pytest.approx(2.0, rel=0.1)


def test_a_pass_beyond_all_that_was_measured_teaches_only_its_like() -> None:
    """A prompt of 2,000 tokens is read: no word on passes of a few rows."""
    found = warm()
    before = [found.at(rows) for rows in MEASURED]
    for _ in range(10):
        found.note(2000, 0.0, 100_000.0)
    assert [found.at(rows) for rows in MEASURED] == before
    assert found.at(2000) == pytest.approx(100_000.0, rel=0.05)


def test_texts_that_grow_are_followed() -> None:
    """Each row takes .01 ms for each token that it looks at, which nobody told: a text of 3,000 tokens costs 40 ms."""
    found = PassCost(CostCurve(0, {1: 10.0, 8: 10.0}))
    for cached in range(0, 3000, 2):
        found.note(1, float(cached), 10.0 + 0.01 * cached)
        assert cached < 100 or found.at(1, float(cached)) == pytest.approx(10.0 + 0.01 * cached, rel=0.05)


def attending(rows: int, cached: float, speed: float = 1.0) -> float:
    """A pass behind 3,000 tokens takes half as long again as one behind 512."""
    return speed * (40.0 + 5.0 * rows) * (1.0 + 2e-4 * (cached - 512))


def texts(
    cost: PassCost, lengths: list[int], noise: float = 0.0, speed: float = 1.0, num_passes: int = 40
) -> list[float]:
    """One text after another: predictions of each one's first pass over what it takes."""
    random, found = np.random.default_rng(1), []
    for length in lengths:
        found.append(cost.at(2, float(length)) / attending(2, length, speed))
        for cached in range(length, length + 2 * num_passes, 2):
            taken = attending(2, cached, speed) * math.exp(noise * random.standard_normal())
            cost.note(2, float(cached), taken)
    return found


def curve_at_512() -> PassCost:
    return PassCost(CostCurve(512, {rows: attending(rows, 512) for rows in (1, 2, 4, 8)}))


@pytest.mark.parametrize("noise", [0.0, 0.05])
@pytest.mark.parametrize("speed", [1.0, 1.6])
@pytest.mark.parametrize("num_passes", [40, 6])
def test_what_longer_texts_cost_is_learnt_where_short_ones_follow(noise: float, speed: float, num_passes: int) -> None:
    """Texts of 512, 3,000 and 1,500 tokens in turn, on a machine as measured and on one that is slower than that."""
    cost = curve_at_512()
    errors = [
        abs(math.log(found)) for found in texts(cost, [512, 3000, 512, 3000, 512, 1500, 3000], noise, speed, num_passes)
    ]
    assert errors[1] > 0.35, "nobody told"
    assert max(errors[3:]) < 0.05 + 3 * noise
    assert cost.factor == pytest.approx(speed, rel=0.1 + noise), "which is the machine's, and not the text's"


@pytest.mark.parametrize("odd", [10.0, 0.1])
def test_a_single_odd_pass_behind_another_text_teaches_nothing_of_texts(odd: float) -> None:
    cost = curve_at_512()
    for length in (512, 3000, 512, 3000):
        cost.note(2, float(length), odd * attending(2, 512))
        for _ in range(20):
            cost.note(2, float(length), attending(2, 512))
    assert cost.at(2, 3000.0) == pytest.approx(cost.at(2, 512.0), rel=0.02)


def test_a_machine_that_changes_its_speed_teaches_little_of_texts() -> None:
    """It does so between texts of 512 and 1,200 tokens, independently of them: sixty such changes are no trend."""
    cost, random = curve_at_512(), np.random.default_rng(7)
    for number in range(60):
        length, speed = (512, 1200)[number % 2], float(random.choice([1.0, 1.5]))
        for _ in range(20):
            cost.note(2, float(length), speed * attending(2, 512))
    assert cost.at(2, 1200.0) / cost.at(2, 512.0) == pytest.approx(1.0, abs=0.15)


def test_a_small_difference_of_texts_and_a_large_one_of_speeds_teach_little() -> None:
    """The second text is 100 tokens longer and the machine half as fast again: .005 a token, if it were the text."""
    cost = curve_at_512()
    for length, speed in ((512, 1.0), (612, 1.5)):
        for _ in range(20):
            cost.note(2, float(length), speed * attending(2, 512))
    assert 1.0 <= cost.at(2, 2512.0) / cost.at(2, 512.0) < 1.5


def test_longer_texts_are_never_taken_for_cheaper() -> None:
    cost = curve_at_512()
    for length, speed in ((512, 1.5), (3000, 1.0)) * 4:
        for _ in range(20):
            cost.note(2, float(length), speed * attending(2, 512))
    assert cost.at(2, 3000.0) == pytest.approx(cost.at(2, 512.0))


def test_contexts_that_come_and_go_with_single_passes_teach_nothing() -> None:
    """As when sequences join and leave: the third pass is not behind what the two before it were."""
    cost = curve_at_512()
    for _ in range(20):
        for length in [512] * 10 + [3000, 3000, 800]:
            cost.note(2, float(length), attending(2, length))
    assert cost.at(2, 3000.0) / cost.at(2, 512.0) < 1.6


def test_what_is_learnt_of_texts_leaves_the_prediction_of_the_one_at_hand() -> None:
    cost = curve_at_512()
    texts(cost, [512])
    for _ in range(2):
        cost.note(2, 3000.0, attending(2, 3000))
    before = cost.at(2, 3000.0)
    cost.note(2, 3000.0, attending(2, 3000))
    assert before < cost.at(2, 3000.0) <= attending(2, 3000) * 1.01, "closer by the third pass, and not beyond it"
    assert cost.at(2) == pytest.approx(cost.at(2, 3000.0)), "as many tokens as lately"


def test_reading_behind_a_long_text_is_not_taken_for_dear_in_itself() -> None:
    """Passes far larger than measured ones have a correction of their own, and what the text adds is no part of it."""
    cost = curve_at_512()
    texts(cost, [512, 3000, 512, 3000])
    for _ in range(12):
        cost.note(64, 3000.0, 2000.0)
    assert cost.at(64, 3000.0) == pytest.approx(2000.0, rel=0.05)
    assert cost.at(64, 512.0) == pytest.approx(2000.0 / 1.5, rel=0.05)


def test_a_draft_model_that_sees_a_part_is_priced_by_that_part() -> None:
    policy = AdaptiveLength(curve_at_512(), curve_at_512())
    assert policy.draft is not None
    for length in (512, 3000, 512, 3000, 512):
        for _ in range(10):
            policy.meter(1, float(length), attending(1, length))
    text: Any = SimpleNamespace(tokens=[0] * 3000)
    assert policy._prices([text]).draft_ms(1) == pytest.approx(attending(1, 512), rel=0.05)


def test_a_text_shorter_than_measured_costs_something() -> None:
    """However much a cached token seems to cost: a price of nothing, or less, would be divided by."""
    cost = PassCost(CostCurve(4000, {1: 10.0, 8: 10.0}))
    for length in (4000, 8000) * 5:
        for _ in range(10):
            cost.note(1, float(length), 10.0 if length == 4000 else 100.0)
    assert cost.at(1, 0.0) > 1.0


@pytest.mark.parametrize("rows,milliseconds", [(0, 5.0), (-1, 5.0), (1, 0.0), (1, -1.0), (1, math.inf), (1, math.nan)])
def test_what_is_no_pass_teaches_nothing(rows: int, milliseconds: float) -> None:
    found = warm()
    before = [found.at(count) for count in MEASURED]
    found.note(rows, 0.0, milliseconds)
    assert [found.at(count) for count in MEASURED] == before


passes = st.lists(
    st.tuples(st.integers(1, 3000), st.floats(0.0, 5000.0), st.floats(1e-3, 1e6, allow_nan=False)), max_size=60
)


@settings(max_examples=60)
@given(passes)
def test_costs_stay_finite_and_positive(noted: list[tuple[int, float, float]]) -> None:
    found = cost()
    for rows, cached, milliseconds in noted:
        found.note(rows, cached, milliseconds)
    for rows in (1, 3, 16, 100, 5000):
        assert 0.0 < found.at(rows, 100.0) < math.inf
    assert 0.0 < found.factor < math.inf


def test_a_table_is_a_moment_of_a_cost() -> None:
    found = warm()
    table = found.table(0.0)
    assert [table(rows) for rows in MEASURED] == [found.at(rows) for rows in MEASURED]
    assert table(0) == table(0.0) == 0.0
    assert table(0.25) == pytest.approx(0.25 * table(1))
    assert table(4.5) == pytest.approx((table(4) + table(5)) / 2)
    assert PassTable(None, 0.0)(3.5) == 0.0


@settings(max_examples=40)
@given(st.floats(0.0, 1.0), st.lists(st.floats(0.0, 60.0), min_size=2, max_size=20))
def test_tables_of_rising_curves_rise(slope: float, rows: list[float]) -> None:
    table = warm(slope).table(0.0)
    found = [table(count) for count in sorted(rows)]
    assert all(left <= right + 1e-9 for left, right in pairwise(found))


@given(st.dictionaries(st.integers(1, 64), st.floats(0.1, 1e4), min_size=1, max_size=12))
def test_more_rows_never_cost_less(measured: dict[int, float]) -> None:
    """And what was measured is moved no further than that asks: means of neighbours, nothing where it rises already."""
    kept = PassCost(CostCurve(0, measured)).curve.milliseconds
    found = [kept[rows] for rows in sorted(kept)]
    assert sorted(kept) == sorted(measured)
    assert all(left <= right for left, right in pairwise(found))
    assert math.fsum(found) == pytest.approx(math.fsum(measured.values()))
    given_ms = [measured[rows] for rows in sorted(measured)]
    if all(left <= right for left, right in pairwise(given_ms)):
        assert found == given_ms


# -- the host's part ---------------------------------------------------------------------------------------------------


def step(host_ms: float = 1.0, verify_ms: float = 4.0, draft_ms: float = 0.0, rows: int = 4) -> Step:
    return Step(1, rows, rows, 10, draft_ms / 1e3, 0.03, verify_ms / 1e3, host_ms / 1e3)


def test_the_host_pays_by_step_row_and_drafted_token() -> None:
    host = HostCost()
    for _ in range(2):
        host.note(step(draft_ms=9.0), draft_passes_ms=6.0, num_drafted=3)
    assert (host.per_step_ms, host.per_row_ms, host.per_draft_token_ms) == pytest.approx((1.0, 1.0, 1.0))
    for _ in range(60):
        host.note(step(2.0, 8.0, 12.0), 6.0, 3)
    assert (host.per_step_ms, host.per_row_ms, host.per_draft_token_ms) == pytest.approx((2.0, 2.0, 2.0), rel=0.01)


def test_the_first_round_in_which_everything_is_made_ready_is_not_taken_for_usual() -> None:
    """A real first step: 225 ms of the host where later ones have .7."""
    host = HostCost()
    host.note(step(host_ms=225.0, verify_ms=400.0), 0.0, 0)
    assert host.per_step_ms == host.per_row_ms == 0.0
    host.note(step(host_ms=0.7), 0.0, 0)
    assert host.per_step_ms == pytest.approx(0.7)
    assert host.per_row_ms == pytest.approx(1.0)


def test_one_slow_round_of_the_host_changes_nothing() -> None:
    host = HostCost()
    for place in range(12):
        host.note(step(host_ms=1000.0, verify_ms=4000.0) if place == 8 else step(), 0.0, 0)
        assert place < 1 or (host.per_step_ms, host.per_row_ms) == pytest.approx((1.0, 1.0))


def test_drafting_that_took_less_than_its_passes_costs_nothing_more() -> None:
    """Two clocks do not agree to the last digit."""
    host = HostCost()
    for _ in range(3):
        host.note(step(draft_ms=5.9), 6.0, 3)
        host.note(step(rows=0), 0.0, 0)  # a prompt is read: no rows, no division
    assert host.per_draft_token_ms == 0.0
    assert host.per_row_ms == pytest.approx(1.0)


def test_corrections_leave_no_steps_in_a_curve() -> None:
    """A step between two kinds of passes would be the price of the one row that takes it."""
    found = cost(0.0)
    for i in range(60):
        found.note((20, 40, 80, 160, 256)[i % 5], 0.0, 30.0 * (1.0, 1.2, 0.9, 1.1, 1.0)[i % 5])
    assert max(found.at(rows) for rows in (20, 40, 80, 160)) > 1.05 * min(found.at(rows) for rows in (20, 40, 80, 160))
    for rows in range(1, 400):
        assert abs(found.at(rows + 1) - found.at(rows)) < 0.75  # where the corrections differ by several milliseconds


@pytest.mark.parametrize("found", [{}, {1: 0.0}, {1: 5.0, 2: -1.0}, {1: math.nan}, {1: math.inf}])
def test_a_curve_that_is_none_is_a_fault_of_its_model(found: dict[int, float]) -> None:
    with pytest.raises(ContractError, match="cost curve"):
        PassCost(CostCurve(0, found))


@pytest.mark.parametrize("drift", [-0.005, 0.0, 0.005])
@pytest.mark.parametrize("true", [1.05, 1.16, 1.3])
def test_what_a_row_costs_is_told_from_what_the_machine_does(true: float, drift: float) -> None:
    """Passes of 4 rows, one of 5 after three of them, on a machine that gets slower or faster all the time and now and
    then by half: which of the two was made when it did must not matter."""
    errors = []
    for seed in range(30):
        draw = random.Random(seed)
        found = PassCost(CostCurve(0, {1: 50.0, 4: 60.0, 5: 69.0, 8: 107.0}))
        speed = 0.0
        for number in range(160):
            rows = 5 if number % 4 == 3 else 4
            speed += drift + draw.gauss(0.0, 0.02) + (draw.random() < 0.02) * draw.choice((-0.4, 0.4))
            took = {4: 60.0, 5: 60.0 * true}[rows] * math.exp(speed + abs(draw.gauss(0.0, 0.08)))
            found.note(rows, 100.0, took)
        errors.append(math.log(found.at(5, 100.0) / found.at(4, 100.0) / true))
    assert abs(statistics.mean(errors)) < 0.025
    assert statistics.pstdev(errors) < 0.04


def believed(of: PassCost) -> float:
    """What a pass of 8 rows is predicted to take, in passes of 4."""
    return of.at(8, 0.0) / of.at(4, 0.0)


def alternate(of: PassCost, num: int, ratio: float, cached: tuple[float, float] = (0.0, 0.0)) -> None:
    """`num` times a pass of 4 rows, 30 ms, and one of 8 rows that takes `ratio` times as long."""
    for _ in range(num):
        of.note(4, cached[0], 30.0)
        of.note(8, cached[1], 30.0 * ratio)


def test_how_fast_a_shape_is_learnt() -> None:
    """The measured curve counts for six comparisons beside those that were made, and there must be three; then what
    changes is still followed, a twentieth of it each time."""
    found = cost(0.0)
    alternate(found, 2, 1.3)
    assert believed(found) == pytest.approx(1.0)
    left = math.log(1.3)
    for number in range(6, 30):
        alternate(found, 1, 1.3)
        left *= 1.0 - max(1.0 / number, 0.05)
        assert math.log(1.3 / believed(found)) == pytest.approx(left)
    for _ in range(2):  # until most of the last three say so
        alternate(found, 1, 1.0)
    before = math.log(believed(found))
    alternate(found, 1, 1.0)
    assert math.log(believed(found)) == pytest.approx(0.95 * before)


@pytest.mark.parametrize("rows", [4, 8])
@pytest.mark.parametrize("factor", [0.1, 10.0])
def test_one_odd_pass_bends_nothing(factor: float, rows: int) -> None:
    found = cost(0.0)
    alternate(found, 20, 1.0)
    for number in range(8):
        found.note(4, 0.0, 30.0 * (factor if number == 3 and rows == 4 else 1.0))
        found.note(8, 0.0, 30.0 * (factor if number == 3 and rows == 8 else 1.0))
    assert believed(found) == pytest.approx(1.0)


def test_passes_behind_other_contexts_are_not_compared() -> None:
    found = cost(0.0)
    alternate(found, 20, 1.4, cached=(0.0, 2000.0))
    assert believed(found) == pytest.approx(1.0)


def test_passes_with_a_prompt_between_them_are_not_compared() -> None:
    found = cost(0.0)
    for _ in range(20):
        found.note(4, 0.0, 30.0)
        found.note(4 * max(MEASURED), 0.0, 300.0)
        found.note(8, 0.0, 42.0)
        found.note(4 * max(MEASURED), 0.0, 300.0)
    assert believed(found) == pytest.approx(1.0)


def test_what_was_not_tried_takes_after_its_neighbours() -> None:
    """Between two kinds a straight line, and four fifths of a correction one row on, none five rows on."""
    found = cost(0.0)
    alternate(found, 200, 1.2)
    low, high = (math.log(found.at(rows, 0.0) / found.factor / 30.0) for rows in (4, 8))
    assert high - low == pytest.approx(math.log(1.2), abs=0.01)
    for rows, bend in ((5, 0.75 * low + 0.25 * high), (6, (low + high) / 2), (9, 0.8 * high), (11, 0.4 * high),
                       (13, 0.0), (2, 0.6 * low)):  # fmt: skip
        assert math.log(found.at(rows, 0.0) / found.factor / 30.0) == pytest.approx(bend, abs=1e-6)
