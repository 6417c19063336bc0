"""Log probabilities: raw ones against scipy's float64 log softmax, processed ones against the processed probabilities.

Figures, ranks and lists of alternatives, over float32 rows of all kinds, numpy and torch, and through the engine for
every way a token can be committed (cases.md C18).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import log_softmax
from tests.helpers import complete, run
from tests.sampling.tools import INF, LIBRARIES, SIZE, Parity, Walk, random_rows, rows

from forerun.control import FixedLength
from forerun.drafting import LookupDrafter, ModelDrafter
from forerun.drafting.scripted import HalfDrafter, LiarDrafter, OracleDrafter
from forerun.engine import Engine
from forerun.errors import NumericalError
from forerun.runtime.toy import ToyModel
from forerun.sampling import SamplingParams, raw_logprob, token_logprob
from forerun.types import TokenLogprob
from forerun.verification import RULES

NUM_TOP = [0, 1, 5, SIZE, SIZE + 5, 10**6]


def expected(values: list[float], token: int, num_top: int) -> TokenLogprob:
    """From the log probabilities of a row, by the definition."""
    order = sorted(range(len(values)), key=lambda i: (-values[i], i))
    top = [(i, values[i]) for i in order[:num_top] if values[i] > -INF]
    if num_top and token not in [i for i, _ in top]:
        top.append((token, values[token]))
    return TokenLogprob(token, values[token], 1 + order.index(token), tuple(top))


def assert_same(got: TokenLogprob, wanted: TokenLogprob, tolerance: float) -> None:
    assert (got.token, got.rank) == (wanted.token, wanted.rank)
    assert [token for token, _ in got.top] == [token for token, _ in wanted.top]
    numbers = [(entry.logprob, *(value for _, value in entry.top)) for entry in (got, wanted)]
    np.testing.assert_allclose(*numbers, rtol=0, atol=tolerance)
    assert all(type(value) is float and value <= 0.0 for value in numbers[0])
    assert all(type(number) is int for number in (got.token, got.rank, *(token for token, _ in got.top)))


def by_logits(row: np.ndarray, token: int, num_top: int) -> TokenLogprob:
    """Figures from scipy; the order from the logits, which float64's softmax may round together."""
    values = log_softmax(row.astype(np.float64)).tolist()
    ranks = expected(row.astype(np.float64).tolist(), token, num_top)
    return TokenLogprob(token, values[token], ranks.rank, tuple((i, values[i]) for i, _ in ranks.top))


@pytest.mark.parametrize("library", LIBRARIES)
@settings(max_examples=150)
@given(
    row=rows(SIZE),
    token=st.integers(0, SIZE - 1),
    num_top=st.sampled_from(NUM_TOP),
    scale=st.sampled_from([1, 30, 1e4]),
)
def test_raw_log_probabilities_are_the_log_softmax(
    library: str, row: np.ndarray, token: int, num_top: int, scale: float
) -> None:
    """Ties, both zeros, impossible tokens (chosen ones too: prompts may hold them), logits of any size."""
    row = row[0] * np.float32(scale)
    got = raw_logprob(LIBRARIES[library](row), token, num_top)
    assert_same(got, by_logits(row, token, num_top), 1e-5 * max(1, scale / 30))


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("size", [1, 2, 300, 5_000])
def test_rows_of_several_sizes(size: int, library: str) -> None:
    rng = np.random.default_rng(size)
    for row in random_rows(3, size, seed=size) if size > 1 else np.float32([[3.5]]):
        for token in {0, size - 1, int(rng.integers(size)), int(row.argmax())}:
            for num_top in (0, 1, 5):
                got = raw_logprob(LIBRARIES[library](row), token, num_top)
                assert_same(got, by_logits(row, token, num_top), 1e-5)


