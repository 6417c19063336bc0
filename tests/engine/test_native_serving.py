"""Serving with the native runtime: tiny models, shared pages, little memory, and every text its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.models.tiny_gguf import write_tiny_pair

from forerun.engine import KeptTexts, Service
from forerun.llm import LLM
from forerun.loading import load
from forerun.sampling import SamplingParams

SCHEMA = {"type": "object", "properties": {"a": {"type": "string", "maxLength": 8}}, "required": ["a"]}
KINDS: list[dict[str, Any]] = [
    {"temperature": 0, "ignore_eos": True},
    {"seed": 8, "temperature": 0.7, "top_p": 0.9, "ignore_eos": True},
    {"seed": 2, "temperature": 1.0, "json_schema": SCHEMA},
    {"temperature": 0, "json_schema": SCHEMA, "logprobs": 1},
]
BEGINNING = [(i * i) % 300 for i in range(70)]
PROMPTS = [[*BEGINNING, n] for n in range(4)] + [[*BEGINNING[:33], 7, 7]] + [[9] * 40]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return write_tiny_pair(tmp_path_factory.mktemp("pair"))


@pytest.fixture(scope="module")
def plain(pair: tuple[Path, Path]) -> Iterator[LLM]:
    with load(pair[0]) as llm:
        yield llm


@pytest.fixture
def llm(pair: tuple[Path, Path]) -> Iterator[LLM]:
    with load(pair[0], draft=pair[1], k=3) as made:
        yield made


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize(("max_cached", "max_kept"), [(None, 500), (220, 100), (130, 0)])
def test_texts_are_their_own(llm: LLM, plain: LLM, kind: dict[str, Any], max_cached: int | None, max_kept: int) -> None:
    engine, target = llm.engine, llm.engine.target
    engine.scheduler.max_sequences, engine.scheduler.max_cached = 3, max_cached
    engine.scheduler.pace = lambda num: 16
    engine.share(KeptTexts(target, max_kept))
    streams = []
    for turn in range(2):
        for number, prompt in enumerate(PROMPTS):
            given = SamplingParams(**kind, max_tokens=24, n=1 + number % 2)
            streams.append((prompt, given, llm.open(prompt, given, service=Service((number + turn) % 3))))
            for _ in range(2):
                llm.pump()
    while llm.pump():
        pass
    assert any(stream.num_shared > 0 for _, _, stream in streams) is (max_kept > 0)
    for prompt, given, stream in streams:
        stream.ready()
        expected = plain.generate(prompt, given)
        for text, other in zip((stream.result, *stream.result.others), (expected, *expected.others), strict=True):
            assert (text.text, text.tokens, text.finish_reason) == (other.text, other.tokens, other.finish_reason)
            assert text.logprobs == other.logprobs
    assert engine.kept is not None
    engine.kept.shrink(0)
    assert (target.cache_bytes, engine.drafter.model.cache_bytes) == (0, 0)


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("num_steps", [1, 3, 6])
def test_who_gives_way_goes_on_with_its_own_text(llm: LLM, plain: LLM, kind: dict[str, Any], num_steps: int) -> None:
    llm.engine.scheduler.max_sequences = 1
    given = SamplingParams(**kind, max_tokens=24)
    late = llm.open(PROMPTS[0], given, service=Service(1))
    for _ in range(num_steps):
        llm.pump()
    assert not late.is_done
    urgent = llm.open(PROMPTS[4], given)
    llm.pump()
    assert len(llm.engine.scheduler.running) == 1
    assert late.result.speculation.num_rounds < 24
    for stream, prompt in ((late, PROMPTS[0]), (urgent, PROMPTS[4])):
        assert stream.drain().tokens == plain.generate(prompt, given).tokens
    assert llm.engine.target.cache_bytes == 0


def test_a_cancelled_request_gives_its_memory_back_at_once(llm: LLM) -> None:
    target, draft = llm.engine.target, llm.engine.drafter.model
    llm.engine.share(KeptTexts(target, 500))
    for num_steps in range(5):
        stream = llm.open(PROMPTS[0], SamplingParams(max_tokens=100, seed=1, n=2, ignore_eos=True))
        for _ in range(num_steps):
            llm.pump()
        stream.close()
        assert (target.cache_bytes, draft.cache_bytes) == (0, 0)
    assert not llm.pump()
