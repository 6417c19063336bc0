"""Level 1, the real engine: the exact law of committed text, two rounds deep and more, is the target's.

Every random decision of a whole engine run is enumerated (draft tokens, acceptances, emitted tokens), so nothing here
is sampled: probabilities must agree to 1e-12, and what the target cannot write must never happen. `num_tokens` is at
least k + 2, so a second round with a full draft always happens, and a third one often.
"""

from __future__ import annotations

import os
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
    reference_probs,
    shared_noise,
    tables,
    target_law,
    to_logits,
    violations,
)

from forerun.control import FixedLength
from forerun.drafting import LookupDrafter, ModelDrafter, NoDrafter
from forerun.engine import Engine, Scheduler
from forerun.runtime.toy import ToyModel
from forerun.sampling import SamplingParams
from forerun.types import Plan
from forerun.verification import RULES
from forerun.verification.enumerate import Chooser, outcomes

RULE_NAMES = sorted(RULES)
# (vocabulary, k, tokens): cases
SIZES = {(2, 1, 4): 20, (2, 2, 4): 12, (3, 1, 3): 20, (4, 1, 3): 10, (2, 3, 5): 3, (3, 2, 4): 3}
LARGE = {(2, 3, 5): 12, (3, 2, 4): 8}
if os.environ.get("FORERUN_FULL") == "1":  # many minutes: trees of a hundred thousand leaves
    LARGE = {(3, 3, 5): 3, (4, 2, 4): 4, (3, 2, 5): 6, (2, 4, 6): 6, (2, 3, 5): 60, (3, 2, 4): 60}
FILTERS: dict[str, dict[str, Any]] = {
    "temperature": {"temperature": 0.6},
    "hot": {"temperature": 3.0},
    "top_k": {"top_k": 2},
    "top_p": {"top_p": 0.6137},
    "min_p": {"min_p": 0.3719},
    "all": {"temperature": 1.4, "top_k": 3, "top_p": 0.8731, "min_p": 0.1373},
}


def check_sampled_drafts(shape: tuple[int, int, int], rule: str, cases: int) -> None:
    size, k, num_tokens = shape

    dense = np.random.default_rng(size + k).integers(1, 9, (2, size, size))  # every branch there is, once at least

    @settings(max_examples=cases)
    @example((dense[0], dense[1]))
    @given(pairs(size))
    def check(pair: tuple[Any, Any]) -> None:
        target, draft = pair
        law = engine_law(target, draft_with(draft), k, [([1], {"max_tokens": num_tokens})], rules=RULES[rule])
        assert not violations(law, target_law(target, [1], num_tokens))

    check()


@pytest.mark.thorough("(3, 2, 4)", "(2, 3, 5)")
@pytest.mark.parametrize("rule", RULE_NAMES)
@pytest.mark.parametrize("shape", SIZES, ids=str)
def test_sampled_drafts_leave_the_targets_law(shape: tuple[int, int, int], rule: str) -> None:
    check_sampled_drafts(shape, rule, SIZES[shape])


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize("rule", RULE_NAMES)
@pytest.mark.parametrize("shape", LARGE, ids=str)
def test_sampled_drafts_leave_the_targets_law_on_larger_trees(shape: tuple[int, int, int], rule: str) -> None:
    check_sampled_drafts(shape, rule, LARGE[shape])


@pytest.mark.parametrize("rule", RULE_NAMES)
@pytest.mark.parametrize("min_confidence", [0.55, 0.8, 1.0])
@settings(max_examples=4)
@given(pairs(2))
def test_a_draft_model_that_stops_where_it_is_unsure(min_confidence: float, rule: str, pair: tuple[Any, Any]) -> None:
    """How far it drafts depends on the tokens it drafted before, never on the one it would drop."""
    target, draft = pair

    make_drafter = draft_with(draft, min_confidence=min_confidence)
    law = engine_law(target, make_drafter, 3, [([1], {"max_tokens": 5})], rules=RULES[rule])
    assert not violations(law, target_law(target, [1], 5))


