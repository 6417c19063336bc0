"""What is learnt of acceptance: by depth given that it was examined, by sequence, and by confidence."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.control.worlds import by_depth

from forerun.control.acceptance import Acceptance
from forerun.control.estimates import MEMORY, PRIOR
from forerun.types import Prospect, Round

KEY = ("model", "sampled")
MODEL = Prospect("model", 8)


def done(proposed: int, accepted: int, sequence_id: int = 1, sure: tuple[float, ...] = (), free: int = 0) -> Round:
    return Round(
        sequence_id, proposed, accepted, accepted + 1, "model", sure, (0,) * accepted,
        (1,) * min(accepted + 1, proposed), free, proposed,
    )  # fmt: skip


def teach(known: Acceptance, chances: Any, rounds: int, k: int = 4, sequence_id: int = 1, seed: int = 0) -> None:
    """Rounds of k tokens; token i is accepted with `chances[i]` where it is examined."""
    chance = random.Random(seed)
    for _ in range(rounds):
        accepted = next((i for i in range(k) if chance.random() >= chances[i]), k)
        known.observe(KEY, MODEL, k, True, done(k, accepted, sequence_id))


def forecast(known: Acceptance, sequence_id: int = 1, num: int = 4, prospect: Prospect = MODEL) -> Any:
    return known.forecast(sequence_id, KEY, prospect, num)


def test_before_anything_is_known_the_prior_holds() -> None:
    found = forecast(Acceptance(), num=4)
    assert found.accepted[1:] == pytest.approx([PRIOR] * 3)
    assert PRIOR < found.accepted[0] < 1.0  # a first token has the benefit of the doubt
    assert found.drafted == (1.0,) * 4
    assert found.value[2] == pytest.approx(found.accepted[0] * PRIOR**2)


def test_a_new_sequence_begins_with_what_others_taught() -> None:
    known = Acceptance()
    for sequence_id in range(40):
        teach(known, [0.3, 0.3, 0.3, 0.3], 20, sequence_id=sequence_id, seed=sequence_id)
    assert forecast(known, sequence_id=99).accepted[1] == pytest.approx(0.3, abs=0.08)


def test_a_depth_counts_only_if_the_one_before_it_was_accepted() -> None:
    """Token 1 is always accepted if token 0 is, which happens half of the time."""
    known = Acceptance()
    for number in range(400):
        known.observe(KEY, MODEL, 2, True, done(2, 2 if number % 2 else 0))
    assert by_depth(known, "model") == pytest.approx([0.5, 1.0])


def test_depths_are_told_apart() -> None:
    known, chances = Acceptance(), [0.9, 0.7, 0.4, 0.8]
    teach(known, chances, 3000)
    assert by_depth(known, "model") == pytest.approx(chances, abs=0.05)
    assert by_depth(known, "suffix") == []


def test_a_good_first_token_promises_good_deeper_ones() -> None:
    """Whether or not the deeper ones had been thought of before anything was learnt."""
    early, late = Acceptance(), Acceptance()
    forecast(early, num=8)
    for known in (early, late):
        for _ in range(100):
            known.observe(KEY, MODEL, 1, True, done(1, 1))
    assert forecast(early, sequence_id=2).accepted == forecast(late, sequence_id=2).accepted
    assert min(forecast(late, sequence_id=2).accepted) > 0.9


def test_old_observations_fade() -> None:
    known = Acceptance()
    teach(known, [0.9] * 4, int(3 * MEMORY), k=1)
    teach(known, [0.1] * 4, int(3 * MEMORY), k=1, seed=1)
    assert by_depth(known, "model")[0] == pytest.approx(0.1, abs=0.06)


def test_a_sequence_differs_from_the_others() -> None:
    known = Acceptance()
    for _ in range(60):
        known.observe(KEY, MODEL, 2, True, done(2, 2, sequence_id=1))
        known.observe(KEY, MODEL, 2, True, done(2, 0, sequence_id=2))
    assert forecast(known, 1).accepted[1] > 0.85
    assert forecast(known, 2).accepted[0] < 0.4
    assert 0.4 < forecast(known, 3).accepted[0] < 0.8


def test_a_text_that_turns_is_followed_within_twenty_tokens() -> None:
    known = Acceptance()
    for _ in range(200):
        known.observe(KEY, MODEL, 1, True, done(1, 1))
    for _ in range(20):
        known.observe(KEY, MODEL, 1, True, done(1, 0))
    assert forecast(known).accepted[0] < 0.5
    for _ in range(20):
        known.observe(KEY, MODEL, 1, True, done(1, 1))
    assert forecast(known).accepted[0] > 0.7


def test_forget_leaves_what_the_sequence_taught_everybody() -> None:
    known = Acceptance()
    for _ in range(60):
        known.observe(KEY, MODEL, 2, True, done(2, 0, sequence_id=2, sure=(0.5, 0.5)))
    known.forget(2)
    assert forecast(known, 2) == forecast(known, 77)
    assert forecast(known, 2).accepted[0] < PRIOR
    known.forget(12345)


def test_several_are_forgotten_at_once() -> None:
    """In time that grows with what is known and not with its square: answers of a few tokens end by the thousand."""
    known = Acceptance()
    for sequence_id in range(30):
        known.observe(KEY, MODEL, 2, True, done(2, 0, sequence_id, sure=(0.5, 0.5)))
    kept = forecast(known, 29)
    known.forget(*range(29))
    assert forecast(known, 29) == kept != forecast(known, 3) == forecast(known, 77)
    assert {key[0] for key in known._shifts} == {key[0] for key in known._sureness} == {29}
    known.forget()
    assert forecast(known, 29) == kept


def test_silence_makes_a_sequences_number_less_sure() -> None:
    known = Acceptance()
    for _ in range(30):
        known.observe(KEY, MODEL, 1, True, done(1, 0))
    before = forecast(known).accepted[0]
    for _ in range(300):
        known.pass_by(1, KEY)
    assert forecast(known).accepted[0] > before  # hope, that is, and no more than that
    known.pass_by(555, KEY)


def test_kinds_of_request_and_contexts_are_apart() -> None:
    known = Acceptance()
    far = Prospect("model", 8, context="far")
    for _ in range(50):
        known.observe(KEY, MODEL, 1, True, done(1, 0))
    assert known.forecast(2, ("model", "greedy"), MODEL, 2) == forecast(Acceptance(), num=2)
    assert known.forecast(2, KEY, far, 2) == forecast(Acceptance(), num=2)


def test_a_draft_cut_short_by_the_end_of_the_text_is_no_early_end() -> None:
    known = Acceptance()
    for _ in range(50):
        known.observe(KEY, MODEL, 4, False, done(2, 2))
    assert forecast(known).drafted == (1.0,) * 4
    for _ in range(50):
        known.observe(KEY, MODEL, 4, True, done(2, 2))
    found = forecast(known)
    assert found.drafted[1] == 1.0
    assert found.drafted[2] < 0.2
    assert found.accepted[2] > 0.7  # had it been drafted


# -- a source's own guesses, and confidences ---------------------------------------------------------------------------


def test_a_sources_guess_is_believed_until_it_proves_wrong() -> None:
    known, prospect = Acceptance(), Prospect("model", 2, num_free=2, expected=(0.9, 0.9))
    assert forecast(known, num=2, prospect=prospect).accepted[1] == pytest.approx(0.9)
    chance = random.Random(1)
    for number in range(600):
        accepted = next((i for i in range(2) if chance.random() >= 0.4), 2)
        known.observe(KEY, prospect, 2, True, done(2, accepted, sequence_id=number))
    assert forecast(known, sequence_id=9999, num=2, prospect=prospect).accepted[1] == pytest.approx(0.4, abs=0.1)


def test_a_calibration_converges() -> None:
    """Tokens of confidence .9 are accepted seven times in ten, of confidence .5 three times."""
    known, chance = Acceptance(), random.Random(3)
    for number in range(3000):
        sure = chance.choice((0.5, 0.9))
        accepted = int(chance.random() < (0.7 if sure == 0.9 else 0.3))
        known.observe(KEY, MODEL, 1, True, done(1, accepted, sequence_id=number, sure=(sure,)))
    assert known.is_calibrated(KEY)
    for sure, chances in ((0.9, 0.7), (0.5, 0.3)):
        goes_on = [known.gate(99_999, KEY, MODEL, [least])([sure]) for least in (chances - 0.1, chances + 0.1)]
        assert goes_on == [True, False]


@settings(max_examples=50)
@given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=8), st.lists(st.floats(0.0, 1.0), max_size=8))
def test_a_gate_is_a_function_of_the_confidences_alone(sure: list[float], least: list[float]) -> None:
    """Asked token by token or later, it says the same, and never goes on beyond what was planned for."""
    known = Acceptance()
    step_by_step = known.gate(1, KEY, MODEL, least)
    said = [step_by_step(sure[: i + 1]) for i in range(len(sure))]
    assert said == [known.gate(1, KEY, MODEL, least)(sure[: i + 1]) for i in range(len(sure))]
    assert not any(said[len(least) :])


def test_a_gate_counts_the_free_tokens_before_the_drawn_ones() -> None:
    known, prospect = Acceptance(), Prospect("model", 4, num_free=2, expected=(0.5, 0.5))
    assert known.gate(1, KEY, prospect, [0.0, 0.0, 0.2, 0.2])([0.9])  # .5 * .5 * .9, and some hope
    assert not known.gate(1, KEY, prospect, [0.0, 0.0, 0.6, 0.6])([0.9])
    assert not known.gate(1, KEY, prospect, [0.0, 0.0, 0.2])([0.9, 0.9])


rounds = st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8), st.integers(0, 3), st.booleans()), max_size=60)


@settings(max_examples=60)
@given(rounds)
def test_forecasts_are_probabilities_that_fall_with_depth(noted: list[tuple[int, int, int, bool]]) -> None:
    known = Acceptance()
    for proposed, accepted, sequence_id, is_open in noted:
        one = done(proposed, min(accepted, proposed), sequence_id, (0.7,) * proposed)
        known.observe(KEY, MODEL, 8, is_open, one)
    for sequence_id in range(4):
        found = forecast(known, sequence_id, 8)
        assert len(found.value) == len(found.drafted) == len(found.accepted)
        for chances in (found.value, found.drafted):
            assert all(0.0 <= one <= 1.0 for one in chances)
            assert all(left >= right for left, right in pairwise(chances))
