"""cases.md C24, C25, C26 (whole kinds) on table models: padded vocabularies, short draft contexts, full contexts."""

from __future__ import annotations

import numpy as np
import pytest
from tests.helpers import complete, run

from forerun.control import FixedLength
from forerun.drafting import LookupDrafter, ModelDrafter
from forerun.drafting.scripted import OracleDrafter, record
from forerun.engine import Engine
from forerun.errors import ContextLengthError, ContractError, ParameterError, PromptError
from forerun.llm import LLM
from forerun.runtime.toy import ToyModel
from forerun.sampling import SamplingParams
from forerun.types import Draft

REAL = 10


def padded(width: int, favourite: int | None = None, seed: int = 5) -> ToyModel:
    """A model whose first REAL ids are the real ones; `favourite` is the padded id it likes best of all."""
    table = np.random.default_rng(seed).normal(0, 1.5, (REAL + 6, REAL + 6))[:, :width]
    if favourite is not None and favourite < width:
        table[:, favourite] = 40.0
    return ToyModel.from_table(table)


@pytest.mark.parametrize("widths", [(REAL + 6, REAL), (REAL, REAL + 6), (REAL + 2, REAL + 5)])
@pytest.mark.parametrize("params", [{"temperature": 0}, {"seed": 3}, {}])
def test_c24_padded_rows_are_masked_in_both_models(widths: tuple[int, int], params: dict) -> None:
    target, draft = padded(widths[0], REAL), padded(widths[1], REAL + 1, seed=5)
    engine = {"vocabulary_size": REAL}
    sequence, tokens = complete(target, [1, 2], ModelDrafter(draft), 4, engine, max_tokens=60, **params)
    assert max(tokens) < REAL
    assert sequence.statistics.num_proposed > 0
    assert sequence.statistics.acceptance_rate > 0.5  # same real rows: what is padded must not cost acceptance
    if params:
        assert tokens == complete(padded(REAL), [1, 2], engine=engine, max_tokens=60, **params)[1]


@pytest.mark.parametrize("params", [{"temperature": 0}, {"seed": 3}, {}])
def test_c24_a_draft_with_fewer_rows_has_no_mass_beyond_them(params: dict) -> None:
    target = ToyModel.random(8, seed=2, spread=0.5)
    draft = ToyModel.random(5, seed=2)
    sequence, tokens = complete(target, [1, 2], ModelDrafter(draft), 3, max_tokens=200, **params)
    assert sequence.statistics.num_emitted == 200
    if params:
        assert tokens == complete(target, [1, 2], max_tokens=200, **params)[1]
    else:
        assert max(tokens) >= 5  # such tokens still come, from the residual and the bonus


def test_c24_a_draft_id_beyond_the_vocabulary_is_refused_loudly() -> None:
    class Wild(LookupDrafter):
        def propose(self, sequences, shapes):  # type: ignore[no-untyped-def]
            return [Draft((REAL,)) for _ in sequences]

    engine = Engine(padded(REAL + 6), Wild(), FixedLength(2), vocabulary_size=REAL)
    engine.add([1, 2], SamplingParams(temperature=0, max_tokens=5))
    engine.step()
    with pytest.raises(ContractError, match="ids below 10"):
        engine.step()


CONTEXT = 256


@pytest.mark.parametrize("prompt_length", [200, 255, 256, 257, 1500])
@pytest.mark.parametrize("own_limit", [True, False])
def test_c25_a_full_draft_context_stops_drafting_and_nothing_else(prompt_length: int, own_limit: bool) -> None:
    target = ToyModel.random(12, order=1, seed=6, context_length=2048)
    prompt = [i % 12 for i in range(prompt_length)]
    plain = complete(target, prompt, temperature=0, max_tokens=200)[1]
    draft = ToyModel.random(12, order=1, seed=6, context_length=CONTEXT if own_limit else 2048)
    drafter = ModelDrafter(draft, None if own_limit else CONTEXT)
    sequence, tokens = complete(target, prompt, drafter, 4, temperature=0, max_tokens=200)
    assert tokens == plain
    statistics = sequence.statistics
    # Rounds without a draft are neither proposed nor rejected.
    assert statistics.acceptance_rate in (1.0, None)
    room = max(CONTEXT - prompt_length, 0)
    assert statistics.num_proposed <= room + 1
    assert (statistics.num_proposed > 0) == (room > 0)
    # The next short request drafts again.
    sequence, _ = complete(target, [1, 2, 3], drafter, 4, temperature=0, max_tokens=50)
    assert sequence.statistics.num_proposed == 39  # 9 full rounds of 4, then the 3 that fit
    assert draft.num_sequences == 0


def test_c26_prompts_up_to_the_context_and_beyond() -> None:
    model = ToyModel.random(9, seed=1, context_length=64)
    texts = record(ToyModel.random(9, seed=1), [[1] * 63, [1] * 60], 40)
    for drafter in (None, OracleDrafter(texts), LookupDrafter(), ModelDrafter(ToyModel.random(9, seed=1))):
        for length in (64, 65, 500):
            with pytest.raises(ContextLengthError, match=f"{length} tokens and the context holds 64"):
                complete(model, [1] * length, drafter, 8, max_tokens=5)
        for params in ({"max_tokens": 100}, {}):
            for length in (63, 60):
                sequence, tokens = complete(model, [1] * length, drafter, 8, temperature=0, **params)
                assert len(tokens) == 64 - length
                assert tokens == list(texts[tuple([1] * length)])[: 64 - length]
                assert sequence.finish_reason == "length"
    assert model.num_sequences == 0


def test_c26_refusal_comes_before_any_work_and_leaves_neighbours_alone() -> None:
    model = ToyModel.random(9, seed=1, context_length=64)
    engine = Engine(model)
    good = engine.add([1, 2], SamplingParams(temperature=0, max_tokens=5))
    with pytest.raises(ContextLengthError):
        engine.add([1] * 64, SamplingParams())
    run(engine)
    assert good.finish_reason == "length"
    assert good.num_output == 5


def test_c26_an_unbounded_context_needs_a_budget() -> None:
    with pytest.raises(ParameterError, match="max_tokens"):
        complete(ToyModel.random(4), [1])


@pytest.mark.parametrize("prompt", ["", [], [[]], [{}], 7, None, b"abc", [1, "a"], [1.5], [True], ["a", 3], [-1], [4]])
def test_bad_prompts_are_refused_with_an_example_or_the_id(prompt: object) -> None:
    llm = LLM(ToyModel.random(4))
    with pytest.raises((PromptError, ParameterError)):
        llm.generate(prompt, max_tokens=3)
    assert llm.engine.is_idle
    assert llm.generate([1], max_tokens=2, temperature=0).usage.completion_tokens == 2
