"""Row by row, the sampling steps against transformers' own processors, in float32.

Before the temperature the logits are equal bit for bit (but for the sign of zero: adding a bias of 0 to every token
turns -0.0 into 0.0). From the temperature on, transformers works in the row's precision and this package in float64, so
probabilities are compared: to 1e-12 with transformers' warpers fed float64, to 1e-6 in float32.

What is not compared, and why: a row where two logits that differ become one number when divided by the temperature
(top-k keeps ties, and transformers looks for them after the division); and a row in which a cumulative mass or a
probability lies within rounding of top_p or min_p. Where tokens of one probability straddle top_p, transformers' choice
among them depends on its sort, so the probabilities are compared as a sorted list.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.sampling.tools import INF, LIBRARIES, SIZE, Walk, adjusted, random_rows, rows, texts
from transformers.generation import logits_process as theirs

from forerun.constraints import TokenSetConstraint

FILTERS = ("temperature", "top_k", "top_p", "min_p")


def adjust_by_transformers(
    row: np.ndarray, tokens: Sequence[int], prompt_length: int, stop_ids: Sequence[int] = (), **params: Any
) -> torch.Tensor:
    """[1, vocab] through transformers' processors, in this package's order."""
    chain: list[Any] = []
    if params.get("repetition_penalty"):
        chain.append(theirs.RepetitionPenaltyLogitsProcessor(params["repetition_penalty"]))
    if params.get("logit_bias"):
        bias = {(token,): float(value) for token, value in params["logit_bias"].items()}
        chain.append(theirs.SequenceBiasLogitsProcessor(bias))
    if params.get("bad_words"):
        chain.append(theirs.NoBadWordsLogitsProcessor([list(word) for word in params["bad_words"]]))
    if params.get("min_tokens") and stop_ids:
        chain.append(theirs.MinNewTokensLengthLogitsProcessor(prompt_length, params["min_tokens"], list(stop_ids)))
    if params.get("allowed_token_ids"):
        chain.append(theirs.SuppressTokensLogitsProcessor(set(range(len(row))) - set(params["allowed_token_ids"])))
    scores = torch.from_numpy(row.copy())[None, :]
    for processor in chain:
        scores = processor(torch.tensor([list(tokens)]), scores)
    return scores


def filter_by_transformers(scores: torch.Tensor, **params: Any) -> np.ndarray:
    """[vocab] probabilities, in the precision of `scores`."""
    chain: list[Any] = [theirs.TemperatureLogitsWarper(params.get("temperature", 1.0))]
    chain += [theirs.TopKLogitsWarper(params["top_k"])] if params.get("top_k") else []
    chain += [theirs.TopPLogitsWarper(params["top_p"])] if params.get("top_p", 1.0) < 1.0 else []
    chain += [theirs.MinPLogitsWarper(params["min_p"])] if params.get("min_p") else []
    for warper in chain:
        scores = warper(torch.zeros((1, 1), dtype=torch.long), scores)
    return np.asarray(torch.softmax(scores, dim=-1)[0])


def by_us(row: Any, tokens: Sequence[int], prompt_length: int, size: int, **params: Any) -> Any:
    """The distribution of `row`, which follows all of `tokens`."""
    allowed = params.get("allowed_token_ids")
    constraints = [TokenSetConstraint(allowed, size)] if allowed else []
    walk = Walk(tokens[:prompt_length], size, constraints, **params)
    walk.tokens.extend(tokens[prompt_length:])
    return walk.round(row[None, :], (), "argmax")[0]


def is_comparable(scores: np.ndarray, margin: float, **params: Any) -> bool:
    """Whether no decision of the filters hangs on rounding. `scores` [vocab] float64, before the temperature."""
    logits = scores[scores > -INF]
    scaled = np.unique(logits.astype(np.float32)) / np.float32(params.get("temperature", 1.0))
    if len(np.unique(scaled)) < len(np.unique(logits)):
        return False
    probs = filter_by_transformers(torch.from_numpy(scores)[None, :], **{**params, "top_p": 1.0, "min_p": 0.0})
    if params.get("top_p", 1.0) < 1.0:
        sums = np.cumsum(np.sort(probs)[::-1])
        if np.abs(sums - params["top_p"]).min() < margin:
            return False
        num_kept = 1 + int((sums[:-1] < params["top_p"]).sum())
        probs = np.sort(probs)[::-1][:num_kept]
    if params.get("min_p"):
        share = probs[probs > 0] / probs.max()
        if np.abs(share[share < 1.0] - params["min_p"]).min(initial=1.0) < margin:
            return False
    return True


def check(row: np.ndarray, library: str, tokens: Sequence[int], prompt_length: int, **params: Any) -> None:
    """One row against transformers: adjusted logits, then probabilities where they are well defined."""
    expected = adjust_by_transformers(row, tokens, prompt_length, **params)
    assume(float(expected.max()) > -INF)
    made = by_us(LIBRARIES[library](row.copy()), tokens, prompt_length, len(row), **params)
    got = adjusted(made)
    assert got.dtype == np.float32
    np.testing.assert_array_equal(got, expected[0].numpy())
    chosen = {name: params[name] for name in FILTERS if name in params}
    exact = expected.to(torch.float64)
    for scores, margin, tolerance in ((exact, 1e-9, 1e-12), (expected, 1e-5, 1e-6)):
        if is_comparable(exact[0].numpy(), margin, **chosen):
            wanted, probs = filter_by_transformers(scores, **chosen), np.asarray(made.probs)
            np.testing.assert_allclose(np.sort(probs), np.sort(wanted), rtol=0, atol=tolerance)
            weights = np.exp(got[got > -INF].astype(np.float64) - float(got.max()))
            if len(np.unique(weights)) == len(weights):  # without ties, token by token
                np.testing.assert_allclose(probs, wanted, rtol=0, atol=tolerance)


WORDS: list[tuple[int, ...]] = [
    (0,), (3,), (1, 2), (2, 1), (1, 1), (1, 2, 3), (2, 3), (1, 2, 3, 4), (0,) * 11, (5, 5, 5), (1, 2, 5),
]  # fmt: skip
PARAMETERS: dict[str, st.SearchStrategy[Any]] = {
    "repetition_penalty": st.sampled_from([0.5, 1.05, 1.3, 3.0]) | st.floats(0.1, 4.0),
    "logit_bias": st.dictionaries(st.integers(0, SIZE - 1), st.floats(-100, 100), min_size=1, max_size=4),
    "bad_words": st.lists(st.sampled_from(WORDS), min_size=1, max_size=4),
    "min_tokens": st.integers(1, 7),
    "allowed_token_ids": st.sets(st.integers(0, SIZE - 1), min_size=2).map(sorted),
    "temperature": st.sampled_from([0.7, 1.0, 1.5, 4.0]),
    "top_k": st.integers(1, SIZE + 1),
    "top_p": st.floats(0.05, 0.99),
    "min_p": st.floats(0.01, 1.0),
}


@st.composite
def cases(draw: Any, names: Sequence[str]) -> dict[str, Any]:
    prompt, output = draw(texts(SIZE, 1)), draw(texts(SIZE))
    params = {name: draw(PARAMETERS[name]) for name in names}
    if "min_tokens" in params:
        params["stop_ids"] = draw(st.sets(st.integers(0, SIZE - 1), min_size=1, max_size=3).map(sorted))
    return {"tokens": [*prompt, *output], "prompt_length": len(prompt), **params}


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("name", PARAMETERS)
@settings(max_examples=40)
@given(data=st.data(), row=rows(SIZE))
def test_each_parameter_equals_its_processor(name: str, library: str, data: Any, row: np.ndarray) -> None:
    check(row[0], library, **data.draw(cases([name])))


@pytest.mark.parametrize("library", LIBRARIES)
@settings(max_examples=150)
@given(data=st.data(), row=rows(SIZE))
def test_any_combination_equals_the_chain(library: str, data: Any, row: np.ndarray) -> None:
    names = data.draw(st.lists(st.sampled_from(list(PARAMETERS)), min_size=2, unique=True))
    check(row[0], library, **data.draw(cases(names)))


EVERYTHING = {
    "repetition_penalty": 1.2, "logit_bias": {1: 3.5, 2: -100.0, 7: 0.1}, "bad_words": [(0,), (1, 2, 4), (4, 5)],
    "min_tokens": 4, "stop_ids": [3, 9], "allowed_token_ids": [*range(1, 9)], "temperature": 0.7, "top_k": 6,
    "top_p": 0.93, "min_p": 0.02,
}  # fmt: skip


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("size", [10, 100, 3000])
def test_rows_of_several_sizes_equal_the_chain(size: int, library: str) -> None:
    rng = np.random.default_rng(size)
    params = {**EVERYTHING, "allowed_token_ids": [*range(1, size, 2), 2, 4], "top_k": size // 2}
    for row in random_rows(12, size, seed=size):
        tokens = [*rng.integers(0, size, 30).tolist(), 1, 2]
        check(row, library, tokens, 30, **params)
        check(row, library, tokens, 30, **{**params, "allowed_token_ids": None})
        # So flat that a nucleus is most of the row.
        check(row * np.float32(0.02), library, tokens, 30, top_p=0.93, min_p=0.02, repetition_penalty=1.2)


@pytest.mark.parametrize("context", [[1, 2], [2, 1, 2], [1, 1, 2], [2], [1, 2, 1]], ids=str)
def test_bad_words_follow_their_context_and_no_other(context: list[int]) -> None:
    """Overlapping words, a word longer than the text, one that is its own beginning."""
    words = [(1, 2, 3), (2, 4), (1, 1, 1), (5,), (9, 9, 9, 9, 9, 9, 9), (1, 2, 1, 2, 6)]
    row = np.zeros(10, dtype=np.float32)
    got = adjusted(by_us(row, context, 1, 10, bad_words=words))
    banned = {5} | ({3, 4} if context[-2:] == [1, 2] else {4} if context[-1] == 2 else set())
    assert set(np.flatnonzero(np.isneginf(got)).tolist()) == banned
    check(row, "numpy", context, 1, bad_words=words)


def test_a_bad_word_that_is_an_end_of_text_id_is_banned() -> None:
    """transformers leaves such a word out if it is told the end-of-text id; here what was asked for is done."""
    got = adjusted(by_us(np.zeros(4, dtype=np.float32), [0], 1, 4, bad_words=[(3,)], stop_ids=[3]))
    assert np.isneginf(got).tolist() == [False, False, False, True]


@pytest.mark.parametrize(("num_output", "is_banned"), [(0, True), (2, True), (3, False), (4, False)])
@pytest.mark.parametrize("prompt_length", [1, 5])
def test_min_tokens_counts_output_alone(prompt_length: int, num_output: int, is_banned: bool) -> None:
    tokens = [0] * (prompt_length + num_output)
    got = adjusted(by_us(np.zeros(4, dtype=np.float32), tokens, prompt_length, 4, min_tokens=3, stop_ids=[1, 99]))
    assert np.isneginf(got).tolist() == [False, is_banned, False, False]
