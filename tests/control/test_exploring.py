"""What may be lost on trying: a share of all time, over any stretch of it."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forerun.control.exploring import FIRST_GAP, LARGEST_GAP, Credit


def tries(credit: Credit, rounds: int, cost_ms: float, step_ms: float, key: object = "a", start: int = 0) -> list[int]:
    found = []
    for now in range(start, start + rounds):
        if credit.spend(key, cost_ms, now):
            found.append(now)
        credit.earn(step_ms)
    return found


@settings(max_examples=60)
@given(
    st.floats(0.001, 0.05),
    st.floats(0.1, 200.0),
    st.lists(st.tuples(st.integers(0, 5), st.floats(0.0, 100.0)), min_size=50, max_size=400),
    st.lists(st.integers(0, 399), max_size=20),
)
def test_no_stretch_loses_more_than_its_share(
    share: float, step_ms: float, asked: list[tuple[int, float]], successes: list[int]
) -> None:
    """Between any two rounds: the share of what went by, and at most four of the dearest tries that were saved up."""
    credit = Credit(share)
    spent: list[float] = []
    for now, (key, cost_ms) in enumerate(asked):
        spent.append(cost_ms if credit.spend(key, cost_ms, now) else 0.0)
        if now in successes:
            credit.note_success(key)
        credit.earn(step_ms)
    dearest = max(1.0, *(cost_ms for _, cost_ms in asked))
    for start in range(0, len(spent), 7):
        for end in range(start + 1, len(spent) + 1, 11):
            earned = share * step_ms * (end - start)
            assert sum(spent[start:end]) <= earned + 4.0 * dearest + 1e-9


def test_in_the_long_run_it_is_the_share() -> None:
    found = tries(Credit(0.01), 20_000, 5.0, 30.0)
    assert 5.0 * len(found) <= 0.01 * 30.0 * 20_000
    assert len(found) >= 20  # and it does try


def test_gaps_double_while_a_thing_stays_unused() -> None:
    found = tries(Credit(1.0), 3000, 1.0, 30.0)
    gaps = [later - earlier for earlier, later in pairwise(found)]
    assert found[0] == FIRST_GAP
    assert gaps[:4] == [2 * FIRST_GAP, 4 * FIRST_GAP, 8 * FIRST_GAP, 16 * FIRST_GAP]
    assert max(gaps) == LARGEST_GAP


@pytest.mark.parametrize("event", ["used", "success"])
def test_use_and_success_bring_the_first_gap_back(event: str) -> None:
    credit = Credit(1.0)
    last = tries(credit, 500, 1.0, 30.0)[-1]
    if event == "used":
        credit.note_used("a", 500)
        last = 500
    else:
        credit.note_success("a")
    assert tries(credit, 100, 1.0, 30.0, start=max(last + 1, 500))[0] <= max(last, 500) + FIRST_GAP
    credit.note_success("never seen")


def test_a_sequence_may_lose_in_advance_what_it_will_have_earned() -> None:
    credit = Credit(0.01)
    assert tries(credit, FIRST_GAP + 1, 2.0, 0.0) == []
    credit = Credit(0.01)
    credit.spend("a", 2.0, 0)
    credit.allow(1000.0)
    assert tries(credit, FIRST_GAP + 1, 2.0, 0.0) == [FIRST_GAP]


@pytest.mark.parametrize("num_rounds", [1, 3, 30])
def test_what_is_given_in_advance_is_not_earned_once_more(num_rounds: int) -> None:
    """Many short answers, each of which promised to be long, or one after the other that keeps what it promised."""
    credit = Credit(0.01)
    spent = 0.0
    for _ in range(300):
        credit.allow(1000.0)
        for _ in range(num_rounds):
            spent += 2.0 if credit.take(2.0) else 0.0
            credit.earn(30.0)
    share = 0.01 * 30.0 * num_rounds * 300
    assert spent <= share + 2 * 4.0 * 2.0  # what was saved up, and what was given in advance
    assert spent >= 0.9 * share


def test_hope_is_paid_for_from_the_same_budget() -> None:
    credit = Credit(0.01)
    assert credit.take(0.0)  # what costs nothing is free
    assert credit.take(-5.0)
    assert not credit.take(2.0)
    credit.earn(300.0)
    assert credit.take(2.0)
    assert not credit.take(2.0)  # one of three is left
    assert credit.take(0.9)


def test_forgetting_a_sequence_leaves_the_others() -> None:
    credit = Credit(1.0)
    for key in ((1, "model"), (2, "model"), "plain"):
        credit.note_used(key, 0)
    credit.note_used((3, "model"), 0)
    credit.forget(1, 3)
    credit.forget()
    credit.earn(1000.0)
    assert not credit.spend((3, "model"), 1.0, 100)
    assert not credit.spend((1, "model"), 1.0, 100)  # seen for the first time now
    assert credit.spend((2, "model"), 1.0, 100)
    assert credit.spend("plain", 1.0, 100)
