"""Streams of one LLM: closed from elsewhere, timed when committed, and nothing lost by a step that fails."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from itertools import count
from typing import Any

import pytest

from forerun.control import FixedLength
from forerun.drafting import ModelDrafter
from forerun.errors import ForerunError
from forerun.llm import LLM
from forerun.runtime.base import Rows
from forerun.runtime.toy import ToyModel
from forerun.types import Round


def model() -> ToyModel:
    return ToyModel.random(12, order=2, seed=4, spread=2.0)


@pytest.mark.parametrize("whole", [False, True])
def test_closing_from_another_thread_ends_the_iteration(whole: bool) -> None:
    llm = LLM(model())
    stream = llm.stream([1], seed=1, max_tokens=10**7)
    started, pieces = threading.Event(), []

    def iterate() -> None:
        for piece in stream:
            pieces.append(piece)
            started.set()

    thread = threading.Thread(target=iterate, daemon=True)
    thread.start()
    assert started.wait(60)
    (llm if whole else stream).close()
    thread.join(60)
    assert not thread.is_alive()
    assert [piece.finish_reason for piece in pieces if piece.token is None] == ["cancelled"]
    assert stream.result.finish_reason == "cancelled"
    assert stream.result.tokens == tuple(piece.token for piece in pieces[:-1])
    assert not llm._outbox


def test_a_batch_is_timed_by_when_tokens_were_committed_not_by_when_they_were_read() -> None:
    usages = [result.usage for result in LLM(model()).generate([[1], [2], [3]], seed=1, max_tokens=50)]
    # All three were in the same passes; the later ones were only added a little later.
    firsts = [usage.time_to_first_token_s for usage in usages]
    assert firsts == sorted(firsts, reverse=True)
    assert [usage.tokens_per_s for usage in usages] == pytest.approx([usages[0].tokens_per_s] * 3)


def test_a_stream_closed_before_it_was_read_leaves_nothing() -> None:
    llm = LLM(model())
    llm.stream([1], max_tokens=0).close()
    llm.generate([1], max_tokens=3)
    assert not llm._outbox
    assert llm.engine.is_idle


def test_a_stream_left_and_forgotten_is_not_decoded_on() -> None:
    target = model()
    llm = LLM(target)
    for _ in llm.stream([1], seed=1, max_tokens=500):
        break
    gc.collect()
    fed = target.num_fed
    llm.generate([1], seed=2, max_tokens=20)
    assert target.num_fed == fed + 20
    assert (target.num_sequences, llm._outbox) == (0, {})


def test_a_pass_is_over_before_its_rows_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a device the seconds of the target's pass would otherwise be charged to verification."""
    seen: list[str] = []
    for name in ("wait", "best"):
        real = getattr(Rows, name)
        monkeypatch.setattr(Rows, name, lambda *a, name=name, real=real: (seen.append(name), real(*a))[1])
    LLM(model()).generate([1, 2], temperature=0, max_tokens=3)
    assert seen == ["wait", "best"] * 3


class FailsOnce(FixedLength):
    """A policy with a bug that shows after a round was committed."""

    def __init__(self, at: int) -> None:
        super().__init__(0)
        self.left = at

    def update(self, rounds: list[Round], step: Any) -> None:  # type: ignore[override]
        self.left -= 1
        if self.left == 0:
            raise RuntimeError("a bug in this policy")


@pytest.mark.parametrize("at", [1, 2, 4])
def test_what_a_failing_step_had_committed_is_handed_out_by_the_next(at: int) -> None:
    expected = LLM(model()).generate([1], seed=3, max_tokens=4).tokens
    stream = LLM(model(), policy=FailsOnce(at)).stream([1], seed=3, max_tokens=4)
    with pytest.raises(RuntimeError, match="a bug"):
        list(stream)
    list(stream)
    assert stream.result.tokens == expected
    assert stream.result.finish_reason == "length"


