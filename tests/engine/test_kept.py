"""Texts that begin alike read their beginning once, and write what each would have written alone."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.helpers import complete, run

from forerun.control import FixedLength
from forerun.drafting import ModelDrafter
from forerun.engine import Engine, KeptTexts, Scheduler, Sequence, Service
from forerun.errors import ParameterError
from forerun.runtime.toy import ToyModel
from forerun.sampling import SamplingParams

SYSTEM = [i * i % 5 for i in range(60)]


def model() -> ToyModel:
    return ToyModel.random(6, seed=1)


def engine(target: ToyModel, max_tokens: int = 1000, by_tenant: bool = False, **more: Any) -> Engine:
    return Engine(
        target, ModelDrafter(ToyModel.random(6, seed=2)), FixedLength(2),
        kept=KeptTexts(target, max_tokens, by_tenant=by_tenant), **more,
    )  # fmt: skip


def ask(of: Engine, prompt: list[int], **params: Any) -> Sequence:
    found = of.add(prompt, SamplingParams(**{"max_tokens": 8, "seed": 3, **params}))
    run(of)
    return found


def test_a_beginning_that_was_read_is_not_read_again() -> None:
    target = model()
    of = engine(target)
    ask(of, [*SYSTEM, 1, 2])
    before = target.num_fed
    second = ask(of, [*SYSTEM, 4, 3])
    assert second.num_shared == len(SYSTEM)
    assert target.num_fed - before <= 2 + second.num_output + second.statistics.num_proposed
    assert second.tokens[62:] == complete(model(), [*SYSTEM, 4, 3], seed=3, max_tokens=8)[1]


def test_a_conversation_goes_on_from_its_own_cache() -> None:
    target = model()
    of = engine(target)
    first = ask(of, SYSTEM)
    assert ask(of, [*first.tokens, 1, 2]).num_shared == len(first.tokens) - 1
    assert of.kept is not None
    assert len(of.kept) == 1, "the longer text holds the shorter one"


def test_what_begins_otherwise_or_is_short_shares_nothing() -> None:
    target = model()
    of = engine(target)
    ask(of, SYSTEM)
    assert ask(of, [5, *SYSTEM]).num_shared == 0
    assert ask(of, SYSTEM[:12]).num_shared == 0


def test_the_same_prompt_again_keeps_its_last_token_to_feed() -> None:
    of = engine(model())
    ask(of, SYSTEM)
    assert ask(of, SYSTEM).num_shared == len(SYSTEM) - 1


def test_no_more_is_kept_than_allowed_and_the_latest_used_stays() -> None:
    target = model()
    of = engine(target, max_tokens=150)
    texts = [[n, *SYSTEM] for n in range(4)]
    for text in texts[:2]:
        ask(of, text)
    ask(of, texts[0])  # used again
    ask(of, texts[2])
    assert of.kept is not None
    assert of.kept.num_tokens <= 150
    assert ask(of, texts[0]).num_shared > 0
    assert ask(of, texts[1]).num_shared == 0
    assert target.num_sequences == len(of.kept)
    of.kept.shrink(0)
    assert (target.num_sequences, of.kept.num_tokens, len(of.kept)) == (0, 0, 0)


@pytest.mark.parametrize("by_tenant", [False, True])
def test_tenants_share_only_where_they_may(by_tenant: bool) -> None:
    of = engine(model(), by_tenant=by_tenant)
    ask(of, SYSTEM, tenant="a")
    assert (ask(of, SYSTEM, tenant="b").num_shared > 0) is not by_tenant
    assert ask(of, SYSTEM, tenant="a").num_shared > 0


def test_who_comes_at_once_waits_for_one_reader() -> None:
    target = model()
    of = engine(target, scheduler=Scheduler(max_tokens=20))
    made = [of.add([*SYSTEM, n], SamplingParams(max_tokens=4, seed=3)) for n in range(5)]
    run(of)
    num_written = sum(one.num_output + one.statistics.num_proposed for one in made)
    assert target.num_fed <= len(SYSTEM) + 5 + num_written
    for n, one in enumerate(made):
        assert one.tokens[61:] == complete(model(), [*SYSTEM, n], seed=3, max_tokens=4)[1]


def test_a_reader_that_is_cancelled_leaves_the_others_reading() -> None:
    of = engine(model(), scheduler=Scheduler(max_tokens=20))
    first, second = (of.add([*SYSTEM, n], SamplingParams(max_tokens=4, seed=3)) for n in range(2))
    of.step()
    of.cancel(first.sequence_id)
    run(of)
    assert second.num_output == 4


def test_prompts_whose_log_probabilities_are_wanted_are_read_whole() -> None:
    of = engine(model())
    ask(of, SYSTEM)
    scored = ask(of, SYSTEM, prompt_logprobs=1)
    assert scored.num_shared == 0
    assert scored.prompt_logprobs is not None
    assert len(scored.prompt_logprobs) == len(SYSTEM)


def test_an_interrupted_ending_keeps_or_frees_once() -> None:
    """Ctrl-C where an ended sequence lets go: it is done again, and the kept cache stays."""
    target = model()
    of = engine(target)
    drafter_release = of.drafter.release
    calls = 0

    def release(sequence_id: int) -> None:
        nonlocal calls
        calls += 1
        drafter_release(sequence_id)

    of.drafter.release = release  # type: ignore[method-assign]
    sequence = ask(of, SYSTEM)
    of._let_go(sequence)
    assert of.kept is not None
    assert len(of.kept) == target.num_sequences == 1
    assert ask(of, SYSTEM).num_shared == len(SYSTEM) - 1


def test_settings_are_checked() -> None:
    with pytest.raises(ParameterError, match="max_tokens"):
        KeptTexts(model(), -1)


requests = st.lists(
    st.tuples(
        st.integers(0, 3),  # how it begins
        st.integers(0, 30),  # how much of that
        st.lists(st.integers(0, 5), min_size=1, max_size=4),
        st.integers(1, 10),  # tokens
        st.integers(0, 2),  # priority
        st.sampled_from([None, "a", "b"]),
        st.integers(0, 6),  # steps before the next one comes
    ),
    min_size=1,
    max_size=10,
)


@settings(max_examples=80, deadline=None)
@given(requests, st.integers(45, 120), st.integers(0, 100), st.integers(1, 4), st.integers(1, 30), st.booleans())
def test_texts_are_their_own_whoever_shares_gives_way_or_waits(
    asked: list[Any], max_cached: int, max_kept: int, places: int, max_tokens: int, by_tenant: bool
) -> None:
    target, draft = model(), ToyModel.random(6, seed=2)
    scheduler = Scheduler(places, max_tokens, max_cached=max_cached)
    of = Engine(
        target, ModelDrafter(draft), FixedLength(2), scheduler=scheduler,
        kept=KeptTexts(target, max_kept, by_tenant=by_tenant),
    )  # fmt: skip
    made = []
    for start, length, rest, num, priority, tenant, steps in asked:
        prompt = [*[(start + i * i) % 5 for i in range(length)], *rest]
        params = SamplingParams(max_tokens=num, seed=3, tenant=tenant)
        made.append((prompt, num, of.add(prompt, params, service=Service(priority))))
        for _ in range(steps):
            of.step()
            assert of.kept is not None
            # Two draft tokens and one of the target's own were committed behind what was admitted.
            assert scheduler.num_cached <= max_cached + 3 * len(scheduler.running) or len(scheduler.running) == 1
    for _ in range(3000):
        if of.is_idle:
            break
        of.step()
    assert of.is_idle, "nobody starves"
    for prompt, num, sequence in made:
        assert sequence.tokens[len(prompt) :] == complete(model(), prompt, seed=3, max_tokens=num)[1]
    assert of.kept is not None
    assert target.num_sequences == len(of.kept)
    assert draft.num_sequences == 0
