"""The native runtime under interrupts, threads and forks: what it survives leaves nothing behind, no text shows it."""

from __future__ import annotations

import gc
import os
import random
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.helpers import in_threads
from tests.runtime.native_pair import LONG, PROMPTS

from forerun.control import FixedLength
from forerun.drafting import ModelDrafter
from forerun.llm import LLM
from forerun.loading import load
from forerun.runtime.native import load_native_model
from forerun.types import Span


class Interrupting:
    """A decoder in which one call of `name` is interrupted just after it was done, as a signal may."""

    def __init__(self, decoder: Any, name: str, times: int) -> None:
        self._decoder, self._name, self._left = decoder, name, times

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._decoder, name)

        def interrupted(*args: Any) -> Any:
            found = call(*args)
            self._left -= name == self._name
            if name == self._name and self._left == 0:
                raise KeyboardInterrupt
            return found

        return interrupted if callable(call) else call


@pytest.mark.parametrize("name", ["begin", "fork", "forward", "keep", "free", "length"])
@pytest.mark.parametrize("whose", ["target", "draft"])
def test_an_interrupt_after_any_call_of_the_decoder(
    whose: str, name: str, pair: tuple[Path, Path], texts: list[tuple[int, ...]]
) -> None:
    """Another request is served as if nothing had been, and nothing stays cached."""
    target, draft = load_native_model(pair[0]), load_native_model(pair[1])
    llm = LLM(target, None, ModelDrafter(draft), FixedLength(3))
    model = target if whose == "target" else draft
    whole = model._decoder
    for times in (1, 2, 5):
        model._decoder = Interrupting(whole, name, times)
        interrupted = 0
        for prompt, expected in ((PROMPTS[0], texts[0]), (PROMPTS[3], texts[3])):
            try:
                assert llm.generate(prompt, n=2, seed=1, **LONG).choices[0].tokens == expected
            except KeyboardInterrupt:
                interrupted += 1
        model._decoder = whole
        assert interrupted or times > 1
        assert [result.tokens for result in llm.generate(PROMPTS, seed=1, **LONG)] == texts
        assert llm.engine.is_idle


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs timers")
def test_real_interrupts_of_requests_and_loads(pair: tuple[Path, Path], texts: list[tuple[int, ...]]) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before, hits, generator = signal.signal(signal.SIGALRM, interrupt), [0, 0], random.Random(0)
    llm = load(pair[0], draft=pair[1], k=3)
    actions = (lambda: llm.generate(PROMPTS, seed=1, **LONG), lambda: load(pair[0], draft=pair[1]).close())
    try:
        for loop in range(60):
            try:
                try:
                    signal.setitimer(signal.ITIMER_REAL, generator.uniform(0.0003, 0.03))
                    actions[loop % 2]()
                finally:
                    signal.setitimer(signal.ITIMER_REAL, 0)
            except KeyboardInterrupt:
                hits[loop % 2] += 1
    finally:
        signal.signal(signal.SIGALRM, before)
    assert min(hits) > 0
    assert [result.tokens for result in llm.generate(PROMPTS, seed=1, **LONG)] == texts
    assert (llm.engine.target.cache_bytes, llm.engine.drafter.model.cache_bytes) == (0, 0)
    llm.close()


def test_several_llms_share_one_model(pair: tuple[Path, Path], texts: list[tuple[int, ...]]) -> None:
    """Each in its own thread, with drafters over one draft model too: no cache is another's."""
    target, draft = load_native_model(pair[0]), load_native_model(pair[1])
    llms = [LLM(target), *(LLM(target, None, ModelDrafter(draft), FixedLength(k)) for k in (2, 5))]

    def use(llm: LLM, first: int) -> None:
        for i in range(first, first + 6):
            assert llm.generate(PROMPTS[i % 4], seed=1, **LONG).tokens == texts[i % 4]

    in_threads([lambda llm=llm, first=first: use(llm, first) for first, llm in enumerate(llms * 2)])
    assert (target.cache_bytes, draft.cache_bytes) == (0, 0)


def test_a_model_may_be_dropped_while_another_thread_steps_it(pair: tuple[Path, Path]) -> None:
    for _ in range(6):
        llm = load(pair[0], draft=pair[1], k=3)
        stream = llm.stream(PROMPTS[0], seed=1, max_tokens=200, ignore_eos=True)
        started = threading.Event()

        def read(stream: Any = stream, started: threading.Event = started) -> None:
            for _ in stream:
                started.set()

        thread = threading.Thread(target=read)
        thread.start()
        started.wait(30)
        llm.close()
        del llm, stream
        gc.collect()
        thread.join(30)
        assert not thread.is_alive()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_child_forked_while_threads_work_loads_its_own(pair: tuple[Path, Path], texts: list[tuple[int, ...]]) -> None:
    llm, stop = load(pair[0]), threading.Event()

    def busy() -> None:
        while not stop.is_set():
            llm.generate(PROMPTS[0], seed=1, max_tokens=8)

    thread = threading.Thread(target=busy)
    thread.start()
    try:
        for _ in range(5):
            child = os.fork()
            if child == 0:
                signal.alarm(60)
                with load(pair[0]) as own:
                    os._exit(own.generate(PROMPTS[0], seed=1, **LONG).tokens != texts[0])
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        stop.set()
        thread.join()
        llm.close()


def test_ids_that_the_decoder_knows_and_the_model_does_not_are_freed(pair: tuple[Path, Path]) -> None:
    model = load_native_model(pair[0])
    model._decoder.begin(7)
    model.free(7)
    model.begin(7)
    model.forward([Span(7, 0, [1, 2], 1)])
    model.free(7)
    model.free(8)
    assert model.cache_bytes == 0
