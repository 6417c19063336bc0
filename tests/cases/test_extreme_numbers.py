"""cases.md C16 (whole kind): extreme sampling numbers and logits never make NaN, a dead engine or an empty text."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.cases.tools import DRAFTERS, TorchRows, check_r0, outcome, pieces_tokenizer, request, written

from forerun.control import FixedLength
from forerun.errors import NumericalError, ParameterError
from forerun.llm import LLM
from forerun.runtime.toy import ToyModel

SIZE = 12  # with end of text
TOKENIZER = pieces_tokenizer([chr(97 + i) for i in range(SIZE - 1)])
PROMPT = "abac"
NORMAL: dict[str, Any] = {"temperature": 0.8, "top_p": 0.95, "seed": 1, "max_tokens": 3, "ignore_eos": True}


def target(scale: float = 1.5) -> ToyModel:
    return ToyModel.random(SIZE, order=2, seed=6, spread=scale)


HUGE = 60_000.0
"""Near float16's largest number; bfloat16 and float32 go far beyond."""


def wide(values: type = np.float32, make: type[ToyModel] = ToyModel) -> ToyModel:
    """Logits over the whole range of float16, with near ties among the largest: 59968 is the next below 60000."""
    table = np.random.default_rng(2).choice([HUGE, HUGE - 32, 0.0, -HUGE, 1.0], (SIZE, SIZE)).astype(np.float16)
    table[:, 0] = HUGE
    return make(lambda tokens: np.asarray(table[tokens[-1]], dtype=values), SIZE)


TARGETS = {"ordinary": target, "wide": wide, "wide torch": lambda: wide(make=TorchRows)}

TEMPERATURES = [0, 1e-30, 1e-4, 1, 100, 1e6]
TOP_PS = [1e-4, 0.5, 1]
TOP_KS = [-1, 0, 1, SIZE, SIZE + 1, 10**7]
MIN_PS = [0, 1]


@pytest.mark.parametrize("name", ["ordinary", "wide"])
@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_c16_the_whole_grid_gives_texts_and_each_is_followed_by_a_normal_request(name: str, temperature: float) -> None:
    make = TARGETS[name]
    plain = LLM(make(), TOKENIZER)
    usual = outcome(plain.generate(PROMPT, **NORMAL))
    llms = [LLM(make(), TOKENIZER, DRAFTERS[name]({}, make), FixedLength(3)) for name in ("self", "lookup")]
    for i, (top_p, top_k, min_p) in enumerate(itertools.product(TOP_PS, TOP_KS, MIN_PS)):
        params = {"temperature": temperature, "top_p": top_p, "top_k": top_k, "min_p": min_p}
        params |= {"max_tokens": 4, "ignore_eos": True, "logprobs": 2, "logprobs_kind": "processed"}
        params |= {"seed": None if i % 3 == 0 else i}
        results = [llm.generate(PROMPT, **params) for llm in (plain, llms[i % 2])]
        for result in results:
            assert len(result.tokens) == result.usage.completion_tokens == 4
            assert result.text
            assert all(np.isfinite(entry.logprob) and entry.logprob <= 0 for entry in result.logprobs or ())
        if i % 3 or temperature < 1e-5:
            assert outcome(results[0]) == outcome(results[1])
        assert outcome(llms[i % 2].generate(PROMPT, **NORMAL)) == usual


@pytest.mark.parametrize("name", TARGETS)
def test_c16_what_leaves_one_token_is_greedy(name: str) -> None:
    make, budget = TARGETS[name], {"max_tokens": 12, "ignore_eos": True}
    is_slow = "torch" in name
    drafters = ["oracle"] if is_slow else ["half"]
    greedy = check_r0(make, PROMPT, tokenizer=TOKENIZER, drafters=drafters, ks=(3,), temperature=0, **budget)
    same: list[dict[str, Any]] = [{"temperature": 1e-30}]
    same += [] if is_slow else [{"temperature": 9.9e-6}, {"temperature": 1e-300, "top_k": 3}]
    if name == "ordinary":  # without ties for the largest logit
        same += [{"top_k": 1}, {"top_p": 1e-4}, {"top_p": 1e-300}, {"min_p": 1}, {"top_k": 1, "temperature": 1e6}]
        same += [{"temperature": 1e-4}, {"temperature": 1e-5}]
    for params in same:
        result = check_r0(make, PROMPT, tokenizer=TOKENIZER, drafters=drafters, ks=(3,), seed=3, **params, **budget)
        assert result.tokens == greedy.tokens, params


@pytest.mark.parametrize("k, drafter", [(0, None), (3, "self"), (5, "oracle"), (4, "liar")])
def test_c16_filters_that_are_off_are_off(k: int, drafter: str | None) -> None:
    budget = {"max_tokens": 20, "ignore_eos": True, "seed": 9}

    def tokens(**params: Any) -> tuple[int, ...]:
        texts = written(target, TOKENIZER, PROMPT, {}, {**params, **budget}) if drafter else {}
        used = DRAFTERS[drafter](texts, target) if drafter else None
        return LLM(target(), TOKENIZER, used, FixedLength(k)).generate(PROMPT, **params, **budget).tokens

    plain = tokens()
    off = [{"top_k": k} for k in (-1, 0, SIZE, SIZE + 1, 10**7, 10**30)]
    off += [{"top_p": 1}, {"top_p": 1.0}, {"min_p": 0}, {"temperature": 1}, {"min_p": 0.0, "top_p": 1}]
    for params in off:
        assert tokens(**params) == plain, params
    assert tokens(top_k=2) != plain


