"""How much of a long text a draft model is shown: its latest part first, and all of it where that is too little."""

from __future__ import annotations

from statistics import fmean
from types import SimpleNamespace
from typing import Any

import pytest
from tests.control.worlds import always, curve, policy, world

from forerun.control import PassCost
from forerun.control.acceptance import CUT, Acceptance
from forerun.control.adaptive import DOUBT
from forerun.control.choice import Choice
from forerun.control.exploring import PROBE_WINDOW
from forerun.control.gating import Company
from forerun.control.policy import Load
from forerun.control.records import (
    FIRST_TOKENS,
    FIRST_VIEW,
    LEAST_SHARE,
    MUCH_UNREAD,
    USUAL_STAY,
    VIEW,
    Known,
    Offer,
    Stays,
    offers_of,
    with_latest,
)
from forerun.control.round_plans import RoundPlans
from forerun.control.simulation import Source, World, fixed_rate, simulate
from forerun.sampling import SamplingParams
from forerun.types import CostCurve, Plan, Prospect, Round

KEY = ("model", "sampled")


def known(source: str) -> bool:
    return True


def long_world(when_cut: float, whole: float, **more: Any) -> World:
    """A prompt of 2,000 tokens, which the draft model needs eight plain rounds to read."""
    source = Source("model", always(whole), when_cut=always(when_cut))
    return world(slope=0.02, draft=0.2, sources=[source], num_prompt=2000, **more)


def play(of: World, num_rounds: int, seed: int) -> tuple[Any, list[Plan]]:
    made = policy(of)
    plans: list[Plan] = []
    plan = made.plan

    def noting(*given: Any) -> list[Plan]:
        found = plan(*given)
        plans.extend(found)
        return found

    made.plan = noting  # type: ignore[method-assign]
    return simulate(made, of, num_rounds, seed), plans


# -- what is offered ---------------------------------------------------------------------------------------------------


def test_a_short_text_is_drafted_for_as_it_stands() -> None:
    near = Prospect("model", 8, num_unread=2 * VIEW)
    free = Prospect("suffix", 4, num_free=4)
    assert offers_of([near, free], 2 * VIEW + 1, 9, known) == [Offer(near), Offer(free)]


def test_of_a_long_text_the_latest_part_is_offered_too() -> None:
    far = Prospect("model", 8, num_unread=999, context="c")
    asis, cut = offers_of([far], 1000, 9, known)
    assert asis == Offer(far)
    assert (cut.most_unread, cut.whole) == (VIEW, False)
    assert cut.prospect == Prospect("model", 8, num_unread=VIEW, num_cut=999 - VIEW, context=CUT + "c")


def test_for_the_first_tokens_of_an_answer_no_long_text_is_read() -> None:
    far, near = Prospect("model", 8, num_unread=VIEW + 1), Prospect("model", 8, num_unread=VIEW)
    free = Prospect("suffix", 4, num_free=4, num_unread=0)
    for num_output in range(FIRST_TOKENS):
        assert offers_of([far, free], 500, num_output, known) == [Offer(free)]
        assert offers_of([near], 500, num_output, known) == [Offer(near)]
    assert offers_of([far], 500, FIRST_TOKENS, known) == [Offer(far)]


def test_of_an_unknown_draft_model_little_is_expected() -> None:
    """It may be of no use at all: what it reads by the way shows."""
    far, near = Prospect("model", 8, num_unread=300), Prospect("model", 8, num_unread=2 * FIRST_VIEW)
    found = offers_of([far], 400, 9, lambda source: source != "model")
    assert found == [Offer(with_latest(far, FIRST_VIEW, 400), most_unread=FIRST_VIEW)]
    assert offers_of([near], 400, 9, lambda source: False) == [Offer(near)]


def test_a_draft_model_is_known_by_its_own_tokens() -> None:
    learnt = Acceptance()
    copied = Round(1, 9, 9, 10, "suffix+model", (), (0,) * 9, (1,) * 9, num_free=9, depth=9)
    for _ in range(5):
        learnt.observe(("suffix+model", "greedy"), Prospect("suffix+model", 20, num_free=9), 9, True, copied)
    assert not learnt.is_known("model")
    for num_seen in range(1, 9):
        learnt.observe(KEY, Prospect("model", 8), 1, True, seen(0))
        assert learnt.is_known("model") is learnt.is_known("suffix+model") is (num_seen == 8)