def test_a_closed_llm_lets_go_of_its_models() -> None:
    target = model()
    gone = weakref.ref(target)
    llm = LLM(target)
    stream = llm.stream([1], max_tokens=4)
    next(stream)
    llm.close()
    llm.close()
    stream.close()
    del target
    gc.collect()
    assert gone() is None
    with pytest.raises(ForerunError, match="closed"):
        llm.generate([1], max_tokens=1)


def test_an_llm_says_what_it_is_made_of() -> None:
    llm = LLM(model(), policy=FixedLength(3))
    assert repr(llm) == "LLM(target=ToyModel, drafter=NoDrafter, policy=FixedLength(3))"
    llm.close()
    assert repr(llm) == "LLM(closed)"


# -- interrupts at their worst -----------------------------------------------------------------------------------------


def once(call: Callable[..., Any], error: BaseException, *, nth: int = 1, after: bool = False) -> Callable[..., Any]:
    """`call`, which raises at its nth time: after it was done, or instead."""
    calls = count(1)

    def failing(*arguments: Any, **settings: Any) -> Any:
        is_now = next(calls) == nth
        if is_now and not after:
            raise error
        result = call(*arguments, **settings)
        if is_now:
            raise error
        return result

    return failing


def goes_on(llm: LLM, expected: tuple[int, ...]) -> None:
    """The next request is answered as ever, and nothing is left behind."""
    assert llm.generate([1], seed=1, max_tokens=9).tokens == expected
    assert llm.engine.is_idle
    assert (llm._outbox, llm.engine._ending, llm.engine.target.num_sequences) == ({}, {}, 0)  # type: ignore[attr-defined]


@pytest.mark.parametrize("after", [True, False])
@pytest.mark.parametrize(
    "part, name",
    [
        ("engine", "add"), ("engine", "cancel"), ("engine", "_finish"), ("engine", "_let_go"),
        ("scheduler", "remove"), ("drafter", "release"), ("_prompts", "end"), ("target", "free"),
        ("draft model", "free"),
    ],
)  # fmt: skip
def test_an_interrupt_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch, part: str, name: str, after: bool) -> None:
    """Between a request's entry and its stream, and in the middle of its end."""
    llm = LLM(model(), None, ModelDrafter(model()), FixedLength(2))
    expected = llm.generate([1], seed=1, max_tokens=9).tokens
    owners: dict[str, Any] = {"engine": llm.engine, "draft model": llm.engine.drafter.model}  # type: ignore[attr-defined]
    owner = owners[part] if part in owners else getattr(llm.engine, part)
    with monkeypatch.context() as patch:
        nth = 2 if name == "free" else 1  # a cache is freed before it begins, too
        patch.setattr(owner, name, once(getattr(owner, name), KeyboardInterrupt(), nth=nth, after=after))
        with pytest.raises(KeyboardInterrupt):
            if name == "cancel":
                stream = llm.stream([1], seed=1, max_tokens=10**6)
                next(stream)
                stream.close()
            llm.generate([1], seed=1, max_tokens=40)
    if name == "cancel":
        del stream
    gc.collect()
    goes_on(llm, expected)
    assert llm.engine.drafter.model.num_sequences == 0  # type: ignore[attr-defined]


def test_an_interrupt_does_not_lose_a_stream_that_was_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    llm = LLM(model())
    expected = llm.generate([1], seed=1, max_tokens=9).tokens
    stream = llm.stream([1], seed=1, max_tokens=10**6)
    next(stream)
    del stream
    gc.collect()
    with monkeypatch.context() as patch:
        patch.setattr(llm.engine, "cancel", once(llm.engine.cancel, KeyboardInterrupt()))
        with pytest.raises(KeyboardInterrupt):
            llm.generate([1], seed=1, max_tokens=40)
    gc.collect()
    goes_on(llm, expected)


def test_texts_of_a_request_that_fails_half_way_end_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    llm = LLM(model())
    monkeypatch.setattr(llm.engine, "add", once(llm.engine.add, ForerunError("no more"), nth=2))
    with pytest.raises(ForerunError, match="no more"):
        llm.generate([1], seed=1, n=3, max_tokens=9)
    assert llm.engine.is_idle
    assert llm._outbox == {}
