"""Second choices: as wide as rows are cheap, what is worth most first, and no further than allowed."""

from __future__ import annotations

from itertools import product
from statistics import fmean
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.control.worlds import always, policy, world

from forerun.control.branching import Room, widths
from forerun.control.choice import Prices
from forerun.control.simulation import Source, best_rate, simulate
from forerun.topology import by_widths, children, comb_by_widths, depths

FREE = Prices(lambda rows: 10.0, lambda rows: 1.0)
SIBLINGS = [0.4, 0.2, 0.1]


def linear(row_ms: float) -> Prices:
    return Prices(lambda rows: 10.0 + row_ms * rows, lambda rows: 1.0)


def worth(value: list[float], chosen: list[int]) -> float:
    total = 0.0
    for depth, width in enumerate(chosen):
        missed = (value[depth - 1] if depth else 1.0) - value[depth]
        for share in SIBLINGS[: width - 1]:
            total += missed * share
            missed *= 1.0 - share
    return total


values = st.lists(st.floats(0.1, 0.95), min_size=1, max_size=4).map(
    lambda ratios: [product_of(ratios[: i + 1]) for i in range(len(ratios))]
)


def product_of(factors: list[float]) -> float:
    found = 1.0
    for factor in factors:
        found *= factor
    return found


def test_free_rows_are_all_taken_and_dear_ones_never() -> None:
    assert widths([0.8, 0.5], SIBLINGS, FREE, 0.1, Room(3.0, 100, 1e9)) == [4, 4]
    assert widths([0.8, 0.5], SIBLINGS, linear(1e6), 0.1, Room(3.0, 100, 1e9)) == [1, 1]


@settings(max_examples=200)
@given(values, st.floats(0.01, 5.0), st.floats(0.01, 0.3))
def test_what_is_chosen_earns_most(value: list[float], row_ms: float, rate: float) -> None:
    """By brute force over all widths: tokens gained less what their rows cost."""
    found = widths(value, SIBLINGS, linear(row_ms), rate, Room(3.0, 100, 1e9))

    def earned(chosen: Any) -> float:
        return worth(value, list(chosen)) - rate * row_ms * sum(width - 1 for width in chosen)

    assert earned(found) == pytest.approx(max(map(earned, product(range(1, 5), repeat=len(value)))), abs=1e-9)


@settings(max_examples=100)
@given(values, st.integers(0, 8))
def test_few_rows_go_to_what_is_worth_most(value: list[float], most: int) -> None:
    found = widths(value, SIBLINGS, FREE, 0.1, Room(3.0, most, 1e9))
    num_more = sum(width - 1 for width in found)
    assert num_more == min(most, 3 * len(value))
    of_equal_size = [one for one in product(range(1, 5), repeat=len(value)) if sum(one) - len(value) == num_more]
    assert worth(value, found) == pytest.approx(max(worth(value, list(one)) for one in of_equal_size), abs=1e-9)


def test_a_round_grows_by_no_more_than_it_may() -> None:
    assert sum(widths([0.5, 0.2], SIBLINGS, linear(1.0), 1e-6, Room(3.0, 100, 2.5))) == 2 + 2
    assert sum(widths([0.5, 0.2], SIBLINGS, linear(1.0), 1e-6, Room(3.0, 100, -1.0))) == 2


def test_a_comb() -> None:
    assert comb_by_widths((2, 3)) == (-1, -1, 0, 0, 0)
    assert comb_by_widths((1, 1, 1)) == by_widths((1, 1, 1)) == (-1, 0, 1)
    tree = comb_by_widths((3, 1, 2))
    assert depths(tree) == [1, 1, 1, 2, 3, 3]
    assert [len(behind) for behind in children(tree)] == [3, 1, 0, 0, 2, 0, 0]


@pytest.mark.parametrize("slope,least,most", [(0.0, 1.1, 9.9), (0.02, 1.02, 9.9), (0.3, 0.93, 1.05)])
def test_trees_pay_where_rows_are_free(slope: float, least: float, most: float) -> None:
    """Measured in the best chain of any fixed length."""
    cell = world(slope=slope, sources=[Source("model", always(0.7), sibling=0.4)])
    found = fmean(simulate(policy(cell), cell, 300, seed).expected_rate(60) for seed in range(2))
    assert least <= found / best_rate(cell, 0)[0] <= most


def test_how_often_second_choices_hold_is_learnt() -> None:
    cell = world(slope=0.0, sources=[Source("model", always(0.6), sibling=0.7)])
    made = policy(cell)
    simulate(made, cell, 300, 1)
    assert made.acceptance.siblings(("model", "sampled"))[0] == pytest.approx(0.7, abs=0.12)
