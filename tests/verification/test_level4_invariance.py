"""Level 4: greedy and seeded text is the text of plain decoding, whatever else the engine does.

The reference is always one request alone, without a drafter, unchunked. Everything that may change speed is varied:
the speculation length, the drafter, the rules, the batch, the order of submission, neighbours that are cancelled
midway, prompts read in chunks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.verification.laws import finish

from forerun.control import FixedLength
from forerun.drafting import Drafter, LookupDrafter, ModelDrafter, NoDrafter, StackDrafter, SuffixDrafter
from forerun.drafting.scripted import HalfDrafter, LiarDrafter, OracleDrafter
from forerun.engine import Engine, Scheduler
from forerun.randomness import CoupledNoise, GreedyNoise, IndependentNoise, Noise, Purpose, make_noise
from forerun.runtime.toy import ToyModel
from forerun.sampling import Distribution, SamplingParams
from forerun.verification import RULES

SIZE, NUM_TOKENS = 9, 24
PROMPTS: list[tuple[int, ...]] = [(1,), (2, 3, 4, 2, 3, 4, 2, 3), (5, 0, 5, 0, 5), tuple(range(8)) * 2]
REQUESTS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "seeded": {"seed": 11},
    "seeded-filtered": {"seed": 12, "temperature": 1.3, "top_k": 7, "top_p": 0.95, "min_p": 0.02},
}


def target() -> ToyModel:
    return ToyModel.random(SIZE, order=2, seed=4, spread=1.5)


def draft() -> ToyModel:
    """A noisy copy of the target, so that drafts are accepted to every depth."""
    noise = ToyModel.random(SIZE, order=2, seed=5, spread=0.5)
    return ToyModel(lambda tokens: target().logits(tokens) + noise.logits(tokens), SIZE)


@cache
def plain(prompt: tuple[int, ...], **params: Any) -> tuple[tuple[int, ...], str | None]:
    """(text, finish reason) of one request alone, without speculation."""
    engine = Engine(target())
    sequence = engine.add(prompt, SamplingParams(**{"max_tokens": NUM_TOKENS, **params}))
    finish(engine)
    return tuple(sequence.tokens[len(prompt) :]), sequence.finish_reason


def truths(**params: Any) -> dict[tuple[int, ...], tuple[int, ...]]:
    return {prompt: plain(prompt, **params)[0] for prompt in PROMPTS}


DRAFTERS: dict[str, Callable[..., Drafter]] = {
    "none": lambda **params: NoDrafter(),
    "model": lambda **params: ModelDrafter(draft()),
    "unsure model": lambda **params: ModelDrafter(draft(), min_confidence=0.3),
    "narrow model": lambda **params: ModelDrafter(ToyModel.random(SIZE - 2, seed=3)),
    "lookup recent": lambda **params: LookupDrafter(3, 1, "recent"),
    "lookup frequent": lambda **params: LookupDrafter(3, 1, "frequent"),
    "suffix": lambda **params: SuffixDrafter(),
    "stack": lambda **params: StackDrafter([SuffixDrafter(), ModelDrafter(draft())]),
    "oracle": lambda **params: OracleDrafter(truths(**params)),
    "liar": lambda **params: LiarDrafter(truths(**params)),
    "half": lambda **params: HalfDrafter(truths(**params)),
}


BESIDE_OTHERS = ["model", "unsure model", "narrow model", "lookup recent", "suffix", "stack"]


def together(engine: Engine, requests: Sequence[tuple[tuple[int, ...], dict[str, Any]]]) -> list[Any]:
    """All requests in one engine: [(text, finish reason)]."""
    made = [engine.add(prompt, SamplingParams(**{"max_tokens": NUM_TOKENS, **params})) for prompt, params in requests]
    finish(engine)
    return [(tuple(sequence.tokens[sequence.prompt_length :]), sequence.finish_reason) for sequence in made]


@pytest.mark.parametrize("k", range(9))
@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("request_name", REQUESTS)
def test_every_k_and_drafter_write_the_plain_text(request_name: str, drafter: str, k: int) -> None:
    params = REQUESTS[request_name]
    engine = Engine(target(), DRAFTERS[drafter](**params), FixedLength(k))
    assert together(engine, [(prompt, params) for prompt in PROMPTS]) == [plain(prompt, **params) for prompt in PROMPTS]


@pytest.mark.parametrize("drafter", ["model", "lookup recent", "suffix", "stack", "half", "oracle"])
def test_speculation_happens_where_texts_are_compared(drafter: str) -> None:
    """The tests here would also pass if nothing was ever drafted; this one would not."""
    params = REQUESTS["seeded"]
    engine = Engine(target(), DRAFTERS[drafter](**params), FixedLength(4))
    made = [engine.add(prompt, SamplingParams(max_tokens=NUM_TOKENS, **params)) for prompt in PROMPTS]
    finish(engine)
    assert sum(sequence.statistics.num_accepted for sequence in made) >= 8
    if drafter != "oracle":
        assert any(s.statistics.num_accepted < s.statistics.num_proposed for s in made)


@st.composite
def workloads(draw: Any) -> dict[str, Any]:
    """Requests of both kinds, free neighbours among them, and everything else that may vary."""
    requests = []
    for _ in range(draw(st.integers(1, 5))):
        params = dict(draw(st.sampled_from(list(REQUESTS.values()))))
        params["max_tokens"] = draw(st.integers(0, NUM_TOKENS))
        if "seed" in params:
            params["seed"] = draw(st.integers(0, 2**64 - 1))
        if draw(st.booleans()):
            params["stop_token_ids"] = (draw(st.integers(0, SIZE - 1)),)
        prompt = tuple(draw(st.lists(st.integers(0, SIZE - 1), min_size=1, max_size=12)))
        requests.append((prompt, params))
    return {
        "requests": requests,
        "order": draw(st.permutations(range(len(requests)))),
        "neighbours": draw(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 8)), max_size=3)),
        "k": draw(st.integers(0, 8)),
        "drafter": draw(st.sampled_from(["none", *BESIDE_OTHERS])),
        "rules": draw(st.sampled_from(sorted(RULES))),
        "max_sequences": draw(st.integers(1, 6)),
        "max_tokens": draw(st.sampled_from([1, 2, 3, 7, 512])),
    }


@settings(max_examples=60)
@given(workloads())
def test_order_batch_chunks_rules_and_cancelled_neighbours_change_nothing(workload: dict[str, Any]) -> None:
    engine = Engine(
        target(), DRAFTERS[workload["drafter"]](), FixedLength(workload["k"]), rules=RULES[workload["rules"]],
        scheduler=Scheduler(workload["max_sequences"], workload["max_tokens"]),
    )  # fmt: skip
    requests = workload["requests"]
    leaving = [
        (engine.add([place % SIZE, 1], SamplingParams(max_tokens=40)), steps) for steps, place in workload["neighbours"]
    ]
    made = {i: engine.add(requests[i][0], SamplingParams(**requests[i][1])) for i in workload["order"]}
    num_steps = 0
    while not engine.is_idle:
        for neighbour, steps in leaving:
            if steps == num_steps:
                engine.cancel(neighbour.sequence_id)
        engine.step()
        num_steps += 1
        assert num_steps < 2_000
    for i, (prompt, params) in enumerate(requests):
        got = tuple(made[i].tokens[len(prompt) :]), made[i].finish_reason
        assert got == plain(prompt, **{**params, "stop_token_ids": params.get("stop_token_ids", ())})


def test_seeds_and_choices_tell_texts_apart() -> None:
    prompt = PROMPTS[1]
    assert plain(prompt, seed=5) == together(Engine(target()), [(prompt, {"seed": 5})])[0]
    assert len({plain(prompt, seed=seed)[0] for seed in range(20)}) == 20
    engine = Engine(target(), ModelDrafter(draft()), FixedLength(3))
    made = [engine.add(prompt, SamplingParams(max_tokens=NUM_TOKENS, seed=5), choice=choice) for choice in range(6)]
    unseeded = [engine.add(prompt, SamplingParams(max_tokens=NUM_TOKENS)) for _ in range(6)]
    finish(engine)
    assert tuple(made[0].tokens[len(prompt) :]) == plain(prompt, seed=5)[0]
    assert len({tuple(sequence.tokens) for sequence in [*made, *unseeded]}) == 12


class _Recording:
    """Passes every decision on and notes its key."""

    def __init__(self, inner: Any, keys: list[tuple[Any, ...]]) -> None:
        self.inner, self.keys, self.kind = inner, keys, inner.kind

    def accept(self, probability: float, node: int) -> bool:
        self._note(node, Purpose.ACCEPT)
        return self.inner.accept(probability, node)

    def draw(self, distribution: Distribution, node: int, purpose: Purpose) -> int:
        self._note(node, purpose)
        return self.inner.draw(distribution, node, purpose)

    def _note(self, node: int, purpose: Purpose) -> None:
        if isinstance(self.inner, IndependentNoise):
            self.keys.append((self.inner.seed, self.inner.choice, self.inner.committed, node, purpose))
        elif isinstance(self.inner, CoupledNoise) and purpose is not Purpose.DRAFT:
            self.keys.append((self.inner.seed, self.inner.choice, self.inner.committed + node))
        elif isinstance(self.inner, GreedyNoise) and purpose is Purpose.ACCEPT:
            raise AssertionError("a greedy request asked for randomness")


@pytest.mark.parametrize("rules", sorted(RULES))
@pytest.mark.parametrize("k", [0, 1, 3, 8])
@pytest.mark.parametrize("drafter", ["none", "model", "unsure model", "narrow model", "lookup recent"])
def test_no_key_returns_in_a_whole_run(drafter: str, k: int, rules: str) -> None:
    """Free requests: every decision its own key. Seeded ones: the target chooses once for each position."""
    keys: list[tuple[Any, ...]] = []

    def factory(params: SamplingParams, seed: int, choice: int, committed: int) -> Noise:
        return _Recording(make_noise(params, seed, choice, committed), keys)

    engine = Engine(
        target(), DRAFTERS[drafter](), FixedLength(k), rules=RULES[rules], make_noise=factory,
        scheduler=Scheduler(max_sequences=3, max_tokens=4),
    )  # fmt: skip
    kinds: list[dict[str, Any]] = [{}, {}, {"seed": 3}, {"temperature": 0}]
    together(engine, [(prompt, params) for prompt in PROMPTS for params in kinds])
    assert len(keys) >= 3 * len(PROMPTS) * NUM_TOKENS  # at least one decision for every token that is not greedy
    free = [key for key in keys if len(key) == 5]
    assert len(free) == len(set(free))
    for prompt in PROMPTS[:3]:
        alone: list[tuple[Any, ...]] = []
        engine = Engine(
            target(), DRAFTERS[drafter](), FixedLength(k), rules=RULES[rules],
            make_noise=lambda *key, alone=alone: _Recording(make_noise(*key), alone),
        )  # fmt: skip
        together(engine, [(prompt, {"seed": 3})])
        positions = [position for _, _, position in alone]
        assert positions == list(range(len(prompt), len(prompt) + NUM_TOKENS))
