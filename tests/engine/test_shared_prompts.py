"""Choices of one prompt read it once, in both models, and write what each would have written alone."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tests.helpers import run

from forerun.control import FixedLength
from forerun.drafting import ModelDrafter
from forerun.drafting.model import common_length
from forerun.engine import Engine
from forerun.runtime.toy import ToyModel
from forerun.sampling import SamplingParams


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