@settings(max_examples=6)
@given(quarters(3), quarters(3), st.sampled_from([1, 2, 3]))
def test_drafts_that_share_the_targets_noise_leave_its_law(target: Any, draft: Any, k: int) -> None:
    """The seeded mode drafts with the very numbers that the target will choose with, also for positions it reaches only
    in a later round. Probabilities are quarters and numbers are four, so the enumeration is exact."""

    def run(chooser: Chooser) -> tuple[int, ...]:
        engine = Engine(model(target), draft_with(draft)(), FixedLength(k), make_noise=shared_noise(chooser, 4))
        sequence = engine.add([1], SamplingParams(max_tokens=4))
        finish(engine)
        return tuple(sequence.tokens[1:])

    assert not violations(outcomes(run), target_law(target, [1], 4))


@pytest.mark.parametrize("rule", RULE_NAMES)
@settings(max_examples=6)
@given(pairs(2, order=2), st.lists(st.integers(0, 1), min_size=1, max_size=3))
def test_laws_that_look_further_back(rule: str, pair: tuple[Any, Any], prompt: list[int]) -> None:
    target, draft = pair
    law = engine_law(target, draft_with(draft), 2, [(prompt, {"max_tokens": 5})], rules=RULES[rule])
    assert not violations(law, target_law(target, prompt, 5))


@pytest.mark.parametrize("rule", RULE_NAMES)
@pytest.mark.parametrize("name", FILTERS)
@settings(max_examples=5)
@given(pairs(4))
def test_every_sampling_parameter_keeps_its_own_law(name: str, rule: str, pair: tuple[Any, Any]) -> None:
    target, draft = pair
    request = ([2], {"max_tokens": 3, **FILTERS[name]})
    law = engine_law(target, draft_with(draft), 1, [request], rules=RULES[rule])
    assert not violations(law, target_law(target, [2], 3, **FILTERS[name]))


@pytest.mark.parametrize("rule", RULE_NAMES)
@pytest.mark.parametrize("name", FILTERS)
@settings(max_examples=2)
@given(pairs(3))
def test_every_sampling_parameter_with_longer_drafts(name: str, rule: str, pair: tuple[Any, Any]) -> None:
    target, draft = pair
    law = engine_law(target, draft_with(draft), 2, [([0], {"max_tokens": 4, **FILTERS[name]})], rules=RULES[rule])
    assert not violations(law, target_law(target, [0], 4, **FILTERS[name]))


@pytest.mark.parametrize("name", ["none", *FILTERS])
@settings(max_examples=5)
@given(pairs(3), st.sampled_from([1, 2, 3]))
def test_argmax_drafts_without_q_are_followed_exactly(name: str, pair: tuple[Any, Any], k: int) -> None:
    """A draft model whose argmax is proposed as a deterministic draft: no q, no acceptance ratio, the target's law."""
    target, draft = pair
    params = FILTERS.get(name, {})
    request = ([1], {"max_tokens": k + 2, **params})
    law = engine_law(target, draft_with(draft), k, [request], kind="deterministic")
    assert not violations(law, target_law(target, [1], k + 2, **params))


@pytest.mark.parametrize("prefer", ["recent", "frequent"])
@pytest.mark.parametrize("name", ["none", *FILTERS])
@settings(max_examples=3)
@given(target=tables(3), k=st.sampled_from([1, 2, 3]))
def test_lookup_drafts_are_followed_exactly(prefer: Any, name: str, target: Any, k: int) -> None:
    prompt, params, proposed = [0, 1, 2, 0, 1, 0], FILTERS.get(name, {}), []
    law = engine_law(
        target, lambda: LookupDrafter(2, 1, prefer), k, [(prompt, {"max_tokens": k + 2, **params})],
        on_end=lambda engine, sequences: proposed.append(sequences[0].statistics.num_proposed),
    )  # fmt: skip
    assert not violations(law, target_law(target, prompt, k + 2, **params))
    assert max(proposed) > 0  # the prompt repeats itself: there was something to look up


@pytest.mark.parametrize("k", range(4))
@given(tables(3))
@settings(max_examples=5)
def test_no_drafter_is_plain_sampling(k: int, target: Any) -> None:
    law = engine_law(target, NoDrafter, k, [([1], {"max_tokens": 3})])
    assert not violations(law, target_law(target, [1], 3))


