"""The first token waits for the target alone: until it is delivered, a draft model reads and computes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from tests.helpers import complete

from forerun.control.policy import Load
from forerun.drafting import LookupDrafter, ModelDrafter
from forerun.drafting.base import SequenceView
from forerun.engine import Engine, Scheduler
from forerun.llm import LLM
from forerun.runtime.base import Rows
from forerun.runtime.toy import ToyModel
from forerun.sampling import SamplingParams
from forerun.types import Plan, Round, Span

SIZE = 9


class Recording(ToyModel):
    """Writes down every call of a model, in the order of the whole engine's."""

    def __init__(self, name: str, calls: list[Any]) -> None:
        super().__init__(ToyModel.random(SIZE, order=2, seed=4)._logits_of, SIZE)
        self.name, self.calls = name, calls

    def begin(self, sequence_id: int) -> None:
        self.calls.append((self.name, "begin", sequence_id))
        super().begin(sequence_id)

    def forward(self, spans: Sequence[Span]) -> Rows:
        self.calls += [(self.name, "fed", span.sequence_id, len(span.tokens)) for span in spans]
        return super().forward(spans)

    def fork(self, source: int, target: int, length: int) -> None:
        self.calls.append((self.name, "fork", target))
        super().fork(source, target, length)


class Eager:
    """Asks for drafts in every round, that of the prompt included: the most a policy can ask."""

    def plan(self, sequences: Sequence[SequenceView], prospects: Any, load: Load) -> list[Plan]:
        return [Plan(4) for _ in sequences]

    def update(self, rounds: Sequence[Round], step: Any) -> None:
        pass

    def release(self, *sequence_ids: int) -> None:
        pass


def recorded(
    requests: Sequence[tuple[Sequence[int], dict[str, Any]]], scheduler: Scheduler | None = None, num_choices: int = 1
) -> tuple[list[Any], list[Any]]:
    """(calls of both models and deliveries in their order, sequences)."""
    calls: list[Any] = []
    engine = Engine(Recording("target", calls), ModelDrafter(Recording("draft", calls)), Eager(), scheduler=scheduler)
    made = []
    for prompt, params in requests:
        leader = engine.add(prompt, SamplingParams(**params))
        made.append(leader)
        made += [engine.add(prompt, leader.params, choice=i, leader=leader) for i in range(1, num_choices)]
    while not engine.is_idle:
        calls += [("engine", "delivered", delta.sequence_id, len(delta.tokens)) for delta in engine.step()]
    return calls, made


def check_order(calls: list[Any], sequence_id: int) -> None:
    """One token was delivered before the draft model was given anything of this sequence, which it was later."""
    own = [call for call in calls if call[2] == sequence_id]
    delivered = next(i for i, call in enumerate(own) if call[0] == "engine")
    drafted = next(i for i, call in enumerate(own) if call[0] == "draft")
    assert delivered < drafted
    assert own[delivered][3] == 1
    assert {call[0] for call in own[:delivered]} == {"target"}


@pytest.mark.parametrize("prompt_length", [1, 2, 7, 8, 9, 17, 40])
@pytest.mark.parametrize("params", [{"temperature": 0}, {"seed": 3}, {}])
def test_the_first_token_is_delivered_before_the_draft_model_reads(prompt_length: int, params: dict[str, Any]) -> None:
    """Passes of at most 8 tokens: the last one of a prompt of 9 or 17 looks like a decoding pass."""
    prompt = [i % SIZE for i in range(prompt_length)]
    calls, made = recorded([(prompt, {"max_tokens": 12, **params})], Scheduler(4, 8))
    check_order(calls, made[0].sequence_id)
    assert made[0].statistics.num_proposed > 0
    first = next(call for call in calls if call[:2] == ("draft", "fed"))
    assert first[3] == prompt_length + 1  # all at once, then


@pytest.mark.parametrize("num_choices", [2, 5])
def test_choices_that_start_from_anothers_prompt(num_choices: int) -> None:
    """Forks of the prompt's cache have one token missing in their first round, as if they were decoding."""
    calls, made = recorded([([1, 2, 3, 4], {"max_tokens": 9, "seed": 2})], num_choices=num_choices)
    for sequence in made:
        check_order(calls, sequence.sequence_id)
        assert sequence.statistics.num_proposed > 0


def test_every_request_of_a_batch() -> None:
    requests = [([i] * (3 * i + 1), {"max_tokens": 15, "seed": i}) for i in range(6)]
    calls, made = recorded(requests, Scheduler(3, 8))
    for sequence in made:
        check_order(calls, sequence.sequence_id)


@pytest.mark.parametrize("max_tokens", [0, 1, 2])
def test_texts_of_one_or_two_tokens_feed_no_draft_model(max_tokens: int) -> None:
    """Of two tokens the second is the target's own, with or without a draft."""
    calls, _ = recorded([([1, 2, 3], {"max_tokens": max_tokens, "temperature": 0})])
    assert not [call for call in calls if call[0] == "draft"]


def test_a_text_that_ends_with_its_first_token_feeds_no_draft_model() -> None:
    _, made = recorded([([1, 2, 3], {"max_tokens": 5, "temperature": 0})])
    first = made[0].tokens[3]
    calls, made = recorded([([1, 2, 3], {"max_tokens": 5, "temperature": 0, "stop_token_ids": (first,)})])
    assert made[0].num_output == 1
    assert not [call for call in calls if call[0] == "draft"]


def test_a_stream_yields_its_first_piece_before_the_draft_model_reads() -> None:
    calls: list[Any] = []
    llm = LLM(Recording("target", calls), drafter=ModelDrafter(Recording("draft", calls)), policy=Eager())
    stream = llm.stream([1, 2, 3], max_tokens=10, seed=1)
    next(stream)
    assert {call[0] for call in calls} == {"target"}
    list(stream)
    assert {call[0] for call in calls} == {"target", "draft"}


@pytest.mark.parametrize("start_after", [0, 1, 2, 6, 50])
def test_drafting_starts_after_as_many_tokens_as_it_is_told(start_after: int) -> None:
    draft = ToyModel.random(SIZE, order=2, seed=4)
    drafter = ModelDrafter(draft, start_after=start_after)
    engine = Engine(ToyModel.random(SIZE, order=2, seed=4), drafter, Eager())
    sequence = engine.add([1, 2], SamplingParams(max_tokens=30, temperature=0))
    lengths = []
    while not engine.is_idle:
        before, fed = sequence.num_output, draft.num_fed
        engine.step()
        if draft.num_fed > fed:
            lengths.append(before)
    assert lengths[:1] == ([start_after] if start_after < 30 else [])
    plain = complete(ToyModel.random(SIZE, order=2, seed=4), [1, 2], max_tokens=30, temperature=0)[1]
    assert sequence.tokens[2:] == plain


def test_what_costs_nothing_may_draft_at_once() -> None:
    engine = Engine(ToyModel.random(SIZE, order=1, seed=4), LookupDrafter(3, 1), Eager())
    sequence = engine.add([1, 2, 1, 2, 1], SamplingParams(max_tokens=4, temperature=0))
    engine.step()
    assert sequence.statistics.num_proposed > 0
