"""Level 1, trees through the real engine: the exact law of committed text, two rounds deep, is the target's.

Every decision of a run is enumerated, as in test_level1_engine.py; `claim` refuses a key that is asked for twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.verification.laws import (
    FixedTopology,
    cut_drafter,
    draft_with,
    finish,
    model,
    pairs,
    product_law,
    quarters,
    shared_noise,
    target_law,
    to_logits,
    violations,
    windowed_drafter,
)
from tests.verification.reference import AutomatonGrammar, plain_law, table_rows
from tests.verification.test_level1_features import Grudge, nudge

from forerun.drafting import Drafter, ModelDrafter
from forerun.engine import Engine, Scheduler
from forerun.runtime.toy import ToyModel
from forerun.sampling import SamplingParams, StatefulProcessor
from forerun.types import Capabilities
from forerun.verification import RULES
from forerun.verification.enumerate import Chooser, enumerating, outcomes

RULE_NAMES = sorted(RULES)
TREES: dict[str, tuple[int, ...]] = {
    "pair": (-1, -1),
    "comb": (-1, -1, 0),
    "second goes on": (-1, -1, 1),
    "comb of two": (-1, -1, 0, 0),
    "full": (-1, -1, 0, 0, 1, 1),
    "mixed": (-1, 0, -1, 2),
}
SMALL = ("pair", "comb", "second goes on", "mixed")
FILTERS: dict[str, dict[str, Any]] = {
    "none": {},
    "hot": {"temperature": 3.0},
    "top_k": {"top_k": 2},
    "all": {"temperature": 1.4, "top_k": 3, "top_p": 0.8731, "min_p": 0.1373},
}


def tree_law(
    target: Any,
    make_drafter: Callable[[], Drafter],
    parents: tuple[int, ...],
    requests: Any,
    *,
    kind: Any = "sampled",
    gate: Any = None,
    wrap_noise: Callable[[Any], Any] = lambda factory: factory,
    seen: list[Any] | None = None,
    target_model: Callable[[], Any] | None = None,
    **engine_settings: Any,
) -> dict[Any, float]:
    """`laws.engine_law` with a tree in every round."""

    def run(chooser: Chooser) -> Any:
        policy = FixedTopology(parents, gate)
        made = model(target) if target_model is None else target_model()
        noise = wrap_noise(enumerating(chooser, kind))
        engine = Engine(made, make_drafter(), policy, make_noise=noise, **engine_settings)
        sequences = [engine.add(prompt, SamplingParams(**params)) for prompt, params in requests]
        finish(engine)
        if seen is not None:
            seen.extend(policy.rounds)
        texts = tuple(tuple(sequence.tokens[sequence.prompt_length :]) for sequence in sequences)
        return texts if len(texts) > 1 else texts[0]

    return outcomes(run)


def dense(size: int) -> tuple[Any, Any]:
    target, draft = np.random.default_rng(size).integers(1, 9, (2, size, size))
    return target, draft


@pytest.mark.parametrize("rule", RULE_NAMES)
@pytest.mark.parametrize("name", TREES)
def test_sampled_trees_leave_the_targets_law(name: str, rule: str) -> None:
    seen: list[Any] = []

    @settings(max_examples=4)
    @example(dense(2))
    @given(pairs(2))
    def check(pair: tuple[Any, Any]) -> None:
        target, draft = pair
        law = tree_law(target, draft_with(draft), TREES[name], [([1], {"max_tokens": 4})], rules=RULES[rule], seen=seen)
        assert not violations(law, target_law(target, [1], 4))

    check()
    assert max(done.num_accepted for done in seen) == 2 - (name == "pair")
    assert {rank for done in seen for rank in done.ranks} == {0, 1}


@pytest.mark.parametrize("rule", RULE_NAMES)
@pytest.mark.parametrize("name", SMALL)
def test_sampled_trees_over_three_tokens(name: str, rule: str) -> None:
    @settings(max_examples=2)
    @given(pairs(3))
    def check(pair: tuple[Any, Any]) -> None:
        target, draft = pair
        law = tree_law(target, draft_with(draft), TREES[name], [([1], {"max_tokens": 3})], rules=RULES[rule])
        assert not violations(law, target_law(target, [1], 3))

    check()


@pytest.mark.parametrize("candidates", ["sampled", "top"])
@pytest.mark.parametrize("name", TREES)
@settings(max_examples=4)
@given(pairs(3))
def test_fixed_trees_leave_the_targets_law(name: str, candidates: Any, pair: tuple[Any, Any]) -> None:
    """The best children: of noise that fixes the draft, and of a drafter that takes them at any temperature."""
    target, draft = pair
    kind = "deterministic" if candidates == "sampled" else "sampled"
    make_drafter = draft_with(draft, candidates=candidates)
    law = tree_law(target, make_drafter, TREES[name], [([1], {"max_tokens": 4})], kind=kind)
    assert not violations(law, target_law(target, [1], 4))


@pytest.mark.thorough(but=("pair", "mixed"))
@pytest.mark.parametrize("name", TREES)
@settings(max_examples=4)
@given(quarters(3), quarters(3))
def test_trees_that_share_the_targets_noise_leave_its_law(name: str, target: Any, draft: Any) -> None:
    def run(chooser: Chooser) -> tuple[int, ...]:
        noise = shared_noise(chooser, 4)
        engine = Engine(model(target), draft_with(draft)(), FixedTopology(TREES[name]), make_noise=noise)
        sequence = engine.add([1], SamplingParams(max_tokens=4))
        finish(engine)
        return tuple(sequence.tokens[1:])

    assert not violations(outcomes(run), target_law(target, [1], 4))


@pytest.mark.parametrize("rule", RULE_NAMES)
@pytest.mark.parametrize("name", FILTERS)
@settings(max_examples=2)
@given(pairs(4))
def test_every_sampling_parameter_keeps_its_own_law(name: str, rule: str, pair: tuple[Any, Any]) -> None:
    """Filters leave q fewer tokens than children are asked for."""
    target, draft = pair
    request = ([2], {"max_tokens": 3, **FILTERS[name]})
    law = tree_law(target, draft_with(draft), TREES["comb"], [request], rules=RULES[rule])
    assert not violations(law, target_law(target, [2], 3, **FILTERS[name]))


PARAMS: Mapping[str, dict[str, Any]] = {
    "penalties": {"repetition_penalty": 1.7, "presence_penalty": 0.3, "frequency_penalty": 0.4},
    "bias and words": {"logit_bias": {0: 0.4, 2: -0.7}, "bad_words": ((1, 0), (2,))},
    "allowed": {"allowed_token_ids": (0, 2)},
    "early end": {"min_tokens": 2},
    "stop": {"stop_token_ids": (0,)},
    "processors": {"logits_processors": (StatefulProcessor(Grudge), nudge)},
}


@pytest.mark.thorough("processors-full", "stop-full", "penalties-full-block")
@pytest.mark.parametrize("rule", RULE_NAMES)
@pytest.mark.parametrize("tree", ["second goes on", "full"])
@pytest.mark.parametrize("name", PARAMS)
@settings(max_examples=2)
@given(pairs(3))
def test_parameters_see_the_path_that_leads_to_a_node(name: str, tree: str, rule: str, pair: tuple[Any, Any]) -> None:
    target, draft = (np.array(one) + 1 for one in pair)
    params = {"max_tokens": 3, **PARAMS[name]}
    law = tree_law(target, draft_with(draft), TREES[tree], [([1], params)], rules=RULES[rule], eos_ids=[0])
    rest = {key: value for key, value in params.items() if key not in ("max_tokens", "stop_token_ids")}
    assert not violations(law, plain_law(table_rows(target), [1], 3, [0], **rest))


EDGES = [{0: 1, 1: 2}, {2: 3}, {0: 3, 1: 2, 2: 0}, {}]


@pytest.mark.parametrize("kind", ["sampled", "deterministic"])
@pytest.mark.parametrize("tree", ["second goes on", "full"])
@settings(max_examples=4)
@given(pairs(3))
def test_a_grammar_cuts_fixed_trees_and_masks_sampled_ones(tree: str, kind: str, pair: tuple[Any, Any]) -> None:
    target, draft = (np.array(one) + 1 for one in pair)
    num_tokens = 3 if tree == "full" else 4
    params = {"max_tokens": num_tokens, "constraint": AutomatonGrammar(EDGES, 3)}
    law = tree_law(target, draft_with(draft), TREES[tree], [([1], params)], kind=kind)
    assert not violations(law, plain_law(table_rows(target), [1], num_tokens, constraint=AutomatonGrammar(EDGES, 3)))


@pytest.mark.parametrize("rule", RULE_NAMES)
@settings(max_examples=3)
@given(pairs(2))
def test_ragged_batches_are_independent(rule: str, pair: tuple[Any, Any]) -> None:
    target, draft = pair
    requests: list[Any] = [
        ([1], {"max_tokens": 3}),
        ([0, 1, 1], {"max_tokens": 2, "temperature": 0.5}),
        ([1, 0], {"max_tokens": 3, "temperature": 0}),
    ]
    scheduler = Scheduler(max_sequences=3, max_tokens=2)
    law = tree_law(target, draft_with(draft), TREES["pair"], requests, rules=RULES[rule], scheduler=scheduler)
    laws = target_law(target, [1], 3), target_law(target, [0, 1, 1], 2, temperature=0.5)
    assert not violations(law, product_law(*laws, target_law(target, [1, 0], 3, temperature=0)))


class _NoTrees(ToyModel):
    """A model that serves none, and refuses them."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.capabilities = Capabilities(None, self.capabilities.vocabulary_size)


