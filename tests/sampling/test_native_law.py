"""Exact laws of texts where rows are float32 and go through the native kernels: level 1 of docs/exactness.md, the real
engine enumerated, mutants included. And texts that are the same whichever kind of array their rows were."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.helpers import run
from tests.verification import laws
from tests.verification.laws import draft_with, engine_law, pairs, target_law, violations
from tests.verification.test_level5_mutants import KILLS, SOUND, faults

from forerun.control import FixedLength
from forerun.drafting import LookupDrafter, ModelDrafter
from forerun.engine import Engine
from forerun.runtime.base import Rows
from forerun.runtime.toy import ToyModel
from forerun.sampling import SamplingParams, kinds
from forerun.types import Span
from forerun.verification import RULES
from forerun.verification.broken import BROKEN

pytest.importorskip("forerun._native", reason="the native extension is not built")


@pytest.fixture(autouse=True)
def float32_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Toy models whose logits are float32, and laws that are computed from those."""
    forward, to_logits = ToyModel.forward, laws.to_logits

    def in_float32(model: ToyModel, spans: Sequence[Span]) -> Rows:
        rows = forward(model, spans)
        return Rows(rows.matrix.astype(np.float32), np.diff(rows.starts).tolist())

    monkeypatch.setattr(ToyModel, "forward", in_float32)
    monkeypatch.setattr(laws, "to_logits", lambda weights: to_logits(weights).astype(np.float32).astype(np.float64))


@pytest.mark.parametrize("kind", ["sampled", "deterministic"])
@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize("size,k,num_tokens,cases", [(2, 1, 3, 8), (2, 3, 4, 4), (3, 2, 3, 6)])
def test_the_law_of_a_text_is_the_targets(
    size: int, k: int, num_tokens: int, cases: int, rules: str, kind: Any
) -> None:
    @settings(max_examples=cases)
    @given(pairs(size))
    def check(pair: tuple[Any, Any]) -> None:
        target, draft = pair
        requests = [((0,), {"max_tokens": num_tokens})]
        law = engine_law(target, draft_with(draft), k, requests, kind=kind, rules=RULES[rules])
        assert not violations(law, target_law(target, (0,), num_tokens))

    check()


@settings(max_examples=25)
@given(
    pairs(3),
    st.sampled_from([{"temperature": 0.6}, {"top_k": 2}, {"top_p": 0.7123}, {"min_p": 0.3171}, {"temperature": 2.5}]),
)
def test_the_law_under_filters_is_the_targets(pair: tuple[Any, Any], params: dict[str, Any]) -> None:
    target, draft = pair
    law = engine_law(target, draft_with(draft), 2, [((1,), {"max_tokens": 3, **params})])
    assert not violations(law, target_law(target, (1,), 3, **params))


EXACT = [(name, where) for name, places in KILLS.items() for where in places if where.startswith("exact")]


@pytest.mark.parametrize("mutant,where", EXACT)
def test_mutants_are_killed_on_native_rows(mutant: str, where: str) -> None:
    assert faults(BROKEN[mutant], where)


@pytest.mark.thorough("longer", "model-block", "pair-chain", "tree-chain")
@pytest.mark.parametrize("sound", SOUND)
@pytest.mark.parametrize("where", sorted({where for _, where in EXACT}))
def test_sound_parts_survive_on_native_rows(where: str, sound: str) -> None:
    assert not faults(SOUND[sound], where)


REQUESTS: list[dict[str, Any]] = [
    {"temperature": 0.0}, {}, {"temperature": 0.7, "top_k": 9}, {"top_p": 0.8}, {"min_p": 0.1, "seed": 3},
    {"seed": 11}, {"repetition_penalty": 1.3, "frequency_penalty": 0.2, "logit_bias": {5: 2.0}, "seed": 4},
    {"bad_words": [[3], [4, 5]], "allowed_token_ids": range(0, 300, 3), "temperature": 1.5},
]  # fmt: skip


@pytest.mark.parametrize("drafter", ["none", "lookup", "model", "narrow model"])
def test_texts_are_the_same_whichever_kind_of_array_computed_them(
    drafter: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch of requests, unseeded ones with the seed they would have drawn."""
    monkeypatch.setattr("forerun.engine.request.fresh_seed", lambda: 99)
    target = ToyModel.random(300, seed=1, spread=3.0)
    table = np.random.default_rng(1).normal(0.0, 3.0, (300, 300)) + np.random.default_rng(2).normal(0, 1, (300, 300))
    drafters = {
        "none": lambda: None,
        "lookup": lambda: LookupDrafter(2, 1),
        "model": lambda: ModelDrafter(ToyModel.from_table(table)),
        "narrow model": lambda: ModelDrafter(ToyModel(lambda tokens: table[tokens[-1] % 250, :250], 250)),
    }
    texts = []
    for own in (kinds.KINDS, (kinds.ARRAYS,)):
        monkeypatch.setattr(kinds, "KINDS", own)
        engine = Engine(target, drafters[drafter](), FixedLength(0 if drafter == "none" else 4))
        made = [engine.add([1, 2, 1, 2], SamplingParams(max_tokens=30, **params)) for params in REQUESTS]
        run(engine)
        texts.append([sequence.tokens for sequence in made])
    assert texts[0] == texts[1]
    assert all(len(tokens) == 34 for tokens in texts[0])