def test_what_was_cut_can_be_had_whole() -> None:
    cut = Prospect("model", 8, num_unread=1, num_cut=500)
    asis, whole = offers_of([cut], 700, 9, known)
    assert asis.prospect == Prospect("model", 8, num_unread=1, num_cut=500, context=CUT)
    assert whole == Offer(Prospect("model", 8, num_unread=699), whole=True)
    assert (asis.view, whole.view) == (("model", True), ("model", False))


def test_a_probe_reads_no_more_than_it_says() -> None:
    assert with_latest(Prospect("model", 8, num_unread=5), 64, 100).num_unread == 5
    far = with_latest(Prospect("model", 8, num_unread=500), 64, 600)
    assert (far.num_unread, far.num_cut, far.context) == (64, 535, CUT)


# -- what is learnt ----------------------------------------------------------------------------------------------------


def seen(accepted: int, sequence_id: int = 1) -> Round:
    return Round(
        sequence_id, 1, accepted, accepted + 1, "model", (), (0,) * accepted, (1,), 0, 1,
    )  # fmt: skip


def test_a_new_view_of_a_text_is_not_on_trial_again() -> None:
    """A source that is new has the benefit of the doubt for each text once, whatever the text is seen with."""
    known = Acceptance()
    whole, cut = Prospect("model", 8), Prospect("model", 8, num_cut=100, context=CUT)
    known.observe(KEY, cut, 1, True, seen(0))
    of_whole = known.forecast(1, KEY, whole, 1)
    assert of_whole.accepted < known.forecast(1, KEY, whole, 1, hopeful=True).accepted
    assert known.forecast(2, KEY, whole, 1) == known.forecast(2, KEY, whole, 1, hopeful=True)
    assert known.forecast(1, KEY, cut, 1) == known.forecast(1, KEY, cut, 1, hopeful=True)


def test_silence_is_noticed_for_each_view() -> None:
    for prospect in (Prospect("model", 8), Prospect("model", 8, num_cut=100, context=CUT)):
        known = Acceptance()
        for _ in range(50):
            known.observe(KEY, prospect, 1, True, seen(0))
        before = known.forecast(1, KEY, prospect, 1, hopeful=True).accepted[0]
        for _ in range(300):
            known.pass_by(1, KEY)
        assert known.forecast(1, KEY, prospect, 1, hopeful=True).accepted[0] > before


def test_each_view_is_learnt_apart_and_begins_with_the_other() -> None:
    known = Acceptance()
    whole, cut = Prospect("model", 8), Prospect("model", 8, num_cut=100, context=CUT)
    before = known.forecast(1, KEY, cut, 1).accepted[0]
    for _ in range(20):
        known.observe(KEY, whole, 1, True, seen(0))
    of_whole, of_cut = (known.forecast(1, KEY, one, 1).accepted[0] for one in (whole, cut))
    assert 2 * of_whole < of_cut < 0.75 * before
    for _ in range(60):
        known.observe(KEY, cut, 1, True, seen(1))
    assert known.forecast(1, KEY, cut, 1).accepted[0] > 0.85
    assert known.forecast(1, KEY, whole, 1).accepted[0] < 0.1
    assert known.forecast(2, KEY, cut, 1).accepted[0] > 0.7 > 0.3 > known.forecast(2, KEY, whole, 1).accepted[0]


# -- what it costs -----------------------------------------------------------------------------------------------------


def test_reading_is_paid_for_by_the_rounds_that_a_view_is_expected_to_serve() -> None:
    """To the end of the text for a view that is new; for one that was left before, by few rounds; and more, where a
    text is read once more from its beginning: so nobody reads one text in turn with each view."""
    made = policy(long_world(0.8, 0.8))
    text: Any = SimpleNamespace(
        sequence_id=5, tokens=range(2001), prompt_length=2000, params=SamplingParams(max_tokens=10**9)
    )
    prices = made._prices([text])
    all_of_it = Prospect("model", 8, num_unread=1999)
    one_more = prices.draft_ms(2.0) - prices.draft_ms(1.0)

    def reading(offer: Offer) -> float:
        return made._option(text, "sampled", offer, prices, 0.02).charge_ms - one_more

    first = reading(Offer(all_of_it))
    assert first > 0.0
    assert reading(Offer(all_of_it, whole=True)) == pytest.approx(DOUBT * first)
    made._known[5] = Known(used={("model", True), ("suffix", False)})
    assert reading(Offer(all_of_it)) == pytest.approx(first)
    made._known[5].used.add(("model", False))
    again = reading(Offer(all_of_it))
    assert again > 2.0 * first
    assert again * USUAL_STAY == pytest.approx(prices.draft_ms(2000.0) - prices.draft_ms(2.0))


