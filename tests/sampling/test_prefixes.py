"""A draft prefix is text: the row after committed tokens and a prefix is the row after the same tokens, all committed.

Every parameter, alone and together, numpy rows and torch rows, rows as wide as the vocabulary, padded beyond it and cut
short of it (a draft with a smaller head). The speculative side has rounds of any length, looks at rows behind tokens
that are then rejected, and asks for prefixes in any order; the plain side commits one token a round. Both do the same
arithmetic, so they are equal bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.sampling.tools import (
    INF,
    LIBRARIES,
    SIZE,
    Parity,
    Remembering,
    Walk,
    adjusted,
    by_length,
    random_rows,
    rows_of,
    texts,
)

from forerun.constraints import TokenSetConstraint
from forerun.errors import NoLegalTokenError
from forerun.sampling import StatefulProcessor

PARAMETERS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "repetition_penalty": {"repetition_penalty": 1.7},
    "frequency_penalty": {"frequency_penalty": 0.9},
    "presence_penalty": {"presence_penalty": -1.3},
    "logit_bias": {"logit_bias": {0: 2.0, 3: -100.0, SIZE - 1: 1.5}},
    "bad_words": {"bad_words": [(1,), (2, 3), (2, 2, 4), (5, 2, 2, 6), (0, 0, 0)]},
    "min_tokens": {"min_tokens": 4, "stop_ids": [2, 6]},
    "stateless": {"logits_processors": [by_length]},
    "stateful": {"logits_processors": [StatefulProcessor(Remembering)]},
    "mixed": {"logits_processors": [by_length, StatefulProcessor(Remembering), by_length]},
    "allowed": {"constraints": [lambda: TokenSetConstraint([0, 2, 3, 4, 7], SIZE)]},
    "constraint": {"constraints": [Parity]},
    "two constraints": {"constraints": [Parity, lambda: TokenSetConstraint([0, 2, 3, 4, 5, 7], SIZE)]},
    "filters": {"temperature": 0.8, "top_k": 5, "top_p": 0.9, "min_p": 0.02},
    "greedy": {"temperature": 0.0},
}
WIDTHS = {"as wide": SIZE, "padded": SIZE + 3, "narrow": SIZE - 3}


def combined(names: Sequence[str]) -> dict[str, Any]:
    """The parameters of several entries; processors and constraints are chained."""
    found: dict[str, Any] = {}
    for name in names:
        for key, value in PARAMETERS[name].items():
            found[key] = (
                [*found[key], *value] if key in ("logits_processors", "constraints") and key in found else value
            )
    return found


def walk(prompt: Sequence[int], params: dict[str, Any]) -> Walk:
    settings = {key: value for key, value in params.items() if key != "constraints"}
    return Walk(prompt, SIZE, [make() for make in params.get("constraints", ())], **settings)


def legal_text(params: dict[str, Any], tokens: Sequence[int]) -> list[int]:
    """`tokens` without those that a constraint does not take."""
    constraints = [make() for make in params.get("constraints", ())]
    kept = []
    for token in tokens:
        if all(constraint.mask()[token] for constraint in constraints):
            kept.append(token)
            for constraint in constraints:
                constraint.advance(token)
    return kept


def is_dead(row: Any) -> bool:
    try:
        row.argmax  # noqa: B018 - looking is what raises
    except NoLegalTokenError:
        return True
    return False


def check(
    matrix: Any, prompt: list[int], output: list[int], prefix: list[int], cuts: Sequence[int], junk: Sequence[int],
    params: dict[str, Any],
) -> None:  # fmt: skip
    """Row `len(output) + len(prefix)`: in a round with a draft, and after committing everything one by one."""
    plain = walk(prompt, params)
    text = [*output, *prefix]
    for i, token in enumerate(text):
        if is_dead(plain.round(matrix[i : i + 1], (), "size")[0]):
            return  # a text that cannot come about
        plain.tokens.append(token)
    wanted = plain.round(matrix[len(text) : len(text) + 1], (), "size")[0]

    fast, start = walk(prompt, params), 0
    for end in [*sorted({cut % (len(output) + 1) for cut in cuts} - {0}), len(output)]:
        # A round that commits output[start:end]: its draft is right that far, and then goes on with junk.
        committed = output[start:end]
        if committed:
            draft = legal_text(params, [*output[:end], *junk])[start:]
            for i, row in enumerate(fast.round(matrix[start:end], draft[: len(committed)], "size")):
                assert is_dead(row) is False
                assert i < len(committed)
            if len(draft) > len(committed):  # rows behind what is then rejected
                rejected = fast.round(matrix[start : start + len(draft) + 1], draft, "size")
                for row in [*reversed(rejected), *rejected]:
                    is_dead(row)
            fast.tokens.extend(committed)
            start = end
    last = fast.round(matrix[start:], prefix, "size")
    got = last[len(prefix)]
    if is_dead(wanted):
        assert is_dead(got)
        return
    np.testing.assert_array_equal(adjusted(got), adjusted(wanted))
    np.testing.assert_array_equal(np.asarray(got.probs), np.asarray(wanted.probs))
    assert got.argmax == wanted.argmax
    assert np.asarray(got.probs).shape == (SIZE,)


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("name", PARAMETERS)
@settings(max_examples=20)
@given(data=st.data())
def test_each_parameter_takes_the_prefix_for_text(name: str, library: str, data: Any) -> None:
    run_case([name], library, data)


@pytest.mark.parametrize("library", LIBRARIES)
@settings(max_examples=80)
@given(data=st.data())
def test_all_combinations_take_the_prefix_for_text(library: str, data: Any) -> None:
    run_case(data.draw(st.lists(st.sampled_from(list(PARAMETERS)), min_size=2, max_size=6, unique=True)), library, data)


def run_case(names: Sequence[str], library: str, data: Any) -> None:
    params = combined(names)
    width = data.draw(st.sampled_from(list(WIDTHS.values())))
    prompt = data.draw(texts(SIZE, 1, 4))
    text = legal_text(params, data.draw(texts(SIZE, 0, 9)))
    num_output = data.draw(st.integers(0, len(text)))
    junk, cuts = data.draw(texts(SIZE, 0, 3)), data.draw(st.lists(st.integers(0, 9), max_size=3))
    seed = data.draw(st.integers(0, 2**20))
    matrix = LIBRARIES[library](random_rows(len(text) + len(junk) + 2, width, seed=seed))
    check(matrix, prompt, text[:num_output], text[num_output:], cuts, junk, params)


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("num_before", range(4))
def test_bad_words_cross_the_border_between_text_and_prefix(num_before: int, library: str) -> None:
    """The word 1 2 3 4, with its first tokens committed and the rest drafted, at every border."""
    matrix = LIBRARIES[library](np.zeros((4, SIZE), dtype=np.float32))
    made = Walk([0, *(1, 2, 3)[:num_before]], bad_words=[(1, 2, 3, 4), (2, 5)])
    draft = (1, 2, 3)[num_before:]
    for i, row in enumerate(made.round(matrix, draft)):
        num_done = num_before + i
        banned = {5} if num_done == 2 else {4} if num_done == 3 else set()
        assert set(np.flatnonzero(np.isneginf(adjusted(row))).tolist()) == banned


def test_a_rejected_prefix_leaves_no_trace() -> None:
    """Rows behind one draft are looked at, then rows behind another of the same round (drafter and verifier)."""
    params = combined([name for name in PARAMETERS if name not in ("allowed", "two constraints", "filters", "greedy")])
    matrix = random_rows(4, SIZE, seed=5)
    made = walk([1, 4], params)
    first, second = legal_text(params, [2, 2, 3, 6, 5])[:3], legal_text(params, [5, 6, 0, 3])[:3]
    made.round(matrix, first, source="draft")
    made.round(matrix, first)
    got = [np.asarray(row.probs) for row in made.round(matrix, second)]
    fresh = [np.asarray(row.probs) for row in walk([1, 4], params).round(matrix, second)]
    np.testing.assert_array_equal(got, fresh)


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("name", PARAMETERS)
def test_a_narrow_row_is_the_wide_row_with_nothing_beyond_its_head(name: str, library: str) -> None:
    """A draft's smaller head is a row whose other logits are minus infinity, whatever parameter names those ids."""
    params = combined([name])
    for seed in range(5):
        narrow = np.random.default_rng(seed).normal(size=(2, SIZE - 3)).astype(np.float32)
        wide = np.concatenate([narrow, np.full((2, 3), -INF, dtype=np.float32)], axis=1)
        prompt, prefix = [7, 6, 2, 7], legal_text(params, [0, 2, 4])[:1]
        got, wanted = (walk(prompt, params).round(LIBRARIES[library](m), prefix) for m in (narrow, wide))
        for one, other in zip(got, wanted, strict=True):
            # Up to the order in which a sum of more terms is taken.
            np.testing.assert_allclose(np.asarray(one.probs), np.asarray(other.probs), rtol=1e-14)


