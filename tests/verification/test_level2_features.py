"""Level 2 for sampling features: 100,000 texts a case under the real random numbers, against the law of plain decoding.

Power. One comparison's false alarm rate is 1e-8. With 100,000 texts of 4 tokens over 3 ids a law that is wrong by .035
in total variation is caught with at least 99 % (asserted for every case); `make ladder` takes 1,000,000 (.011).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.verification.laws import draft_with, model
from tests.verification.population import Population, detectable_variation, misfits, sample, texts_of
from tests.verification.reference import AutomatonGrammar, plain_law, table_rows
from tests.verification.test_level1_features import Grudge, nudge

from forerun.drafting import LookupDrafter, NoDrafter
from forerun.sampling import StatefulProcessor
from forerun.verification import RULES

NUM, NUM_TOKENS, K, EOS = 100_000, 4, 2, 2
PROMPT = (1, 2, 1)
TARGET = [[5, 3, 2], [1, 6, 2], [4, 1, 3]]
DRAFT = [[2, 3, 5], [4, 4, 1], [3, 2, 2]]

PARAMS: dict[str, dict[str, Any]] = {
    "repetition": {"repetition_penalty": 1.7},
    "frequency": {"frequency_penalty": 0.9},
    "presence": {"presence_penalty": -0.8},
    "bias": {"logit_bias": {0: 1.1, 2: -0.6}},
    "bad-words": {"bad_words": ((0, 1), (2, 2))},
    "allowed": {"allowed_token_ids": (0, 1)},
    "min-tokens": {"min_tokens": 2},
    "processors": {"logits_processors": (nudge, StatefulProcessor(Grudge))},
    "grammar": {"constraint": AutomatonGrammar([{0: 1, 1: 1, 2: 2}, {1: 2, 2: 0}, {0: 0, 1: 1}], 3)},
    "six": {
        "temperature": 0.8, "min_p": 0.0613, "repetition_penalty": 1.3, "presence_penalty": 0.4,
        "logit_bias": {0: 0.5}, "min_tokens": 2,
    },
}  # fmt: skip
WAYS: dict[str, tuple[str, Callable[[], Any], str]] = {
    "block": ("independent", draft_with(DRAFT), "block"),
    "chain": ("independent", draft_with(DRAFT), "chain"),
    "lookup": ("independent", lambda: LookupDrafter(2, 1), "block"),
    "seeded": ("coupled", draft_with(DRAFT), "block"),
    "plain": ("independent", NoDrafter, "block"),
}


def law_of(params: dict[str, Any]) -> dict[Any, float]:
    return plain_law(table_rows(TARGET), PROMPT, NUM_TOKENS, [EOS], **params)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", PARAMS)
def test_a_hundred_thousand_texts_have_the_plain_law(name: str, way: str) -> None:
    twin, make_drafter, rule = WAYS[way]
    params = PARAMS[name]
    expected = law_of(params)
    assert detectable_variation(expected, NUM) < 0.035
    divided = sample(
        Population(np.arange(NUM)), lambda: model(TARGET), make_drafter, K, PROMPT, twin,
        params={"max_tokens": NUM_TOKENS, **params}, rules=RULES[rule], eos_ids=[EOS],
    )  # fmt: skip
    assert not misfits(texts_of(divided), expected)
    if way != "plain":
        assert any(accepted for _, rounds in divided for accepted, _ in rounds)