def test_a_view_is_used_once_something_was_drafted_with_it() -> None:
    """Reading in pieces alone is no use, or the rest of a text would be priced as if it had been left before."""
    cell = long_world(0.8, 0.8)
    made = policy(cell)
    text: Any = SimpleNamespace(
        sequence_id=5, tokens=range(200), prompt_length=190, params=SamplingParams(max_tokens=10**9), num_missing=1,
        noise=SimpleNamespace(kind="sampled"),
    )  # fmt: skip
    slow = PassCost(CostCurve(0, {1: 6.0, 64: 6.0 * 64}))
    made.acceptance._num_examined["model"] = 100
    made.draft = slow  # sixteen tokens take three plain rounds
    (plan,) = made.plan([text], [[Prospect("model", 8, num_unread=198)]], Load(1, 0))
    assert (plan.shape, plan.read > 0) == (0, True)
    assert not made._known[5].used
    made.draft = PassCost(curve(cell.draft_ms))
    (plan,) = made.plan([text], [[Prospect("model", 8, num_unread=20)]], Load(1, 0))
    assert plan.shape > 0
    assert made._known[5].used == {("model", False)}


# -- what comes of it --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [1, 4])
def test_where_the_latest_part_does_as_well_the_rest_is_not_read(batch: int) -> None:
    cell = long_world(0.8, 0.8, num_sequences=batch)
    best = max(fixed_rate(cell, cell.sources[0], k, 0) for k in range(12))
    found = []
    for seed in range(3):
        run, plans = play(cell, 150, seed)
        assert not any(plan.whole for plan in plans[: 100 * batch])
        found.append(run)
    assert fmean(run.expected_rate(20) for run in found) >= 0.95 * best
    # Reading all of it first costs eight rounds, which a text of 100 tokens hardly earns.
    assert fmean(run.expected_rate(0, 30) for run in found) >= 0.75 * best


def test_where_it_is_too_little_all_is_read() -> None:
    cell = long_world(0.3, 0.9)
    best = max(fixed_rate(cell, cell.sources[0], k, 0) for k in range(24))
    rates = []
    for seed in range(3):
        run, plans = play(cell, 260, seed)
        assert any(plan.whole for plan in plans)
        rates.append(run.expected_rate(130))
    assert fmean(rates) >= 0.95 * best


def test_where_no_view_helps_little_is_read() -> None:
    cell = long_world(0.05, 0.05)
    plain = fixed_rate(cell, cell.sources[0], 0, 0)
    played = [play(cell, 600, seed) for seed in range(3)]
    assert fmean(run.expected_rate(50) for run, _ in played) >= 0.98 * plain
    probes = [plan for _, plans in played for plan in plans if plan.shape and plan.gate is None]
    assert probes
    assert {plan.most_unread for plan in probes} >= {PROBE_WINDOW}
    assert max(plan.most_unread or 0 for plan in probes) < 300  # of a text that was read, what came since


def test_texts_that_are_read_together_stall_no_round() -> None:
    """Sixteen prompts, of each of which 128 tokens are wanted: 2,048 in one pass would take twelve plain rounds."""
    source = Source("model", always(0.95))
    cell = world(slope=0.02, draft=0.2, sources=[source], num_prompt=2000, num_sequences=16, noise=0.0)
    run, plans = play(cell, 60, 0)
    drafting = [sum(plan.shape > 0 for plan in plans[start : start + 16]) for start in range(0, len(plans), 16)]
    assert max(drafting[-10:]) >= 12  # those who wait come to it
    assert max(run.usual_ms) <= 8.0 * cell.target_ms(16)  # four for the round, three for what is read


