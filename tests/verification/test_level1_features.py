"""Level 1 for every sampling feature: the enumerated law of the real engine is the law of plain decoding.

`reference.py` states plain decoding once more, without sharing code. Features are drawn alone and in combinations of up
to six; drafts, tables, prompts and their values are drawn too. Texts are long enough for a second full round.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.verification.laws import Text, draft_with, finish, model, pairs, policy_of, violations
from tests.verification.reference import STUCK, AutomatonGrammar, plain_law, table_rows

from forerun.control import FixedLength
from forerun.drafting import LookupDrafter, StackDrafter, SuffixDrafter
from forerun.engine import Engine
from forerun.sampling import SamplingParams, StatefulProcessor
from forerun.types import Plan
from forerun.verification import RULES
from forerun.verification.broken import Broken
from forerun.verification.enumerate import Chooser, enumerating, outcomes

SIZE, EOS = 3, 2
SOUND = {name: Broken("nothing is wrong", rules) for name, rules in RULES.items()}


def features_law(
    target: Any, make_drafter: Any, k: Any, prompt: Text, num_tokens: int, params: dict[str, Any], part: Broken,
    kind: Any = "sampled", make_policy: Any = policy_of,
) -> dict[Text, float]:  # fmt: skip
    """The exact law of what the engine commits to one request; STUCK where it ended for want of a legal token."""

    def run(chooser: Chooser) -> Text:
        engine = Engine(
            model(target), part.drafter(make_drafter()), make_policy(k), eos_ids=[EOS] if "eos" in params else (),
            rules=part.rules, make_noise=part.noise(enumerating(chooser, kind)), make_processing=part.processing,
        )  # fmt: skip
        settings = {name: value for name, value in params.items() if name != "eos"}
        sequence = engine.add(prompt, SamplingParams(max_tokens=num_tokens, **settings))
        finish(engine)
        text = tuple(sequence.tokens[len(prompt) :])
        return (*text, STUCK) if sequence.finish_reason == "error" else text

    return outcomes(run)


def expected_law(target: Any, prompt: Text, num_tokens: int, params: dict[str, Any]) -> dict[Text, float]:
    settings = {name: value for name, value in params.items() if name != "eos"}
    return plain_law(table_rows(target), prompt, num_tokens, [EOS] if "eos" in params else (), **settings)


# -- what features are drawn from --------------------------------------------------------------------------------------


def nudge(tokens: list[int], logits: Any) -> Any:
    """A stateless processor that looks at the whole text."""
    token = sum(tokens) % SIZE
    logits[token] += ((len(tokens) * 7 + sum(tokens)) % 5 - 2) / 3.17
    return logits


class Grudge:
    """A stateful processor: it counts its calls, and holds it against a token that it was the favourite last time."""

    def __init__(self) -> None:
        self.num_calls, self.favourite = 0, None

    def __call__(self, tokens: list[int], logits: Any) -> Any:
        favourite = int(np.argmax(logits))
        if self.favourite is not None:
            logits[self.favourite] -= 0.83
        logits[self.num_calls % SIZE] += 0.59
        self.favourite, self.num_calls = favourite, self.num_calls + 1
        return logits


@st.composite
def grammars(draw: Any) -> AutomatonGrammar:
    """Automata of up to four states; some end, some go on for ever."""
    num = draw(st.integers(1, 4))
    states = st.dictionaries(st.integers(0, SIZE - 1), st.integers(0, num - 1), max_size=SIZE)
    first = states.filter(bool)
    return AutomatonGrammar([draw(first), *(draw(states) for _ in range(num - 1))], SIZE)


words = st.lists(st.integers(0, SIZE - 1), min_size=1, max_size=3).map(tuple)
FEATURES: dict[str, Any] = {
    "temperature": st.sampled_from([0.0, 0.61, 1.73]),
    "top_k": st.integers(1, SIZE),
    "top_p": st.sampled_from([0.6137, 0.8731]),
    "min_p": st.sampled_from([0.1373, 0.3719]),
    "repetition_penalty": st.sampled_from([0.71, 1.37, 2.3]),
    "frequency_penalty": st.sampled_from([-1.13, 0.47, 1.9]),
    "presence_penalty": st.sampled_from([-0.77, 0.53]),
    "logit_bias": st.dictionaries(st.integers(0, SIZE - 1), st.sampled_from([-1.21, 0.93, 30.0, -30.0]), min_size=1),
    "bad_words": st.lists(words, min_size=1, max_size=2).map(tuple),
    "allowed_token_ids": st.sets(st.integers(0, SIZE - 1), min_size=1).map(sorted).map(tuple),
    "min_tokens": st.integers(1, 3),
    "logits_processors": st.sampled_from([(nudge,), (StatefulProcessor(Grudge),), (StatefulProcessor(Grudge), nudge)]),
    "constraint": grammars(),
}


@st.composite
def requests(draw: Any, names: Any, eos: bool | None = None) -> dict[str, Any]:
    params = {name: draw(FEATURES[name]) for name in names}
    if "min_tokens" in params or (draw(st.booleans()) if eos is None else eos):
        params["eos"] = True
    return params


combinations = st.lists(st.sampled_from(sorted(FEATURES)), min_size=2, max_size=6, unique=True)
prompts = st.lists(st.integers(0, SIZE - 1), min_size=1, max_size=3).map(tuple)


def check(
    pair: Any, prompt: Text, params: dict[str, Any], rule: str, k: int, num_tokens: int, kind: str = "sampled",
    make_drafter: Any = None, make_policy: Any = policy_of,
) -> None:  # fmt: skip
    target, draft = pair
    make = make_drafter if make_drafter is not None else draft_with(draft)
    law = features_law(target, make, k, prompt, num_tokens, params, SOUND[rule], kind, make_policy)
    assert not violations(law, expected_law(target, prompt, num_tokens, params))


@pytest.mark.thorough("block")
@pytest.mark.parametrize("rule", sorted(RULES))
@pytest.mark.parametrize("name", FEATURES)
@settings(max_examples=25)
@given(data=st.data())
def test_each_feature_alone_leaves_the_plain_law(name: str, rule: str, data: Any) -> None:
    params = data.draw(requests([name]))
    check(data.draw(pairs(SIZE)), data.draw(prompts), params, rule, data.draw(st.sampled_from([1, 2])), 3)


@pytest.mark.thorough("block")
@pytest.mark.parametrize("rule", sorted(RULES))
@settings(max_examples=300)
@given(data=st.data())
def test_combinations_of_up_to_six_leave_the_plain_law(rule: str, data: Any) -> None:
    params = data.draw(combinations.flatmap(requests))
    check(data.draw(pairs(SIZE)), data.draw(prompts), params, rule, data.draw(st.sampled_from([1, 2])), 3)


@pytest.mark.parametrize("rule", sorted(RULES))
@settings(max_examples=40)
@given(data=st.data())
def test_combinations_two_full_rounds_deep(rule: str, data: Any) -> None:
    params = data.draw(combinations.flatmap(requests))
    check(data.draw(pairs(SIZE)), data.draw(prompts), params, rule, 2, 4)


@settings(max_examples=200)
@given(data=st.data(), k=st.sampled_from([1, 2, 3]))
def test_combinations_under_fixed_drafts(data: Any, k: int) -> None:
    """Drafts from text are cut at illegal tokens and lengthened by forced ones; argmax drafts of a model are
    followed."""
    params = data.draw(combinations.flatmap(requests))
    make_drafter = data.draw(st.sampled_from([None, lambda: LookupDrafter(2, 1), SuffixDrafter]))
    check(data.draw(pairs(SIZE)), data.draw(prompts), params, "block", k, 4, "deterministic", make_drafter)


class Extended(FixedLength):
    """Suffix drafts extended by the draft model, where they are sure enough."""

    def plan(self, sequences: Any, prospects: Any, load: Any) -> list[Plan]:
        return [Plan(self.k, one[-1].source if one else None) for one in prospects]


@pytest.mark.thorough("block")
@pytest.mark.parametrize("rule", sorted(RULES))
@settings(max_examples=150)
@given(data=st.data())
def test_combinations_where_a_model_goes_on_behind_copied_tokens(rule: str, data: Any) -> None:
    """Every parameter sees the copied tokens as part of the text that the draft model's rows follow."""
    params = data.draw(combinations.flatmap(requests))
    prompt = data.draw(st.sampled_from([(0, 1, 0, 1, 0, 1), (2, 2, 2, 2), (0, 1, 2, 0, 1, 2, 0, 1)]))
    kind = data.draw(st.sampled_from(["sampled", "deterministic"]))
    target, draft = data.draw(pairs(SIZE))

    def make_drafter() -> StackDrafter:
        return StackDrafter([SuffixDrafter(), draft_with(draft)()])

    k = data.draw(st.sampled_from([2, 3]))
    check((target, draft), prompt, params, rule, k, 3, kind, make_drafter, Extended)


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize("rule", sorted(RULES))
@settings(max_examples=400)
@given(data=st.data())
def test_more_combinations(rule: str, data: Any) -> None:
    params = data.draw(combinations.flatmap(requests))
    check(data.draw(pairs(SIZE)), data.draw(prompts), params, rule, 2, 4)
