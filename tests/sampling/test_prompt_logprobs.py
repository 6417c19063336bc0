"""Log probabilities of a prompt: teacher-forced figures, read in chunks beside running requests, in bounded memory."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from scipy.special import log_softmax
from tests.helpers import complete, run
from tests.sampling.tools import SIZE

from forerun.control import FixedLength
from forerun.drafting import LookupDrafter, ModelDrafter
from forerun.drafting.scripted import LiarDrafter
from forerun.engine import Engine, Scheduler
from forerun.engine.scheduler import PROMPT_ROWS
from forerun.errors import NumericalError
from forerun.runtime.base import Rows
from forerun.runtime.toy import ToyModel
from forerun.sampling import SamplingParams
from forerun.types import Span, TokenLogprob


class Watched(ToyModel):
    """A toy model that keeps the number of rows it was asked for: in each pass, and of each sequence."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.num_rows: list[dict[int, int]] = []
        self.interrupt_at = -1

    def forward(self, spans: Sequence[Span]) -> Rows:
        self.num_rows.append({span.sequence_id: span.num_rows for span in spans})
        rows = super().forward(spans)
        if len(self.num_rows) - 1 == self.interrupt_at:
            raise KeyboardInterrupt
        return rows


def target() -> Watched:
    return Watched.random(SIZE, order=2, seed=14, spread=1.5)  # type: ignore[return-value]


def prompt_of(num: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, SIZE, num).tolist()


def assert_teacher_forced(found: Any, prompt: Sequence[int], num_top: int) -> None:
    """None for the first token, then each token's log softmax in the row after those before it."""
    assert len(found) == len(prompt)
    assert found[0] is None
    model = target()
    for i in range(1, len(prompt)):
        entry, values = found[i], log_softmax(model.logits(prompt[:i]))
        order = np.argsort(-values, kind="stable")
        assert isinstance(entry, TokenLogprob)
        assert (entry.token, entry.rank) == (prompt[i], 1 + int(np.flatnonzero(order == prompt[i])[0]))
        assert entry.logprob == pytest.approx(values[prompt[i]], abs=1e-10)
        tops = order[:num_top].tolist()
        tops += [prompt[i]] if num_top and prompt[i] not in tops else []
        assert [token for token, _ in entry.top] == tops
        np.testing.assert_allclose([value for _, value in entry.top], values[tops], atol=1e-10)


LENGTHS = [1, 2, 3, PROMPT_ROWS - 1, PROMPT_ROWS, PROMPT_ROWS + 1, PROMPT_ROWS + 2, 2 * PROMPT_ROWS + 1, 300]


@pytest.mark.parametrize("max_tokens", [0, 1, 12])
@pytest.mark.parametrize("length", LENGTHS)
def test_prompts_of_every_length_have_the_teacher_forced_figures(length: int, max_tokens: int) -> None:
    prompt = prompt_of(length)
    plain = complete(target(), prompt, max_tokens=max_tokens, temperature=0.0)[1]
    for drafter, k in ((None, 0), (LookupDrafter(3, 1), 4), (ModelDrafter(target()), 4)):
        for num_top in (0, 2):
            model = target()
            params = {"max_tokens": max_tokens, "temperature": 0.0, "prompt_logprobs": num_top}
            made, text = complete(model, prompt, drafter, k, **params)
            assert_teacher_forced(made.prompt_logprobs, prompt, num_top)
            assert (text, made.finish_reason) == (plain, "length")
            asked = [max(rows.values()) for rows in model.num_rows]
            assert max(asked, default=0) <= PROMPT_ROWS + k
            if max_tokens == 0:  # no step beyond the prompt
                assert model.num_fed <= length
                assert (len(asked) == 0) == (length == 1)
            # Once the prompt is scored, only the rows of new tokens are asked for.
            assert all(rows <= 1 + k for rows in asked[math.ceil(length / PROMPT_ROWS) :])