def test_a_try_does_not_throw_away_what_was_read() -> None:
    """A cache that holds more of the text than is unread is read on; one that holds less gives way to a look at the
    text's end."""
    for num_unread, most_unread in ((100, 100), (1500, PROBE_WINDOW), (5, PROBE_WINDOW)):
        made = policy(long_world(0.8, 0.8))
        text: Any = SimpleNamespace(sequence_id=5, tokens=range(2001), prompt_length=1000, params=SamplingParams())
        prices = made._prices([text])
        made._credit.earn(1e9)
        made._credit._left_ms = 1e9
        made._credit._gaps[5, "model", "sampled"] = (1, -1)
        plans = [Plan()]
        made._explore(
            [(0, text, "sampled", [Prospect("model", 8, num_unread=num_unread)])],
            plans, Choice((None,), 1.0, 30.0), prices, 1,
        )  # fmt: skip
        assert (plans[0].shape, plans[0].most_unread) == (1, most_unread)


def test_what_is_read_by_the_way_is_read_in_turn_too() -> None:
    """Many texts that are each a little behind would make one long round together."""
    cell = world(0.9, 0.0, 0.1, num_sequences=16)
    made = policy(cell)
    texts: list[Any] = [
        SimpleNamespace(
            sequence_id=i, tokens=range(100), prompt_length=50, params=SamplingParams(), num_missing=1,
            noise=SimpleNamespace(kind="sampled"),
        )
        for i in range(16)
    ]  # fmt: skip
    steep = PassCost(curve(lambda rows: 3.0 * rows))
    made.draft = steep
    prospects = [[Prospect("model", 4, num_unread=30)] for _ in texts]
    offers = [Offer(of_one[0]) for of_one in prospects]
    plans = RoundPlans(
        made.acceptance, made._prices(texts), Company([], 0, 16, 16, 1e9), 0.5, 30.0, 0
    )  # fmt: skip
    found = [plans.plan(i, KEY, offer, 2, 4)[0] for i, offer in enumerate(offers)]
    drafting = [plan for plan in found if plan.shape]
    assert len(drafting) == 1  # the first one, whatever it takes
    assert sum(plan.read for plan in found) <= 30


def test_hope_is_short_where_much_is_to_be_read() -> None:
    near, far = Prospect("model", 8), Prospect("model", 8, num_unread=33)
    learnt = Acceptance()
    for num_seen in range(20):
        for one, is_hoped in ((near, True), (far, num_seen < 8)):
            assert (learnt.forecast(9, KEY, one, 1) == learnt.forecast(9, KEY, one, 1, hopeful=True)) is is_hoped
        learnt.observe(KEY, near, 1, True, seen(1))


def test_a_long_absence_is_paid_for_by_as_many_drafts_as_there_were_between_two() -> None:
    stays, one = Stays(), Known()
    for _ in range(60):
        for num_unread in (MUCH_UNREAD + 1, 1, 3):
            stays.note(one, num_unread)
    assert stays.expected(MUCH_UNREAD + 1) == pytest.approx(3.0, abs=0.1)
    assert stays.expected(MUCH_UNREAD) == USUAL_STAY


def test_rounds_that_copies_take_do_not_pay_for_reading() -> None:
    assert Known().model_share == 1.0
    assert Known(num_rounds=16, num_copied=10).model_share == 0.5
    assert Known(num_rounds=996, num_copied=996).model_share == LEAST_SHARE


def test_a_try_is_priced_beside_the_rows_of_the_batch() -> None:
    """Where the fifth row is dear, a try for one of four sequences is, however cheap a second row would be."""

    def steep(rows: float) -> float:
        return 30.0 if rows <= 4 else 30.0 + 12.0 * (rows - 4)

    for num_plain, wanted in ((1, 0.0), (4, 12.0)):
        cell = world(0.5, num_sequences=num_plain)
        made = policy(cell)
        made.target = PassCost(curve(steep))
        text: Any = SimpleNamespace(sequence_id=5, tokens=range(50), prompt_length=40, params=SamplingParams())
        prices = made._prices([text])
        asked: list[float] = []

        def spend(key: Any, cost_ms: float, now: int, asked: list[float] = asked) -> bool:
            asked.append(cost_ms)
            return False

        made._credit.spend = spend  # type: ignore[method-assign]
        made._explore(
            [(0, text, "sampled", [Prospect("suffix", 1, num_free=1)])], [Plan()], Choice((None,), 1.0, 30.0), prices,
            num_plain,
        )  # fmt: skip
        assert asked == [pytest.approx(wanted + prices.row_ms)]
