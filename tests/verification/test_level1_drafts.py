"""Level 1, cheap drafts: a window of context, a head cut to chosen tokens, a late start. None of them bends the law.

The windowed draft's rows depend on all that it has cached, so that a cache which began anew shows in q.
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
    cut_drafter,
    draft_with,
    engine_law,
    finish,
    model,
    pairs,
    quarters,
    shared_noise,
    tables,
    target_law,
    violations,
    windowed_drafter,
)

from forerun.control import FixedLength
from forerun.drafting import Drafter, ModelDrafter, NoDrafter
from forerun.engine import Engine
from forerun.sampling import Distribution, SamplingParams
from forerun.types import Draft
from forerun.verification import RULES
from forerun.verification.enumerate import Chooser, outcomes

RULE_NAMES = sorted(RULES)
FILTERS: dict[str, dict[str, Any]] = {
    "none": {},
    "greedy": {"temperature": 0},
    "filters": {"temperature": 1.4, "top_k": 2, "min_p": 0.1373},
    "penalties": {"repetition_penalty": 1.7, "presence_penalty": 0.3, "logit_bias": {0: 0.4, 2: -0.7}},
}
"""Greedy leaves one path; penalties and biases go through the rows by token id."""


def with_mass(table: Any) -> np.ndarray:
    """Every row keeps mass wherever a head is cut."""
    return np.asarray(table) + 1


@pytest.mark.parametrize("rule", RULE_NAMES)
@pytest.mark.parametrize("window", [1, 2, 3, 4])
@settings(max_examples=2)
@example((np.array([[3, 1], [2, 5]]), np.array([[1, 4], [3, 2]])))
@given(pairs(2))
def test_a_window_of_context(window: int, rule: str, pair: tuple[Any, Any]) -> None:
    target, draft = pair
    law = engine_law(target, lambda: windowed_drafter(draft, window), 3, [([1], {"max_tokens": 5})], rules=RULES[rule])
    assert not violations(law, target_law(target, [1], 5))


@pytest.mark.parametrize("rule", RULE_NAMES)
@pytest.mark.parametrize("dropped", [(0,), (1,), (2,), (0, 2), (0, 1)], ids=str)
@settings(max_examples=2)
@given(pairs(3))
def test_a_head_cut_to_chosen_tokens(dropped: tuple[int, ...], rule: str, pair: tuple[Any, Any]) -> None:
    target, draft = pair
    law = engine_law(
        target, lambda: cut_drafter(with_mass(draft), dropped), 2, [([1], {"max_tokens": 4})], rules=RULES[rule]
    )
    assert not violations(law, target_law(target, [1], 4))


@pytest.mark.parametrize("rule", RULE_NAMES)
@pytest.mark.parametrize("start_after", [0, 1, 2, 3])
@settings(max_examples=2)
@given(pairs(2))
def test_a_late_start(start_after: int, rule: str, pair: tuple[Any, Any]) -> None:
    target, draft = pair
    law = engine_law(
        target, draft_with(draft, start_after=start_after), 2, [([1], {"max_tokens": 5})], rules=RULES[rule]
    )
    assert not violations(law, target_law(target, [1], 5))


def everything(draft: Any) -> Drafter:
    """All of it at once: a window of 2 over a model whose head has no token 1, begun late, and unsure of itself."""
    made: Any = windowed_drafter(with_mass(draft), 3, start_after=1, min_confidence=0.4)
    cut: Any = cut_drafter(with_mass(draft), (1,))
    cut.model.model = made.model
    return ModelDrafter(cut.model, 3, min_confidence=0.4)


KINDS: dict[str, Callable[[Any], Drafter]] = {
    "window": lambda draft: windowed_drafter(draft, 3),
    "cut": lambda draft: cut_drafter(with_mass(draft), (1,)),
    "everything": everything,
}


@pytest.mark.parametrize("rule", RULE_NAMES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", FILTERS)
@settings(max_examples=2)
@given(pairs(3))
def test_with_every_kind_of_parameter(name: str, kind: str, rule: str, pair: tuple[Any, Any]) -> None:
    target, draft = pair
    target = with_mass(target)  # a penalty may not leave a row without any
    law = engine_law(
        target, lambda: KINDS[kind](draft), 2, [([1, 0], {"max_tokens": 4, **FILTERS[name]})], rules=RULES[rule]
    )
    plain = engine_law(target, NoDrafter, 0, [([1, 0], {"max_tokens": 4, **FILTERS[name]})])
    assert not violations(law, plain)
    if name != "penalties":  # the reference knows nothing of them
        assert not violations(law, target_law(target, [1, 0], 4, **FILTERS[name]))


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=2)
@given(pairs(3), st.sampled_from([1, 2, 3]))
def test_argmax_drafts_without_q(kind: str, pair: tuple[Any, Any], k: int) -> None:
    target, draft = pair
    law = engine_law(target, lambda: KINDS[kind](draft), k, [([1], {"max_tokens": k + 2})], kind="deterministic")
    assert not violations(law, target_law(target, [1], k + 2))


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=2)
@given(quarters(3), quarters(3), st.sampled_from([1, 2, 3]))
def test_the_seeded_mode(kind: str, target: Any, draft: Any, k: int) -> None:
    """Drafts drawn with the very numbers that the target will choose with."""

    def run(chooser: Chooser) -> tuple[int, ...]:
        engine = Engine(model(target), KINDS[kind](draft), FixedLength(k), make_noise=shared_noise(chooser, 4))
        sequence = engine.add([1], SamplingParams(max_tokens=4))
        finish(engine)
        return tuple(sequence.tokens[1:])

    assert not violations(outcomes(run), target_law(target, [1], 4))


# -- mutants: what these laws are there to catch -----------------------------------------------------------------------

TARGET, DRAFT = np.array([[1, 6, 2], [5, 1, 1], [2, 2, 3]]), np.array([[4, 1, 1], [1, 3, 5], [6, 1, 2]])


def _reporting(logits: Any, sequence: Any, draft: Draft) -> Draft:
    """The draft with rows after the whole text as its q."""
    texts = [[*sequence.tokens, *draft.tokens[:node]] for node in range(len(draft.tokens))]
    rows = tuple(Distribution.explicit(np.exp(logits(text))) for text in texts)
    return replace(draft, rows=None if draft.rows is None else rows)


class _ForgetsTheCut(ModelDrafter):
    """Draws from the cut row and reports the whole one as q."""

    def propose(self, sequences: Any, plans: Any) -> Any:
        drafts = super().propose(sequences, plans)
        return [_reporting(self.model.model.logits, *both) for both in zip(sequences, drafts, strict=True)]


class _ForgetsTheWindow(ModelDrafter):
    """Draws from the row after the window and reports the row after the whole text as q."""

    def propose(self, sequences: Any, plans: Any) -> Any:
        drafts = super().propose(sequences, plans)
        return [_reporting(self.model.logits, *both) for both in zip(sequences, drafts, strict=True)]


class _DropsWhatDoesNotFit(ModelDrafter):
    """Drops a drawn token that the head of another model lacks: the draft's length depends on the token dropped."""

    def propose(self, sequences: Any, plans: Any) -> Any:
        drafts = super().propose(sequences, plans)
        return [
            type(draft)(draft.tokens[:-1], draft.kind, draft.rows[:-1]) if draft.tokens and draft.tokens[-1] == 1
            else draft
            for draft in drafts
        ]  # fmt: skip


