"""Level 2: the law of short texts under the real random numbers, by chi-square and total variation.

Sample sizes and power. Fast tests use 1,000,000 seeds, slow ones 4,000,000 (and 25,000 one by one, unvectorised).
One comparison's false alarm rate is 1e-8. With 1,000,000 texts of 4 tokens over 3 ids (81 cells) a law that is wrong by
.011 in total variation is caught with at least 99 % (4,000,000: .0055; `detectable_variation` computes it, every test
asserts it), by rigorous bounds; chi-square is the more sensitive of the two for errors in rare texts.
"""

from __future__ import annotations

import functools
import os
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.verification.laws import draft_with, finish, model, target_law
from tests.verification.population import (
    Population,
    derive_keys,
    detectable_variation,
    gumbels,
    misfits,
    sample,
    second_round_groups,
    second_round_misfits,
    texts_of,
    uniforms,
)

from forerun.control import FixedLength
from forerun.drafting import LookupDrafter, NoDrafter
from forerun.engine import Engine
from forerun.randomness import CoupledNoise, IndependentNoise, Purpose, derive_key, gumbel, uniform
from forerun.sampling import SamplingParams
from forerun.verification import RULES

NUM = 1_000_000
PROMPT = [1, 2, 1]
NUM_TOKENS, K = 4, 2
TARGET = [[5, 3, 2], [1, 6, 2], [4, 0, 3]]
DRAFT = [[2, 3, 5], [4, 4, 1], [3, 2, 2]]
FILTERS: dict[str, Any] = {"temperature": 0.8, "top_p": 0.9137, "min_p": 0.0613}

CASES: dict[str, tuple[str, Callable[[], Any], str, dict[str, Any]]] = {
    "chain": ("independent", draft_with(DRAFT), "chain", {}),
    "block": ("independent", draft_with(DRAFT), "block", {}),
    "block-filtered": ("independent", draft_with(DRAFT), "block", FILTERS),
    "lookup": ("independent", lambda: LookupDrafter(2, 1), "block", {}),
    "plain": ("independent", NoDrafter, "block", {}),
    "seeded-model": ("coupled", draft_with(DRAFT), "block", {}),
    "seeded-lookup": ("coupled", lambda: LookupDrafter(2, 1), "block", FILTERS),
    "seeded-plain": ("coupled", NoDrafter, "block", {}),
}


def sampled(name: str, population: Population) -> dict[Any, np.ndarray]:
    twin, make_drafter, rule, params = CASES[name]
    return sample(
        population, lambda: model(TARGET), make_drafter, K, PROMPT, twin,
        params={"max_tokens": NUM_TOKENS, **params}, rules=RULES[rule],
    )  # fmt: skip


def populations(num: int) -> dict[str, Population]:
    """Neighbouring seeds, scattered seeds, and the choices of one seed."""
    scattered = np.random.default_rng(1).integers(0, 2**64, num, dtype=np.uint64)
    return {
        "neighbours": Population(np.arange(num)),
        "scattered": Population(scattered),
        "choices": Population(np.full(num, 7), np.arange(num)),
    }


def real_noise(twin: str, seed: int) -> Callable[..., Any]:
    kind = {"independent": IndependentNoise, "coupled": CoupledNoise}[twin]
    return lambda params, own_seed, choice, committed: kind(seed, choice, committed)


def one_text(name: str, seed: int, choice: int = 0) -> tuple[int, ...]:
    """What the engine writes for one seed with the real noise, nothing vectorised."""
    twin, make_drafter, rule, params = CASES[name]
    engine = Engine(model(TARGET), make_drafter(), FixedLength(K), rules=RULES[rule], make_noise=real_noise(twin, seed))
    sequence = engine.add(PROMPT, SamplingParams(max_tokens=NUM_TOKENS, **params), choice=choice)
    finish(engine)
    return tuple(sequence.tokens[len(PROMPT) :])


