"""Level 2, trees: the real numbers of 250,000 seeds, and the engine's own text seed by seed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.verification.laws import FixedTopology, draft_with, finish, model, target_law
from tests.verification.population import (
    Population,
    detectable_variation,
    misfits,
    sample,
    second_round_misfits,
    texts_of,
)
from tests.verification.test_level2_law import DRAFT, FILTERS, NUM_TOKENS, PROMPT, TARGET, real_noise

from forerun.engine import Engine
from forerun.sampling import SamplingParams
from forerun.verification import RULES

NUM = 250_000
TREE, WIDE = (-1, -1, 1, 1), (-1, -1, -1)
CASES: dict[str, tuple[str, Callable[[], Any], tuple[int, ...], str, dict[str, Any]]] = {
    "recursive": ("independent", draft_with(DRAFT), TREE, "chain", {}),
    "traversal": ("independent", draft_with(DRAFT), TREE, "block", {}),
    "traversal-wide": ("independent", draft_with(DRAFT), WIDE, "block", FILTERS),
    "top": ("independent", draft_with(DRAFT, candidates="top"), TREE, "block", FILTERS),
    "seeded": ("coupled", draft_with(DRAFT), TREE, "block", {}),
}


def sampled(name: str, population: Population) -> dict[Any, np.ndarray]:
    twin, make_drafter, tree, rule, params = CASES[name]
    return sample(
        population, lambda: model(TARGET), make_drafter, tree, PROMPT, twin,
        params={"max_tokens": NUM_TOKENS, **params}, rules=RULES[rule],
    )  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_the_population_writes_what_the_engine_writes_seed_by_seed(name: str) -> None:
    twin, make_drafter, tree, rule, params = CASES[name]
    by_member = {
        int(m): text for (text, _), members in sampled(name, Population(np.arange(120))).items() for m in members
    }
    for seed in range(120):
        engine = Engine(
            model(TARGET), make_drafter(), FixedTopology(tree), rules=RULES[rule], make_noise=real_noise(twin, seed)
        )
        sequence = engine.add(PROMPT, SamplingParams(max_tokens=NUM_TOKENS, **params))
        finish(engine)
        assert tuple(sequence.tokens[len(PROMPT) :]) == by_member[seed]


@pytest.mark.parametrize("name", CASES)
def test_texts_and_second_rounds_have_the_targets_law(name: str) -> None:
    """.022 of total variation would be caught with 99 %, at a false alarm rate below 1e-8."""
    divided, params = sampled(name, Population(np.arange(NUM))), CASES[name][4]
    expected = target_law(TARGET, PROMPT, NUM_TOKENS, **params)
    assert detectable_variation(expected, NUM) < 0.022
    assert not misfits(texts_of(divided), expected)
    assert not second_round_misfits(divided, PROMPT, params, TARGET)
