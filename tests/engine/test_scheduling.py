"""Who is admitted, who gives way, and that no text notices."""

from __future__ import annotations

from time import perf_counter
from typing import Any

import numpy as np
import pytest
from tests.helpers import complete, run

from forerun.control import FixedLength
from forerun.drafting import LookupDrafter, ModelDrafter, StackDrafter
from forerun.engine import Engine, Scheduler, Sequence, Service
from forerun.errors import ContextLengthError, DeadlineError, ParameterError
from forerun.runtime.toy import ToyModel
from forerun.sampling import SamplingParams

PROMPT = [1, 2, 3, 4, 0] * 4


def model() -> ToyModel:
    return ToyModel.random(6, seed=1)


def engine(target: ToyModel | None = None, drafter: Any = None, **more: Any) -> Engine:
    return Engine(target or model(), drafter, FixedLength(0 if drafter is None else 3), scheduler=Scheduler(**more))


def add(of: Engine, num: int = 6, tenant: str | None = None, **wishes: Any) -> Sequence:
    return of.add(PROMPT, SamplingParams(max_tokens=num, seed=3, tenant=tenant), service=Service(**wishes))


def order_of_ends(of: Engine, made: list[Sequence]) -> list[int]:
    ended: list[int] = []
    while not of.is_idle:
        of.step()
        ended += [i for i, one in enumerate(made) if one.finish_reason is not None and i not in ended]
    return ended


# -- order -------------------------------------------------------------------------------------------------------------


def test_smaller_priority_numbers_go_first_then_who_came_first() -> None:
    of = engine(max_sequences=1)
    made = [add(of, priority=priority) for priority in (1, 0, 1, -1, 0)]
    assert order_of_ends(of, made) == [3, 1, 4, 0, 2]


def test_tenants_take_turns_however_many_requests_one_has() -> None:
    of = engine(max_sequences=1)
    made = [*(add(of, tenant="many") for _ in range(6)), *(add(of, tenant="one") for _ in range(2))]
    ended = order_of_ends(of, made)
    assert ended.index(6) <= 1
    assert ended.index(7) <= 3


def test_who_comes_back_is_owed_nothing_for_its_absence() -> None:
    of = engine(max_sequences=1)
    made = [add(of, tenant="busy") for _ in range(4)]
    for _ in range(14):
        of.step()
    made += [add(of, tenant="late") for _ in range(4)]
    ended = order_of_ends(of, made)
    late = [ended.index(i) for i in range(4, 8)]
    assert late != [2, 3, 4, 5], "the late one went through at once"


# -- giving way --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("drafter", [None, LookupDrafter, lambda: ModelDrafter(ToyModel.random(6, seed=2))])
@pytest.mark.parametrize("params", [{"temperature": 0}, {"seed": 3, "temperature": 1.5}], ids=str)
def test_whoever_gives_way_writes_the_same_text(drafter: Any, params: dict[str, Any]) -> None:
    target = model()
    of = engine(target, None if drafter is None else drafter(), max_sequences=1)
    given = SamplingParams(max_tokens=12, **params)
    late = of.add(PROMPT, given, service=Service(5))
    for _ in range(3):
        of.step()
    urgent = of.add(PROMPT[2:], given, service=Service(1))
    of.step()
    assert [one.sequence_id for one in of.scheduler.running] == [urgent.sequence_id]
    assert target.num_sequences == 1
    run(of)
    for sequence, prompt in ((late, PROMPT), (urgent, PROMPT[2:])):
        assert sequence.tokens[len(prompt) :] == complete(model(), prompt, max_tokens=12, **params)[1]
    assert target.num_sequences == 0


def test_whoever_gives_way_frees_what_the_draft_model_holds_of_it() -> None:
    draft = ToyModel.random(6, seed=2)
    of = engine(None, ModelDrafter(draft), max_sequences=1)
    late = add(of, num=30, priority=1)
    for _ in range(3):
        of.step()
    assert draft.num_sequences == 1
    add(of, num=1)
    of.step()
    assert late.finish_reason is None
    assert draft.num_sequences == 0
    run(of)
    assert (late.num_output, draft.num_sequences) == (30, 0)


