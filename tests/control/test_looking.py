"""Whom a round is thought through for: how often where nothing pays, and what a sequence is looked at for at once."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from tests.control.worlds import policy, world

from forerun.control import AdaptiveLength
from forerun.control.choice import Choice
from forerun.control.exploring import FIRST_GAP
from forerun.control.looking import CHANGE, LONGEST_GAP, SURPRISE, Looks, promise
from forerun.control.policy import Load
from forerun.control.records import Offer
from forerun.control.simulation import World, simulate
from forerun.control.situation import Situation
from forerun.errors import ParameterError
from forerun.sampling import SamplingParams
from forerun.types import Prospect

MODEL = Prospect("model", 8)


def suffix(*expected: float, context: str = "3-5 all") -> Prospect:
    return Prospect("suffix", len(expected), num_free=len(expected), context=context, expected=expected)


def text(number: int = 0) -> Any:
    return SimpleNamespace(
        sequence_id=number, tokens=range(100), prompt_length=50, params=SamplingParams(), num_missing=1,
        noise=SimpleNamespace(kind="sampled"),
    )  # fmt: skip


def look(
    looks: Looks, now: int, *offered: list[Prospect], drafting: tuple[int, ...] = (), model: bool = False
) -> list[int]:
    """One round in which `drafting` of the sequences draft if they are looked at: who was."""
    texts = [text(i) for i in range(len(offered))]
    seen = looks.begin(now, texts, offered, len(offered))
    for i, found in enumerate(offered):
        if seen[i]:
            if i in drafting:
                looks.drafts(i)
            else:
                looks.declines(i, found)
    if any(seen):
        looks.end(now, len(offered), somebody_drafts=bool(drafting), a_model_drafts=model)
    return [i for i, is_seen in enumerate(seen) if is_seen]


def test_looks_become_rarer_while_nobody_drafts() -> None:
    looks = Looks()
    rounds = [now for now in range(1, 24) if look(looks, now, [MODEL])]
    assert rounds == [1, 3, 7, 11, 15, 19, 23]
    assert LONGEST_GAP == 4


def test_who_drafts_is_looked_at_in_every_round() -> None:
    looks = Looks()
    for now in range(1, 10):
        look(looks, now, [MODEL])
    rounds = [now for now in range(10, 20) if look(looks, now, [MODEL], drafting=(0,))]
    assert rounds == list(range(11, 20))
    # And declines once: the next look is two rounds later, not four.
    assert [now for now in range(20, 28) if look(looks, now, [MODEL])] == [20, 22, 26]


def test_of_several_whom_no_model_drafts_for_all_are_looked_at_every_fourth_round() -> None:
    looks = Looks()
    seen = [look(looks, now, [MODEL], [suffix(0.9, 0.9)], drafting=(1,)) for now in range(1, 11)]
    assert seen == [[0, 1], [1], [1], [1], [0, 1], [1], [1], [1], [0, 1], [1]]
    seen = [look(looks, now, [MODEL], [MODEL], drafting=(1,), model=True) for now in range(13, 17)]
    assert seen == [[0, 1]] * 4


def test_one_who_stops_drafting_is_left_alone_like_the_others() -> None:
    looks = Looks()
    look(looks, 1, [MODEL], [suffix(0.5)], drafting=(1,))
    assert look(looks, 2, [MODEL], [suffix(0.5)]) == [1]
    assert look(looks, 3, [MODEL], [suffix(0.5)]) == []


def test_a_new_sequence_is_looked_at_alone() -> None:
    looks = Looks()
    offered = [[MODEL]] * 16
    assert len(look(looks, 1, *offered)) == 16
    assert look(looks, 2, *offered) == []
    assert look(looks, 3, *offered, [MODEL]) == [16]
    assert look(looks, 4, *offered, [MODEL]) == []
    looks.forget(3, 4)
    assert look(looks, 4, *offered, [MODEL]) == [3, 4]


def test_another_number_of_rows_is_another_round() -> None:
    for before, after, is_other in ((16, 18, False), (16, 19, True), (16, 14, False), (16, 13, True), (1, 2, True)):
        looks = Looks()
        assert looks.begin(1, [text()], [[MODEL]], before) == [True]
        looks.declines(0, [MODEL])
        for now in (1, 3):
            looks.begin(now, [text()], [[MODEL]], before)
            looks.end(now, 1, somebody_drafts=False, a_model_drafts=False)
        assert looks.begin(4, [text()], [[MODEL]], before) == [False]
        assert looks.begin(4, [text()], [[MODEL]], after) == [is_other]
        assert looks.is_full == is_other
        if is_other:  # and the gaps begin anew
            looks.end(4, 1, somebody_drafts=False, a_model_drafts=False)
            assert [now for now in (5, 6) if looks.begin(now, [text()], [[MODEL]], after) == [True]] == [6]
    assert CHANGE == 8


def test_small_changes_of_a_pass_add_up() -> None:
    """Each is compared with the pass that all were looked at for."""
    looks = Looks()
    looks.begin(1, [text()], [[MODEL]], 16)
    looks.declines(0, [MODEL])
    looks.end(1, 2, somebody_drafts=False, a_model_drafts=False)
    assert [looks.begin(2, [text()], [[MODEL]], rows)[0] for rows in (17, 18, 19)] == [False, False, True]


def test_what_promises_more_than_all_that_was_declined_is_looked_at() -> None:
    looks = Looks()
    look(looks, 1, [suffix(0.5, 0.4)])
    declined = promise(suffix(0.5, 0.4))
    assert declined == pytest.approx(0.7)
    assert look(looks, 2, [suffix(0.5, 0.4)]) == []
    assert look(looks, 2, [suffix(SURPRISE * declined - 1e-6)]) == []
    assert look(looks, 2, [suffix(SURPRISE * declined + 1e-6)]) == [0]
    # Which is declined too, and remembered beside smaller ones.
    look(looks, 3, [suffix(0.1)])
    assert look(looks, 4, [suffix(SURPRISE * declined + 1e-6)]) == []


def test_another_context_or_source_is_looked_at_once() -> None:
    looks = Looks()
    look(looks, 1, [MODEL])
    look(looks, 3, [MODEL, suffix(0.1)])
    assert look(looks, 4, [MODEL, suffix(0.1)]) == []
    assert look(looks, 4, [suffix(0.05, context="1 one")]) == [0]
    assert look(looks, 5, [suffix(0.05, context="1 one")]) == []
    assert look(looks, 5, [MODEL, Prospect("lookup", 4, num_free=4)]) == [0]  # which makes no guess


def test_who_drafts_forgets_what_it_declined() -> None:
    looks = Looks()
    look(looks, 1, [suffix(0.9, 0.9)])
    look(looks, 3, [suffix(0.9, 0.9)], drafting=(0,))
    assert look(looks, 4, [suffix(0.2)]) == [0]
    assert look(looks, 5, [suffix(0.9)]) == [0]  # or it would still know of .9 and .81


def test_a_promise_counts_the_first_tokens() -> None:
    assert promise(MODEL) == 0.0
    assert promise(suffix(*[1.0] * 30)) == 8.0


# -- the policy --------------------------------------------------------------------------------------------------------


def thinking(made: AdaptiveLength) -> list[int]:
    """The rounds in which an option is thought of, once for each."""
    thought: list[int] = []
    option = made._option

    def noting(*given: Any, **more: Any) -> Any:
        thought.append(made._num_rounds)
        return option(*given, **more)

    made._option = noting  # type: ignore[method-assign]
    return thought


def hopeless(**more: Any) -> World:
    return world(0.02, slope=0.3, draft=0.2, **more)


@pytest.mark.parametrize("num_sequences", [1, 4])
def test_where_nothing_pays_the_policy_thinks_every_fourth_round(num_sequences: int) -> None:
    cell = hopeless(num_sequences=num_sequences)
    made = policy(cell)
    thought = thinking(made)
    simulate(made, cell, 160, 0)
    late = sorted({number for number in thought if number > 80})
    gaps = [after - before for before, after in pairwise(late)]
    assert len(late) >= 15
    assert max(gaps) == LONGEST_GAP
    # What is tried is looked at once more.
    assert gaps.count(LONGEST_GAP) > 0.7 * len(gaps)


def test_a_good_draft_is_taken_in_the_round_it_is_offered() -> None:
    made = policy(hopeless())
    one = text()
    for _ in range(2 * LONGEST_GAP):  # rounds 1, 3 and 7 were looks; the next is round 11
        (plan,) = made.plan([one], [[suffix(0.05)]], Load(1, 0, 1))
        assert plan.shape == 0
    assert not made._looks.is_full
    (plan,) = made.plan([one], [[suffix(0.95, 0.95, 0.95)]], Load(1, 0, 1))
    assert not made._looks.is_full
    assert (plan.shape, plan.source) == (3, "suffix")


def test_a_round_nobody_is_looked_at_in_is_foretold_like_any_other() -> None:
    made = policy(hopeless())
    thought = thinking(made)
    for number in range(1, 20):
        made.plan([text()], [[suffix(0.05)]], Load(1, 0, 1))
        assert made.prediction is not None
        assert made.prediction.milliseconds == made.prediction.plain_ms == pytest.approx(30.0)
        assert (made.prediction.num_tokens, made.prediction.plain_tokens) == (1.0, 1)
        assert made.prediction.purpose == ("best" if number in (1, 3, 7, 11, 15, 19) else "rest")
        # It is plain decoding, which need not be tried soon.
        assert made._credit._gaps["plain"] == (FIRST_GAP, number)
    assert sorted(set(thought)) == [1, 3, 7, 11, 15, 19]
    assert made._known[0].num_rounds == 19
    made.plan([text(1)], [[MODEL]], Load(1, 0, 1))
    looks = made._looks
    looks.declines(0, [MODEL])
    looks.declines(1, [MODEL])
    made.release(0)
    assert list(looks._declined) == [1]


def test_the_benefit_of_the_doubt_is_given_where_all_are_looked_at() -> None:
    made = policy(hopeless())
    hopes: list[bool] = []
    option = made._option

    def noting(*given: Any, **more: Any) -> Any:
        hopes.append("hopeful" in more)
        return option(*given, **more)

    made._option = noting  # type: ignore[method-assign]
    for _ in range(2 * LONGEST_GAP):
        made.plan([text()], [[suffix(0.05)]], Load(1, 0, 1))
    assert any(hopes)
    hopes.clear()
    (plan,) = made.plan([text()], [[suffix(0.06)]], Load(1, 0, 1))
    assert plan.shape == 0
    assert hopes == [False]


def test_what_was_tried_is_looked_at_in_the_next_round() -> None:
    made = policy(hopeless())
    for _ in range(2 * LONGEST_GAP + 2):
        made.plan([text()], [[suffix(0.05)]], Load(1, 0, 1))
    made._credit._left_ms = 1e9
    made._credit._gaps[0, "suffix", "sampled"] = (1, 0)
    thought = thinking(made)
    for number in range(4):
        (plan,) = made.plan([text()], [[suffix(0.05)]], Load(1, 0, 1))
        made._credit._left_ms = 0.0
        assert plan.shape == (number == 0)
    assert sorted(set(thought)) == [11, 12, 14]


@pytest.mark.parametrize("draft,slope,every_round", [(0.05, 0.001, True), (5.0, 0.001, False)])
def test_for_several_a_draft_model_is_thought_of_in_every_round_while_it_drafts(
    draft: float, slope: float, every_round: bool
) -> None:
    made = policy(world(0.9, slope=slope, draft=draft, num_sequences=3), probe_share=0.0)
    texts = [text(i) for i in range(3)]
    thought = thinking(made)
    for _ in range(12):
        plans = made.plan(texts, [[MODEL], [suffix(0.9, 0.9)], [suffix(0.001)]], Load(3, 0, 3))
        assert plans[1].source == "suffix"
        assert (plans[0].source == "model") == every_round
        assert plans[2].shape == 0
    of_all = [thought.count(number) >= 3 for number in range(1, 13)]
    assert of_all == ([True] * 12 if every_round else [True, False, False, False] * 3)


def test_of_copied_tokens_alone_no_draft_model_takes_part() -> None:
    """Two tokens are copied, and a draft model could go on: only then do all have to be looked at in every round."""
    one = Prospect("suffix+model", 8, num_free=2, expected=(0.9, 0.9))
    for length, has_model in ((2, False), (3, True)):
        offered = [[Offer(one)], []]
        now = Situation([text(0), text(1)], ["sampled"] * 2, offered, policy(hopeless())._prices([text()]), 2, 30.0)
        assert now.needs_model(Choice(((0, length), None), 2.0, 30.0)) is has_model


@pytest.mark.parametrize("share", [-0.1, 1.5, float("nan"), "much"])
def test_a_share_is_one(share: Any) -> None:
    with pytest.raises(ParameterError, match="probe_share"):
        policy(hopeless(), probe_share=share)


def test_of_sequences_that_ended_nothing_is_kept() -> None:
    """Ids are used again, and a server runs for months."""
    cell = world(0.7, num_sequences=3)
    made = policy(cell, probe_share=0.1)
    simulate(made, cell, 40, 0)
    made.plan([text(i) for i in range(3)], [[MODEL, suffix(0.9, 0.9)]] * 3, Load(3, 0, 3))

    def kept() -> list[set[int]]:
        shifts, sureness, gaps = made.acceptance._shifts, made.acceptance._sureness, made._credit._gaps
        return [
            set(made._known), set(made._pending), {key[0] for key in shifts}, {key[0] for key in sureness},
            {key[0] for key in gaps if isinstance(key, tuple)},
        ]  # fmt: skip

    known, pending, shifts, _, gaps = kept()
    assert known == {0, 1, 2}
    assert pending
    assert shifts == gaps == {0, 1, 2}
    made.release(0, 2)
    assert all(ids <= {1} for ids in kept())
    made.release(1)
    assert not any(kept())
