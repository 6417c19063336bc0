"""cases.md C18 (whole kind): log probabilities under speculation are those of plain decoding, and the right ones."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.cases.tools import DRAFTERS, TorchRows, check_r0, pieces_tokenizer, written

import forerun.engine.commit as commit_module
from forerun.control import FixedLength
from forerun.drafting import ModelDrafter
from forerun.engine import Scheduler
from forerun.errors import ParameterError
from forerun.llm import LLM
from forerun.result import Result
from forerun.runtime.toy import ToyModel
from forerun.types import TokenLogprob

SIZE = 14
PROMPT = [2, 7, 7, 2, 11]


def target() -> ToyModel:
    return ToyModel.random(SIZE, order=2, seed=5, spread=1.3)


FILTERS: dict[str, Any] = {
    "temperature": 0.7, "top_k": 6, "min_p": 0.01, "repetition_penalty": 1.2, "logit_bias": {3: 1.5, 4: -2.0},
}  # fmt: skip
MODES: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0}, "seeded": {"seed": 21}, "greedy, filtered": {**FILTERS, "temperature": 0},
    "seeded, filtered": {"seed": 21, **FILTERS},
}  # fmt: skip


def expected_row(tokens: tuple[int, ...], kind: str, params: dict[str, Any]) -> np.ndarray:
    """Log probabilities [vocab] of the row after `tokens`, by the definitions alone."""
    row = target().logits(tokens).copy()
    if kind == "processed":
        seen = sorted(set(tokens))
        penalty = params.get("repetition_penalty", 1.0)
        row[seen] = np.where(row[seen] < 0, row[seen] * penalty, row[seen] / penalty)
        for token, bias in params.get("logit_bias", {}).items():
            row[token] += bias
        temperature = params.get("temperature", 1.0)
        if temperature == 0:
            return np.where(np.arange(SIZE) == np.argmax(row), 0.0, -np.inf)
        probs = np.exp((row - row.max()) / temperature)
        if "top_k" in params:
            probs[probs < np.sort(probs)[-params["top_k"]]] = 0.0
        probs /= probs.sum()
        probs[probs < params.get("min_p", 0.0) * probs.max()] = 0.0
        with np.errstate(divide="ignore"):
            return np.log(probs / probs.sum())
    return row - row.max() - math.log(np.exp(row - row.max()).sum())


def check_entry(entry: TokenLogprob, row: np.ndarray, token: int, num_top: int) -> None:
    assert entry.token == token
    assert entry.logprob == pytest.approx(row[token], abs=1e-9)
    assert entry.logprob <= 0.0
    assert entry.rank == 1 + int((row > row[token] + 1e-12).sum())
    ranked = [int(i) for i in np.argsort(-row, kind="stable")[:num_top] if row[i] > -np.inf]
    names = [name for name, _ in entry.top]
    assert names == (ranked if token in ranked or not num_top else [*ranked, token])
    assert [value for _, value in entry.top] == pytest.approx([row[name] for name in names], abs=1e-9)
    assert all(value <= 0.0 for _, value in entry.top)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", ["raw", "processed"])
def test_c18_every_drafter_reports_what_plain_decoding_reports(mode: str, kind: str) -> None:
    num_top = 0 if mode == "seeded" else 3
    params = {"max_tokens": 10, "logprobs": num_top, "logprobs_kind": kind, **MODES[mode]}
    result = check_r0(target, PROMPT, ks=(4,), **params)
    assert result.logprobs is not None
    assert len(result.logprobs) == len(result.tokens) == 10
    for i, (token, entry) in enumerate(zip(result.tokens, result.logprobs, strict=True)):
        check_entry(entry, expected_row((*PROMPT, *result.tokens[:i]), kind, params), token, num_top)


@pytest.mark.parametrize("drafter", ["self", "model", "lookup"])
@pytest.mark.parametrize("kind", ["raw", "processed"])
def test_c18_unseeded_texts_have_the_log_probabilities_of_their_own_rows(drafter: str, kind: str) -> None:
    """There is no plain text to compare with, so each entry is compared with its definition."""
    params = {"max_tokens": 40, "logprobs": 2, "logprobs_kind": kind, **FILTERS}
    llm = LLM(target(), None, DRAFTERS[drafter]({}, target), FixedLength(3))
    result = llm.generate(PROMPT, **params)
    assert len(result.logprobs or ()) == 40
    for i, (token, entry) in enumerate(zip(result.tokens, result.logprobs or (), strict=True)):
        check_entry(entry, expected_row((*PROMPT, *result.tokens[:i]), kind, params), token, 2)
    assert {"drafted", "recovered"} <= set(result.origins) or drafter != "model"


@pytest.mark.parametrize("kind", ["raw", "processed"])
@pytest.mark.parametrize("params", [{"temperature": 0}, {"seed": 2}])
def test_c18_rows_on_a_device_say_the_same(kind: str, params: dict[str, Any]) -> None:
    def make() -> ToyModel:
        table = np.random.default_rng(5).normal(0.0, 1.3, (SIZE, SIZE))
        return TorchRows(lambda tokens: np.asarray(table[tokens[-1]]), SIZE)

    params = {"max_tokens": 8, "logprobs": 2, "logprobs_kind": kind, **FILTERS, **params}
    result = check_r0(make, PROMPT, drafters=["oracle", "liar"], ks=(3,), **params)
    for i, (token, entry) in enumerate(zip(result.tokens, result.logprobs or (), strict=True)):
        assert entry.token == token
        assert type(entry.logprob) is float
        assert type(entry.rank) is int
        if kind == "raw":
            row = make().logits((*PROMPT, *result.tokens[:i]))
            assert entry.logprob == pytest.approx(row[token] - math.log(np.exp(row).sum()), abs=1e-5)


# -- asked for or not --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("k, drafter", [(0, None), (4, "oracle"), (4, "liar")])
def test_c18_never_none_when_asked_for_and_none_when_not(k: int, drafter: str | None) -> None:
    params = {"temperature": 0, "max_tokens": 10}
    known = written(target, None, PROMPT, {}, params)
    llm = LLM(target(), None, DRAFTERS[drafter](known, target) if drafter else None, FixedLength(k))
    for stop_ids in ([], [known[0][tuple(PROMPT)][4]], [known[0][tuple(PROMPT)][0]]):
        for num_top in (0, 1, SIZE, SIZE + 100):
            pieces = list(llm.stream(PROMPT, logprobs=num_top, stop_token_ids=stop_ids, **params))
            assert all(piece.logprob is not None for piece in pieces if piece.token is not None)
            for piece in pieces:
                assert piece.logprob is None or len(piece.logprob.top) == min(num_top, SIZE)
            result = llm.generate(PROMPT, logprobs=num_top, stop_token_ids=stop_ids, **params)
            assert result.logprobs == tuple(piece.logprob for piece in pieces if piece.token is not None)
    assert llm.generate(PROMPT, **params).logprobs is None
    assert llm.generate(PROMPT, logprobs=None, **params).logprobs is None
    assert llm.generate(PROMPT, logprobs=0, max_tokens=0).logprobs == ()


def test_c18_the_chosen_token_is_in_its_own_list() -> None:
    for params in ({"seed": 3, "temperature": 3.0}, {"temperature": 0, "logit_bias": {5: 50}}):
        result = check_r0(target, PROMPT, ks=(3,), drafters=["oracle", "self"], logprobs=1, max_tokens=20, **params)
        entries = result.logprobs or ()
        assert any(entry.rank > 1 for entry in entries)
        for entry in entries:
            assert entry.token in [token for token, _ in entry.top]
            assert dict(entry.top)[entry.token] == entry.logprob
            assert len(entry.top) == (1 if entry.rank == 1 else 2)


@pytest.mark.parametrize("kind", ["raw", "processed"])
def test_c18_the_document_holds_numbers_that_json_has(kind: str) -> None:
    """Minus infinity is no JSON: a token that the model calls impossible has -9999, as in the OpenAI API."""
    tokenizer = pieces_tokenizer(["a", "b", "c"])

    def make() -> ToyModel:
        return ToyModel(lambda tokens: np.array([0.0, -np.inf, -np.inf, -1.0]), 4)

    params = {"max_tokens": 6, "logprobs": 4, "logprobs_kind": kind, "logits_processors": [_only_b], "temperature": 0}
    result = check_r0(make, "a", tokenizer=tokenizer, drafters=["oracle", "liar"], ks=(3,), **params)
    document = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert len(document["logprobs"]) == 6
    for entry in document["logprobs"]:
        assert entry["token"] == 1
        assert entry["logprob"] == (-9999.0 if kind == "raw" else 0.0)
        assert {"token": 1, "logprob": entry["logprob"]} in entry["top"]


def _only_b(tokens: list[int], logits: Any) -> Any:
    return np.array([-np.inf, 0.0, -np.inf, -np.inf])


@pytest.mark.parametrize("name", ["logprobs", "prompt_logprobs", "logprobs_kind"])
def test_c18_what_cannot_be_reported_is_refused_by_name(name: str) -> None:
    bad = ["both", None, 1, ""] if name == "logprobs_kind" else [-1, 1.5, True, "3", float("nan")]
    llm = LLM(target())
    for value in bad:
        with pytest.raises(ParameterError, match=f"^{name}: "):
            llm.generate(PROMPT, max_tokens=3, **{name: value})
    with pytest.raises(ParameterError, match="did you mean logprobs"):
        llm.generate(PROMPT, max_tokens=3, top_logprobs=3)


# -- the prompt's ------------------------------------------------------------------------------------------------------


@given(
    prompt=st.lists(st.integers(0, SIZE - 1), min_size=1, max_size=150),
    budget=st.sampled_from([1, 3, 64, 512]),
    num_top=st.integers(0, 3),
    max_tokens=st.integers(0, 3),
    drafter=st.sampled_from(["self", "lookup", "liar"]),
)
@settings(max_examples=30)
def test_c18_prompt_logprobs_are_the_models_own_however_the_prompt_is_read(
    prompt: list[int], budget: int, num_top: int, max_tokens: int, drafter: str
) -> None:
    params = {"prompt_logprobs": num_top, "max_tokens": max_tokens, "seed": 4, **FILTERS}
    engine = {"scheduler": Scheduler(2, budget)}
    result = check_r0(target, prompt, drafters=[drafter], ks=[3], engine=engine, **params)
    found = result.prompt_logprobs
    assert found is not None
    assert len(found) == len(prompt)
    assert found[0] is None
    for i, entry in enumerate(found[1:], 1):
        assert entry is not None
        check_entry(entry, expected_row(tuple(prompt[:i]), "raw", {}), prompt[i], num_top)


def test_c18_requests_of_a_batch_do_not_see_each_others_log_probabilities() -> None:
    prompts = [PROMPT, [1] * 70, [3, 4]]
    params = {"seed": 6, "max_tokens": 9, "logprobs": 1, "prompt_logprobs": 1}
    alone = [LLM(target()).generate(prompt, **params) for prompt in prompts]
    llm = LLM(target(), None, ModelDrafter(target()), FixedLength(3), scheduler=Scheduler(3, 16))
    plain = llm.stream([9, 9], max_tokens=30, seed=1)
    together: list[Result] = llm.generate(prompts, **params)
    assert all(piece.logprob is None for piece in plain)
    for one, other in zip(alone, together, strict=True):
        assert (one.tokens, one.logprobs, one.prompt_logprobs) == (other.tokens, other.logprobs, other.prompt_logprobs)


# -- faults that must be seen ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("drafter", [None, "oracle", "liar", "self"])
@pytest.mark.parametrize("asked, given", [("raw", "processed"), ("processed", "raw")])
def test_c18_one_kind_reported_as_the_other_would_be_seen(
    drafter: str | None, asked: str, given: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    params = {"max_tokens": 10, "logprobs": 3, "logprobs_kind": asked, **MODES["seeded, filtered"]}
    used = DRAFTERS[drafter](written(target, None, PROMPT, {}, params), target) if drafter else None
    llm = LLM(target(), None, used, FixedLength(4))
    sound, real = llm.generate(PROMPT, **params), commit_module.token_logprob
    monkeypatch.setattr(
        commit_module, "token_logprob", lambda row, token, num_top, kind: real(row, token, num_top, given)
    )
    result = llm.generate(PROMPT, **params)
    assert result.tokens == sound.tokens
    assert result.logprobs != sound.logprobs
    assert len(result.logprobs or ()) == 10


@pytest.mark.parametrize("fault", ["accepted are certain", "only the first is right"])
def test_c18_log_probabilities_lost_in_verification_would_be_seen(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """vllm#17876 (0.0 for accepted tokens) and llama.cpp PR#27196 (every entry from the round's first row)."""
    real = commit_module.token_logprob
    firsts: dict[int, Any] = {}

    def broken(row: Any, token: int, *settings: Any) -> TokenLogprob:
        if fault == "accepted are certain":
            return TokenLogprob(token, 0.0, 1, ((token, 0.0),))
        first = firsts.setdefault(id(row._rows), row)
        return real(first, token, *settings)

    params = {"max_tokens": 10, "logprobs": 1, "temperature": 0}
    llm = LLM(target(), None, DRAFTERS["oracle"](written(target, None, PROMPT, {}, params), target), FixedLength(4))
    sound = llm.generate(PROMPT, **params).logprobs
    monkeypatch.setattr(commit_module, "token_logprob", broken)
    assert llm.generate(PROMPT, **params).logprobs != sound
