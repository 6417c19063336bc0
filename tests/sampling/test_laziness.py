"""Rows that nobody looks at cost nothing, and looking costs no more than was asked for.

Counted are calls of a user's logits processor (one for each row that is adjusted), of `processed_probs` (one for each
row that is normalised) and of sorting, all of the array reference; a row that was not copied shares its memory with the
pass. `test_native_rows.py` counts the native kernels' calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from tests.helpers import run
from tests.sampling.tools import SIZE, Remembering, Walk, random_rows, rows_of

from forerun import arrays
from forerun.control import FixedLength
from forerun.drafting import LookupDrafter
from forerun.drafting.scripted import HalfDrafter, LiarDrafter, record
from forerun.engine import Engine, commit
from forerun.randomness import Purpose
from forerun.runtime.toy import ToyModel
from forerun.sampling import SamplingParams, StatefulProcessor, filters, kinds, logprobs
from forerun.types import Draft
from forerun.verification import RULES, verify


class Spy:
    """Counts calls of functions of the package."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.calls: list[str] = []
        patch.setattr(kinds, "KINDS", (kinds.ARRAYS,))
        places = [(kinds, "processed_probs"), (filters, "descending"), (filters, "kth_largest"),
                  (arrays, "descending"), (arrays, "kth_largest"), (commit, "token_logprob"),
                  (commit, "raw_logprob"), (logprobs, "raw_logprob")]  # fmt: skip
        for module, name in places:
            patch.setattr(module, name, self._counting(name, getattr(module, name)))

    def _counting(self, name: str, function: Any) -> Any:
        def counting(*args: Any, **keywords: Any) -> Any:
            self.calls.append(name)
            return function(*args, **keywords)

        return counting

    def count(self, name: str) -> int:
        return self.calls.count(name)


@pytest.fixture
def spy(monkeypatch: pytest.MonkeyPatch) -> Spy:
    return Spy(monkeypatch)


class Noise:
    """Accepts as scripted, and draws the argmax."""

    def __init__(self, kind: Any, accepts: Sequence[bool]) -> None:
        self.kind, self.accepts = kind, accepts

    def accept(self, probability: float, node: int) -> bool:
        return self.accepts[node]

    def draw(self, row: Any, node: int, purpose: Purpose) -> int:
        row.probs  # noqa: B018 - a draw looks at the probabilities
        return int(row.argmax)


def looked_at(rule: str, kind: Any, accepts: Sequence[bool]) -> tuple[set[int], int]:
    """(rows that were adjusted, tokens accepted) by one verification of k = len(accepts) draft tokens."""
    seen: set[int] = set()

    def spying(tokens: list[int], logits: Any) -> Any:
        seen.add(len(tokens) - 1)
        return logits

    k = len(accepts)
    matrix = random_rows(k + 1, SIZE, np.float64, seed=3)
    best = matrix.argmax(axis=1).tolist()
    # Fixed drafts are accepted by agreeing with the argmax; sampled ones by the scripted noise.
    tokens = tuple(best[i] if kind == "sampled" or accepts[i] else (best[i] + 1) % SIZE for i in range(k))
    q = tuple(Walk([0]).round(np.zeros((1, SIZE)), ())[0] for _ in range(k))
    made = Walk([0], logits_processors=[spying])
    rows = made.round(matrix, tokens, "size")
    assert not seen
    draft = Draft(tokens, kind, q if kind == "sampled" else None)
    return seen, verify(rows, draft, Noise(kind, accepts), RULES[rule]).num_accepted


@pytest.mark.parametrize("k", [1, 2, 5])
def test_follow_and_chain_look_no_further_than_the_first_rejection(k: int) -> None:
    for num in range(k + 1):
        accepts = [i < num for i in range(k)]
        for rule, kind in (("block", "deterministic"), ("chain", "deterministic"), ("chain", "sampled")):
            assert looked_at(rule, kind, accepts) == (set(range(num + 1)), num)


@pytest.mark.parametrize("k", [1, 2, 5])
def test_block_looks_at_the_last_row_only_if_all_is_accepted(k: int) -> None:
    """Its tests need every row that a draft token was drawn at; the row after the last one is the bonus token's."""
    for last in (False, True):
        rows, num = looked_at("block", "sampled", [False] * (k - 1) + [last])
        assert (rows, num) == (set(range(k + 1 if last else k)), k if last else 0)


def test_a_row_is_adjusted_and_normalised_once_however_often_it_is_looked_at(spy: Spy) -> None:
    calls: list[int] = []

    def count(tokens: list[int], logits: Any) -> Any:
        calls.append(len(tokens))
        return logits

    row = Walk([0], logits_processors=[count], top_p=0.9).round(random_rows(1, SIZE), (), "size")[0]
    assert (calls, spy.calls) == ([], [])
    for _ in range(3):
        _ = row.argmax, row.probs, row.support, row.prob(1), row.confidence, row.raw_logits
    assert calls == [1]
    assert spy.count("processed_probs") == 1