@pytest.mark.parametrize("rule", RULE_NAMES)
@pytest.mark.parametrize("name", TREES)
@settings(max_examples=3)
@given(pairs(2))
def test_a_draft_model_without_trees_draws_combs(name: str, rule: str, pair: tuple[Any, Any]) -> None:
    target, draft = pair
    seen: list[Any] = []
    law = tree_law(
        target, lambda: ModelDrafter(_NoTrees.from_table(to_logits(draft)), start_after=0), TREES[name],
        [([1], {"max_tokens": 4})], rules=RULES[rule], seen=seen,
    )  # fmt: skip
    assert not violations(law, target_law(target, [1], 4))
    whole = {"pair": 2, "comb": 3, "second goes on": 2, "comb of two": 4, "full": 4, "mixed": 3}[name]
    assert max(done.num_proposed for done in seen) <= whole


@pytest.mark.parametrize("rule", RULE_NAMES)
@settings(max_examples=3)
@given(pairs(2))
def test_a_target_without_trees_is_given_chains(rule: str, pair: tuple[Any, Any]) -> None:
    target, draft = pair
    seen: list[Any] = []
    law = tree_law(
        target, draft_with(draft), TREES["full"], [([1], {"max_tokens": 4})], rules=RULES[rule], seen=seen,
        target_model=lambda: _NoTrees.from_table(to_logits(target)),
    )  # fmt: skip
    assert not violations(law, target_law(target, [1], 4))
    assert max(done.num_proposed for done in seen) == 2


