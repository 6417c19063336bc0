"""cases.md C13 (whole kind), the part about `best_of`: the texts with the highest mean log probability are kept."""

from __future__ import annotations

import numpy as np
import pytest
from tests.cases.test_choices import PARAMS, PROMPT, SEEDED, target, texts
from tests.cases.tools import DRAFTERS, pieces_tokenizer, written

from forerun.control import FixedLength
from forerun.drafting import ModelDrafter
from forerun.errors import ParameterError
from forerun.llm import LLM
from forerun.result import Result
from forerun.runtime.toy import ToyModel


def mean(one: Result) -> float:
    """Over every token that was committed, the one that ended the text included."""
    return sum(entry.logprob for entry in one.logprobs or ()) / max(len(one.tokens), 1)


@pytest.mark.parametrize(
    "drafter, kind", [(None, "raw"), (None, "processed"), ("oracle", "raw"), ("half", "processed"), ("model", "raw")]
)
def test_c13_best_of_keeps_the_texts_with_the_highest_mean_logprob(drafter: str | None, kind: str) -> None:
    # Texts of very different lengths: a stop id that comes early in some of them.
    params = {"stop_token_ids": [7, 2], "logprobs_kind": kind, **SEEDED, "max_tokens": 25}
    everything = LLM(target()).generate(PROMPT, n=6, logprobs=0, include_stop_token=True, **params).choices
    ranked = sorted(everything, key=lambda one: -mean(one))
    assert len({len(one.tokens) for one in everything}) > 3
    assert [one.choice for one in ranked] != sorted(one.choice for one in ranked)
    known = written(target, None, PROMPT, {}, {"n": 6, **params})
    llm = LLM(target(), None, DRAFTERS[drafter](known, target) if drafter else None, FixedLength(5 if drafter else 0))
    for n in (2, 6):
        for logprobs in (None, 1):
            result = llm.generate(PROMPT, n=n, best_of=6, logprobs=logprobs, include_stop_token=True, **params)
            if n == 6:  # nothing is dropped, so nothing is ranked
                assert [one.choice for one in result.choices] == list(range(6))
                continue
            assert [one.choice for one in result.choices] == [one.choice for one in ranked[:n]]
            assert texts(result) == [one.tokens for one in ranked[:n]]
            assert [one.mean_logprob for one in result.choices] == pytest.approx([mean(one) for one in ranked[:n]])
            assert all((one.logprobs is None) == (logprobs is None) for one in result.choices)
            hidden = llm.generate(PROMPT, n=n, best_of=6, **params)
            assert [one.mean_logprob for one in hidden.choices] == [one.mean_logprob for one in result.choices]


def test_c13_best_of_unseeded_is_better_than_one() -> None:
    llm = LLM(target(), None, ModelDrafter(target()), FixedLength(3))
    best = [llm.generate(PROMPT, best_of=8, **PARAMS).mean_logprob for _ in range(10)]
    single = [mean(llm.generate(PROMPT, logprobs=0, **PARAMS)) for _ in range(10)]
    assert np.mean([one or 0.0 for one in best]) > np.mean(single) + 0.1


def test_c13_best_of_of_empty_texts_and_ties_goes_by_index() -> None:
    result = LLM(target()).generate(PROMPT, n=2, best_of=4, temperature=0, max_tokens=5)
    assert [one.choice for one in result.choices] == [0, 1]
    result = LLM(target()).generate(PROMPT, n=2, best_of=4, seed=1, max_tokens=0)
    assert [(one.choice, one.tokens) for one in result.choices] == [(0, ()), (1, ())]


def test_c13_best_of_cannot_be_streamed_nor_be_less_than_n() -> None:
    llm = LLM(target())
    with pytest.raises(ParameterError, match=r"^best_of: "):
        llm.stream(PROMPT, best_of=3, **SEEDED)
    stream = llm.stream(PROMPT, n=2, best_of=2, **SEEDED)  # nothing is dropped
    assert {piece.choice for piece in stream} == {0, 1}
    for bad in ({"n": 3, "best_of": 2}, {"n": 0}, {"n": -1}, {"n": 1.5}, {"n": True}, {"n": "2"}, {"best_of": 0}):
        with pytest.raises(ParameterError, match=rf"^({'|'.join(bad)}): "):
            llm.generate(PROMPT, **SEEDED, **bad)
    assert llm.engine.is_idle


@pytest.mark.parametrize("drafter", [None, "oracle", "half"])
def test_c13_best_of_counts_no_token_behind_a_stop_string(drafter: str | None) -> None:
    tokenizer = pieces_tokenizer(["a", "b", "ab", "ba", " ", "c", "ca"])

    def make() -> ToyModel:
        return ToyModel.random(8, order=2, seed=12, spread=1.5)

    params = {"seed": 5, "max_tokens": 30, "stop": ["bab", "cc", "ac"]}
    everything = LLM(make(), tokenizer).generate("ab", n=6, logprobs=0, include_stop_token=True, **params).choices
    assert any(isinstance(one.stop_reason, str) for one in everything)
    ranked = sorted(everything, key=lambda one: -mean(one))
    known = written(make, tokenizer, "ab", {}, {"n": 6, **params})
    llm = LLM(make(), tokenizer, DRAFTERS[drafter](known, make) if drafter else None, FixedLength(6 if drafter else 0))
    result = llm.generate("ab", n=3, best_of=6, **params)
    assert [one.choice for one in result.choices] == [one.choice for one in ranked[:3]]
    assert [one.mean_logprob for one in result.choices] == pytest.approx([mean(one) for one in ranked[:3]])