def test_c16_infinite_temperature_in_effect_is_uniform() -> None:
    llm = LLM(target(), TOKENIZER, DRAFTERS["self"]({}, target), FixedLength(3))
    for temperature in (1e6, 1e300, 1.7e308):
        result = llm.generate(PROMPT, temperature=temperature, max_tokens=600, ignore_eos=True)
        counts = np.bincount(result.tokens, minlength=SIZE)
        assert counts.min() > 600 / SIZE / 3


REFUSED: dict[str, list[Any]] = {
    "temperature": [-1, -1e-9, float("inf"), float("-inf"), float("nan"), "inf", "0", None, True, [1], 10**400],
    "top_p": [0, 0.0, -0.1, 1.0000001, 2, float("nan"), float("inf"), "1", None, False],
    "top_k": [-2, 1.5, 2.0, "3", None, True, float("inf")],
    "min_p": [-0.1, 1.5, 1.0000001, float("nan"), "0", None, True],
    "seed": [-1, 2**64, 1.0, "7", True, float("nan")],
    "max_tokens": [-1, 1.5, "3", True, float("inf")],
    "min_tokens": [-1, 1.5, None, 9],
}


@pytest.mark.parametrize("name", REFUSED)
def test_c16_what_is_out_of_range_is_refused_by_name_and_a_normal_request_follows(name: str) -> None:
    usual = LLM(target(), TOKENIZER).generate(PROMPT, **NORMAL).tokens
    llm = LLM(target(), TOKENIZER, DRAFTERS["self"]({}, target), FixedLength(3))
    for value in REFUSED[name]:
        for call in (llm.generate, llm.stream):
            with pytest.raises(ParameterError, match=f"^{name}: ") as caught:
                call(PROMPT, **{"max_tokens": 8, name: value})
            assert caught.value.name == name
        assert llm.engine.is_idle
    assert request(llm, PROMPT, **NORMAL).tokens == usual


FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)


@given(
    rows=st.lists(st.lists(FLOATS, min_size=5, max_size=5), min_size=1, max_size=4),
    temperature=st.sampled_from([0, 1e-30, 1e-4, 0.7, 100, 1e6, 1e300]),
    top_p=st.sampled_from([1, 0.3, 1e-4, 1e-320]),
    top_k=st.sampled_from([0, 1, 3, 10**7]),
    min_p=st.sampled_from([0, 1e-300, 0.2, 1]),
    seed=st.none() | st.integers(0, 2**64 - 1),
    drafter=st.sampled_from(["self", "model", "lookup"]),
    banned=st.sets(st.integers(0, 4), max_size=3),
)
@settings(max_examples=50)
def test_c16_any_finite_row_gives_tokens(
    rows: list[list[float]], temperature: float, top_p: float, top_k: int, min_p: float, seed: int | None,
    drafter: str, banned: set[int],
) -> None:  # fmt: skip
    """Logits over the whole range of float32, some of them -inf."""
    table = np.array(rows, dtype=np.float32)
    table[:, list(banned)] = -np.inf

    def make() -> ToyModel:
        return ToyModel(lambda tokens: table[tokens[-1] % len(table)], 5)

    params = {"temperature": temperature, "top_p": top_p, "top_k": top_k, "min_p": min_p, "seed": seed}
    params |= {"max_tokens": 6, "logprobs": 1}
    if seed is not None or temperature < 1e-5:
        results = [check_r0(make, [1, 2], drafters=[drafter], ks=[3], **params)]
    else:
        results = [LLM(make(), None, DRAFTERS[drafter]({}, make), FixedLength(3)).generate([1, 2], **params)]
    for result in results:
        assert len(result.tokens) == 6
        assert not banned & set(result.tokens)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("params", [{"temperature": 0}, {"seed": 5}, {}, {"top_k": 2, "temperature": 1e-30}])
@pytest.mark.parametrize("drafter", [None, "liar", "lookup"])
def test_c16_an_unusable_row_ends_its_own_request_and_nobody_elses(
    bad: float, params: dict[str, Any], drafter: str | None
) -> None:
    """Once six tokens are there every row is `bad`: what comes before it is committed, with speculation and without."""
    table = np.random.default_rng(3).normal(0.0, 1.0, (5, 5))
    unusable = np.array([0.0, bad, 0.0, 0.0, 0.0]) if bad != -np.inf else np.full(5, bad)

    def make() -> ToyModel:
        return ToyModel(lambda tokens: unusable if len(tokens) > 5 else table[tokens[-1]], 5)

    used = DRAFTERS[drafter]({0: {(1, 2): [1, 2, 3, 4] * 3}}, make) if drafter else None
    llm = LLM(make(), None, used, FixedLength(4 if drafter else 0))
    neighbour = llm.stream([3], max_tokens=4, **params)
    stream = llm.stream([1, 2], max_tokens=9, **params)
    with pytest.raises(NumericalError):
        list(stream)
    assert (len(stream.result.tokens), stream.result.finish_reason) == (4, "error")
    list(neighbour)
    assert len(neighbour.result.tokens) == 4
    assert len(llm.generate([1], max_tokens=4, **params).tokens) == 4
    assert (llm._outbox, llm.engine.target.num_sequences) == ({}, 0)  # type: ignore[attr-defined]
