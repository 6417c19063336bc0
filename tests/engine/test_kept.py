"""Texts that begin alike read their beginning once, and write what each would have written alone."""

from __future__ import annotations

from typing import Any

import pytest
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


@pytest.mark.parametrize("by_tenant", [False, True])
def test_nobody_waits_for_another_tenants_reader(by_tenant: bool) -> None:
    of = engine(model(), by_tenant=by_tenant, scheduler=Scheduler(max_tokens=20))
    made = [of.add(SYSTEM, SamplingParams(max_tokens=4, seed=3, tenant=tenant)) for tenant in ("a", "b")]
    for _ in range(2):
        of.step()
    assert [one.is_begun for one in made] == [True, by_tenant]
    run(of)
    assert made[0].tokens == made[1].tokens
    assert (made[1].num_shared > 0) is not by_tenant


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


@pytest.mark.parametrize("num_steps", range(8))
def test_a_cancelled_text_frees_all_it_held_at_once(num_steps: int) -> None:
    """While it waits, reads, writes and drafts; and what it began with stays for others."""
    target, draft = model(), ToyModel.random(6, seed=2)
    kept = KeptTexts(target, 1000)
    of = Engine(target, ModelDrafter(draft), FixedLength(2), kept=kept, scheduler=Scheduler(max_tokens=8))
    ask(of, SYSTEM)
    before = target.num_sequences, kept.num_tokens
    one = of.add([*SYSTEM[:40], *[5] * 20], SamplingParams(max_tokens=50, seed=1))
    for _ in range(num_steps):
        of.step()
    of.cancel(one.sequence_id)
    assert (target.num_sequences, kept.num_tokens) == before
    assert draft.num_sequences == 0
    assert of.is_idle
    of.cancel(one.sequence_id)
    assert ask(of, SYSTEM).num_shared == len(SYSTEM) - 1


def test_what_failed_is_not_kept() -> None:
    target = model()
    of = engine(target)
    failed = of.add(SYSTEM, SamplingParams(max_tokens=50, seed=1), service=Service(deadline=0.0))
    run(of)
    assert failed.finish_reason == "error"
    assert target.num_sequences == 0


def test_a_text_that_is_resumed_counts_what_it_shared_at_first() -> None:
    target = model()
    of = engine(target, scheduler=Scheduler(max_sequences=1))
    ask(of, SYSTEM)
    late = of.add([*SYSTEM[:30], *[5] * 10], SamplingParams(max_tokens=20, seed=3), service=Service(1))
    for _ in range(3):
        of.step()
    ask(of, SYSTEM, max_tokens=1)
    assert late.finish_reason == "length"
    assert late.num_shared == 30
    assert late.tokens[40:] == complete(model(), late.tokens[:40], seed=3, max_tokens=20)[1]


def test_a_conversation_goes_on_from_its_cache_also_where_memory_is_short() -> None:
    """The kept text makes room only after the new one has begun from it."""
    target = model()
    of = engine(target, scheduler=Scheduler(max_cached=100))
    first = ask(of, SYSTEM)
    second = ask(of, [*first.tokens, 1, 2])
    assert second.num_shared == len(first.tokens) - 1
    assert sum(map(target.length, target._cached)) <= 100


def test_drafts_are_not_read_from_another_tenants_cache() -> None:
    """While both run: the draft model reads the second text again unless the tenant is the same."""
    num_fed = []
    for tenant in ("a", "b"):
        draft = ToyModel.random(6, seed=1)
        of = Engine(model(), ModelDrafter(draft), FixedLength(2))
        of.add(SYSTEM, SamplingParams(max_tokens=40, temperature=0, tenant="a"))
        for _ in range(4):
            of.step()
        of.add(SYSTEM, SamplingParams(max_tokens=40, temperature=0, tenant=tenant))
        run(of)
        num_fed.append(draft.num_fed)
    assert num_fed[1] - num_fed[0] >= len(SYSTEM) - 2


def test_settings_are_checked() -> None:
    with pytest.raises(ParameterError, match="max_tokens"):
        KeptTexts(model(), -1)