def test_an_argmax_is_neither_normalised_nor_sorted(spy: Spy) -> None:
    everything = {"repetition_penalty": 1.2, "logit_bias": {1: 1.0}, "bad_words": [(2,)], "top_k": 3, "top_p": 0.5}
    for params in ({}, everything):
        for temperature in (0.0, 1.0):
            row = Walk([0], temperature=temperature, **params).round(random_rows(1, SIZE), (), "argmax")[0]
            assert row.argmax >= 0
    assert spy.calls == []


def test_filters_that_are_off_do_not_sort(spy: Spy) -> None:
    for params in ({}, {"min_p": 0.1}, {"top_k": 0}, {"top_k": SIZE}):
        Walk([0], **params).round(random_rows(1, SIZE), ())
    assert set(spy.calls) == {"processed_probs"}


def test_a_nucleus_sorts_a_few_tokens_of_a_wide_row(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    def descending(row: Any) -> Any:
        sizes.append(int(row.shape[0]))
        return arrays.descending(row)

    monkeypatch.setattr(filters, "descending", descending)
    Walk([0], size=20_000, top_p=0.9).round(np.random.default_rng(0).normal(0, 5, (1, 20_000)), ())
    assert sizes == [256]


# -- requests that ask for nothing -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "params",
    [{}, {"temperature": 0.0}, {"repetition_penalty": 1.0, "frequency_penalty": 0.0, "presence_penalty": 0.0},
     {"logit_bias": {}, "bad_words": [], "logits_processors": []}, {"min_tokens": 0, "stop_ids": [1]},
     {"min_tokens": 5}, {"min_tokens": 5, "stop_ids": [99]}, {"top_k": 2, "top_p": 0.5, "min_p": 0.1}],
    ids=str,
)  # fmt: skip
def test_rows_of_requests_that_adjust_nothing_are_not_copied(params: dict[str, Any]) -> None:
    matrix = random_rows(2, SIZE)
    made = Walk([0, 1], **params)
    for row in made.round(matrix, [3]):
        logits = row._logits(row._rows)[0]
        assert np.shares_memory(logits, matrix)
        assert np.shares_memory(row.raw_logits, matrix)
    ids, _ = made.processing._history.after(())
    assert len(ids) == 0  # nor are tokens counted for nothing


def test_a_neighbour_with_parameters_costs_a_plain_request_nothing(spy: Spy) -> None:
    calls: list[tuple[int, ...]] = []

    def count(tokens: list[int], logits: Any) -> Any:
        calls.append(tuple(tokens))
        return logits

    engine = Engine(ToyModel.random(SIZE, seed=1), LookupDrafter(2, 1), FixedLength(3))
    plain = engine.add([1, 2, 1, 2], SamplingParams(max_tokens=20, temperature=0.0))
    asks = engine.add([3, 4], SamplingParams(max_tokens=20, temperature=0.0, logits_processors=[count]))
    run(engine)
    assert {tokens[:2] for tokens in calls} == {(3, 4)}
    assert len(calls) >= asks.statistics.num_rounds
    assert plain.statistics.num_proposed > 0
    assert spy.calls == []  # both are greedy, so nothing was normalised at all


@pytest.mark.parametrize("drafter", [HalfDrafter, LiarDrafter])
def test_rows_behind_a_rejected_draft_token_are_never_processed(drafter: Any) -> None:
    """Greedy, so `follow`: the calls are one for each committed token, as in plain decoding."""
    target, calls = ToyModel.random(SIZE, seed=1), list[tuple[int, ...]]()

    def count(tokens: list[int], logits: Any) -> Any:
        calls.append(tuple(tokens))
        return logits

    truth = record(target, [[1, 2]], 20)
    for processors in ([count], [StatefulProcessor(Remembering)]):
        engine = Engine(target, drafter(truth), FixedLength(5))
        engine.add([1, 2], SamplingParams(max_tokens=20, temperature=0.0, logits_processors=processors))
        run(engine)
    assert calls == [(1, 2, *truth[1, 2][:i]) for i in range(20)]


@pytest.mark.parametrize(
    ("params", "num_scored"),
    [({}, 0), ({"logprobs": 0}, 20), ({"logprobs": 3}, 20), ({"logprobs": 3, "logprobs_kind": "processed"}, 20)],
    ids=str,
)  # fmt: skip
def test_log_probabilities_are_worked_out_for_committed_tokens_alone(
    params: dict[str, Any], num_scored: int, spy: Spy
) -> None:
    target = ToyModel.random(SIZE, seed=1)
    engine = Engine(target, HalfDrafter(record(target, [[1, 2]], 20)), FixedLength(5))
    engine.add([1, 2], SamplingParams(max_tokens=20, temperature=0.0, **params))
    run(engine)
    assert spy.count("token_logprob") == num_scored
    assert spy.count("processed_probs") == 0
    assert spy.count("descending") == (num_scored if params.get("logprobs") else 0)


def test_making_rows_does_not_reduce_them() -> None:
    """A pass whose rows are handed out and dropped is not even searched for its best tokens."""
    rows = rows_of(random_rows(4, SIZE))
    made = Walk([0], repetition_penalty=1.3, logits_processors=[StatefulProcessor(Remembering)])
    made.processing.begin_round()
    for i in range(4):
        made.processing.distribution(rows, i, (1, 2, 3)[:i])
    assert rows._best == {}
