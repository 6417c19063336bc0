"""cases.md C13 (whole kind), the part about choices that share a prompt: it is read once, whoever ends first."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.cases.test_choices import PROMPT, SEEDED, target, texts
from tests.cases.tools import check_r0
from tests.helpers import run

from forerun.control import FixedLength
from forerun.drafting import LookupDrafter, ModelDrafter
from forerun.engine import Engine, Scheduler
from forerun.errors import NumericalError, UserCodeError
from forerun.llm import LLM
from forerun.runtime.toy import ToyModel
from forerun.sampling import SamplingParams, StatefulProcessor


@pytest.mark.parametrize("n", [1, 2, 5])
@pytest.mark.parametrize("length", [1, 2, 300])
@pytest.mark.parametrize("scheduler", [(64, 512), (64, 16), (2, 16), (1, 512)])
def test_c13_the_prompt_is_read_once_for_all_choices(n: int, length: int, scheduler: tuple[int, int]) -> None:
    model = target()
    llm = LLM(model, scheduler=Scheduler(*scheduler))
    llm.generate([i % 20 for i in range(length)], n=n, seed=1, max_tokens=6)
    # Each other choice feeds the prompt's last token again, for the row after it; a text's last token is never fed.
    assert model.num_fed == length + (n - 1) + n * 5
    assert model.num_sequences == 0


@pytest.mark.parametrize("k, drafter", [(0, None), (4, "oracle"), (4, "model")])
@pytest.mark.parametrize("places", [1, 2, 64])
def test_c13_a_leader_that_ends_in_its_first_round_leaves_the_others_a_prompt(
    k: int, drafter: str | None, places: int
) -> None:
    """Choice 0 is made to end with its first token, by declaring that token a stop."""
    prompt = PROMPT * 8
    first = [text[0] for text in texts(LLM(target()).generate(prompt, n=4, **SEEDED))]
    assert first[0] not in first[1:]
    params = {"n": 4, "stop_token_ids": [first[0]], **SEEDED}
    engine = {"scheduler": Scheduler(places, 512)}
    result = check_r0(target, prompt, drafters=[drafter] if drafter else [], ks=[k], engine=engine, **params)
    assert (result.choices[0].tokens, result.choices[0].finish_reason) == ((), "stop")
    assert all(len(one.tokens) for one in result.choices[1:])
    model = target()
    LLM(model, **engine).generate(prompt, n=4, seed=11, temperature=1.5, max_tokens=1)
    assert model.num_fed == len(prompt) + 3


@pytest.mark.parametrize("num_steps", [0, 1, 2, 5, 20])
@pytest.mark.parametrize("cancelled", [[0], [0, 1], [1, 0], [2], [0, 1, 2, 3]])
@pytest.mark.parametrize("places", [1, 64])
def test_c13_cancelling_choices_leaves_the_others_as_they_were(
    num_steps: int, cancelled: list[int], places: int
) -> None:
    """Before, while and after the prompt of 40 tokens is read by choice 0, sixteen a pass."""
    prompt, params = PROMPT * 8, SamplingParams(**SEEDED)
    expected = texts(LLM(target()).generate(prompt, n=4, **SEEDED))
    model = target()
    engine = Engine(model, LookupDrafter(3, 1), FixedLength(3), scheduler=Scheduler(places, 16))
    sequences = [engine.add(prompt, params)]
    sequences += [engine.add(prompt, params, choice=choice, leader=sequences[0]) for choice in (1, 2, 3)]
    for _ in range(num_steps):
        engine.step()
    has_ended = [sequence.finish_reason is not None for sequence in sequences]
    for choice in cancelled:
        engine.cancel(sequences[choice].sequence_id)
    run(engine)
    for choice, sequence in enumerate(sequences):
        own = tuple(sequence.tokens[len(prompt) :])
        if choice in cancelled and not has_ended[choice]:
            assert sequence.finish_reason == "cancelled"
            assert own == expected[choice][: len(own)]
        else:
            assert own == expected[choice]
    assert model.num_sequences == 0
    assert not any([engine._prompts._followers, engine._prompts._ended, engine._prompts._read])
    num_reads = 1 + (num_steps < 3 and 0 in cancelled and len(cancelled) < 4)
    assert model.num_fed <= num_reads * len(prompt) + 3 + 4 * 15 + sum(s.statistics.num_proposed for s in sequences)


def test_c13_closing_a_stream_of_choices_frees_all_of_them_and_leaves_its_neighbour_alone() -> None:
    expected = texts(LLM(target()).generate(PROMPT, n=3, **SEEDED))
    for num_taken in range(8):
        llm = LLM(target(), scheduler=Scheduler(2, 2))
        left, kept = llm.stream([1] * 7, n=3, seed=5, max_tokens=99), llm.stream(PROMPT, n=3, **SEEDED)
        taken = [next(left) for _ in range(num_taken)]
        left.close()
        assert [piece for piece in left if piece.finish_reason is not None] != []
        assert {one.finish_reason for one in left.result.choices} == {"cancelled"}
        assert sum(one.usage.completion_tokens for one in left.result.choices) >= len(taken)
        list(kept)
        assert texts(kept.result) == expected
        assert (llm._outbox, llm.engine.target.num_sequences) == ({}, 0)  # type: ignore[attr-defined]


@pytest.mark.parametrize("scheduler", [(64, 512), (2, 3)])
@pytest.mark.parametrize("length", [1, 2, 130])
def test_c13_prompt_logprobs_are_worked_out_once_and_given_with_every_choice(
    length: int, scheduler: tuple[int, int]
) -> None:
    prompt = [(3 * i * i) % 20 for i in range(length)]
    alone = LLM(target()).generate(prompt, prompt_logprobs=2, **SEEDED).prompt_logprobs
    assert alone is not None
    assert len(alone) == length
    engine = {"scheduler": Scheduler(*scheduler)}
    result = check_r0(
        target, prompt, n=3, prompt_logprobs=2, ks=(3,), drafters=["oracle", "lookup"], engine=engine, **SEEDED
    )
    assert [one.prompt_logprobs for one in result.choices] == [alone] * 3
    for max_tokens in (0, 1):
        result = LLM(target(), **engine).generate(prompt, n=3, prompt_logprobs=2, seed=1, max_tokens=max_tokens)
        assert [one.prompt_logprobs for one in result.choices] == [alone] * 3
        assert [len(one.tokens) for one in result.choices] == [max_tokens] * 3


@pytest.mark.filterwarnings("ignore:drafting failed")
def test_c13_a_choice_that_fails_fails_the_request_and_nobody_else() -> None:
    calls: list[int] = []

    class Fails:
        """Raises at its fourth call in the third text that is begun."""

        def __init__(self) -> None:
            calls.append(0)
            self.number, self.num_calls = len(calls), 0

        def __call__(self, tokens: list[int], logits: Any) -> Any:
            self.num_calls += 1
            if self.number == 3 and self.num_calls == 4:
                raise RuntimeError("boom")
            return logits

    llm = LLM(target(), None, ModelDrafter(target()), FixedLength(2))
    expected = texts(llm.generate(PROMPT, n=2, **SEEDED))
    other = llm.stream(PROMPT, n=2, **SEEDED)
    with pytest.raises(UserCodeError, match="boom"):
        llm.generate(PROMPT, n=4, logits_processors=[StatefulProcessor(Fails)], **SEEDED)
    list(other)
    assert texts(other.result) == expected
    assert (llm._outbox, llm.engine.target.num_sequences) == ({}, 0)  # type: ignore[attr-defined]


def test_c13_a_leader_whose_row_is_unusable_takes_no_other_prompt_with_it() -> None:
    def logits_of(tokens: tuple[int, ...]) -> np.ndarray:
        return np.full(4, np.nan) if tokens[:1] == (3,) and len(tokens) >= 2 else np.array([0.0, 1.0, 0.5, 0.2])

    llm = LLM(ToyModel(logits_of, 4), None, LookupDrafter(), FixedLength(2))
    good = llm.stream([1, 1], n=2, seed=3, max_tokens=6)
    with pytest.raises(NumericalError):
        llm.generate([3, 1], n=3, seed=3, max_tokens=6)
    list(good)
    assert [len(one.tokens) for one in good.result.choices] == [6, 6]
    assert llm.engine.target.num_sequences == 0  # type: ignore[attr-defined]