class _StartsByTheToken(ModelDrafter):
    """Begins its cache anew when it drew token 1, and then drafts again from there as if nothing had been drawn."""

    def propose(self, sequences: Any, plans: Any) -> Any:
        drafts = super().propose(sequences, plans)
        if any(1 in draft.tokens for draft in drafts):
            for sequence in sequences:
                self.release(sequence.sequence_id)
            drafts = [type(draft)() if 1 in draft.tokens else draft for draft in drafts]
        return drafts


MUTANTS: dict[str, Callable[[], Drafter]] = {
    "the cut is forgotten": lambda: _of(_ForgetsTheCut, cut_drafter(DRAFT, (1,))),
    "the window is forgotten": lambda: _of(_ForgetsTheWindow, windowed_drafter(DRAFT, 1)),
    "a token is dropped": lambda: _of(_DropsWhatDoesNotFit, windowed_drafter(DRAFT, 4)),
    "a token decides": lambda: _of(_StartsByTheToken, windowed_drafter(DRAFT, 4)),
}


def _of(mutant: type[ModelDrafter], sound: Any) -> Drafter:
    return mutant(sound.model, sound.window, start_after=0)


@pytest.mark.parametrize("rule", RULE_NAMES)
@pytest.mark.parametrize("name", MUTANTS)
def test_a_draft_that_is_not_what_it_says_bends_the_law(name: str, rule: str) -> None:
    law = engine_law(TARGET, MUTANTS[name], 1, [([1], {"max_tokens": 3})], rules=RULES[rule])
    assert violations(law, target_law(TARGET, [1], 3))


@settings(max_examples=2)
@given(tables(2), tables(2))
def test_windows_of_neighbours_slide_by_themselves(target: Any, draft: Any) -> None:
    """Two requests in one batch whose caches begin anew in different rounds."""
    requests: list[Any] = [([1], {"max_tokens": 3}), ([0, 1, 1], {"max_tokens": 3})]
    law = engine_law(target, lambda: windowed_drafter(draft, 3), 2, requests)
    first, second = target_law(target, [1], 3), target_law(target, [0, 1, 1], 3)
    expected = {(a, b): p * q for a, p in first.items() for b, q in second.items()}
    assert not violations(law, expected)
