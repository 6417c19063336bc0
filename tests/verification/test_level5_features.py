"""Level 5 for sampling features: each way of applying a parameter wrongly is caught by name, the right way never.

The scenarios are requests whose enumerated law (`test_level1_features.features_law`) must be the plain law. One fault
leaves every law alone and is caught by the figures it reports.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from tests.helpers import run
from tests.verification.laws import draft_with, model, total_variation, violations
from tests.verification.reference import AutomatonGrammar
from tests.verification.test_level1_features import SOUND, Grudge, expected_law, features_law

from forerun.control import FixedLength
from forerun.drafting import LookupDrafter
from forerun.engine import Engine
from forerun.sampling import SamplingParams, StatefulProcessor
from forerun.verification.broken import BROKEN, BROKEN_PROCESSING, Broken

TARGET, DRAFT = [[2, 2, 6], [7, 8, 2], [8, 8, 3]], [[1, 7, 8], [5, 2, 2], [4, 7, 3]]


@dataclass(frozen=True)
class Scenario:
    params: dict[str, Any]
    make_drafter: Callable[[], Any] = field(default_factory=lambda: draft_with(DRAFT))
    prompt: tuple[int, ...] = (1,)
    k: int = 2
    num_tokens: int = 4

    def law(self, part: Broken) -> dict[Any, float]:
        return features_law(TARGET, self.make_drafter, self.k, self.prompt, self.num_tokens, self.params, part)

    @property
    def expected(self) -> dict[Any, float]:
        return expected_law(TARGET, self.prompt, self.num_tokens, self.params)


ONE_OR_TWO = AutomatonGrammar([{0: 1, 1: 1, 2: 1}, {1: 2, 2: 0}, {0: 0, 1: 1}], 3)
SCENARIOS = {
    "repetition": Scenario({"repetition_penalty": 2.3}),
    "frequency": Scenario({"frequency_penalty": 0.9}),
    "presence": Scenario({"presence_penalty": 1.1}),
    "frequency-lookup": Scenario({"frequency_penalty": 0.9}, lambda: LookupDrafter(2, 1), (1, 2, 1)),
    "bias": Scenario({"logit_bias": {0: 1.5, 2: -0.7}}),
    "bad-words": Scenario({"bad_words": ((0, 1), (2, 2))}),
    "allowed": Scenario({"allowed_token_ids": (0, 2)}),
    "min-tokens": Scenario({"min_tokens": 2, "eos": True}),
    "grammar": Scenario({"constraint": ONE_OR_TWO}),
    "min-p": Scenario({"min_p": 0.3719}),
    "stateful": Scenario({"logits_processors": (StatefulProcessor(Grudge),)}),
}
KILLS: dict[str, list[str]] = {
    "penalty_per_step": ["repetition", "frequency", "presence"],
    "penalty_from_rejected": ["repetition", "frequency", "presence", "frequency-lookup"],
    "prefix_forgotten": ["repetition", "frequency", "bad-words", "min-tokens", "grammar"],
    "mask_after_drawing": ["grammar", "allowed"],
    "bias_dropped": ["bias"],
    "state_from_drafts": ["stateful"],
    "min_p_after": ["min-p"],
}


@pytest.mark.parametrize("mutant,where", [(name, where) for name, places in KILLS.items() for where in places])
def test_mutant_is_killed(mutant: str, where: str) -> None:
    scenario = SCENARIOS[where]
    assert violations(scenario.law(BROKEN[mutant]), scenario.expected)


@pytest.mark.thorough("bias", "repetition", "presence", "frequency-block", "stateful-block")
@pytest.mark.parametrize("rule", SOUND)
@pytest.mark.parametrize("where", SCENARIOS)
def test_sound_parts_survive_every_scenario(where: str, rule: str) -> None:
    scenario = SCENARIOS[where]
    assert not violations(scenario.law(SOUND[rule]), scenario.expected)


@pytest.mark.thorough
@pytest.mark.parametrize("mutant", list(KILLS))
def test_the_mutants_are_not_borderline(mutant: str) -> None:
    """.025 of total variation is what 200,000 texts show with 99 % (test_level5_mutants)."""
    far = max(
        total_variation(SCENARIOS[where].law(BROKEN[mutant]), SCENARIOS[where].expected) for where in KILLS[mutant]
    )
    assert far > 0.025


def reported(part: Broken) -> list[tuple[float, float]]:
    """(reported, right) raw log probabilities of a sampled text under a temperature, a bias and a penalty."""
    engine = Engine(model(TARGET), draft_with(DRAFT)(), FixedLength(2), make_processing=part.processing)
    params = SamplingParams(
        temperature=0.6, seed=3, max_tokens=12, logprobs=1, logit_bias={0: 1.0}, frequency_penalty=0.3
    )
    sequence = engine.add((1,), params)
    deltas = run(engine)[sequence.sequence_id]
    found, text = [entry for delta in deltas for entry in delta.logprobs or ()], sequence.tokens
    assert len(found) == 12
    weights = [TARGET[before] for before in text[:-1]]
    return [(entry.logprob, math.log(row[entry.token] / sum(row))) for entry, row in zip(found, weights, strict=True)]


def test_processed_log_probabilities_reported_as_raw_are_noticed() -> None:
    assert all(abs(got - right) < 1e-9 for got, right in reported(Broken("nothing is wrong")))
    assert any(abs(got - right) > 0.01 for got, right in reported(BROKEN["processed_as_raw"]))


def test_every_broken_processing_is_killed_by_name() -> None:
    assert {*KILLS, "processed_as_raw"} == {*BROKEN_PROCESSING, "min_p_after"}
    assert all(broken.reason and "\n" not in broken.reason for broken in BROKEN_PROCESSING.values())
