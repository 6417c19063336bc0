"""Level 1, drafts from text and stacks of sources: none of them bends the law, whatever a policy chooses.

A draft that a text began and a draft model extends is the new thing here: fixed tokens whose q has all its mass on one
token, and drawn ones behind them, in one block.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.verification.laws import (
    engine_law,
    finish,
    model,
    pairs,
    product_law,
    quarters,
    shared_noise,
    tables,
    target_law,
    to_logits,
    violations,
    windowed_drafter,
)
from tests.verification.test_level1_engine import FILTERS

from forerun.control import FixedLength
from forerun.drafting import Drafter, LookupDrafter, ModelDrafter, StackDrafter, SuffixDrafter
from forerun.engine import Engine
from forerun.sampling import Distribution, SamplingParams
from forerun.types import Plan
from forerun.verification import RULES
from forerun.verification.enumerate import Chooser, outcomes

RULE_NAMES = sorted(RULES)
PROMPT = [0, 1, 0, 1, 0, 1]
"""Its last three tokens occurred before: a suffix draft of 0, 1, ... of which the first is worth extending."""


class Named(FixedLength):
    """k tokens of a source in every round where it is offered, else of any; `gate` as given."""

    def __init__(self, k: int, *sources: str | None, gate: Any = None) -> None:
        super().__init__(k)
        self.sources, self.gate, self.num_rounds = sources, gate, 0

    def plan(self, sequences: Any, prospects: Any, load: Any) -> list[Plan]:
        wanted = self.sources[self.num_rounds % len(self.sources)]
        self.num_rounds += 1
        return [
            Plan(self.k, wanted if any(one.source == wanted for one in offered) else None, gate=self.gate)
            for offered in prospects
        ]


def stack_with(draft: Any, **more: Any) -> Callable[[], Drafter]:
    return lambda: StackDrafter([SuffixDrafter(), ModelDrafter(model(draft), **{"start_after": 0, **more})])


CHOICES: dict[str, tuple[str | None, ...]] = {
    "suffix": ("suffix",),
    "model": ("model",),
    "suffix+model": ("suffix+model",),
    "its own": (None,),
    "in turns": ("suffix+model", "model", "suffix"),
    "model first": ("model", "suffix+model"),
}


@pytest.mark.parametrize("name", ["none", *FILTERS])
@settings(max_examples=3)
@given(target=tables(3), k=st.sampled_from([1, 2, 3]))
def test_suffix_drafts_are_followed_exactly(name: str, target: Any, k: int) -> None:
    prompt, params, proposed = [0, 1, 2, 0, 1, 0], FILTERS.get(name, {}), []
    law = engine_law(
        target, SuffixDrafter, k, [(prompt, {"max_tokens": k + 2, **params})],
        on_end=lambda engine, sequences: proposed.append(sequences[0].statistics.num_proposed),
    )  # fmt: skip
    assert not violations(law, target_law(target, prompt, k + 2, **params))
    assert max(proposed) > 0


DENSE = np.random.default_rng(5).integers(1, 9, (2, 2, 2))


@pytest.mark.thorough("3-model", "3-in turns", "3-suffix+model", "3-its own-block")
@pytest.mark.parametrize("rule", RULE_NAMES)
@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("k", [2, 3])
@settings(max_examples=3)
@example((DENSE[0], DENSE[1]))
@given(pairs(2))
def test_a_stack_leaves_the_targets_law(k: int, choice: str, rule: str, pair: tuple[Any, Any]) -> None:
    target, draft = pair
    law = engine_law(
        target, stack_with(draft), k, [(PROMPT, {"max_tokens": k + 2})], rules=RULES[rule],
        make_policy=lambda k: Named(k, *CHOICES[choice]),
    )  # fmt: skip
    assert not violations(law, target_law(target, PROMPT, k + 2))


@pytest.mark.parametrize("rule", RULE_NAMES)
@pytest.mark.parametrize("name", FILTERS)
@settings(max_examples=2)
@given(pairs(3))
def test_extended_drafts_with_every_sampling_parameter(name: str, rule: str, pair: tuple[Any, Any]) -> None:
    target, draft = pair
    law = engine_law(
        target, stack_with(draft), 2, [(PROMPT, {"max_tokens": 4, **FILTERS[name]})], rules=RULES[rule],
        make_policy=lambda k: Named(k, "suffix+model"),
    )  # fmt: skip
    assert not violations(law, target_law(target, PROMPT, 4, **FILTERS[name]))


@pytest.mark.thorough("gate-chain", "unsure")
@pytest.mark.parametrize("rule", RULE_NAMES)
@pytest.mark.parametrize("how", ["unsure", "gate", "window", "fewer rows"])
@settings(max_examples=3)
@given(pairs(3))
def test_extended_drafts_that_end_early_or_begin_late(how: str, rule: str, pair: tuple[Any, Any]) -> None:
    """A gate and a floor of confidence see the rows of drawn tokens; a window begins the cache anew among the fixed
    ones; a draft model that cannot read a fixed token drafts nothing behind it."""
    target, draft = pair
    gate = None
    if how == "unsure":
        make = stack_with(draft, min_confidence=0.6)
    elif how == "window":
        make = lambda: StackDrafter([SuffixDrafter(), windowed_drafter(draft, 3)])  # type: ignore[list-item] # noqa: E731
    elif how == "fewer rows":
        make = stack_with(np.asarray(draft)[:1, :1] + 1)
    else:
        make, gate = stack_with(draft), lambda confidences: confidences[-1] > 0.55
    law = engine_law(
        target, make, 3, [(PROMPT, {"max_tokens": 4})], rules=RULES[rule],
        make_policy=lambda k: Named(k, "suffix+model", gate=gate),
    )  # fmt: skip
    assert not violations(law, target_law(target, PROMPT, 4))


@pytest.mark.parametrize("choice", CHOICES)
@settings(max_examples=3)
@given(pairs(3), st.sampled_from([1, 2, 3]))
def test_stacks_without_q(choice: str, pair: tuple[Any, Any], k: int) -> None:
    target, draft = pair
    law = engine_law(
        target, stack_with(draft), k, [(PROMPT, {"max_tokens": k + 2})], kind="deterministic",
        make_policy=lambda k: Named(k, *CHOICES[choice]),
    )  # fmt: skip
    assert not violations(law, target_law(target, PROMPT, k + 2))


@pytest.mark.thorough(but=("suffix+model", "its own"))
@pytest.mark.parametrize("choice", CHOICES)
@settings(max_examples=3)
@given(quarters(3), quarters(3), st.sampled_from([1, 2, 3]))
def test_stacks_in_the_seeded_mode(choice: str, target: Any, draft: Any, k: int) -> None:
    def run(chooser: Chooser) -> tuple[int, ...]:
        policy = Named(k, *CHOICES[choice])
        engine = Engine(model(target), stack_with(draft)(), policy, make_noise=shared_noise(chooser, 4))
        sequence = engine.add(PROMPT, SamplingParams(max_tokens=4))
        finish(engine)
        return tuple(sequence.tokens[len(PROMPT) :])

    assert not violations(outcomes(run), target_law(target, PROMPT, 4))


@pytest.mark.thorough("model first", "suffix+model-block")
@pytest.mark.parametrize("rule", RULE_NAMES)
@pytest.mark.parametrize("choice", CHOICES)
@settings(max_examples=2)
@given(pairs(2))
def test_stacks_in_a_batch(choice: str, rule: str, pair: tuple[Any, Any]) -> None:
    """Two requests whose texts offer different sources: the product of the laws."""
    target, draft = pair
    requests: list[Any] = [(PROMPT, {"max_tokens": 3}), ([1], {"max_tokens": 3})]
    law = engine_law(
        target, stack_with(draft), 2, requests, rules=RULES[rule], make_policy=lambda k: Named(k, *CHOICES[choice])
    )
    assert not violations(law, product_law(target_law(target, PROMPT, 3), target_law(target, [1], 3)))


@pytest.mark.parametrize("rule", RULE_NAMES)
@settings(max_examples=3)
@given(pairs(2))
def test_two_texts_and_a_model(rule: str, pair: tuple[Any, Any]) -> None:
    target, draft = pair

    def make() -> Drafter:
        by_model = ModelDrafter(model(draft), start_after=0)
        return StackDrafter([LookupDrafter(2, 1), SuffixDrafter(), by_model])

    law = engine_law(
        target, make, 2, [([0, 1, 0], {"max_tokens": 4})], rules=RULES[rule],
        make_policy=lambda k: Named(k, None, "lookup", "suffix+model"),
    )  # fmt: skip
    assert not violations(law, target_law(target, [0, 1, 0], 4))


# -- mutants -----------------------------------------------------------------------------------------------------------

TARGET, DRAFT = np.array([[2, 5], [4, 3]]), np.array([[4, 3], [1, 5]])


class _ChoosesByTheToken(StackDrafter):
    """Drafts with the model, and takes the suffix draft instead where the two begin differently."""

    def propose(self, sequences: Any, plans: Any) -> Any:
        drawn = super().propose(sequences, [replace(plan, source="model") for plan in plans])
        copied = super().propose(sequences, [replace(plan, source="suffix") for plan in plans])
        return [
            there if there.tokens and here.tokens[:1] != there.tokens[:1] else here
            for here, there in zip(drawn, copied, strict=True)
        ]


class _KeepsWhatAgrees(StackDrafter):
    """Extends a suffix draft only as long as the model draws what a longer suffix draft would have had."""

    def propose(self, sequences: Any, plans: Any) -> Any:
        drafts = super().propose(sequences, [replace(plan, source="suffix+model") for plan in plans])
        cut = []
        for draft in drafts:
            num = draft.num_free
            while draft.rows and num < len(draft.tokens) and draft.tokens[num] == 1:
                num += 1
            cut.append(replace(draft, tokens=draft.tokens[:num], rows=draft.rows[:num]) if draft.rows else draft)
        return cut


class _ForgetsWhatIsFixed(StackDrafter):
    """Reports the model's own rows as q of tokens that it did not draw."""

    def propose(self, sequences: Any, plans: Any) -> Any:
        drafts = super().propose(sequences, [replace(plan, source="suffix+model") for plan in plans])
        found = []
        for sequence, draft in zip(sequences, drafts, strict=True):
            texts = [[*sequence.tokens, *draft.tokens[:node]] for node in range(draft.num_free)]
            logits = to_logits(DRAFT)
            own = tuple(Distribution.explicit(np.exp(logits[text[-1]])) for text in texts)
            found.append(draft if draft.rows is None else replace(draft, rows=(*own, *draft.rows[draft.num_free :])))
        return found


MUTANTS: dict[str, type[StackDrafter]] = {
    "the token chooses the source": _ChoosesByTheToken,
    "the token ends the draft": _KeepsWhatAgrees,
    "what is fixed is scored as drawn": _ForgetsWhatIsFixed,
}


@pytest.mark.parametrize("rule", RULE_NAMES)
@pytest.mark.parametrize("name", [*MUTANTS, "sound"])
def test_a_stack_that_is_not_what_it_says_bends_the_law(name: str, rule: str) -> None:
    kind = MUTANTS.get(name, StackDrafter)

    def make() -> Drafter:
        return kind([SuffixDrafter(), ModelDrafter(model(DRAFT), start_after=0)])

    law = engine_law(
        TARGET, make, 2, [(PROMPT, {"max_tokens": 4})], rules=RULES[rule],
        make_policy=lambda k: Named(k, "suffix+model"),
    )  # fmt: skip
    assert bool(violations(law, target_law(TARGET, PROMPT, 4))) is (name in MUTANTS)
