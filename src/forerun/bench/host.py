"""What processing and drawing from one row costs the host, by what is asked for: `python -m forerun.bench.host`.

Rows are random logits over a large vocabulary after 2,000 tokens of text, in passes of 5 rows as k = 4 makes them; the
draft's are the target's with noise. The settings and the two paths (native kernels, array API) take turns, so that all
of them see the same machine; the figures are medians of milliseconds per row of the target ("verified" ones include the
draft's rows beside it, and verification).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from itertools import product
from statistics import median
from time import perf_counter
from typing import Any
from unittest.mock import patch

import numpy as np

from forerun.bench.hardware import hardware
from forerun.constraints import TokenSetConstraint
from forerun.randomness import Purpose, make_noise
from forerun.runtime.base import Rows
from forerun.sampling import Distribution, Processing, SamplingParams, kinds, token_logprob
from forerun.types import Draft
from forerun.verification import verify

NUM_ROWS, NUM_TOKENS = 5, 2_000
PENALTIES = {"repetition_penalty": 1.1, "frequency_penalty": 0.2, "presence_penalty": 0.1}
VERIFIED = "verified"  # a draft model's rows are made and drawn from, and its tokens verified
FILTERS = {"temperature": 0.8, "top_k": 50, "top_p": 0.95, "min_p": 0.02}


def settings(vocabulary_size: int) -> dict[str, dict[str, Any]]:
    """Named requests, from nothing to everything."""
    biased = {"logit_bias": {i * 997 % vocabulary_size: 1.0 for i in range(100)}}
    words = {"bad_words": [(i * 991 % vocabulary_size,) for i in range(50)] + [(1, 2), (3, 4, 5)], "min_tokens": 10_000}
    allowed = {"allowed_token_ids": range(0, vocabulary_size, 2)}
    everything = {**FILTERS, **PENALTIES, **biased, **words, **allowed, "stop_token_ids": (7,)}
    return {
        "greedy": {"temperature": 0.0},
        "greedy, penalties": {"temperature": 0.0, **PENALTIES},
        "greedy, everything": {**everything, "temperature": 0.0},
        "temperature": {"temperature": 0.8},
        "temperature, seed": {"temperature": 0.8, "seed": 1},
        "top-k, top-p, min-p": FILTERS,
        "penalties": {"temperature": 0.8, **PENALTIES},
        "bias, bad words, min tokens": {"temperature": 0.8, **biased, **words, "stop_token_ids": (7,)},
        "allowed ids": {"temperature": 0.8, **allowed},
        "everything": everything,
        "everything, seed": {**everything, "seed": 1},
        "logprobs of 5": {"temperature": 0.0, "logprobs": 5},
        "verified, temperature": {"temperature": 0.8, VERIFIED: True},
        "verified, seed": {"temperature": 0.8, "seed": 1, VERIFIED: True},
        "verified, everything": {**everything, VERIFIED: True},
    }


def one_pass(
    given: dict[str, Any], logits: np.ndarray, draft_logits: np.ndarray, tokens: list[int], vocabulary_size: int
) -> Callable[[], None]:
    """A pass of one request: every row is processed and drawn from."""
    params = SamplingParams(**{name: value for name, value in given.items() if name != VERIFIED})
    constraints = []
    if params.allowed_token_ids is not None:
        constraints.append(TokenSetConstraint(params.allowed_token_ids, vocabulary_size))
    processing = Processing(params, vocabulary_size, tokens, stop_ids=params.stop_token_ids, constraints=constraints)
    drafted = tuple(tokens[:NUM_ROWS])

    def draw_all() -> None:
        rows = Rows(logits, [NUM_ROWS])
        processing.begin_round()
        noise = make_noise(params, 1, 0, len(tokens))
        for i in range(NUM_ROWS):
            row = processing.distribution(rows, i, drafted[:i])
            token = noise.draw(row, i, Purpose.FOLLOW)
            if params.logprobs is not None:
                token_logprob(row, token, params.logprobs, params.logprobs_kind)

    def draft_and_verify() -> None:
        rows = Rows(logits, [NUM_ROWS])
        processing.begin_round()
        noise = make_noise(params, 1, 0, len(tokens))
        draft: list[int] = []
        q: list[Distribution] = []
        for i in range(NUM_ROWS - 1):
            own = Rows(draft_logits[i : i + 1], [1])  # a draft model's tokens come one pass at a time
            q.append(processing.distribution(own, 0, tuple(draft), "draft"))
            draft.append(noise.draw(q[-1], i, Purpose.DRAFT))
        target_rows = [processing.distribution(rows, i, tuple(draft[:i])) for i in range(NUM_ROWS)]
        verify(target_rows, Draft(tuple(draft), noise.kind, tuple(q) if noise.kind == "sampled" else None), noise)

    return draft_and_verify if VERIFIED in given else draw_all


def measure(vocabulary_size: int, repeats: int) -> dict[str, dict[str, float]]:
    """{path: {setting: median milliseconds per row}}."""
    random = np.random.default_rng(0)
    logits = random.normal(0.0, 2.5, (NUM_ROWS, vocabulary_size)).astype(np.float32)
    drafted = (logits + random.normal(0.0, 0.5, logits.shape)).astype(np.float32)
    tokens = [int(token) for token in random.integers(8, vocabulary_size // 20, NUM_TOKENS)]
    passes = {
        name: one_pass(params, logits, drafted, tokens, vocabulary_size)
        for name, params in settings(vocabulary_size).items()
    }
    paths = {"native" if len(kinds.KINDS) > 1 else "arrays": kinds.KINDS, "arrays": (kinds.ARRAYS,)}
    seconds: dict[str, dict[str, list[float]]] = {path: {name: [] for name in passes} for path in paths}
    for repeat in range(repeats + 1):
        for (name, run), (path, own) in product(passes.items(), paths.items()):
            with patch.object(kinds, "KINDS", own):
                start = perf_counter()
                run()
                if repeat:  # the first round fills caches
                    seconds[path][name].append((perf_counter() - start) / NUM_ROWS)
    return {
        path: {name: round(1_000 * median(values), 3) for name, values in each.items()}
        for path, each in seconds.items()
    }


def main() -> None:
    """Print a table, then one JSON line."""
    parser = argparse.ArgumentParser(prog="python -m forerun.bench.host", description=__doc__)
    parser.add_argument("--vocabulary", type=int, default=151_936, help="ids in a row (default: 151936, Qwen 2.5)")
    parser.add_argument("--repeats", type=int, default=30, help="passes of each setting (default: 30)")
    given = parser.parse_args()
    figures = measure(given.vocabulary, given.repeats)
    print(f"{'ms per row of the target':30}" + "".join(f" {path:>8}" for path in figures))
    for name in figures["arrays"]:
        print(f"{name:30}" + "".join(f" {each[name]:8.3f}" for each in figures.values()))
    print(json.dumps({"milliseconds_per_row": figures, "vocabulary": given.vocabulary, "hardware": hardware()}))


if __name__ == "__main__":
    main()