def test_equals_do_not_give_way_to_each_other() -> None:
    of = engine(max_sequences=1)
    first = add(of)
    of.step()
    add(of)
    of.step()
    assert of.scheduler.running == [first]


def test_memory_is_never_exceeded_and_everybody_ends() -> None:
    target = model()
    of = engine(target, LookupDrafter(), max_cached=90)
    made = [add(of, num=40) for _ in range(5)]
    forward, fed = target.forward, []

    def counted(spans: Any) -> Any:
        rows = forward(spans)
        fed.append((len(spans), sum(target.length(one.sequence_id) for one in made if one.is_begun)))
        return rows

    target.forward = counted  # type: ignore[method-assign]
    run(of)
    assert max(num for num, _ in fed) == 2
    assert 80 < max(num for _, num in fed) <= 90
    for one in made:
        assert one.tokens[20:] == complete(model(), PROMPT, seed=3, max_tokens=40)[1]
        assert one.finish_reason == "length"
    assert target.num_sequences == 0


def test_one_text_may_have_all_memory_and_no_more() -> None:
    of = engine(max_cached=30)
    alone = add(of, num=50)
    run(of)
    assert (len(alone.tokens), alone.finish_reason) == (30, "length")
    with pytest.raises(
        ContextLengthError, match=r"caches \(max_cached\) holds 30\..*29 tokens.*or allow more with --max-"
    ):
        of.add([1] * 30, SamplingParams(max_tokens=1))


def test_the_smaller_of_context_and_memory_is_what_is_named() -> None:
    target = ToyModel(lambda tokens: np.zeros(6), 6, 40)
    for max_cached, said in ((None, "the context holds 40"), (40, "the context holds 40"), (20, "caches .* holds 20")):
        with pytest.raises(ContextLengthError, match=said) as caught:
            engine(target, max_cached=max_cached).add([1] * 50, SamplingParams(max_tokens=1))
        assert ("--max-cached" in str(caught.value)) == (max_cached == 20)


class Remembering(FixedLength):
    """Notes whom it was told of, and who has ended, in order."""

    def __init__(self) -> None:
        super().__init__(2)
        self.told: list[tuple[str, tuple[int, ...]]] = []

    def update(self, rounds: Any, step: Any) -> None:
        self.told.append(("rounds", tuple(done.sequence_id for done in rounds)))

    def release(self, *sequence_ids: int) -> None:
        self.told.append(("ended", sequence_ids))


def test_policies_are_told_at_once_who_has_ended() -> None:
    """Behind the last round of a text, and at once where it is cancelled, fails, or was never begun."""
    policy = Remembering()
    of = Engine(model(), LookupDrafter(), policy, scheduler=Scheduler(max_sequences=3))
    finished, cancelled, waiting = add(of, num=2), add(of, num=50), add(of, num=50, deadline=perf_counter() + 900)
    never = add(of, num=50)
    of.cancel(never.sequence_id)
    assert policy.told == [("ended", (never.sequence_id,))]
    while finished.finish_reason is None:
        of.step()
    assert policy.told[-1] == ("ended", (finished.sequence_id,))
    assert finished.sequence_id in policy.told[-2][1]
    of.cancel(cancelled.sequence_id)
    assert policy.told[-1] == ("ended", (cancelled.sequence_id,))
    of._deadlines[waiting.sequence_id] = 0.0
    of.step()
    assert policy.told[-1] == ("ended", (waiting.sequence_id,))
    ended = [one for what, ids in policy.told if what == "ended" for one in ids]
    assert sorted(ended) == sorted(one.sequence_id for one in (finished, cancelled, waiting, never))


def test_those_who_give_way_are_counted() -> None:
    of = engine(max_sequences=1)
    slow = add(of, priority=5)
    of.step()
    assert of.scheduler.num_preempted == 0
    add(of, priority=1)
    of.step()
    assert of.scheduler.num_preempted == 1
    run(of)
    assert (slow.finish_reason, of.scheduler.num_preempted) == ("length", 1)


