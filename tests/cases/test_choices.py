"""cases.md C13 (whole kind), the part about several answers to one prompt, and how they share it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.cases.tools import DRAFTERS, check_r0, outcome, pieces_tokenizer, request, written
from tests.helpers import run

from forerun.control import FixedLength
from forerun.drafting import LookupDrafter, ModelDrafter
from forerun.engine import Engine, Scheduler
from forerun.errors import ForerunError
from forerun.llm import LLM
from forerun.result import Result
from forerun.runtime.toy import ToyModel
from forerun.sampling import SamplingParams
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
    result = check_r0(target, PROMPT, n=4, ks=(3, 1, 8), logprobs=1, **SEEDED)
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
@settings(max_examples=30)
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


@pytest.mark.parametrize("drafter", ["half", "model"])
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