@pytest.mark.parametrize("library", LIBRARIES)
def test_ties_are_ranked_and_listed_by_the_lower_id(library: str) -> None:
    row = LIBRARIES[library](np.float32([1.0, 2.0, 1.0, 2.0, 1.0]))
    assert [raw_logprob(row, token, 0).rank for token in range(5)] == [3, 1, 4, 2, 5]
    assert [token for token, _ in raw_logprob(row, 4, 3).top] == [1, 3, 0, 4]
    assert [token for token, _ in raw_logprob(row, 2, 4).top] == [1, 3, 0, 2]


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("num_top", [1, 2, 4])
def test_an_impossible_token_is_listed_if_it_was_the_one(num_top: int, library: str) -> None:
    row = LIBRARIES[library](np.float32([-INF, 0.0, -INF, -INF]))
    for token in (0, 2, 3):
        got = raw_logprob(row, token, num_top)
        assert got.logprob == -INF
        assert got.top == ((1, 0.0), (token, -INF))
        assert got.rank == {0: 2, 2: 3, 3: 4}[token]
    assert raw_logprob(row, 1, num_top).top == ((1, 0.0),)


def test_no_list_where_none_was_asked_for() -> None:
    assert raw_logprob(np.float32([0.0, 1.0]), 0, 0).top == ()


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_certain_token_has_zero_and_never_more(library: str) -> None:
    for row in ([0.0, -1e4], [80.0, -80.0], [1e-8, -200.0], [88.7, 0.0]):
        got = raw_logprob(LIBRARIES[library](np.float32(row)), 0, 2)
        assert (got.logprob, got.top[0]) == (0.0, (0, 0.0))


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("row", [[math.nan, 0.0], [0.0, math.inf], [-INF, -INF]])
def test_rows_without_a_finite_best_are_refused(row: list[float], library: str) -> None:
    with pytest.raises(NumericalError, match="largest value"):
        raw_logprob(LIBRARIES[library](np.float32(row)), 0, 1)


# -- raw and processed -------------------------------------------------------------------------------------------------

PARAMS: list[dict[str, Any]] = [
    {}, {"temperature": 0.0}, {"temperature": 2.5}, {"top_k": 3}, {"top_p": 0.4}, {"min_p": 0.3}, {"bad_words": [(1,)]},
    {"repetition_penalty": 2.0, "logit_bias": {0: 5.0, 2: -100.0}}, {"temperature": 0.5, "top_k": 4, "top_p": 0.8},
]  # fmt: skip


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("params", PARAMS, ids=str)
def test_processed_is_the_log_of_what_is_drawn_from_and_raw_ignores_every_parameter(
    params: dict[str, Any], library: str
) -> None:
    for matrix in random_rows(8, SIZE, seed=6).reshape(8, 1, SIZE):
        row = Walk([0, 3], **params).round(LIBRARIES[library](matrix), ())[0]
        with np.errstate(divide="ignore"):
            values = np.log(np.asarray(row.probs)).tolist()
        for token in range(SIZE):
            for num_top in (0, 2, SIZE + 1):
                assert_same(token_logprob(row, token, num_top, "raw"), by_logits(matrix[0], token, num_top), 1e-5)
                got = token_logprob(row, token, num_top, "processed")
                assert_same(got, expected(values, token, num_top), 1e-12)


def test_padding_beyond_the_real_vocabulary_has_no_probability() -> None:
    matrix = np.float32([[0.0, 1.0, 9.0, 9.0]])
    row = Walk([0], size=2).round(matrix, ())[0]
    for kind in ("raw", "processed"):
        found = dict(token_logprob(row, 1, 9, kind).top)
        assert list(found) == [1, 0]
        assert found == pytest.approx({1: -0.31326169, 0: -1.31326169})


# -- through the engine ------------------------------------------------------------------------------------------------

TARGET, PROMPT, NUM = ToyModel.random(SIZE, order=2, seed=14, spread=1.5), (1, 2, 1, 2), 25
DRAFTERS: dict[str, Any] = {
    "none": lambda truth: None,
    "lookup": lambda truth: LookupDrafter(3, 1),
    "model": lambda truth: ModelDrafter(ToyModel.random(SIZE, order=1, seed=5)),
    "self": lambda truth: ModelDrafter(ToyModel.random(SIZE, order=2, seed=14, spread=1.5)),
    "oracle": OracleDrafter,
    "liar": LiarDrafter,
    "half": HalfDrafter,
}
ASKED: list[dict[str, Any]] = [
    {}, {"repetition_penalty": 1.4, "logit_bias": {3: 2.0}, "top_k": 5},
    {"temperature": 0.6, "top_p": 0.7, "bad_words": [(2, 1)]},
]  # fmt: skip