@pytest.mark.parametrize("num_steps", range(1, 9))
def test_a_reader_gives_way_and_those_who_wait_for_it_wait_on(num_steps: int) -> None:
    """Before, while and after it has read its prompt; the followers start from its cache once it has one again."""
    target = model()
    of = engine(target, max_sequences=1, max_tokens=4)
    leader = add(of, priority=5)
    made = [leader, *(of.add(PROMPT, leader.params, choice=i, leader=leader, service=Service(5)) for i in (1, 2))]
    for _ in range(num_steps):
        of.step()
    urgent = add(of, priority=0)
    of.step()
    assert of.scheduler.running == [urgent]
    assert target.num_sequences == 1
    run(of)
    for one in made:
        alone = Engine(model())
        single = alone.add(PROMPT, leader.params, choice=one.choice)
        run(alone)
        assert one.tokens == single.tokens
    assert leader.num_shared == 0
    assert [one.num_shared for one in made[1:]] == [len(PROMPT) - 1] * 2
    assert (target.num_sequences, of._prompts._followers, of._prompts._read) == (0, {}, set())


def test_leaders_whose_followers_wait_are_held_to_the_memory_there_is() -> None:
    target = model()
    of = engine(target, max_cached=60)
    leaders = [add(of, num=20) for _ in range(2)]
    made = [*leaders, *(of.add(PROMPT, one.params, choice=1, leader=one) for one in leaders)]
    while not of.is_idle:
        of.step()
        assert sum(map(target.length, target._cached)) <= 60
    assert [one.num_output for one in made] == [20] * 4
    assert made[0].tokens == made[1].tokens
    assert made[2].tokens == made[3].tokens != made[0].tokens


def test_a_prompt_that_is_held_for_others_makes_room_for_those_who_run() -> None:
    target = model()
    of = engine(target, max_cached=50, max_sequences=2)
    leader = add(of, num=2)
    made = [leader, *(of.add(PROMPT, SamplingParams(max_tokens=30, seed=3), choice=i, leader=leader) for i in (1, 2))]
    most_held = 0
    while not of.is_idle:
        of.step()
        most_held = max(most_held, of._prompts.num_held)
        assert sum(map(target.length, target._cached)) <= 50
    assert most_held > 0
    assert [one.num_output for one in made] == [2, 30, 30]
    assert target.num_sequences == 0


def test_nobody_gives_way_in_vain() -> None:
    """The urgent one would not fit beside the first even if the second were gone: the second goes on."""
    of = engine(max_cached=80)
    first, second = add(of, num=20, priority=0), add(of, num=4, priority=5)
    of.step()
    urgent = of.add([1] * 60, SamplingParams(max_tokens=2), service=Service(0))
    of.step()
    assert of.scheduler.running == [first, second]
    run(of)
    assert [one.num_output for one in (first, second, urgent)] == [20, 4, 2]


def test_who_gives_way_for_want_of_memory_is_the_last_of_the_least() -> None:
    of = engine(max_cached=112)
    made = [add(of, num=60, priority=priority) for priority in (1, 0, 0)]
    of.step()
    assert of.scheduler.running == [made[1], made[2], made[0]]
    ended = order_of_ends(of, made)
    assert ended == [1, 2, 0]


# -- long prompts beside streams ---------------------------------------------------------------------------------------


def test_prompts_are_read_as_fast_as_streams_can_bear() -> None:
    beside: list[int] = []

    def pace(num_decoding: int) -> int:
        beside.append(num_decoding)
        return 20

    of = Engine(model(), scheduler=Scheduler(max_tokens=100, pace=pace))
    stream = of.add([1, 2], SamplingParams(max_tokens=30, seed=1))
    of.step()
    assert beside == []  # nobody to stall
    reading = of.add([1, 2, 3] * 30, SamplingParams(max_tokens=2, seed=1))
    for number in range(1, 5):
        of.step()
        assert stream.num_output == 1 + number
        assert of.target.length(reading.sequence_id) == 20 * number
    assert set(beside) == {1}
    slow = Engine(model(), scheduler=Scheduler(max_tokens=100, pace=lambda num: 0))
    slow.add([1, 2], SamplingParams(max_tokens=30, seed=1))
    slow.step()
    prompt = slow.add([1, 2, 3] * 30, SamplingParams(max_tokens=2, seed=1))
    run(slow)
    assert prompt.num_output == 2  # however slow, it is read to its end


