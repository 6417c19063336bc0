"""Parameters as an object instead of by name: the same request, and what contradicts is refused."""

from __future__ import annotations

from typing import Any

import pytest

from forerun.control import FixedLength
from forerun.drafting import ModelDrafter
from forerun.errors import ParameterError
from forerun.llm import LLM
from forerun.runtime.toy import ToyModel
from forerun.sampling import SamplingParams
from forerun.sampling.params import MAX_CHOICES

GIVEN: dict[str, Any] = {"seed": 4, "max_tokens": 12, "presence_penalty": 0.5, "logprobs": 1, "n": 2}


def llms() -> list[LLM]:
    """Plain, and speculative with a draft model."""
    return [
        LLM(ToyModel.random(9, seed=1)),
        LLM(ToyModel.random(9, seed=1), None, ModelDrafter(ToyModel.random(9, seed=2)), FixedLength(3)),
    ]


def texts(result: Any) -> Any:
    return [(choice.tokens, [entry.token for entry in choice.logprobs or ()]) for choice in result.choices]


def test_a_ready_object_is_the_same_request_plain_and_speculative() -> None:
    expected = texts(LLM(ToyModel.random(9, seed=1)).generate([1, 2, 3], **GIVEN))
    for llm in llms():
        assert texts(llm.generate([1, 2, 3], SamplingParams(**GIVEN))) == expected
        assert [texts(one) for one in llm.generate([[1, 2, 3], [1, 2, 3]], SamplingParams(**GIVEN))] == [expected] * 2
        pieces = list(llm.stream([1, 2, 3], SamplingParams(**GIVEN)))
        streamed = [[piece.token for piece in pieces if piece.choice == i and piece.token is not None] for i in (0, 1)]
        assert streamed == [list(tokens) for tokens, _ in expected]


@pytest.mark.parametrize("start", ["generate", "stream"])
def test_what_contradicts_is_refused(start: str) -> None:
    llm = llms()[0]
    with pytest.raises(ParameterError, match=r"^sampling: SamplingParams are needed, not \{'seed': 1\}"):
        getattr(llm, start)([1], {"seed": 1})
    with pytest.raises(ParameterError, match=r"^seed: given beside ready SamplingParams"):
        getattr(llm, start)([1], SamplingParams(max_tokens=2), seed=1)
    assert llm.engine.is_idle


def test_choices_are_bounded() -> None:
    for name in ("n", "best_of"):
        with pytest.raises(ParameterError, match=f"^{name}: .*{MAX_CHOICES}"):
            SamplingParams(**{name: MAX_CHOICES + 1})
        assert getattr(SamplingParams(**{name: MAX_CHOICES}), name) == MAX_CHOICES


def test_a_result_that_is_kept_holds_no_rows() -> None:
    """Processors with memory look back at the rows of a round; when a text has ended they let go of them."""
    from forerun.sampling import StatefulProcessor

    class Counter:
        calls = 0

        def __call__(self, tokens: list[int], logits: Any) -> Any:
            self.calls += 1
            return logits

    for llm in llms():
        stream = llm.stream([1, 2, 3], max_tokens=6, logits_processors=[StatefulProcessor(Counter)])
        stream.drain()
        stateful = stream._choices[0].sequence.processing._stateful
        assert not stateful._rows
        assert not stateful._called
