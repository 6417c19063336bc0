"""cases.md C13 (whole kind), the part about several answers to one prompt, and how they share it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.cases.tools import DRAFTERS, check_r0, outcome, pieces_tokenizer, request, written
from tests.helpers import run

from forerun.control import FixedLength
from forerun.drafting import LookupDrafter, ModelDrafter
from forerun.engine import Engine, Scheduler
from forerun.errors import ForerunError, NumericalError, UserCodeError
from forerun.llm import LLM
from forerun.result import Result
from forerun.runtime.toy import ToyModel
from forerun.sampling import SamplingParams, StatefulProcessor
from forerun.types import Delta

PROMPT = [3, 1, 4, 1, 5]
PARAMS: dict[str, Any] = {"temperature": 1.5, "max_tokens": 16}
SEEDED = {"seed": 11, **PARAMS}


def target() -> ToyModel:
    return ToyModel.random(20, order=2, seed=8, spread=1.5, context_length=400)


def texts(result: Result) -> list[tuple[int, ...]]:
    return [one.tokens for one in result.choices]


# -- what the texts are ------------------------------------------------------------------------------------------------


def test_c13d_four_choices_of_one_seed_differ_and_reproduce_for_every_drafter_and_length() -> None:
    result = check_r0(target, PROMPT, n=4, logprobs=1, **SEEDED)
    assert len(set(texts(result))) == 4
    assert [one.choice for one in result.choices] == [0, 1, 2, 3]
    assert texts(check_r0(target, PROMPT, n=4, ks=(2,), **SEEDED)) == texts(result)


@pytest.mark.parametrize("drafter", [None, "model", "lookup"])
def test_c13d_a_choice_depends_on_its_index_alone(drafter: str | None) -> None:
    def made(**params: Any) -> list[tuple[int, ...]]:
        used = DRAFTERS[drafter]({}, target) if drafter else None
        return texts(request(LLM(target(), None, used, FixedLength(3 if drafter else 0)), PROMPT, **SEEDED, **params))

    many = made(n=7)
    assert made() == many[:1]
    for n in range(1, 7):
        assert made(n=n) == many[:n]


def test_c13d_greedy_choices_are_the_same_text() -> None:
    result = check_r0(target, PROMPT, n=3, ks=(4,), temperature=0, max_tokens=16)
    assert len(set(texts(result))) == 1


@pytest.mark.parametrize("drafter", [None, "self", "model", "lookup"])
def test_c13c_unseeded_requests_differ_in_series_in_one_batch_and_among_choices(drafter: str | None) -> None:
    llm = LLM(target(), None, DRAFTERS[drafter]({}, target) if drafter else None, FixedLength(3 if drafter else 0))
    series = [llm.generate(PROMPT, **PARAMS).tokens for _ in range(20)]
    batch = [result.tokens for result in llm.generate([PROMPT] * 20, **PARAMS)]
    choices = texts(llm.generate(PROMPT, n=20, **PARAMS))
    streams = [llm.stream(PROMPT, **PARAMS) for _ in range(20)]
    streamed = [tuple(piece.token for piece in stream if piece.token is not None) for stream in streams]
    for made in (series, batch, choices, streamed, series + batch + choices + streamed):
        assert len(set(made)) >= 0.75 * len(made)


@given(
    n=st.integers(1, 6),
    seed=st.none() | st.integers(0, 2**64 - 1),
    k=st.integers(0, 9),
    drafter=st.sampled_from(["oracle", "half", "lookup", "self"]),
    places=st.integers(1, 4),
    budget=st.sampled_from([1, 2, 5, 512]),
    length=st.integers(1, 12),
    max_tokens=st.integers(0, 9),
    stops=st.lists(st.integers(0, 19), max_size=3),
    scored=st.none() | st.integers(0, 2),
)
@settings(max_examples=40)
def test_c13_choices_are_what_each_would_be_alone(
    n: int, seed: int | None, k: int, drafter: str, places: int, budget: int, length: int, max_tokens: int,
    stops: list[int], scored: int | None,
) -> None:  # fmt: skip
    """Whatever the places, the size of a pass, where choices end and who reads the prompt."""
    prompt = [(7 * i) % 20 for i in range(length)]
    params: dict[str, Any] = {"temperature": 0} if seed is None else {"seed": seed, "temperature": 1.2}
    params |= {"max_tokens": max_tokens, "stop_token_ids": stops, "prompt_logprobs": scored, "logprobs": 0}
    engine = {"scheduler": Scheduler(places, budget)}
    result = check_r0(target, prompt, n=n, drafters=[drafter], ks=[k], engine=engine, **params)
    for one in result.choices:
        alone = Engine(target())
        sequence = alone.add(prompt, SamplingParams(**params), choice=one.choice)
        deltas = run(alone)[sequence.sequence_id]
        assert one.tokens == tuple(token for delta in deltas for token in delta.tokens)
        assert one.finish_reason == sequence.finish_reason
        assert one.logprobs == tuple(entry for delta in deltas for entry in delta.logprobs or ())
        assert one.prompt_logprobs == (None if scored is None else tuple(sequence.prompt_logprobs or ()))


@pytest.mark.parametrize("drafter", ["oracle", "half", "model", "lookup"])
def test_c13_choices_of_a_batch_of_prompts(drafter: str) -> None:
    prompts = [PROMPT, [1], PROMPT * 9, [2, 2, 2, 2]]
    alone = [check_r0(target, prompt, n=3, ks=(3,), drafters=[drafter], **SEEDED) for prompt in prompts]
    known: dict[int, Any] = {choice: {} for choice in range(3)}
    for prompt in prompts:
        for choice, one in written(target, None, prompt, {}, {"n": 3, **SEEDED}).items():
            known[choice] |= one
    for scheduler in (Scheduler(), Scheduler(2, 7)):
        llm = LLM(target(), None, DRAFTERS[drafter](known, target), FixedLength(4), scheduler=scheduler)
        together = llm.generate(prompts, n=3, **SEEDED)
        assert [list(map(outcome, one.choices)) for one in together] == [
            list(map(outcome, one.choices)) for one in alone
        ]


def test_c13_choices_beside_other_requests_that_end_and_are_cancelled() -> None:
    expected = texts(LLM(target()).generate(PROMPT * 6, n=4, **SEEDED))
    llm = LLM(target(), None, ModelDrafter(target()), FixedLength(3), scheduler=Scheduler(3, 8))
    others = [llm.stream([i, i], seed=i, max_tokens=200) for i in range(4)]
    watched = llm.stream(PROMPT * 6, n=4, **SEEDED)
    for i, _ in enumerate(watched):
        if i % 5 == 4 and others:
            others.pop().close()
    for other in others:
        other.close()
    assert texts(watched.result) == expected
    assert llm.engine.is_idle
    assert llm.engine.target.num_sequences == 0  # type: ignore[attr-defined]


# -- how they share a prompt -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 2, 5, 9])
@pytest.mark.parametrize("length", [1, 2, 40, 300])
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
    assert not engine._followers
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
@pytest.mark.parametrize("length", [1, 2, 70, 130])
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


@pytest.mark.filterwarnings("ignore:the draft model failed")
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


def test_c13_the_pieces_of_a_stream_say_whose_they_are() -> None:
    tokenizer = pieces_tokenizer(["a", "b", " ", "é".encode()[:1], "é".encode()[1:], "c"])
    llm = LLM(ToyModel.random(7, order=2, seed=3), tokenizer, LookupDrafter(3, 1), FixedLength(3))
    stream = llm.stream("ab", n=3, seed=2, max_tokens=30)
    pieces = list(stream)
    assert {piece.choice for piece in pieces} == {0, 1, 2}
    order = [piece.choice for piece in pieces]
    assert order != sorted(order)  # interleaved: nobody waits for the others
    for one in stream.result.choices:
        assert "".join(piece.text for piece in pieces if piece.choice == one.choice) == one.text
        assert one.text == tokenizer.detokenizer(continues=True).decode(one.tokens)


def test_c13_interrupted_and_refused_requests_leave_no_choice_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    llm = LLM(target())
    with pytest.raises(ForerunError):
        llm.generate(PROMPT, n=3, logit_bias={20: 1.0}, **SEEDED)
    assert llm._outbox == {}
    real = Engine.step

    def interrupted(self: Engine) -> list[Delta]:
        if self.target.num_forwards == 4:  # type: ignore[attr-defined]
            raise KeyboardInterrupt
        return real(self)

    monkeypatch.setattr(Engine, "step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        llm.generate(PROMPT, n=3, **SEEDED)
    monkeypatch.undo()
    assert (llm._outbox, llm.engine.target.num_sequences, llm.engine.is_idle) == ({}, 0, True)  # type: ignore[attr-defined]
    assert len(set(texts(llm.generate(PROMPT, n=3, **SEEDED)))) == 3
