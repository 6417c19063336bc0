"""An LLM that a server steps: one thread pumps and hands out, and what it hands out is what `generate` returns."""

from __future__ import annotations

import gc
import threading
from time import perf_counter
from typing import Any

import pytest
from tests.helpers import in_threads

from forerun.control import FixedLength
from forerun.drafting import ModelDrafter
from forerun.engine import KeptTexts, Scheduler, Service
from forerun.errors import DeadlineError, ForerunError
from forerun.llm import LLM
from forerun.result import Piece
from forerun.runtime.base import Rows
from forerun.runtime.toy import ToyModel
from forerun.sampling import SamplingParams
from forerun.stream import Stream


def model() -> ToyModel:
    return ToyModel.random(12, order=2, seed=4, spread=2.0)


def serving(**more: Any) -> LLM:
    return LLM(model(), None, ModelDrafter(ToyModel.random(12, order=2, seed=4, spread=1.5)), FixedLength(3), **more)


def params(**given: Any) -> SamplingParams:
    return SamplingParams(**{"max_tokens": 20, "seed": 1, **given})


def pumped(llm: LLM, streams: list[Stream]) -> list[list[Piece]]:
    """What each stream gave, taken after every step."""
    found: list[list[Piece]] = [[] for _ in streams]
    for _ in range(1000):
        went_on = llm.pump()
        for pieces, stream in zip(found, streams, strict=True):
            pieces += stream.ready()
        if not went_on:
            return found
    raise AssertionError("it goes on for ever")


def test_what_is_handed_out_is_what_generate_returns() -> None:
    asked = [params(seed=seed, n=1 + seed % 3, logprobs=1) for seed in range(6)]
    llm = serving(scheduler=Scheduler(max_sequences=3))
    streams = [llm.open([1, seed, 2], one) for seed, one in enumerate(asked)]
    found = pumped(llm, streams)
    for seed, (one, stream, pieces) in enumerate(zip(asked, streams, found, strict=True)):
        expected = LLM(model()).generate([1, seed, 2], one)
        assert stream.is_done
        assert stream.error is None
        for text, other in zip((stream.result, *stream.result.others), (expected, *expected.others), strict=True):
            assert (text.tokens, text.finish_reason, text.logprobs) == (
                other.tokens,
                other.finish_reason,
                other.logprobs,
            )
            of_text = [piece for piece in pieces if piece.choice == text.choice]
            assert [piece.token for piece in of_text] == [*other.tokens, None]
            assert [piece.finish_reason for piece in of_text] == [None] * len(other.tokens) + ["length"]
        assert [choice for choice, _ in stream.statistics] == list(range(one.n))
        assert sum(each.num_emitted for _, each in stream.statistics) == 20 * one.n
    assert not llm._outbox


def test_there_is_nothing_to_do_before_the_first_request_and_after_the_last() -> None:
    llm = serving()
    assert not llm.pump()
    stream = llm.open([1], params(max_tokens=0))
    assert llm.pump()
    assert [piece.finish_reason for piece in stream.ready()] == ["length"]
    assert stream.is_done
    assert stream.ready() == []
    assert not llm.pump()
    llm.close()
    assert not llm.pump()


def test_a_deadline_is_an_error_of_that_stream_alone() -> None:
    llm = serving()
    late = llm.open([1], params(), service=Service(deadline=perf_counter() - 1))
    other = llm.open([1], params())
    found = pumped(llm, [late, other])
    assert [piece.finish_reason for piece in found[0]] == ["error"]
    assert isinstance(late.error, DeadlineError)
    assert late.result.finish_reason == "error"
    assert (other.error, other.result.tokens) == (None, LLM(model()).generate([1], params()).tokens)
    with pytest.raises(DeadlineError):
        llm.open([1], params(), service=Service(deadline=perf_counter() - 1)).drain()


@pytest.mark.parametrize("whole", [False, True])
def test_closing_cancels_and_frees_at_once(whole: bool) -> None:
    llm = serving()
    target = llm.engine.target
    stream = llm.open([1], params(max_tokens=10**6))
    for _ in range(5):
        llm.pump()
    early = stream.ready()
    (llm if whole else stream).close()
    assert target.num_sequences == 0
    assert [piece.finish_reason for piece in stream.ready()] == ["cancelled"]
    assert stream.is_done
    assert stream.result.tokens == tuple(piece.token for piece in early)
    assert not llm.pump()


def test_a_stream_nobody_holds_ends_at_the_next_step() -> None:
    llm = serving()
    stream = llm.open([1], params(max_tokens=10**6))
    llm.pump()
    del stream
    gc.collect()
    assert not llm.pump()
    assert llm.engine.is_idle
    assert llm.engine.target.num_sequences == 0


def test_a_step_that_fails_loses_nothing() -> None:
    llm = serving()
    target = llm.engine.target
    forward, num_calls = target.forward, 0

    def failing(spans: Any) -> Rows:
        nonlocal num_calls
        num_calls += 1
        rows = forward(spans)
        if num_calls % 3 == 0:
            raise MemoryError
        return rows

    target.forward = failing
    streams = [llm.open([1, seed], params(seed=seed)) for seed in range(4)]
    num_failures = 0
    found: list[list[int]] = [[] for _ in streams]
    while not all(stream.is_done for stream in streams):
        try:
            llm.pump()
        except MemoryError:
            num_failures += 1
        for tokens, stream in zip(found, streams, strict=True):
            tokens += [piece.token for piece in stream.ready() if piece.token is not None]
    assert num_failures > 0
    for seed, tokens in enumerate(found):
        assert tuple(tokens) == LLM(model()).generate([1, seed], params(seed=seed)).tokens


def test_one_thread_pumps_while_others_open_and_close() -> None:
    llm = serving(scheduler=Scheduler(max_sequences=3, max_cached=200))
    llm.engine.share(KeptTexts(llm.engine.target, 300))
    beginning = [i * i % 7 for i in range(30)]
    expected = [LLM(model()).generate([*beginning, n], params()).tokens for n in range(4)]
    mailbox: list[tuple[int, Stream]] = []
    found: list[tuple[int, tuple[int, ...]]] = []
    is_over = threading.Event()

    def pump() -> None:
        while not is_over.is_set() or mailbox:
            if not llm.pump():
                is_over.wait(0.001)
            for entry in list(mailbox):
                number, stream = entry
                stream.ready()
                if stream.is_done:
                    mailbox.remove(entry)
                    found.append((number, stream.result.tokens))

    def ask(number: int) -> None:
        for turn in range(5):
            mailbox.append((number, llm.open([*beginning, number], params())))
            stream = llm.open([*beginning, number, turn], params(max_tokens=10**4))
            is_over.wait(0.002)
            stream.close()
            assert stream.is_done

    def ask_all() -> None:
        try:
            in_threads([lambda number=number: ask(number) for number in range(4)])
        finally:
            is_over.set()

    in_threads([pump, ask_all])
    assert sorted(number for number, _ in found) == sorted(list(range(4)) * 5)
    assert all(tokens == expected[number] for number, tokens in found)
    assert llm.engine.is_idle
    assert llm.engine.target.num_sequences == len(llm.engine.kept or ())


def test_beginnings_are_shared_from_before_the_first_request_on() -> None:
    llm = serving()
    llm.open([1], params())
    with pytest.raises(ForerunError, match="before the first request"):
        llm.engine.share(KeptTexts(llm.engine.target, 100))
