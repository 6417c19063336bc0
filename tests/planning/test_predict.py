"""Predictions from costs worked by hand, and the scaling of measurements to one speed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.planning.predict import Costs, Host, predict
from forerun.planning.replay import Rounds
from forerun.planning.scaling import Drafting, Surface, gain, measure_surface
from forerun.planning.session import STALL, Generation, Session, Timings
from forerun.runtime.toy import ToyModel
from forerun.types import CostCurve, Round

TARGET = CostCurve(128, {1: 30.0, 2: 33.0, 4: 39.0, 8: 51.0})
DRAFT = CostCurve(128, {1: 6.0, 2: 7.0})


def test_a_round_by_hand() -> None:
    """k = 3: a pass of four rows 39, three draft tokens 18, and half the drafts were accepted whole: + 0.5."""
    costs = Costs(TARGET, DRAFT, Host(1.0, 0.2))
    assert costs.round_ms(0) == 31.0
    assert costs.round_ms(3) == pytest.approx(39 + 18 + 1.6)
    assert costs.round_ms(3, whole=0.5) == pytest.approx(39 + 18.5 + 1.6)
    assert costs.ratio == pytest.approx(0.2)
    assert Costs(TARGET, None, Host(1.0)).round_ms(3) == 40.0


def test_a_prediction_by_hand() -> None:
    """Nine in ten rounds draft three tokens and accept two; the others decode plainly."""
    rounds = Rounds({(3, 2): 0.9, (0, 0): 0.1})
    one = predict(Costs(TARGET, DRAFT, Host(1.0)), {3: rounds}, [0.8, 0.5], 0.7)[3]
    round_ms = 0.9 * (39 + 18 + 1) + 0.1 * 31
    assert one.tokens_per_pass == pytest.approx(0.9 * 3 + 0.1)
    assert one.round_ms == pytest.approx(round_ms)
    assert one.tokens_per_s == pytest.approx(2800 / round_ms)
    assert one.speedup == pytest.approx(2.8 * 31 / round_ms)
    assert one.break_even is not None
    assert 1 + one.break_even + one.break_even**2 + one.break_even**3 == pytest.approx(58 / 31)
    assert one.by_depth == pytest.approx((1 + 0.9 * (0.8 + 0.4 + 0.2)) * 31 / round_ms)
    assert one.textbook_accepted == pytest.approx((0.9 * 2 + 1) / (3 * 0.2 + 1))


def test_the_host_between_plain_and_longest() -> None:
    host = Host.between(1.0, 3.0, 8)
    assert (host.at(0), host.at(4), host.at(8)) == (1.0, 2.0, 3.0)
    assert Host.between(1.0, 0.5, 8).at(8) == 1.0, "never below plain"
    assert Host.between(-0.1, 0.5, 8).plain_ms == 0.0
    assert Host.between(1.0, 1.0, 0).at(0) == 1.0


def test_interruptions_are_left_out() -> None:
    timings = Timings()
    for value in (10.0, 11.0, 9.0, 10.0, 10.0 * STALL + 1):
        timings.add(1, value)
    assert timings.mean(1) == pytest.approx(10.0)
    assert timings.num_stalls == 1


@given(st.floats(0.2, 5.0))
def test_speed_of_the_machine_cancels(slow: float) -> None:
    """Two generations of other lengths, the second while the machine is `slow` times slower: both scale alike."""
    session = Session(contexts=[100])
    for k, pass_ms, factor in ((2, 45.0, 1.0), (4, 60.0, slow)):
        one = Generation("lookup", k, rounds=[Round(0, k, 1, 2)])
        one.rounds_ms.add(k, 50.0 * factor)
        one.other_ms.add(k, 2.0 * factor)
        one.passes["target"].add(1, 30.0 * factor)
        one.passes["target"].add(k + 1, pass_ms * factor)
        session.generations.append(one)
    curve, variant = session.curve("target"), session.variant("lookup", 4)
    assert curve.milliseconds[3] / curve.milliseconds[1] == pytest.approx(1.5)
    assert curve.milliseconds[5] / curve.milliseconds[1] == pytest.approx(2.0)
    assert variant.round_ms / curve.milliseconds[1] == pytest.approx(50 / 30)
    assert variant.other_ms.mean(4) / curve.milliseconds[1] == pytest.approx(2 / 30)
    assert variant.tokens_per_s_as_it_ran == pytest.approx(2e3 / (50 * slow))


def test_a_measured_surface_grows_with_rows_and_context() -> None:
    """A toy of no weights: whatever noise there is, more rows never look at fewer cached tokens."""
    surface = measure_surface(ToyModel.random(20, context_length=200), longest=4)
    (low, first), (high, last) = surface.per_token_ms.items()
    assert (low, high) == (1, 5)
    assert 0.0 <= first <= last
    assert surface.longest == 200 - 64
    assert surface.at(5, 1, 10_000) >= surface.at(5, 1, 0) > 0.0


def test_load_by_hand() -> None:
    """w is 28 + 2 rows, a(1) = 0.01 and a(3) = 0.03 per token: the sum of the model."""
    curve = CostCurve(100, {1: 30.0 + 1.0, 3: 34.0 + 3.0})
    surface = Surface(curve, {1: 0.01, 3: 0.03}, 500)
    assert surface.at(1, 1, 100) == pytest.approx(31.0)
    assert surface.at(3, 1, 100) == pytest.approx(37.0)
    assert surface.at(1, 1, 1100) == pytest.approx(41.0)
    assert surface.at(1, 3, 200) == pytest.approx(34.0 + 3 * 2.0)
    assert not surface.is_extrapolated(3, 1, 500)
    assert surface.is_extrapolated(1, 1, 501)
    assert surface.is_extrapolated(4, 1, 100)
    assert surface.is_extrapolated(1, 2, 100), "two rows were timed, but of one sequence"


def test_gain_where_few_rounds_draft() -> None:
    """One round in ten has a draft: nine tenths of the rows of drafts, and of their passes, are not there."""
    target = Surface(CostCurve(0, {1: 30.0, 5: 50.0}), {1: 0.0, 5: 0.0}, 1000)
    found = gain(target, Drafting(None, Host(1.0, 0.5), {0: 1.0, 4: 1.2}, 0.1), 1, 0)
    assert found.speedup == pytest.approx(1.2 * 31.0 / (30 + 0.1 * 20 + 1 + 0.1 * 4 * 0.5))


def test_gain_falls_with_batch_where_rows_cost() -> None:
    target = Surface(CostCurve(0, {1: 30.0, 8: 30.0, 64: 240.0}), {1: 0.0, 9: 0.0}, 1000)
    draft = Surface(CostCurve(0, {1: 3.0, 64: 3.0}), {1: 0.0, 9: 0.0}, 1000)
    tokens = {0: 1.0, 4: 3.0, 8: 4.0}
    found = [gain(target, Drafting(draft, Host(0.1), tokens), n, 100) for n in (1, 4, 16)]
    assert [one.speedup for one in found] == sorted((one.speedup for one in found), reverse=True)
    assert found[0].k > 0
    assert found[-1].k == 0
    assert found[-1].speedup == 1.0
    assert not found[0].is_extrapolated
    assert found[1].is_extrapolated
