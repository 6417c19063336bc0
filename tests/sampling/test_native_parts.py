"""The native row processor's smaller parts, and what a `Distribution` does with it: edits, ranks, log probabilities,
rounds of a request in both kinds, NaN, laziness."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.sampling.native_tools import ARRAYS, NATIVE, both, logits
from tests.sampling.row_digest import shapes
from tests.sampling.tools import INF, Walk, random_rows, rows_of

from forerun import _native
from forerun.arrays import log_total, rank_and_top
from forerun.errors import NoLegalTokenError, NumericalError
from forerun.randomness import Purpose, make_noise
from forerun.sampling import Distribution, Processing, SamplingParams, kinds, raw_logprob, token_logprob
from forerun.sampling.kinds import KINDS, Kind
from forerun.sampling.mass import Mass
from forerun.types import Draft
from forerun.verification import RULES, verify

# -- edits, ranks, log probabilities -----------------------------------------------------------------------------------


@settings(max_examples=200)
@given(logits(), st.lists(st.integers(0, 90), max_size=12, unique=True), st.floats(0.01, 100.0), st.data())
def test_edits_are_those_of_numpy_bit_by_bit(row: np.ndarray, ids: list[int], penalty: float, data: Any) -> None:
    """Ids beyond the row are passed over."""
    chosen = np.array(ids, dtype=np.int64)
    amounts = np.array(data.draw(st.lists(st.floats(-200, 200), min_size=len(ids), max_size=len(ids))))
    mask = np.array(data.draw(st.lists(st.booleans(), min_size=250, max_size=250)))
    calls: list[Any] = [
        lambda edits, x: edits.penalise_repetition(x, chosen, penalty),
        lambda edits, x: edits.subtract(x, chosen, amounts),
        lambda edits, x: edits.rule_out(x, chosen),
        lambda edits, x: edits.keep_only(x, mask),
    ]
    for call in calls:
        native, reference = (call(kind.edits, row.copy()) for kind in (NATIVE, ARRAYS))
        assert native.tobytes() == reference.tobytes()


@pytest.mark.parametrize("ids", [[2, 1], [1, 1], [-1, 2], [2, 5]])
def test_a_list_of_ids_that_does_not_ascend_within_the_width_is_refused(ids: list[int]) -> None:
    with pytest.raises(ValueError, match="ascend"):
        _native.mass_of_list(5, np.array(ids), np.ones(2))
    assert _native.mass_of_list(5, np.array([1, 4]), np.ones(2)).total == 2.0


@pytest.mark.parametrize("row", [np.zeros(4), np.zeros(8, dtype=np.float32)[::2]])
def test_a_softmax_takes_only_logits_that_it_can_read_in_place(row: np.ndarray) -> None:
    """A copy would have to live as long as the mass that reads it."""
    with pytest.raises(TypeError):
        _native.softmax(row, 1.0)
    assert _native.softmax(np.ascontiguousarray(row, dtype=np.float32), 1.0).total == 4.0


def test_a_mask_or_amounts_of_the_wrong_size_are_refused() -> None:
    row = np.zeros(5, dtype=np.float32)
    with pytest.raises(ValueError, match="narrower"):
        NATIVE.edits.keep_only(row, np.ones(4, dtype=bool))
    with pytest.raises(ValueError, match="one amount"):
        NATIVE.edits.subtract(row, np.arange(3), np.zeros(2))


@settings(max_examples=300)
@given(logits(), st.integers(0, 80), st.data())
def test_ranks_and_alternatives_are_those_of_the_reference(row: np.ndarray, num_top: int, data: Any) -> None:
    token = data.draw(st.integers(0, len(row) - 1))
    assert NATIVE.rank_and_top(row, token, num_top) == rank_and_top(row, token, num_top)


@pytest.mark.parametrize("size", [3, 1_024, 151_936])
def test_log_probabilities_are_those_of_the_model(size: int) -> None:
    """The native sum is in float64, the reference's in float32."""
    for name, row in shapes(size):
        largest = float(row.max())
        exact = float(np.log(np.sum(np.exp(row.astype(np.float64) - largest))))
        assert NATIVE.log_total(row, largest) == pytest.approx(exact, rel=1e-12, abs=1e-13), name
        assert NATIVE.log_total(row, largest) == pytest.approx(log_total(row, largest), abs=2e-5)
        for token in (0, size - 1):
            if row[token] > -INF:
                found = raw_logprob(row, token, 5)
                assert found.logprob == pytest.approx(float(row[token]) - largest - exact, abs=1e-9)
                assert (found.rank, [i for i, _ in found.top][: min(5, size)]) == (
                    rank_and_top(row, token, 5)[0],
                    rank_and_top(row, token, 5)[1],
                )


# -- through Distribution ----------------------------------------------------------------------------------------------

EVERYTHING: dict[str, Any] = {
    "temperature": 0.8, "top_k": 400, "top_p": 0.95, "min_p": 0.001, "repetition_penalty": 1.2,
    "frequency_penalty": 0.3, "presence_penalty": 0.2, "logit_bias": {4: 1.0, 9: -3.0}, "bad_words": [[7], [1, 9]],
    "min_tokens": 3,
}  # fmt: skip


