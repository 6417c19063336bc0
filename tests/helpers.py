"""Small tools that several test files use."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from forerun.control import FixedLength
from forerun.drafting import Drafter
from forerun.engine import Engine
from forerun.engine import Sequence as EngineSequence
from forerun.runtime.base import Model
from forerun.sampling import SamplingParams
from forerun.types import Delta


def run(engine: Engine, max_steps: int = 10_000) -> dict[int, list[Delta]]:
    """Step until idle; every delta by sequence. A run that does not end fails instead of hanging."""
    deltas: dict[int, list[Delta]] = {}
    for _ in range(max_steps):
        if engine.is_idle:
            return deltas
        for delta in engine.step():
            deltas.setdefault(delta.sequence_id, []).append(delta)
    raise AssertionError(f"not idle after {max_steps} steps")


def complete(
    target: Model, prompt: Sequence[int], drafter: Drafter | None = None, k: int = 0, engine: Any = None, **params: Any
) -> tuple[EngineSequence, list[int]]:
    """One request alone: (the finished sequence, the tokens delivered)."""
    made = Engine(target, drafter, FixedLength(k), **(engine or {}))
    sequence = made.add(prompt, SamplingParams(**params))
    deltas = run(made)[sequence.sequence_id]
    return sequence, [token for delta in deltas for token in delta.tokens]


def in_threads(works: Sequence[Callable[[], None]]) -> None:
    """Run all at once, each in its own thread; what one of them raises fails the test."""
    failures: list[BaseException] = []

    def run(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures
