"""cases.md C26, the whole kind: the target's context is full, or the prompt does not fit in it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from tests.cases.tools import outcome, streamed
from tests.cli.conftest import Invoke
from tests.helpers import complete, run

from forerun.control import FixedLength
from forerun.drafting import Drafter, LookupDrafter, ModelDrafter
from forerun.drafting.scripted import HalfDrafter, LiarDrafter, OracleDrafter, record
from forerun.engine import Engine, Scheduler
from forerun.errors import ContextLengthError, ParameterError, PromptError
from forerun.llm import LLM
from forerun.runtime.base import Rows
from forerun.runtime.toy import ToyModel
from forerun.sampling import SamplingParams
from forerun.types import Span

SIZE, CONTEXT, K = 9, 64, 8
TOO_LONG = (64, 65, 500)


class Bounded(ToyModel):
    """Knows the furthest position it was ever fed, accepted or not."""

    furthest = 0

    def forward(self, spans: Sequence[Span]) -> Rows:
        self.furthest = max(self.furthest, *(span.start + len(span.tokens) for span in spans))
        return super().forward(spans)


def target(context_length: int | None = CONTEXT) -> Bounded:
    return Bounded(ToyModel.random(SIZE, order=2, seed=1, spread=2.0)._logits_of, SIZE, context_length)


def prompt_of(length: int) -> list[int]:
    return [(i + i // 4) % SIZE for i in range(length)]


TEXTS = record(target(None), [prompt_of(length) for length in (1, 30, 60, 62, 63)], 100)
DRAFTERS: dict[str, Callable[[], Drafter | None]] = {
    "none": lambda: None,
    "oracle": lambda: OracleDrafter(TEXTS),
    "liar": lambda: LiarDrafter(TEXTS),
    "half": lambda: HalfDrafter(TEXTS),
    "lookup": lambda: LookupDrafter(3, 1),
    "model": lambda: ModelDrafter(target(None)),
    "full model": lambda: ModelDrafter(target()),
    "short model": lambda: ModelDrafter(target(20)),
}


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("params", [{"max_tokens": 100}, {}, {"max_tokens": 10_000}], ids=str)
@pytest.mark.parametrize("length", [1, 30, 60, 62, 63])
def test_c26_a_text_ends_at_exactly_the_context(length: int, params: dict[str, Any], drafter: str) -> None:
    """K is clipped to what is left: the target is never fed a position that it does not have."""
    model = target()
    llm = LLM(model, None, DRAFTERS[drafter](), FixedLength(K if drafter != "none" else 0))
    result = streamed(llm, prompt_of(length), temperature=0, **params)
    assert result.finish_reason == "length"
    assert list(result.tokens) == list(TEXTS[tuple(prompt_of(length))])[: CONTEXT - length]
    assert result.usage.completion_tokens == CONTEXT - length
    assert model.furthest <= CONTEXT - 1  # the last token is chosen, not fed
    if drafter == "oracle" and length <= 60:
        assert result.speculation.num_accepted > 0
    assert result.speculation.num_accepted + result.speculation.num_rounds == CONTEXT - length


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("length", TOO_LONG)
def test_c26_a_prompt_that_does_not_fit_is_refused_with_both_numbers(length: int, drafter: str) -> None:
    model = target()
    llm = LLM(model, None, DRAFTERS[drafter](), FixedLength(K if drafter != "none" else 0))
    for ask in (llm.generate, llm.stream):  # a stream is refused when it is asked for, not when it is read
        for params in ({}, {"max_tokens": 5}, {"max_tokens": 1}):
            with pytest.raises(ContextLengthError, match=f"{length} tokens and the context holds {CONTEXT}"):
                ask(prompt_of(length), **params)
    assert model.num_forwards == 0
    assert llm.engine.is_idle


def test_c26_refusal_leaves_neighbours_alone() -> None:
    model = target()
    engine = Engine(model)
    good = engine.add(prompt_of(30), SamplingParams(temperature=0, max_tokens=5))
    engine.step()
    for length in TOO_LONG:
        with pytest.raises(ContextLengthError):
            engine.add(prompt_of(length), SamplingParams())
    run(engine)
    assert good.finish_reason == "length"
    assert good.tokens[30:] == list(TEXTS[tuple(prompt_of(30))])[:5]


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_c26_requests_beside_each_other_have_the_whole_context_each(drafter: str) -> None:
    """No split among places: two, or five in three places, end where they would alone."""
    model = target()
    engine = Engine(model, DRAFTERS[drafter](), FixedLength(K), scheduler=Scheduler(max_sequences=3, max_tokens=16))
    made = [engine.add(prompt_of(length), SamplingParams(temperature=0)) for length in (60, 30, 1, 62, 63)]
    run(engine)
    for sequence in made:
        prompt = sequence.prompt
        assert sequence.tokens[len(prompt) :] == list(TEXTS[prompt])[: CONTEXT - len(prompt)]
        assert sequence.finish_reason == "length"
    assert model.furthest <= CONTEXT - 1
    assert model.num_sequences == 0


@pytest.mark.parametrize("params", [{"seed": 4}, {"seed": 4, "n": 3}, {"seed": 4, "n": 2, "best_of": 3}], ids=str)
def test_c26_sampled_texts_and_choices_end_there_too(params: dict[str, Any]) -> None:
    plain = LLM(target()).generate(prompt_of(60), **params)
    found = LLM(target(), None, ModelDrafter(target(None)), FixedLength(K)).generate(prompt_of(60), **params)
    assert list(map(outcome, found.choices)) == list(map(outcome, plain.choices))
    assert all(len(one.tokens) == 4 for one in found.choices)


def test_c26_a_stop_in_the_last_place_is_a_stop() -> None:
    text = list(TEXTS[tuple(prompt_of(60))])[:4]
    stop = next(token for token in text if text.index(token) == 3) if text.count(text[3]) == 1 else text[3]
    sequence, tokens = complete(
        target(), prompt_of(60), OracleDrafter(TEXTS), K, temperature=0, stop_token_ids=(stop,), include_stop_token=True
    )
    assert sequence.finish_reason == "stop"
    assert tokens == text[: text.index(stop) + 1]


def test_c26_an_unbounded_context_needs_a_budget() -> None:
    with pytest.raises(ParameterError, match="max_tokens"):
        complete(ToyModel.random(4), [1])


@pytest.mark.parametrize("prompt", ["", [], [[]], [{}], 7, None, b"abc", [1, "a"], [1.5], [True], ["a", 3], [-1], [4]])
def test_bad_prompts_are_refused_with_an_example_or_the_id(prompt: object) -> None:
    llm = LLM(ToyModel.random(4))
    with pytest.raises((PromptError, ParameterError)):
        llm.generate(prompt, max_tokens=3)
    assert llm.engine.is_idle
    assert llm.generate([1], max_tokens=2, temperature=0).usage.completion_tokens == 2


# -- the command line --------------------------------------------------------------------------------------------------

COMMANDS = {
    "plain": (),
    "model": ("--draft", "toy-draft", "--k", "8"),
    "lookup": ("--drafter", "lookup", "--k", "8"),
    "short draft": ("--draft", "toy-draft", "--k", "8", "--draft-ctx", "20"),
}


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("length", TOO_LONG)
def test_c26_the_exit_code_of_a_prompt_that_does_not_fit(invoke: Invoke, length: int, name: str) -> None:
    args = ("generate", "a" * length, "--target", "toy", "--context-length", "64", *COMMANDS[name])
    for more in ((), ("--json",), ("--max-tokens", "5")):
        result = invoke(*args, *more)
        assert (result.exit_code, result.stdout) == (2, "")
        assert f"{length} tokens and the context holds 64" in result.stderr


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("more", [(), ("--max-tokens", "100")], ids=["no budget", "100"])
@pytest.mark.parametrize("length", [60, 63])
def test_c26_the_command_ends_at_exactly_the_context(
    invoke: Invoke,
    length: int,
    more: tuple[str, ...],
    name: str,
) -> None:
    args = ("generate", "a" * length, "--target", "toy", "--context-length", "64", "--temperature", "0", *more)
    plain = invoke(*args)
    found = invoke(*args, *COMMANDS[name], "--json")
    assert (plain.exit_code, found.exit_code) == (0, 0)
    document = json.loads(found.stdout)
    assert document["finish_reason"] == "length"
    assert document["usage"] | {"prompt_tokens": length, "completion_tokens": 64 - length} == document["usage"]
    assert document["text"] == plain.stdout.removesuffix("\n") or document["text"] == plain.stdout