@pytest.mark.parametrize("library", LIBRARIES)
def test_what_is_legal_is_legal_to_every_constraint_after_the_prefix(library: str) -> None:
    allowed, prefix = {0, 2, 3, 4, 5, 7}, [2, 4, 3]
    made = walk([1], PARAMETERS["two constraints"])
    follower = Parity()
    for i, row in enumerate(made.round(LIBRARIES[library](np.zeros((4, SIZE))), prefix)):
        legal = allowed & set(np.flatnonzero(follower.mask()).tolist())
        assert set(np.flatnonzero(np.asarray(row.probs)).tolist()) == legal
        assert i == len(prefix) or follower.advance(prefix[i])


@pytest.mark.parametrize("name", PARAMETERS)
def test_numpy_and_torch_rows_agree(name: str) -> None:
    params = combined([name])
    matrix = random_rows(4, SIZE, seed=11)
    prefix = legal_text(params, [2, 3, 7, 0, 4])[:3]
    made = [walk([1, 2, 5], params).round(convert(matrix), prefix) for convert in LIBRARIES.values()]
    for one, other in zip(*made, strict=True):
        np.testing.assert_allclose(adjusted(one), adjusted(other), rtol=2e-7)
        np.testing.assert_allclose(np.asarray(one.probs), np.asarray(other.probs), rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("library", LIBRARIES)
def test_the_pass_itself_is_never_written_to(library: str) -> None:
    matrix = LIBRARIES[library](random_rows(4, SIZE, seed=2))
    before = np.asarray(matrix).copy()
    params = combined([name for name in PARAMETERS if name != "greedy"])
    prefix = legal_text(params, [2, 3, 7, 0, 4])[:3]
    made = walk([1, 2, 5], params)
    made.round(matrix, prefix, source="draft")
    made.round(matrix, prefix)
    np.testing.assert_array_equal(np.asarray(matrix), before)


def test_prefixes_may_be_asked_for_in_any_order_once_their_rows_are_known() -> None:
    params = combined([name for name in PARAMETERS if name not in ("greedy", "filters")])
    matrix, prefix = random_rows(4, SIZE, seed=8), legal_text(params, [2, 3, 7, 0, 4])[:3]
    wanted = [np.asarray(row.probs) for row in walk([1, 2, 5], params).round(matrix, prefix)]
    made = walk([1, 2, 5], params)
    made.processing.begin_round()
    rows_ = rows_of(matrix)
    found = [made.processing.distribution(rows_, i, tuple(prefix[:i])) for i in range(4)]
    for i in (3, 0, 2, 1):
        np.testing.assert_array_equal(np.asarray(found[i].probs), wanted[i])