def unsure(confidences: Any) -> bool:
    return bool(np.prod(confidences) >= 0.6)


DRAFTERS: dict[str, Callable[[Any], Drafter]] = {
    "unsure": lambda draft: draft_with(draft, min_confidence=0.6)(),
    "window": lambda draft: windowed_drafter(draft, 3),
    "window of one": lambda draft: windowed_drafter(draft, 1),
    "cut head": lambda draft: cut_drafter(np.array(draft) + 1, (1,)),
    "late": lambda draft: draft_with(draft, start_after=1)(),
}


@pytest.mark.parametrize("rule", RULE_NAMES)
@pytest.mark.parametrize("tree", ["second goes on", "full"])
@pytest.mark.parametrize("name", [*DRAFTERS, "gate"])
@settings(max_examples=3)
@given(pairs(2))
def test_every_way_to_draft_less(name: str, tree: str, rule: str, pair: tuple[Any, Any]) -> None:
    target, draft = pair
    make_drafter = DRAFTERS.get(name, lambda draft: draft_with(draft)())
    gate = unsure if name == "gate" else None
    law = tree_law(
        target, lambda: make_drafter(draft), TREES[tree], [([1], {"max_tokens": 4})], gate=gate, rules=RULES[rule]
    )
    assert not violations(law, target_law(target, [1], 4))


@pytest.mark.parametrize("rule", RULE_NAMES)
@pytest.mark.parametrize("tree", ["second goes on", "full"])
@settings(max_examples=3)
@given(pairs(3))
def test_a_draft_model_with_fewer_inputs(tree: str, rule: str, pair: tuple[Any, Any]) -> None:
    """A node whose token cannot be fed is not expanded; its siblings are."""
    target, draft = pair

    def make_drafter() -> Drafter:
        made = model(draft)
        made.capabilities = Capabilities(None, 3, 2, trees=True)
        return ModelDrafter(made, start_after=0)

    law = tree_law(target, make_drafter, TREES[tree], [([1], {"max_tokens": 3})], rules=RULES[rule])
    assert not violations(law, target_law(target, [1], 3))


@pytest.mark.parametrize("rule", RULE_NAMES)
@pytest.mark.parametrize("bad", [0, 1])
@pytest.mark.filterwarnings("ignore:drafting failed")
@settings(max_examples=3)
@given(pairs(2))
def test_a_draft_model_that_fails_behind_some_node_bends_nothing(bad: int, rule: str, pair: tuple[Any, Any]) -> None:
    target, draft = pair

    def logits_of(tokens: tuple[int, ...]) -> np.ndarray:
        return np.array([np.nan, 0.0]) if tokens[-2:] == (1, bad) else to_logits(draft[tokens[-1]])

    law = tree_law(
        target, lambda: ModelDrafter(ToyModel(logits_of, 2), start_after=0), TREES["full"],
        [([0, 1], {"max_tokens": 4})], rules=RULES[rule],
    )  # fmt: skip
    assert not violations(law, target_law(target, [0, 1], 4))


@pytest.mark.parametrize("rule", RULE_NAMES)
@settings(max_examples=4)
@given(pairs(2), st.integers(2, 5))
def test_trees_up_to_the_end_of_the_context(rule: str, pair: tuple[Any, Any], context: int) -> None:
    """More nodes than places are left: depth is what has to fit."""
    target, draft = pair
    law = tree_law(
        target, draft_with(draft), TREES["full"], [([1], {"max_tokens": 9})], rules=RULES[rule],
        target_model=lambda: ToyModel.from_table(to_logits(target), context_length=context),
    )  # fmt: skip
    assert not violations(law, target_law(target, [1], context - 1))
