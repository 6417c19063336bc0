"""Several draft tokens from one row: distinct, in the order of the noise, from every kind of mass."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from forerun.randomness import CoupledNoise, GreedyNoise, IndependentNoise, Purpose, derive_key, gumbel
from forerun.runtime.base import Rows
from forerun.sampling import Distribution, SamplingParams

WIDTHS = [5, 300, 5000]
FILTERS: dict[str, dict[str, Any]] = {
    "none": {},
    "cold": {"temperature": 0.3},
    "top_k": {"top_k": 4},
    "top_p": {"top_p": 0.7},
    "min_p": {"min_p": 0.05},
}
KINDS = {
    "float32": lambda row: row.astype(np.float32),
    "float64": lambda row: row,
    "torch": lambda row: torch.tensor(row, dtype=torch.float32),
}


def distribution(kind: str, width: int, params: dict[str, Any], seed: int = 0) -> Distribution:
    row = np.random.default_rng(seed).normal(0.0, 2.0, width)
    return Distribution(Rows(KINDS[kind](row[None]), [1]), 0, SamplingParams(**params), width)


def array(values: Any) -> np.ndarray:
    return np.asarray(values)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", FILTERS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_row_without_some_tokens(kind: str, name: str, width: int) -> None:
    """Taken away one by one, the likeliest first, until nothing is left or ten are gone."""
    row: Distribution | None = distribution(kind, width, FILTERS[name])
    assert row is not None
    expected = array(row.probs).copy()
    for token in np.argsort(-expected)[:10].tolist():
        expected[token] = 0.0
        assert row is not None
        before, row = row, row.without(token)
        assert before.prob(token) > 0.0
        if not expected.any():
            assert row is None
            return
        assert row is not None
        assert row.prob(token) == 0.0
        np.testing.assert_allclose(array(row.probs), expected / expected.sum(), rtol=1e-9, atol=1e-300)
        for u in (0.0, 0.3, 0.7, 1 - 2**-53):
            assert expected[row.draw(u)] > 0.0
    assert name != "top_k"


@pytest.mark.parametrize("kind", KINDS)
def test_what_remains_of_nearly_nothing_is_exact(kind: str) -> None:
    """All but 1e-30 of the mass is one token's: the others keep their proportions."""
    logits = np.array([100.0, 31.0, 30.0, 29.0])
    row = Distribution(Rows(KINDS[kind](logits[None]), [1]), 0, SamplingParams(), 4).without(0)
    assert row is not None
    expected = np.exp([2.0, 1.0, 0.0])
    np.testing.assert_allclose(array(row.probs), [0.0, *(expected / expected.sum())], rtol=1e-6)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", FILTERS)
@pytest.mark.parametrize("kind", KINDS)
def test_coupled_children_have_the_largest_sums(kind: str, name: str, width: int) -> None:
    """log q + Gumbel noise of the position, sorted: the first is the chain's draw, and the node's number has no say."""
    for seed in range(20):
        row = distribution(kind, width, FILTERS[name], seed)
        noise = CoupledNoise(seed, 1, 40)
        with np.errstate(divide="ignore"):
            sums = np.log(array(row.probs)) + gumbel(
                derive_key(seed, 1, 43, 0, int(Purpose.GUMBEL)), np.arange(width, dtype=np.int64)
            )
        order = [int(token) for token in np.argsort(-sums)[:6] if sums[token] > -np.inf]
        found = [token for token, _ in noise.draw_children(row, range(7, 13), 3)]
        assert found == order
        assert found[0] == noise.draw(row, 3, Purpose.FOLLOW)


@pytest.mark.parametrize("name", FILTERS)
@pytest.mark.parametrize("kind", KINDS)
def test_independent_children_are_drawn_with_the_numbers_of_their_nodes(kind: str, name: str) -> None:
    """Each by the inverse distribution function of what the ones before it left; the first as in a chain."""
    for seed in range(20):
        row = distribution(kind, 30, FILTERS[name], seed)
        noise = IndependentNoise(seed, 0, 9)
        left = array(row.probs).astype(np.float64).copy()
        found = noise.draw_children(row, (4, 6, 9), 2)
        assert found[0][0] == noise.draw(row, 4, Purpose.DRAFT)
        assert found[0][1] is row
        for node, (token, drawn_from) in zip((4, 6, 9), found, strict=False):
            np.testing.assert_allclose(array(drawn_from.probs), left / left.sum(), rtol=1e-9, atol=1e-300)
            u = noise.uniform(node, Purpose.DRAFT) * left.sum()
            assert token == int(np.searchsorted(np.cumsum(left), u, side="right"))
            left[token] = 0.0
        assert len(found) == min(3, int(np.count_nonzero(array(row.probs))))


@pytest.mark.parametrize("kind", KINDS)
def test_greedy_children_are_the_best_tokens(kind: str) -> None:
    for seed in range(10):
        row = distribution(kind, 50, {"temperature": 0}, seed)
        order = np.argsort(-array(row.raw_logits), kind="stable").tolist()
        found = GreedyNoise().draw_children(row, (0, 1, 2, 3), 0)
        assert [token for token, _ in found] == row.best(4) == order[:4]
        assert row.best(1) == [row.argmax]
    ties = Distribution(Rows(KINDS[kind](np.array([[1.0, 3.0, 3.0, -np.inf]])), [1]), 0, SamplingParams(), 4)
    assert ties.best(4) == [1, 2, 0]  # equal ones by the lower id, and none that is ruled out
    assert Distribution.explicit(np.array([0.5, 0.0, 0.5])).best(3) == [0, 2]