@pytest.mark.thorough("all-block-5", "all-chain-None", "top-p-chain")
@pytest.mark.parametrize("seed", [None, 5])
@pytest.mark.parametrize("rules", ["block", "chain"])
@pytest.mark.parametrize("params", [{"temperature": 0.8}, {"top_p": 0.9}, EVERYTHING], ids=["plain", "top-p", "all"])
def test_rounds_have_the_same_verdicts_in_both_kinds(
    params: dict[str, Any], rules: str, seed: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """200 rounds of 4 draft tokens: drafts drawn, judged and followed, with every parameter and a narrower draft."""
    size, found = 900, []
    for own in ((NATIVE, ARRAYS), (ARRAYS,)):
        monkeypatch.setattr(kinds, "KINDS", own)
        asked, random, verdicts = SamplingParams(**params, seed=seed), np.random.default_rng(7), []
        made = Processing(asked, size, [1, 2, 3, 2, 1], stop_ids=[11])
        made.begin_round()
        for turn in range(200):
            p_rows = random.normal(0.0, 3.0, (5, size)).astype(np.float32)
            q_rows = (p_rows[:4] + random.normal(0.0, 1.0, (4, size))).astype(np.float32)
            q_rows = np.ascontiguousarray(q_rows[:, : size - turn % 3 * 50])
            noise, draft, q = make_noise(asked, turn, 0, 5), list[int](), list[Distribution]()
            for i in range(4):
                q.append(made.distribution(rows_of(q_rows), i, tuple(draft), "draft"))
                draft.append(noise.draw(q[-1], i, Purpose.DRAFT))
            p = [made.distribution(rows_of(p_rows), i, tuple(draft[:i])) for i in range(5)]
            proposed = Draft(tuple(draft), noise.kind, tuple(q) if noise.kind == "sampled" else None)
            verdicts.append((draft, verify(p, proposed, noise, RULES[rules])))
            for token in draft[:2]:
                entry = token_logprob(p[0], token, 3, "processed")
                assert entry.logprob == pytest.approx(math.log(max(p[0].prob(token), 1e-300)), abs=1e-9) or math.isinf(
                    entry.logprob
                )
        found.append(verdicts)
    assert found[0] == found[1]


@pytest.mark.parametrize("where", [0, 5, 899])
def test_nan_is_seen(where: int) -> None:
    row = random_rows(1, 900)
    row[0, where] = math.nan
    for params in ({}, {"top_k": 3}, {"repetition_penalty": 1.5}):
        found = Walk([0], size=900, **params)
        found.processing.begin_round()
        distribution = found.processing.distribution(rows_of(row), 0)
        for look in ("argmax", "mass", "probs", "confidence"):
            with pytest.raises(NumericalError, match="largest value"):
                getattr(distribution, look)


def test_rows_without_a_legal_token_are_refused() -> None:
    walk = Walk([0], allowed_token_ids=[3])
    walk.processing.begin_round()
    logits = np.zeros((1, 8), dtype=np.float32)
    only = Distribution(rows_of(logits), 0, SamplingParams(), 8, lambda row: NATIVE.edits.rule_out(row, np.arange(8)))
    with pytest.raises(NoLegalTokenError):
        only.draw(0.5)


def counting(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of native kernels as they are called."""
    calls: list[str] = []

    def counted(name: str) -> Any:
        def call(*args: Any) -> Any:
            calls.append(name)
            return getattr(NATIVE, name)(*args)

        return call

    spied = replace(NATIVE, **{name: counted(name) for name in ("mass", "race", "log_total", "rank_and_top")})
    monkeypatch.setattr(kinds, "KINDS", (spied, ARRAYS))
    return calls


def test_a_row_is_weighed_once_however_often_it_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = counting(monkeypatch)
    row = Distribution(rows_of(random_rows(1, 50)), 0, SamplingParams(), 50)
    assert row.argmax >= 0
    assert calls == []
    for _ in range(3):
        _ = row.prob(1), row.draw(0.5), row.pool, row.probs, row.support
    assert calls == ["mass"]


def test_seeded_draws_without_filters_are_not_normalised(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = counting(monkeypatch)
    Distribution(rows_of(random_rows(1, 50)), 0, SamplingParams(), 50).race(3)
    Distribution(rows_of(random_rows(1, 50)), 0, SamplingParams(top_k=4), 50).race(3)
    assert calls == ["race", "mass"]


@pytest.mark.parametrize(
    "row",
    [np.zeros(8), np.zeros(8, dtype=np.float16), np.zeros((8, 2), dtype=np.float32)[:, 0], torch.zeros(8)],
    ids=["float64", "float16", "strided", "torch"],
)
def test_other_rows_take_the_array_path(row: Any) -> None:
    assert kinds.kind_of(row) is ARRAYS
    assert kinds.kind_of(np.zeros(8, dtype=np.float32)) is NATIVE


def test_masses_keep_alive_what_they_were_made_of() -> None:
    """The residual of rows that nobody else holds."""

    def left() -> Mass:
        p_row, q_row = random_rows(2, 4_000, seed=6)
        return both(p_row.copy())[0].minus(both(q_row.copy())[0], 1.0)

    mass = left()
    expected = [mass.draw(u) for u in (0.2, 0.7)]
    junk = [np.random.default_rng(0).random(4_000, dtype=np.float32) for _ in range(50)]
    assert [mass.draw(u) for u in (0.2, 0.7)] == expected
    assert len(junk) == 50


def test_kinds_are_records_of_the_same_functions() -> None:
    assert all(isinstance(kind, Kind) for kind in KINDS)
    assert list(itertools.islice(KINDS, 2)) == [NATIVE, ARRAYS]
