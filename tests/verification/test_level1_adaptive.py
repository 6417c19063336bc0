"""Level 1, the adaptive policy: what it learns, tries and ends bends no law.

Models tell made-up costs (policies.py), so that what is drafted changes from round to round: the law must not depend on
it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.verification.laws import (
    draft_with,
    engine_law,
    finish,
    model,
    pairs,
    product_law,
    quarters,
    shared_noise,
    target_law,
    violations,
    windowed_drafter,
)
from tests.verification.policies import Adaptive, Viewing
from tests.verification.test_level1_engine import FILTERS
from tests.verification.test_level1_stack import PROMPT, stack_with

from forerun.drafting import Drafter, LookupDrafter, ModelDrafter, SuffixDrafter
from forerun.engine import Engine
from forerun.sampling import SamplingParams
from forerun.types import Plan
from forerun.verification import RULES
from forerun.verification.enumerate import Chooser, outcomes

RULE_NAMES = sorted(RULES)
DENSE = np.random.default_rng(5).integers(1, 9, (2, 2, 2))


def _of_order_one(weights: Any) -> Any:
    """As many rows of a table as it has columns."""
    size = np.shape(weights)[-1]
    return np.reshape(weights, (-1, size))[:size]


POLICIES: dict[str, Callable[[int], Adaptive]] = {
    "cheap": lambda k: Adaptive(max_length=k),
    "dear": lambda k: Adaptive(dear=True, max_length=k),
    "few rows": lambda k: Adaptive(max_length=k, max_rows=1),
    "views": lambda k: Viewing(max_length=k),
}
DRAFTERS: dict[str, Callable[[Any], Callable[[], Drafter]]] = {
    "model": draft_with,
    "unsure model": lambda draft: draft_with(draft, min_confidence=0.6),
    "model of the whole text": lambda draft: lambda: windowed_drafter(_of_order_one(draft), 64),
    "suffix": lambda draft: SuffixDrafter,
    "lookup": lambda draft: lambda: LookupDrafter(2, 1),
    "stack": stack_with,
}


@pytest.mark.thorough("model of the whole text", "model-views", "stack-views-chain")
@pytest.mark.parametrize("rule", RULE_NAMES)
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("drafter", DRAFTERS)
@settings(max_examples=2)
@example((DENSE[0], DENSE[1]))
@given(pairs(2))
def test_whatever_is_learnt_leaves_the_targets_law(drafter: str, policy: str, rule: str, pair: tuple[Any, Any]) -> None:
    target, draft = pair
    law = engine_law(
        target, DRAFTERS[drafter](draft), 3, [(PROMPT, {"max_tokens": 5})], rules=RULES[rule],
        make_policy=POLICIES[policy],
    )  # fmt: skip
    assert not violations(law, target_law(target, PROMPT, 5))


@pytest.mark.thorough("all-block")
@pytest.mark.parametrize("rule", RULE_NAMES)
@pytest.mark.parametrize("name", FILTERS)
@settings(max_examples=2)
@given(pairs(3))
def test_with_every_sampling_parameter(name: str, rule: str, pair: tuple[Any, Any]) -> None:
    target, draft = pair
    law = engine_law(
        target, stack_with(draft), 2, [(PROMPT, {"max_tokens": 4, **FILTERS[name]})], rules=RULES[rule],
        make_policy=POLICIES["cheap"],
    )  # fmt: skip
    assert not violations(law, target_law(target, PROMPT, 4, **FILTERS[name]))


@settings(max_examples=4)
@given(quarters(3), quarters(3), st.sampled_from(sorted(POLICIES)))
def test_in_the_seeded_mode(target: Any, draft: Any, policy: str) -> None:
    def run(chooser: Chooser) -> tuple[int, ...]:
        engine = Engine(model(target), stack_with(draft)(), POLICIES[policy](3), make_noise=shared_noise(chooser, 4))
        sequence = engine.add(PROMPT, SamplingParams(max_tokens=4))
        finish(engine)
        return tuple(sequence.tokens[len(PROMPT) :])

    assert not violations(outcomes(run), target_law(target, PROMPT, 4))


@pytest.mark.parametrize("rule", RULE_NAMES)
@pytest.mark.parametrize("policy", POLICIES)
@settings(max_examples=2)
@given(pairs(2))
def test_in_a_batch_whose_sequences_teach_each_other(policy: str, rule: str, pair: tuple[Any, Any]) -> None:
    """What one text teaches decides how the next is drafted for: their laws stay independent."""
    target, draft = pair
    requests: list[Any] = [(PROMPT, {"max_tokens": 3}), ([1], {"max_tokens": 3})]
    law = engine_law(target, stack_with(draft), 2, requests, rules=RULES[rule], make_policy=POLICIES[policy])
    assert not violations(law, product_law(target_law(target, PROMPT, 3), target_law(target, [1], 3)))


def test_lengths_do_vary_where_laws_are_compared() -> None:
    """The tests here would also pass if always the same was drafted."""
    seen: dict[str, set[int]] = {}
    for name, make in POLICIES.items():
        lengths: set[int] = set()

        def note(engine: Any, sequences: Any, lengths: set[int] = lengths) -> None:
            lengths.update(engine.policy.lengths)

        engine_law(
            DENSE[0], stack_with(DENSE[1]), 3, [(PROMPT, {"max_tokens": 5})], rules=RULES["block"], make_policy=make,
            on_end=note,
        )  # fmt: skip
        seen[name] = lengths
    assert seen["few rows"] <= {0, 1}
    assert len(seen["cheap"]) >= 3
    assert len(seen["dear"]) >= 2


# -- mutants: policies that peek at the token that they drop -----------------------------------------------------------

TARGET, DRAFT = [[2, 5], [4, 3]], [[4, 3], [1, 5]]


class _Showing:
    """Hands every drawn token to the policy, as no drafter does."""

    def __init__(self, drafter: Any, policy: Any) -> None:
        self._drafter, self._policy = drafter, policy

    def __getattr__(self, name: str) -> Any:
        return getattr(self._drafter, name)

    def propose(self, sequences: Any, plans: Any) -> Any:
        drafts = self._drafter.propose(sequences, plans)
        return [self._policy.cut(draft) for draft in drafts]


class _Peeking(Adaptive):
    """Ends a draft before a token that it saw and does not like."""

    def cut(self, draft: Any) -> Any:
        num = next((i for i, token in enumerate(draft.tokens) if token == 1), len(draft.tokens))
        rows = None if draft.rows is None else draft.rows[:num]
        return type(draft)(draft.tokens[:num], draft.kind, rows, source=draft.source)


class _Blind(Adaptive):
    """Has the same chance to cut, and cuts where no token tells: behind the first."""

    def cut(self, draft: Any) -> Any:
        rows = None if draft.rows is None else draft.rows[:1]
        return type(draft)(draft.tokens[:1], draft.kind, rows, source=draft.source)


@pytest.mark.parametrize("rule", RULE_NAMES)
@pytest.mark.parametrize("mutant", [_Peeking, _Blind])
def test_a_policy_that_peeks_at_the_token_it_drops_is_caught(mutant: type[Adaptive], rule: str) -> None:
    made: list[Adaptive] = []

    def make_policy(k: int) -> Adaptive:
        made.append(mutant(max_length=k))
        return made[-1]

    law = engine_law(
        TARGET, lambda: _Showing(draft_with(DRAFT)(), made[-1]), 2, [([1], {"max_tokens": 4})], rules=RULES[rule],
        make_policy=make_policy,
    )  # fmt: skip
    assert bool(violations(law, target_law(TARGET, [1], 4))) is (mutant is _Peeking)


def test_a_gate_sees_the_confidences_of_drawn_tokens_and_nothing_else() -> None:
    """One number more for each token that the draft model drew; the row that would be drawn from next is not among
    them: that row does not even exist yet."""
    shown: list[tuple[float, ...]] = []
    draft_model = model(DRAFT)
    fed: list[int] = []

    class Watching(Adaptive):
        def plan(self, sequences: Any, prospects: Any, load: Any) -> list[Plan]:
            self.num_plans = getattr(self, "num_plans", 0) + 1

            def gate(confidences: Any) -> bool:
                shown.append(tuple(confidences))
                fed.append(draft_model.num_forwards)
                return len(confidences) < 3

            return [Plan(4, gate=gate) for _ in sequences]

    engine = Engine(model(TARGET), ModelDrafter(draft_model, start_after=0), Watching())
    sequence = engine.add([1], SamplingParams(max_tokens=12, seed=3))
    rounds: list[Any] = []
    update = engine.policy.update
    engine.policy.update = lambda done, step: (rounds.extend(done), update(done, step))  # type: ignore[method-assign]
    finish(engine)
    assert sequence.statistics.num_proposed
    assert {len(confidences) for confidences in shown} == {1, 2, 3}
    assert fed == sorted(fed)
    for one, count in zip(shown, fed, strict=True):
        row = np.asarray(DRAFT) / np.sum(DRAFT, axis=-1, keepdims=True)
        assert all(any(confidence == pytest.approx(best) for best in row.max(-1)) for confidence in one)
        assert count >= len(one)
    assert max(done.num_proposed for done in rounds) == 3