def test_the_twins_words_are_the_originals() -> None:
    rng = np.random.default_rng(2)
    words = rng.integers(0, 2**64, (300, 5), dtype=np.uint64)
    keys = derive_keys(*words.T)
    assert [derive_key(*map(int, row)) for row in words] == keys.tolist()
    assert [uniform(int(key)) for key in keys] == uniforms(keys).tolist()
    ids = np.array([0, 1, 5, 151_935])
    assert np.array_equal(np.array([gumbel(int(key), ids) for key in keys]), gumbels(keys, ids))
    noise = IndependentNoise(*map(int, words[0, :3]))
    assert noise.uniform(3, Purpose.EMIT) == uniforms(derive_keys(*words[0, :3], 3, int(Purpose.EMIT)))[0]


@pytest.mark.parametrize("name", CASES)
def test_the_population_writes_what_the_engine_writes_seed_by_seed(name: str) -> None:
    """300 seeds of each case through the engine one at a time, with the real noise objects."""
    for population in populations(150).values():
        by_member = {int(m): text for (text, _), members in sampled(name, population).items() for m in members}
        for member in range(0, 150, 2):
            seed, choice = int(population.seeds[member]), int(population.choices[member])
            assert one_text(name, seed, choice) == by_member[member]


@functools.cache
def neighbours(name: str, num: int = NUM) -> dict[Any, np.ndarray]:
    return sampled(name, Population(np.arange(num)))


def expected_law(name: str) -> dict[Any, float]:
    return target_law(TARGET, PROMPT, NUM_TOKENS, **CASES[name][3])


def check_law(name: str, divided: dict[Any, np.ndarray], num: int, power: float) -> None:
    counts, expected = texts_of(divided), expected_law(name)
    assert detectable_variation(expected, num) < power
    assert sum(counts.values()) == num
    assert not misfits(counts, expected)


@pytest.mark.parametrize("name", CASES)
def test_texts_have_the_targets_law(name: str) -> None:
    """1,000,000 texts; a total variation of .011 would be caught with 99 %, at a false alarm rate below 1e-8."""
    check_law(name, neighbours(name), NUM, 0.011)


@pytest.mark.parametrize("which", ["scattered", "choices"])
@pytest.mark.parametrize("name", ["block", "seeded-model"])
def test_other_populations_have_the_targets_law(name: str, which: str) -> None:
    """250,000 scattered seeds, and as many choices of one seed; .022 of total variation would be caught with 99 %."""
    check_law(name, sampled(name, populations(250_000)[which]), 250_000, 0.022)


@pytest.mark.parametrize("name", ["chain", "block", "block-filtered", "lookup", "seeded-model"])
def test_the_second_round_has_the_targets_law_whatever_the_first_did(name: str) -> None:
    """Given everything committed in the first drafted round and how much of it was accepted, the next token's law is p.

    1,000,000 texts are split by (rounds so far, their tokens); all groups of at least 2,000 are tested, one by one and
    together. A group of 20,000 catches a total variation of .042 with 99 %: a reused number shows here first.
    """
    groups = second_round_groups(neighbours(name), 2)
    assert sum(sum(counts.values()) >= 2_000 for counts in groups.values()) >= 9
    assert detectable_variation({0: 0.3, 1: 0.3, 2: 0.4}, 20_000) < 0.042
    assert not second_round_misfits(neighbours(name), PROMPT, CASES[name][3], TARGET)


@pytest.mark.thorough(but=("block-filtered", "seeded-lookup"))
@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_texts_have_the_targets_law_in_four_million(name: str) -> None:
    """4,000,000 texts; a total variation of .0055 would be caught with 99 %."""
    divided = sampled(name, Population(np.arange(4_000_000)))
    check_law(name, divided, 4_000_000, 0.0055)
    assert not second_round_misfits(divided, PROMPT, CASES[name][3], TARGET)


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize("name", ["chain", "block", "seeded-model"])
def test_texts_have_the_targets_law_one_by_one(name: str) -> None:
    """Texts by the engine with the real noise, nothing vectorised: .05 of variation is caught with 99 % (with
    FORERUN_FULL=1, and four times the minutes, .025)."""
    num_texts, variation = (100_000, 0.025) if os.environ.get("FORERUN_FULL") == "1" else (25_000, 0.05)
    assert detectable_variation(expected_law(name), num_texts) < variation
    assert not misfits(Counter(one_text(name, seed) for seed in range(num_texts)), expected_law(name))
