"""Level 4, the adaptive policy: greedy and seeded text is plain decoding's, whatever real clocks make it draft.

Its choices depend on measured times, so that no two runs draft alike; the text may not show it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.verification.laws import finish
from tests.verification.test_level4_invariance import DRAFTERS, NUM_TOKENS, PROMPTS, REQUESTS, SIZE, plain, target

from forerun.control import AdaptiveLength, PassCost
from forerun.engine import Engine, Scheduler
from forerun.sampling import SamplingParams
from forerun.types import CostCurve, Plan
from forerun.verification import RULES


def adaptive(draft_ms: float = 0.05, **settings: Any) -> AdaptiveLength:
    """Whose target is said to be slow, so that drafts pay at first; what passes really take is learnt meanwhile."""
    target_cost = PassCost(CostCurve(0, dict.fromkeys((1, 8, 64), 5.0)))
    draft_cost = PassCost(CostCurve(0, dict.fromkeys((1, 8, 64), draft_ms)))
    return AdaptiveLength(target_cost, draft_cost, **{"probe_share": 0.3, **settings})


def together(drafter: str, requests: list[Any], policy: AdaptiveLength, max_sequences: int, rules: str) -> list[Any]:
    engine = Engine(
        target(), DRAFTERS[drafter](), policy, rules=RULES[rules], scheduler=Scheduler(max_sequences=max_sequences)
    )
    made = [engine.add(prompt, SamplingParams(**{"max_tokens": NUM_TOKENS, **params})) for prompt, params in requests]
    finish(engine)
    return made


class Viewing(AdaptiveLength):
    """Has the draft model see another part of the text in each round: all of it, its end, or what it has seen, and
    sometimes read a piece of it and draft nothing."""

    def plan(self, sequences: Any, prospects: Any, load: Any) -> list[Plan]:
        more: dict[str, Any] = (
            {"most_unread": 3}, {}, {"whole": True}, {"most_unread": 0}, {"whole": True, "shape": 0, "read": 2}, {},
        )[self._num_rounds % 6]  # fmt: skip
        plans = super().plan(sequences, prospects, load)
        return [replace(plan, tree=None, **more) if plan.shape else plan for plan in plans]


@pytest.mark.parametrize("max_sequences", [1, 3, 16])
@pytest.mark.parametrize("drafter", ["model", "unsure model", "narrow model", "stack"])
def test_whatever_part_of_a_text_a_draft_model_sees(drafter: str, max_sequences: int) -> None:
    requests = [(prompt, params) for prompt in PROMPTS for params in REQUESTS.values()]
    costs = adaptive()
    policy = Viewing(costs.target, costs.draft, probe_share=0.3)
    made = together(drafter, requests, policy, max_sequences, "block")
    for sequence, (prompt, params) in zip(made, requests, strict=True):
        assert (tuple(sequence.tokens[len(prompt) :]), sequence.finish_reason) == plain(prompt, **params)
    assert sum(sequence.statistics.num_proposed for sequence in made) > 0


@pytest.mark.parametrize("max_sequences", [1, 3, 16])
@pytest.mark.parametrize("drafter", ["model", "unsure model", "narrow model", "lookup recent", "suffix", "stack"])
def test_the_adaptive_policy_writes_the_plain_text(drafter: str, max_sequences: int) -> None:
    requests = [(prompt, params) for prompt in PROMPTS for params in REQUESTS.values()]
    made = together(drafter, requests, adaptive(), max_sequences, "block")
    for sequence, (prompt, params) in zip(made, requests, strict=True):
        assert (tuple(sequence.tokens[len(prompt) :]), sequence.finish_reason) == plain(prompt, **params)
    assert sum(sequence.statistics.num_proposed for sequence in made) > 0


@settings(max_examples=30)
@given(
    prompts=st.lists(st.lists(st.integers(0, SIZE - 1), min_size=1, max_size=12), min_size=1, max_size=4),
    request=st.sampled_from(sorted(REQUESTS)),
    drafter=st.sampled_from(["model", "suffix", "stack"]),
    rules=st.sampled_from(sorted(RULES)),
    draft_ms=st.sampled_from([0.01, 1.0, 6.0]),
    max_rows=st.sampled_from([1, 3, 256]),
    stop=st.none() | st.integers(0, SIZE - 1),
)
def test_whatever_it_decides(
    prompts: Any, request: str, drafter: str, rules: str, draft_ms: float, max_rows: int, stop: int | None
) -> None:
    params = {**REQUESTS[request], "stop_token_ids": () if stop is None else (stop,)}
    free: list[Any] = [((1, 2), {})]  # a neighbour that the seed does not bind
    requests = [(tuple(prompt), params) for prompt in prompts]
    made = together(drafter, [*requests, *free], adaptive(draft_ms, max_rows=max_rows), 8, rules)
    for sequence, (prompt, _) in zip(made, requests, strict=False):
        assert (tuple(sequence.tokens[len(prompt) :]), sequence.finish_reason) == plain(prompt, **params)


@pytest.mark.parametrize("drafter", ["model", "stack"])
def test_several_choices_of_one_prompt(drafter: str) -> None:
    """n = 3: followers whose cache is a copy of the leader's are drafted for like any other."""
    for params in REQUESTS.values():
        engine = Engine(target(), DRAFTERS[drafter](), adaptive())
        wanted = SamplingParams(**{"max_tokens": NUM_TOKENS, **params})
        leader = engine.add(PROMPTS[1], wanted)
        made = [leader, *(engine.add(PROMPTS[1], wanted, choice=choice, leader=leader) for choice in (1, 2))]
        finish(engine)
        alone = []
        for choice in range(3):
            engine = Engine(target())
            alone.append(engine.add(PROMPTS[1], wanted, choice=choice))
            finish(engine)
        assert [sequence.tokens for sequence in made] == [sequence.tokens for sequence in alone]
