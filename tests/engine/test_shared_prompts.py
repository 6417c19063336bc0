"""Choices of one prompt read it once, in both models, and write what each would have written alone."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.helpers import run

from forerun.control import FixedLength
from forerun.drafting import ModelDrafter
from forerun.drafting.model import common_length
from forerun.engine import Engine, Scheduler
from forerun.errors import ContractError
from forerun.runtime.toy import ToyModel
from forerun.sampling import SamplingParams
from forerun.sampling.history import History


def test_choices_of_one_prompt_share_what_both_models_read() -> None:
    """The target's cache is forked once the prompt is read, the draft model's once the first choice has drafted."""
    prompt = [i % 5 for i in range(40)]
    target_model, draft_model = ToyModel.random(6, seed=1), ToyModel.random(6, seed=1)
    engine = Engine(target_model, ModelDrafter(draft_model), FixedLength(2))
    leader = engine.add(prompt, SamplingParams(max_tokens=8, seed=3))
    made = [leader, *(engine.add(prompt, leader.params, choice=choice, leader=leader) for choice in (1, 2, 3))]
    run(engine)
    num_output = sum(sequence.statistics.num_proposed + sequence.num_output for sequence in made)
    assert target_model.num_fed <= len(prompt) + 4 + num_output
    assert draft_model.num_fed <= len(prompt) + 4 + 2 * num_output
    assert all(sequence.statistics.num_accepted > 0 for sequence in made)
    for sequence in made:
        alone = Engine(ToyModel.random(6, seed=1))
        single = alone.add(prompt, leader.params, choice=sequence.choice)
        run(alone)
        assert sequence.tokens == single.tokens
    assert target_model.num_sequences == draft_model.num_sequences == 0


@given(st.lists(st.integers(0, 2), max_size=12), st.lists(st.integers(0, 2), max_size=12))
def test_common_length(one: list[int], other: list[int]) -> None:
    expected = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    assert common_length(one, other) == expected


def test_choices_start_drafting_together_and_strangers_do_not_wait() -> None:
    """Whoever shares nearly all of another's text waits one round for its cache; a common beginning is no reason to."""

    def first_drafts(prompts: list[list[int]]) -> list[int]:
        engine = Engine(ToyModel.random(6, seed=1), ModelDrafter(ToyModel.random(6, seed=1)), FixedLength(2))
        made = [engine.add(prompt, SamplingParams(max_tokens=20, seed=3)) for prompt in prompts]
        found = [0] * len(made)
        for step in range(1, 40):
            engine.step()
            for i, sequence in enumerate(made):
                if sequence.statistics.num_proposed and not found[i]:
                    found[i] = step
        return found

    same = [i % 5 for i in range(60)]
    assert first_drafts([same] * 6) == [2, 3, 3, 3, 3, 3]
    assert first_drafts([[*same[:20], *((i * n) % 6 for i in range(60))] for n in range(1, 6)]) == [2] * 5


def test_a_fork_that_fails_loses_nobody() -> None:
    """Out of memory, or Ctrl-C, in the middle of starting a choice: the step fails, and the next one goes on."""
    model = ToyModel.random(6, seed=1)
    engine = Engine(model)
    leader = engine.add([1, 2, 3], SamplingParams(max_tokens=8, seed=3))
    made = [leader, *(engine.add([1, 2, 3], leader.params, choice=choice, leader=leader) for choice in (1, 2, 3))]
    fork, num_calls = model.fork, 0

    def failing(source: int, target: int, length: int) -> None:
        nonlocal num_calls
        num_calls += 1
        fork(source, target, length)
        if num_calls == 2:
            raise MemoryError

    model.fork = failing  # type: ignore[method-assign]
    num_failures = 0
    for _ in range(100):
        if engine.is_idle:
            break
        try:
            engine.step()
        except MemoryError:
            num_failures += 1
    assert (num_failures, engine.is_idle, model.num_sequences) == (1, True, 0)
    assert [sequence.num_output for sequence in made] == [8] * 4


def test_no_more_caches_than_places_and_the_prompts_own() -> None:
    model = ToyModel.random(6, seed=1)
    engine = Engine(model, scheduler=Scheduler(4))
    leader = engine.add([1, 2, 3] * 10, SamplingParams(max_tokens=3, seed=3))
    for choice in range(1, 40):
        engine.add([1, 2, 3] * 10, leader.params, choice=choice, leader=leader)
    most = 0
    while not engine.is_idle:
        engine.step()
        most = max(most, model.num_sequences)
    assert most <= 5
    assert model.num_sequences == 0
    assert model.num_fed <= 30 + 40 * 4, "the prompt was read more than once"


def test_a_leader_with_another_prompt_is_refused() -> None:
    engine = Engine(ToyModel.random(6, seed=1))
    leader = engine.add([1, 2, 3], SamplingParams(max_tokens=3))
    with pytest.raises(ContractError, match="another prompt"):
        engine.add([1, 2, 4], leader.params, choice=1, leader=leader)
    run(engine)
    assert engine.is_idle


def test_an_interruption_while_counting_changes_no_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts of tokens are derived: after Ctrl-C in the middle they are made again."""
    params = SamplingParams(temperature=0, max_tokens=12, frequency_penalty=1.0)
    plain = Engine(ToyModel.random(6, seed=1))
    expected = plain.add([1, 2, 3, 1], params)
    run(plain)
    extend, num_calls = History.extend, 0

    def interrupted(self: History, tokens: Sequence[int]) -> None:
        nonlocal num_calls
        num_calls += 1
        extend(self, tokens)
        if num_calls in (1, 4):
            raise KeyboardInterrupt

    monkeypatch.setattr(History, "extend", interrupted)
    engine = Engine(ToyModel.random(6, seed=1))
    made = engine.add([1, 2, 3, 1], params)
    while not engine.is_idle:
        with contextlib.suppress(KeyboardInterrupt):
            engine.step()
    assert made.tokens == expected.tokens
