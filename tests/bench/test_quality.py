"""Perplexity and distance of rows, over models whose rows are known."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import numpy as np
import pytest
from tests.bench.toys import SIZE, TABLE, target

from forerun.bench import quality
from forerun.bench.quality import Window, cut, distance, log_probability, log_softmax, perplexities, rows_of_model

WINDOWS = [[1, 2, 3, 4, 5], [9, 9, 0, 7, 3]]


def constant(row: list[float], piece: int = 2) -> quality.RowsOf:
    """A side that gives the same row everywhere, some at a time."""

    def rows(window: Window) -> Iterator[np.ndarray]:
        for start in range(0, len(window), piece):
            yield np.tile(np.float32(row), (min(piece, len(window) - start), 1))

    return rows


def test_a_tokens_log_probability() -> None:
    rows = np.random.default_rng(0).normal(0, 9, (5, 700)).astype(np.float32)
    for row, logs in zip(rows, log_softmax(rows), strict=True):
        assert log_probability(row, 13) == pytest.approx(logs[13], abs=1e-5)
    assert np.exp(log_softmax(rows)).sum(axis=1) == pytest.approx(np.ones(5))


def test_perplexity_counts_every_token_but_the_first_of_a_window() -> None:
    found = perplexities({"uniform": constant([3.0] * SIZE), "model": rows_of_model(target())}, WINDOWS)
    assert found["uniform"] == pytest.approx(SIZE)
    logs = log_softmax(TABLE)
    wanted = [logs[before, token] for window in WINDOWS for before, token in itertools.pairwise(window)]
    assert found["model"] == pytest.approx(math.exp(-sum(wanted) / len(wanted)), rel=1e-5)


def test_rows_are_no_distance_from_themselves_whatever_is_added_to_all_logits() -> None:
    found = distance(constant([1.0, 4.0, 2.0]), constant([11.0, 14.0, 12.0]), WINDOWS)
    assert found == {
        "rows": 10, "mean_kl": pytest.approx(0, abs=1e-9), "largest_kl": pytest.approx(0, abs=1e-9),
        "largest_logit_error": pytest.approx(0, abs=1e-5), "top1_agreement": 1.0,
    }  # fmt: skip


def test_a_distance_is_the_references_divergence() -> None:
    p, q = np.float64([0.5, 0.25, 0.25]), np.float64([0.25, 0.5, 0.25])
    found = distance(constant(np.log(q).tolist()), constant(np.log(p).tolist()), WINDOWS)
    assert found["mean_kl"] == pytest.approx(float((p * np.log(p / q)).sum()), rel=1e-5)
    assert found["top1_agreement"] == 0.0
    assert found["largest_logit_error"] == pytest.approx(math.log(2), rel=1e-5)


def test_a_model_is_fed_in_pieces_and_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quality, "PIECE", 2)
    model = target()
    rows = np.concatenate(list(rows_of_model(model)(WINDOWS[0])))
    assert rows == pytest.approx(TABLE[WINDOWS[0]], rel=1e-5)
    assert model.num_sequences == 0


def test_windows_are_whole() -> None:
    assert cut(list(range(10)), 9, 4) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert cut(list(range(3)), 9, 4) == []