@pytest.mark.parametrize("rule", RULE_NAMES)
@pytest.mark.parametrize("name", ["none", "top_p", "all"])
@settings(max_examples=2)
@given(tables(3), tables(2))
def test_a_draft_with_fewer_rows_than_the_vocabulary(name: str, rule: str, target: Any, draft: Any) -> None:
    """q has no mass beyond the draft's rows, and texts that contain such a token are no longer drafted for."""
    params = FILTERS.get(name, {})
    law = engine_law(target, draft_with(draft), 2, [([1], {"max_tokens": 4, **params})], rules=RULES[rule])
    assert not violations(law, target_law(target, [1], 4, **params))


@pytest.mark.parametrize("rule", RULE_NAMES)
@settings(max_examples=10)
@given(tables(4), tables(3))
def test_rows_beyond_the_real_vocabulary_are_masked_in_target_and_draft(rule: str, target: Any, draft: Any) -> None:
    """Target 4 rows, draft 3, real vocabulary 2: the law is the target's, restricted and renormalised."""
    target = np.array(target)
    target[:, 0] += 1  # the real part of a row holds some mass
    draft = np.array(draft)
    draft[:, 1] += 1
    law = engine_law(target, draft_with(draft), 2, [([1], {"max_tokens": 4})], rules=RULES[rule], vocabulary_size=2)
    assert not violations(law, target_law(target[:2, :2], [1], 4))


@pytest.mark.parametrize("rule", RULE_NAMES)
@settings(max_examples=4)
@given(pairs(2))
def test_ragged_batches_are_independent(rule: str, pair: tuple[Any, Any]) -> None:
    """Three requests in one batch, of other prompts, lengths, parameters and streams: the product of the laws."""
    target, draft = pair
    requests: list[Any] = [
        ([1], {"max_tokens": 3}),
        ([0, 1, 1], {"max_tokens": 2, "temperature": 0.5}),
        ([1, 0], {"max_tokens": 3, "temperature": 0}),
    ]
    law = engine_law(
        target, draft_with(draft), 1, requests, rules=RULES[rule], scheduler=Scheduler(max_sequences=3, max_tokens=2)
    )
    first = target_law(target, [1], 3)
    second = target_law(target, [0, 1, 1], 2, temperature=0.5)
    third = target_law(target, [1, 0], 3, temperature=0)
    assert not violations(law, product_law(first, second, third))


@pytest.mark.parametrize("rule", RULE_NAMES)
@settings(max_examples=3)
@given(tables(2), tables(2))
def test_one_prompt_twice_in_a_batch_gives_independent_texts(rule: str, target: Any, draft: Any) -> None:
    requests: list[Any] = [([1], {"max_tokens": 3})] * 2
    law = engine_law(target, draft_with(draft), 1, requests, rules=RULES[rule])
    alone = target_law(target, [1], 3)
    assert not violations(law, product_law(alone, alone))


@pytest.mark.parametrize("rule", RULE_NAMES)
@pytest.mark.parametrize("k", [1, 2, 3])
@settings(max_examples=6)
@given(pairs(2))
def test_a_stop_token_inside_a_draft_cuts_the_law_where_plain_decoding_would(
    k: int, rule: str, pair: tuple[Any, Any]
) -> None:
    target, draft = pair
    request = ([1], {"max_tokens": k + 2, "stop_token_ids": (0,)})
    law = engine_law(target, draft_with(draft), k, [request], rules=RULES[rule])
    expected: dict[tuple[int, ...], float] = {}
    for text, probability in target_law(target, [1], k + 2).items():
        cut = text[: text.index(0) + 1] if 0 in text else text
        expected[cut] = expected.get(cut, 0.0) + probability
    assert not violations(law, expected)


@pytest.mark.parametrize("rule", RULE_NAMES)
@settings(max_examples=5)
@given(pairs(2))
def test_a_context_that_fills_up_in_mid_draft(rule: str, pair: tuple[Any, Any]) -> None:
    """The draft's context is shorter than the text, and slides: that does not bend the law."""
    target, draft = pair

    def make_drafter() -> ModelDrafter:
        return ModelDrafter(ToyModel.from_table(to_logits(draft), context_length=3), start_after=0)

    law = engine_law(target, make_drafter, 3, [([1], {"max_tokens": 5})], rules=RULES[rule])
    assert not violations(law, target_law(target, [1], 5))


