"""Rounds of other lengths from those of the longest: exact where every place is known, sound elsewhere."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.planning.replay import HIT, MISS, NONE, UNKNOWN, acceptance, acceptance_by_depth, places, replay
from forerun.types import Round


def rounds_of(*pairs: tuple[int, int]) -> list[Round]:
    return [Round(0, proposed, accepted, accepted + 1) for proposed, accepted in pairs]


def played(outcomes: list[bool], k: int) -> list[Round]:
    """What rounds of k do with a text whose place i the draft knows or not, until the text ends."""
    found, place = [], 0
    while place < len(outcomes):
        accepted = 0
        while accepted < k and place + accepted < len(outcomes) and outcomes[place + accepted]:
            accepted += 1
        found.append(Round(0, k, accepted, accepted + 1))
        place += accepted + 1
    return found


def test_places() -> None:
    found = places(rounds_of((3, 1), (2, 2), (0, 0), (3, 0)))
    assert found == [(HIT, 3), (MISS, 3), (HIT, 2), (HIT, 2), (UNKNOWN, 2), (NONE, 0), (MISS, 3)]


def test_a_drafter_that_had_fewer_tokens_has_no_more_in_a_replay() -> None:
    found = replay([rounds_of((2, 1), (5, 3))], 4)
    assert found.shares == {(2, 1): 0.5, (4, 3): 0.5}


def test_shorter_rounds_by_hand() -> None:
    """Places: hit hit miss | hit miss | none: rounds of 1 are (1) hit-bonus, (2) miss, (3) hit-bonus, none."""
    found = replay([rounds_of((4, 2), (4, 1), (0, 0))], 1)
    assert found.shares == {(0, 0): 0.25, (1, 0): 0.25, (1, 1): 0.5}
    assert found.tokens == pytest.approx(6 / 4), "six tokens in four rounds"
    assert found.proposed == {0: 0.25, 1: 0.75}
    assert found.whole == 0.5


@given(st.lists(st.booleans(), min_size=1, max_size=60), st.integers(1, 6), st.integers(0, 3))
def test_where_no_draft_was_accepted_whole_every_length_is_exact(outcomes: list[bool], k: int, more: int) -> None:
    """Runs of hits shorter than the longest k leave nothing unknown; a miss ends the text."""
    longest = max(k + more, 7)
    run = 0
    known = []
    for outcome in outcomes:
        run = run + 1 if outcome else 0
        known.append(outcome and run < longest)
    known.append(False)
    found = replay([played(known, longest)], k)
    expected = played(known, k)
    assert found.tokens == pytest.approx(sum(one.num_emitted for one in expected) / len(expected))


@given(st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)), min_size=1, max_size=40), st.integers(0, 8))
def test_any_rounds_give_shares_that_add_up(pairs: list[tuple[int, int]], k: int) -> None:
    found = replay([rounds_of(*((proposed, min(accepted, proposed)) for proposed, accepted in pairs))], k)
    assert sum(found.shares.values()) == pytest.approx(1.0)
    assert 1.0 <= found.tokens <= k + 1
    assert all(accepted <= proposed <= k for proposed, accepted in found.shares)


def test_its_own_length_is_what_was_measured() -> None:
    rounds = rounds_of((4, 2), (4, 0), (4, 3), (4, 1))
    assert replay([rounds], 4).tokens == pytest.approx(sum(one.num_emitted for one in rounds) / 4)


def test_a_certain_draft_stays_certain() -> None:
    assert replay([rounds_of(*[(4, 4)] * 10)], 2).tokens == pytest.approx(3.0)


def test_clustered_text_is_replayed_without_the_bias_of_depths() -> None:
    """Easy and hard stretches in turn: shares by depth underrate short rounds, which begin in easy places too."""
    random.seed(5)
    outcomes: list[bool] = []
    while len(outcomes) < 40_000:
        easy = random.random() < 0.5
        outcomes += [random.random() < (0.97 if easy else 0.3) for _ in range(30)]
    truth = played(outcomes, 1)
    true_tokens = sum(one.num_emitted for one in truth) / len(truth)
    longest = played(outcomes, 8)
    assert replay([longest], 1).tokens == pytest.approx(true_tokens, rel=0.03)
    assert 1.0 + acceptance_by_depth([longest])[0] < 0.95 * true_tokens


def test_no_rounds() -> None:
    with pytest.raises(ValueError, match="no rounds"):
        replay([[]], 2)


def test_acceptance_by_depth_and_overall() -> None:
    texts = [rounds_of((2, 2), (2, 0)), rounds_of((2, 1), (0, 0))]
    assert acceptance_by_depth(texts) == [pytest.approx(2 / 3), pytest.approx(1 / 2)]
    assert acceptance(texts) == pytest.approx(3 / 5), "five were examined"
    assert acceptance([rounds_of((0, 0))]) is None
    assert acceptance_by_depth([rounds_of((0, 0))]) == []
