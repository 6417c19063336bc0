"""Level 4 with every sampling feature: greedy and seeded requests are a function of prompt, seed and parameters.

Features are drawn by Hypothesis and differ between the requests of a batch. Compared are tokens, finish reason, stop
token and reported log probabilities, against each request alone in an engine without a drafter.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.helpers import run
from tests.verification.laws import finish
from tests.verification.reference import AutomatonGrammar
from tests.verification.test_level1_features import Grudge
from tests.verification.test_level4_invariance import DRAFTERS, NUM_TOKENS, PROMPTS, SIZE, draft, target

from forerun.control import FixedLength
from forerun.drafting import ModelDrafter
from forerun.engine import Engine, Scheduler
from forerun.sampling import SamplingParams, StatefulProcessor
from forerun.verification import RULES

EOS = 6
ids = st.integers(0, SIZE - 1)


def sway(tokens: list[int], logits: Any) -> Any:
    logits[sum(tokens) % SIZE] += 1.3
    return logits


EVERY_OTHER = AutomatonGrammar([{i: i % 2 for i in range(1, SIZE)}, dict.fromkeys(range(0, SIZE, 2), 0)], SIZE)
ENDING = AutomatonGrammar([*({i: n + (i > 4) for i in range(SIZE)} for n in range(5)), {}], SIZE)

FEATURES: dict[str, Any] = {
    "temperature": st.sampled_from([0.0, 0.61, 1.73]),
    "top_k": st.integers(1, SIZE),
    "top_p": st.sampled_from([0.6137, 0.9731]),
    "min_p": st.sampled_from([0.0173, 0.3719]),
    "repetition_penalty": st.sampled_from([0.71, 1.37, 2.3]),
    "frequency_penalty": st.sampled_from([-1.13, 0.47, 1.9]),
    "presence_penalty": st.sampled_from([-0.77, 0.53]),
    "logit_bias": st.dictionaries(ids, st.sampled_from([-1.21, 0.93, -40.0]), min_size=1, max_size=3),
    "bad_words": st.lists(st.lists(ids, min_size=1, max_size=3), min_size=1, max_size=3),
    "allowed_token_ids": st.sets(ids, min_size=5).map(sorted),
    "min_tokens": st.integers(1, 8),
    "logits_processors": st.sampled_from([[sway], [StatefulProcessor(Grudge)], [sway, StatefulProcessor(Grudge)]]),
    "constraint": st.sampled_from([EVERY_OTHER, ENDING]),
    "logprobs": st.integers(0, 3),
    "prompt_logprobs": st.integers(0, 2),
    "stop_token_ids": st.lists(ids, max_size=2),
}


@st.composite
def features(draw: Any) -> dict[str, Any]:
    names = draw(st.lists(st.sampled_from(sorted(FEATURES)), max_size=6, unique=True))
    params = {name: draw(FEATURES[name]) for name in names}
    if params.get("temperature") != 0.0:
        params["seed"] = draw(st.integers(0, 2**64 - 1))
    return {"max_tokens": draw(st.integers(8, NUM_TOKENS)), **params}


def written(sequence: Any, deltas: list[Any]) -> Any:
    """Everything a user sees of a request."""
    logprobs = [
        (entry.token, round(entry.logprob, 9), entry.rank, [(token, round(value, 9)) for token, value in entry.top])
        for delta in deltas
        for entry in delta.logprobs or ()
    ]
    tokens = [token for delta in deltas for token in delta.tokens]
    return tokens, sequence.finish_reason, sequence.stop_token, logprobs, sequence.prompt_logprobs


def alone(prompt: tuple[int, ...], params: dict[str, Any]) -> Any:
    engine = Engine(target(), eos_ids=[EOS])
    sequence = engine.add(prompt, SamplingParams(**params))
    return written(sequence, run(engine)[sequence.sequence_id])


@settings(max_examples=120)
@given(
    requests=st.lists(st.tuples(st.sampled_from(PROMPTS), features()), min_size=1, max_size=4),
    k=st.sampled_from([1, 2, 3, 5, 8]),
    drafter=st.sampled_from(
        ["model", "unsure model", "narrow model", "lookup recent", "lookup frequent", "suffix", "stack"]
    ),
    rule=st.sampled_from(sorted(RULES)),
    max_sequences=st.integers(1, 4),
    max_tokens=st.sampled_from([1, 3, 512]),
    neighbours=st.lists(st.integers(0, 10), max_size=2),
    backwards=st.booleans(),
)
def test_features_compose_whatever_else_the_engine_does(
    requests: list[Any], k: int, drafter: str, rule: str, max_sequences: int, max_tokens: int, neighbours: list[int],
    backwards: bool,
) -> None:  # fmt: skip
    engine = Engine(
        target(), DRAFTERS[drafter](), FixedLength(k), eos_ids=[EOS], rules=RULES[rule],
        scheduler=Scheduler(max_sequences, max_tokens),
    )  # fmt: skip
    leaving = [(engine.add([1, 2], SamplingParams(max_tokens=30, presence_penalty=1.0)), when) for when in neighbours]
    order = reversed(range(len(requests))) if backwards else range(len(requests))
    made = {i: engine.add(requests[i][0], SamplingParams(**requests[i][1])) for i in order}
    deltas: dict[int, list[Any]] = {}
    for step in range(2_000):
        if engine.is_idle:
            break
        for neighbour, when in leaving:
            if when == step:
                engine.cancel(neighbour.sequence_id)
        for delta in engine.step():
            deltas.setdefault(delta.sequence_id, []).append(delta)
    assert engine.is_idle
    for i, (prompt, params) in enumerate(requests):
        assert written(made[i], deltas[made[i].sequence_id]) == alone(prompt, params)
    assert engine.target.num_sequences == 0  # type: ignore[attr-defined]


MANY: dict[str, Any] = {
    "temperature": 0.9, "top_p": 0.95, "repetition_penalty": 1.2, "frequency_penalty": 0.3, "logit_bias": {3: 0.7},
    "bad_words": [[1, 2]], "min_tokens": 5,
}  # fmt: skip


def seeded_texts() -> list[list[int]]:
    engine = Engine(target(), ModelDrafter(draft()), FixedLength(4), eos_ids=[EOS])
    made = [
        engine.add(prompt, SamplingParams(max_tokens=NUM_TOKENS, seed=77, **MANY), choice=choice)
        for prompt in PROMPTS
        for choice in range(2)
    ]
    finish(engine)
    return [sequence.tokens for sequence in made]


def test_seeded_texts_survive_a_restart_of_the_process() -> None:
    """Nothing may depend on hash randomisation, addresses or the clock."""
    home = "tests.verification.test_level4_features"
    script = f"import json; from {home} import seeded_texts; print(json.dumps(seeded_texts()))"
    for hash_seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, check=True,
            cwd=Path(__file__).parents[2], env={"PYTHONHASHSEED": hash_seed, "PATH": "", "HF_HUB_OFFLINE": "1"},
        )  # fmt: skip
        assert json.loads(done.stdout.splitlines()[-1]) == seeded_texts()


@pytest.mark.parametrize("prompt", PROMPTS)
def test_unseeded_texts_differ(prompt: tuple[int, ...]) -> None:
    engine = Engine(target(), ModelDrafter(draft()), FixedLength(4))
    made = [engine.add(prompt, SamplingParams(max_tokens=NUM_TOKENS, **MANY)) for _ in range(20)]
    finish(engine)
    assert len({tuple(sequence.tokens) for sequence in made}) >= 19
