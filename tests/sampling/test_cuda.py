"""Rows that live on a CUDA device are processed there, to what the same rows give on the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from forerun.constraints import TokenSetConstraint
from forerun.randomness import Purpose, make_noise
from forerun.runtime.base import Rows
from forerun.sampling import Processing, SamplingParams, StatefulProcessor, token_logprob
from forerun.types import Draft
from forerun.verification import verify

pytestmark = pytest.mark.gpu
SIZE, PROMPT = 5_000, [1, 2, 3, 2, 1]


class Habit:
    """A stateful processor that works on either library."""

    def __init__(self) -> None:
        self.num_calls = 0

    def __call__(self, tokens: list[int], logits: Any) -> Any:
        logits[self.num_calls] += 1.0
        self.num_calls += 1
        return logits


EVERYTHING: dict[str, Any] = {
    "temperature": 0.8, "top_k": 400, "top_p": 0.95, "min_p": 0.001, "repetition_penalty": 1.2,
    "frequency_penalty": 0.3, "presence_penalty": 0.2, "logit_bias": {4: 1.0}, "bad_words": [[7], [1, 9]],
    "allowed_token_ids": range(4_000), "min_tokens": 3, "stop_token_ids": [11],
    "logits_processors": [StatefulProcessor(Habit)],
}  # fmt: skip


@pytest.mark.parametrize("seed", [None, 5])
@pytest.mark.parametrize("params", [{"temperature": 0.8}, EVERYTHING], ids=["temperature", "everything"])
def test_rows_on_a_device_are_processed_as_on_the_cpu(params: dict[str, Any], seed: int | None) -> None:
    import torch

    logits = np.random.default_rng(0).normal(0.0, 3.0, (4, SIZE)).astype(np.float32)
    found = []
    for matrix in (logits, torch.from_numpy(logits).cuda()):
        asked = SamplingParams(**params, seed=seed)
        allowed = asked.allowed_token_ids
        constraints = [] if allowed is None else [TokenSetConstraint(allowed, SIZE)]
        made = Processing(asked, SIZE, list(PROMPT), stop_ids=[11], constraints=constraints)
        made.begin_round()
        noise, rows, draft = make_noise(asked, 7, 0, len(PROMPT)), Rows(matrix, [4]), list[int]()
        q = []
        for i in range(3):
            q.append(made.distribution(rows, i, tuple(draft), "draft"))
            draft.append(noise.draw(q[-1], i, Purpose.DRAFT))
        p = [made.distribution(rows, i, tuple(draft[:i])) for i in range(4)]
        proposed = made.fit(Draft(tuple(draft), noise.kind, tuple(q) if noise.kind == "sampled" else None), 3)
        verdict = verify(p, proposed, noise)
        logprob = token_logprob(p[0], draft[0], 5, "processed").logprob
        found.append((draft, verdict, [np.asarray(row.probs.tolist()) for row in p], logprob))
    (draft, verdict, probs, logprob), (draft_2, verdict_2, probs_2, logprob_2) = found
    assert (draft, verdict) == (draft_2, verdict_2)
    assert logprob == pytest.approx(logprob_2, abs=1e-5)
    for one, other in zip(probs, probs_2, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)