def test_short_prompts_do_not_wait_until_long_ones_are_read() -> None:
    of = engine(max_tokens=32)
    long = of.add([1, 2, 3] * 300, SamplingParams(max_tokens=1))
    of.step()
    short = of.add([1, 2] * 10, SamplingParams(max_tokens=1))
    of.step()
    of.step()
    assert short.finish_reason == "length"
    assert of.target.length(long.sequence_id) == 32 + 16 + 28
    urgent = of.add([3] * 300, SamplingParams(max_tokens=1), service=Service(-1))
    of.step()
    assert (of.target.length(urgent.sequence_id), of.target.length(long.sequence_id)) == (32, 76)


def test_a_long_prompt_is_read_however_many_short_ones_come() -> None:
    of = engine(max_tokens=32)
    long = of.add([1, 2, 3] * 100, SamplingParams(max_tokens=1))
    for _ in range(30):
        of.add([1, 2] * 10, SamplingParams(max_tokens=1))
        of.step()
    assert long.finish_reason == "length"


def test_a_tenant_that_returns_is_not_ahead_of_who_stayed() -> None:
    of = engine(max_sequences=1)
    made = [add(of, num=30, tenant="a"), add(of, num=2, tenant="b"), add(of, num=2, tenant="b")]
    for _ in range(31):
        of.step()
    assert made[0].finish_reason is not None
    made.append(add(of, num=2, tenant="a"))
    assert order_of_ends(of, made)[-1] == 3
    assert of.scheduler._served == {}


# -- deadlines ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("waits", [False, True])
def test_what_is_not_done_in_time_fails_and_frees_all_it_holds(waits: bool) -> None:
    target = model()
    of = engine(target, max_sequences=1)
    if waits:
        add(of, num=3)
    late = add(of, num=1000, deadline=perf_counter() + 0.05)
    found = run(of)[late.sequence_id][-1]
    assert found.finish_reason == "error"
    assert isinstance(found.error, DeadlineError)
    assert isinstance(found.error, TimeoutError)
    assert target.num_sequences == 0


def test_a_deadline_that_is_kept_changes_nothing() -> None:
    of = engine()
    done = add(of, deadline=perf_counter() + 1000)
    run(of)
    assert done.finish_reason == "length"
    assert of._deadlines == {}


def test_settings_are_checked() -> None:
    with pytest.raises(ParameterError, match="max_cached"):
        Scheduler(max_cached=1)
    for wishes in ({"priority": "high"}, {"priority": True}, {"max_draft": -1}, {"deadline": "soon"}):
        with pytest.raises(ParameterError, match=next(iter(wishes))):
            Service(**wishes)  # type: ignore[arg-type]


# -- what may draft ----------------------------------------------------------------------------------------------------


def test_a_request_may_rule_out_drafts_long_ones_and_sources() -> None:
    def rounds(**wishes: Any) -> Any:
        of = Engine(model(), StackDrafter([LookupDrafter(), ModelDrafter(model())]), FixedLength(4))
        one = of.add(PROMPT, SamplingParams(max_tokens=20, temperature=0), service=Service(**wishes))
        run(of)
        assert one.tokens[20:] == complete(model(), PROMPT, temperature=0, max_tokens=20)[1]
        return one.statistics

    assert max(proposed for proposed, _ in rounds().rounds) == 4
    assert rounds(max_draft=0).num_proposed == 0
    assert max(proposed for proposed, _ in rounds(max_draft=2).rounds) == 2
    assert rounds(sources=frozenset({"model"})).num_proposed > 0
    assert rounds(sources=frozenset({"something"})).num_proposed == 0