def engine_logprobs(name: str, k: int, truth: Any, rule: str, **params: Any) -> tuple[list[int], list[TokenLogprob]]:
    engine = Engine(TARGET, DRAFTERS[name]({PROMPT: truth}), FixedLength(k), rules=RULES[rule])
    made = engine.add(PROMPT, SamplingParams(max_tokens=NUM, **params), constraints=[Parity()])
    deltas = run(engine)[made.sequence_id]
    assert all(delta.logprobs is None or len(delta.logprobs) == len(delta.tokens) for delta in deltas)
    return made.tokens, [entry for delta in deltas for entry in delta.logprobs or ()]


@pytest.mark.parametrize("kind", ["raw", "processed"])
@pytest.mark.parametrize("mode", [{"temperature": 0.0}, {"seed": 9}, {}], ids=["greedy", "seeded", "free"])
@pytest.mark.parametrize("name", DRAFTERS)
def test_every_committed_token_has_its_own_rows_figures(name: str, mode: dict[str, Any], kind: Any) -> None:
    """Drafted, recovered, bonus and decoded tokens alike: raw figures are the model's, processed ones those of a plain
    round at the same place."""
    for asked in ASKED:
        params = {**asked, **mode}
        truth = complete(TARGET, PROMPT, max_tokens=NUM, **params)[1]
        for k, rule in ((3, "block"), (8, "chain")):
            tokens, entries = engine_logprobs(name, k, truth, rule, logprobs=3, logprobs_kind=kind, **params)
            assert [entry.token for entry in entries] == tokens[len(PROMPT) :]
            walk = Walk(PROMPT, constraints=[Parity()], **params)
            for entry in entries:
                row = TARGET.logits(walk.tokens)
                if kind == "raw":
                    wanted = by_logits(row, entry.token, 3)
                else:
                    probs = np.asarray(walk.round(row[None, :], ())[0].probs)
                    assert probs[entry.token] > 0.0
                    wanted = expected([math.log(p) if p > 0 else -INF for p in probs.tolist()], entry.token, 3)
                assert_same(entry, wanted, 1e-9)
                walk.tokens.append(entry.token)


def test_figures_are_there_only_for_those_who_asked() -> None:
    engine = Engine(TARGET, LookupDrafter(3, 1), FixedLength(3))
    asked: list[int | None] = [None, 0, None, 2]
    made = [engine.add(PROMPT, SamplingParams(max_tokens=NUM, temperature=0.0, logprobs=num)) for num in asked]
    deltas = run(engine)
    for sequence, num in zip(made, asked, strict=True):
        for delta in deltas[sequence.sequence_id]:
            if num is None:
                assert delta.logprobs is None
            else:
                assert delta.logprobs is not None
                assert {len(entry.top) - (entry.rank > num) for entry in delta.logprobs} == {num} or num == 0
                assert num or all(entry.top == () for entry in delta.logprobs)


@pytest.mark.parametrize("include", [True, False])
def test_a_stop_token_that_is_not_delivered_has_no_figure(include: bool) -> None:
    truth = complete(TARGET, PROMPT, max_tokens=NUM, temperature=0.0)[1]
    stop = truth[4]
    first = truth.index(stop)
    params = SamplingParams(
        max_tokens=NUM, temperature=0.0, logprobs=1, stop_token_ids=[stop], include_stop_token=include
    )
    engine = Engine(TARGET, OracleDrafter({PROMPT: truth}), FixedLength(8))
    made = engine.add(PROMPT, params)
    deltas = run(engine)[made.sequence_id]
    assert [entry.token for delta in deltas for entry in delta.logprobs or ()] == truth[: first + include]
