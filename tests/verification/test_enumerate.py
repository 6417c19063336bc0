"""The enumerator itself: every branch once, probabilities exact, cheating functions refused."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.errors import ContractError
from forerun.randomness import GreedyNoise, Purpose
from forerun.sampling import Distribution, SamplingParams
from forerun.verification.enumerate import Chooser, EnumeratingNoise, enumerating, outcomes

import numpy as np  # isort: skip


def test_a_function_without_decisions_has_one_outcome() -> None:
    assert outcomes(lambda chooser: "only") == {"only": 1.0}


def test_every_branch_is_run_once_with_its_own_probability() -> None:
    seen = []

    def run(chooser: Chooser) -> tuple[int, ...]:
        first = chooser.choose([1, 0, 3])
        seen.append((first, *(chooser.choose([1, 1]) for _ in range(first))))
        return seen[-1]

    assert outcomes(run) == {(0,): 0.25, (2, 0, 0): 0.1875, (2, 0, 1): 0.1875, (2, 1, 0): 0.1875, (2, 1, 1): 0.1875}
    assert len(seen) == len(set(seen)) == 5


@given(st.lists(st.fractions(0, 1), min_size=1, max_size=6))
def test_the_number_of_successes_has_the_law_of_exact_arithmetic(chances: list[Fraction]) -> None:
    law = outcomes(lambda chooser: sum(chooser.happens(float(chance)) for chance in chances))
    exact = {0: Fraction(1)}
    for chance in chances:
        exact = {
            n: exact.get(n, Fraction()) * (1 - chance) + exact.get(n - 1, Fraction()) * chance
            for n in range(len(exact) + 1)
        }
    assert set(law) <= {n for n, probability in exact.items() if probability}
    assert all(abs(law.get(n, 0.0) - float(probability)) < 1e-15 for n, probability in exact.items())


def test_equal_outcomes_are_added_without_rounding_error() -> None:
    law = outcomes(lambda chooser: sum(chooser.choose([0.1] * 10) for _ in range(3)))
    assert math.fsum(law.values()) == pytest.approx(1.0, abs=1e-15)
    assert law[0] == pytest.approx(1e-3, abs=1e-18)
    assert law[13] == pytest.approx(75e-3, abs=1e-16)


@pytest.mark.parametrize(
    ("probability", "expected"), [(0.0, False), (-0.5, False), (1.0, True), (1.5, True), (math.inf, True)]
)
def test_certain_events_are_no_branches(probability: float, expected: bool) -> None:
    assert outcomes(lambda chooser: chooser.happens(probability)) == {expected: 1.0}


@pytest.mark.parametrize("weights", [[], [0.0, 0.0], [1.0, -0.1], [math.nan, 1.0], [1.0, math.inf]])
def test_what_is_no_distribution_is_refused(weights: list[float]) -> None:
    with pytest.raises((ContractError, ValueError)):
        outcomes(lambda chooser: chooser.choose(weights))


def test_nan_is_no_probability() -> None:
    with pytest.raises(ContractError, match="NaN"):
        outcomes(lambda chooser: chooser.happens(math.nan))


def test_functions_that_are_not_deterministic_are_refused() -> None:
    calls = iter(range(100))
    with pytest.raises(ContractError, match="not deterministic"):
        outcomes(lambda chooser: chooser.choose([1, 1 + next(calls)]) + chooser.choose([1, 1]))
    lengths = iter([2, 0, 0])
    with pytest.raises(ContractError, match="not deterministic"):
        outcomes(lambda chooser: tuple(chooser.choose([1, 1]) for _ in range(next(lengths))))


def test_a_tree_without_end_is_refused() -> None:
    with pytest.raises(ContractError, match="more than 50 leaves"):
        outcomes(lambda chooser: tuple(chooser.choose([1, 1]) for _ in range(10)), max_leaves=50)


def half() -> Distribution:
    return Distribution.explicit(np.array([0.5, 0.5, 0.0]))


def test_a_key_decides_one_thing_only() -> None:
    def run(chooser: Chooser) -> int:
        noise = EnumeratingNoise(chooser, "one", 5)
        noise.accept(0.5, 0)
        noise.accept(0.5, 1)
        noise.draw(half(), 0, Purpose.EMIT)
        EnumeratingNoise(chooser, "one", 6).accept(0.5, 0)  # another round
        EnumeratingNoise(chooser, "two", 5).accept(0.5, 0)  # another sequence
        return 0

    assert outcomes(run) == {0: 1.0}
    for again in (lambda noise: noise.accept(0.0, 1), lambda noise: noise.draw(half(), 2, Purpose.DRAFT)):

        def repeats(chooser: Chooser, again=again) -> int:  # type: ignore[no-untyped-def]
            again(EnumeratingNoise(chooser, "one", 5))
            again(EnumeratingNoise(chooser, "one", 5))
            return 0

        with pytest.raises(ContractError, match="reused"):
            outcomes(repeats)


def test_deterministic_noise_fixes_the_draft_and_branches_on_the_target() -> None:
    def run(chooser: Chooser) -> tuple[int, int]:
        noise = EnumeratingNoise(chooser, 0, 1, "deterministic")
        skewed = Distribution.explicit(np.array([0.25, 0.75]))
        return noise.draw(skewed, 0, Purpose.DRAFT), noise.draw(skewed, 0, Purpose.FOLLOW)

    assert outcomes(run) == {(1, 0): 0.25, (1, 1): 0.75}


def test_greedy_requests_make_no_decision() -> None:
    noise = enumerating(Chooser())(SamplingParams(temperature=0), 1, 0, 3)
    assert noise == GreedyNoise()