@pytest.mark.parametrize("budget", [1, 5, 70, 512])
@pytest.mark.parametrize("name", ["none", "lookup", "model", "liar"])
def test_scoring_beside_decoding_neighbours(name: str, budget: int) -> None:
    """Neighbours come before, between and after; nobody's text or figures change. A tight budget cuts prompts up."""
    prompts = [prompt_of(5, 1), prompt_of(150, 2), prompt_of(4, 3), prompt_of(90, 4), prompt_of(40, 5)]
    scored = {1: 2, 3: 0, 4: 1}
    truth = {tuple(p): complete(target(), p, max_tokens=30, temperature=0.0)[1] for p in prompts}
    drafters = {
        "none": None,
        "lookup": LookupDrafter(3, 1),
        "model": ModelDrafter(target()),
        "liar": LiarDrafter(truth),
    }
    model = target()
    engine = Engine(model, drafters[name], FixedLength(3), scheduler=Scheduler(max_tokens=budget))
    made: list[Any] = []
    for i, prompt in enumerate(prompts):
        params = {"max_tokens": 0 if i == 4 else 30, "temperature": 0.0, "prompt_logprobs": scored.get(i)}
        made.append(engine.add(prompt, SamplingParams(**params)))
        for _ in range(4):
            engine.step()
    run(engine)
    for i, (prompt, sequence) in enumerate(zip(prompts, made, strict=True)):
        assert sequence.tokens[len(prompt) :] == (truth[tuple(prompt)] if i != 4 else [])
        if i in scored:
            assert_teacher_forced(sequence.prompt_logprobs, prompt, scored[i])
        else:
            assert sequence.prompt_logprobs is None
    assert max(max(rows.values()) for rows in model.num_rows) <= PROMPT_ROWS + 3
    assert model.num_sequences == 0


def test_rows_of_one_pass_stay_within_the_schedulers_budget() -> None:
    """Many long prompts scored at once."""
    model = target()
    engine = Engine(model, LookupDrafter(3, 1), FixedLength(3), scheduler=Scheduler(max_tokens=200))
    prompts = [prompt_of(130, seed) for seed in range(6)]
    made = [engine.add(p, SamplingParams(max_tokens=3, temperature=0.0, prompt_logprobs=1)) for p in prompts]
    run(engine)
    for prompt, sequence in zip(prompts, made, strict=True):
        assert_teacher_forced(sequence.prompt_logprobs, prompt, 1)
    assert max(sum(rows.values()) for rows in model.num_rows) <= 200 + 6 * 4


def test_figures_are_raw_whatever_was_asked_for() -> None:
    prompt = prompt_of(70)
    asked = {"repetition_penalty": 2.0, "logit_bias": {1: 50.0}, "bad_words": [(2,)], "allowed_token_ids": [1, 3],
             "logits_processors": [lambda tokens, logits: logits * 0], "logprobs_kind": "processed"}  # fmt: skip
    made, _ = complete(target(), prompt, max_tokens=3, prompt_logprobs=3, logprobs=1, top_k=1, **asked)
    assert_teacher_forced(made.prompt_logprobs, prompt, 3)


def test_a_row_without_a_finite_best_ends_the_request_alone() -> None:
    def logits_of(tokens: tuple[int, ...]) -> np.ndarray:
        row = np.arange(float(SIZE))
        row[0] = math.nan if len(tokens) == 80 else 0.0
        return row

    engine = Engine(ToyModel(logits_of, SIZE))
    bad = engine.add([1] * 100, SamplingParams(max_tokens=3, prompt_logprobs=0))
    fine = engine.add([1] * 100, SamplingParams(max_tokens=3, temperature=0.0))
    deltas = run(engine)
    assert (bad.finish_reason, fine.finish_reason) == ("error", "length")
    assert isinstance(deltas[bad.sequence_id][-1].error, NumericalError)


@pytest.mark.parametrize("interrupt_at", range(3))
def test_an_interrupted_pass_loses_no_figure(interrupt_at: int) -> None:
    """Ctrl-C in the middle of a pass, and the engine is stepped on: its cache holds tokens whose rows nobody saw."""
    model = target()
    engine = Engine(model, LookupDrafter(3, 1), FixedLength(3))
    prompt = prompt_of(150)
    made = engine.add(prompt, SamplingParams(max_tokens=5, temperature=0.0, prompt_logprobs=1))
    model.interrupt_at = interrupt_at
    while not engine.is_idle:
        with contextlib.suppress(KeyboardInterrupt):
            engine.step()
    assert made.num_output == 5
    assert_teacher_forced(made.prompt_logprobs, prompt, 1)