@pytest.mark.parametrize("rule", RULE_NAMES)
@pytest.mark.filterwarnings("ignore:drafting failed")
@settings(max_examples=8)
@given(pairs(2), st.sampled_from([1, 2]))
def test_a_draft_model_that_fails_after_some_tokens_bends_nothing(rule: str, pair: tuple[Any, Any], k: int) -> None:
    """The row after draft token 0 is NaN. What was drafted must still be verified: dropping it would condition on the
    drawn token, and token 0 would come too often or too seldom."""
    target, draft = pair

    def logits_of(tokens: tuple[int, ...]) -> np.ndarray:
        return np.array([np.nan, 0.0]) if tokens[-1] == 0 else to_logits(draft[1])

    def make_drafter() -> ModelDrafter:
        return ModelDrafter(ToyModel(logits_of, 2), start_after=0)

    law = engine_law(target, make_drafter, k, [([1], {"max_tokens": k + 1})], rules=RULES[rule])
    assert not violations(law, target_law(target, [1], k + 1))


class _Pausing(FixedLength):
    """Drafts in every third round only, so that the draft's cache falls behind a text that took another turn."""

    num_rounds = 0

    def plan(self, sequences: Any, prospects: Any, load: Any) -> list[Plan]:
        self.num_rounds += 1
        return super().plan(sequences, prospects, load) if self.num_rounds % 3 == 0 else [Plan(0) for _ in sequences]


class _CheckedDrafter(ModelDrafter):
    """Compares every row of q with the draft model's own, processed by the reference."""

    num_checked = 0

    def propose(self, sequences: Any, plans: Any) -> Any:
        drafts = super().propose(sequences, plans)
        for sequence, draft in zip(sequences, drafts, strict=True):
            for node, q in enumerate(draft.rows or ()):
                logits = self.model.logits([*sequence.tokens, *draft.tokens[:node]])  # type: ignore[attr-defined]
                params = sequence.params
                expected = reference_probs(
                    logits.tolist(), params.temperature, params.top_k, params.top_p, params.min_p
                )
                np.testing.assert_allclose(q.probs, expected, rtol=1e-12, atol=1e-15)
                self.num_checked += 1
        return drafts


@pytest.mark.parametrize("policy", [FixedLength, _Pausing])
@pytest.mark.parametrize("name", ["none", *FILTERS])
def test_q_is_the_draft_models_own_row_after_what_is_committed(name: str, policy: Any) -> None:
    """A draft cache that kept a rejected token would still be exact, only a worse draft: no law can show it."""
    drafter = _CheckedDrafter(ToyModel.random(6, order=3, seed=1))
    engine = Engine(ToyModel.random(6, order=2, seed=2), drafter, policy(4))
    params = FILTERS.get(name, {})
    made = [engine.add([i, 5 - i], SamplingParams(max_tokens=40, **params)) for i in range(3)]
    finish(engine)
    assert drafter.num_checked > 50
    assert any(accepted < k for sequence in made for k, accepted in sequence.statistics.rounds)


def test_the_reference_itself_on_a_row_worked_by_hand() -> None:
    """weights 8, 4, 2, 2: top_k 3 keeps the tie; top_p .7 keeps 1/2 + 1/4; min_p .3 of 1/2 keeps both of those."""
    row = to_logits([8, 4, 2, 2]).tolist()
    assert reference_probs(row) == pytest.approx([1 / 2, 1 / 4, 1 / 8, 1 / 8])
    assert reference_probs(row, top_k=3) == pytest.approx([1 / 2, 1 / 4, 1 / 8, 1 / 8])
    assert reference_probs(row, top_k=2) == pytest.approx([2 / 3, 1 / 3, 0, 0])
    assert reference_probs(row, top_p=0.7) == pytest.approx([2 / 3, 1 / 3, 0, 0])
    assert reference_probs(row, top_p=0.8) == pytest.approx([4 / 7, 2 / 7, 1 / 7, 0])
    assert reference_probs(row, min_p=0.3) == pytest.approx([2 / 3, 1 / 3, 0, 0])
    assert reference_probs(row, temperature=0.5) == pytest.approx([64 / 88, 16 / 88, 4 / 88, 4 / 88])
    assert reference_probs(row, temperature=0) == [1, 0, 0, 0]
