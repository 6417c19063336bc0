"""Cost curves: sides take turns, caches stay as they were, and the median is of what was timed."""

from __future__ import annotations

from typing import Any

import pytest
from tests.bench.toys import SIZE, quick_probe, target

from forerun.bench import curves
from forerun.bench.curves import ModelPasses, measure_curves


class Side:
    """Remembers its calls in one log, and moves one clock by `ms` times rows."""

    def __init__(self, name: str, log: list[tuple[str, str, int]], clock: list[float], ms: float) -> None:
        self.name, self.log, self.clock, self.ms = name, log, clock, ms

    def begin_passes(self, context: int) -> None:
        self.log.append((self.name, "begin", context))

    def run_pass(self, rows: int) -> None:
        self.log.append((self.name, "run", rows))
        first = self.log[-2][0] != self.name if len(self.log) > 1 else True
        self.clock[0] += self.ms * rows / 1e3 + (50.0 if first else 0.0)  # the first pass of a turn is dearer

    def undo_pass(self) -> None:
        self.log.append((self.name, "undo", 0))
        self.clock[0] += 1e3  # not counted

    def end_passes(self) -> None:
        self.log.append((self.name, "end", 0))


def test_sides_take_turns_and_only_passes_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[tuple[str, str, int]] = []
    clock = [0.0]
    monkeypatch.setattr(curves, "perf_counter", lambda: clock[0])
    sides = {"a": Side("a", log, clock, 2.0), "b": Side("b", log, clock, 5.0)}
    found = measure_curves(sides, quick_probe(), 30, rows=(1, 4), num_repeats=3)
    assert found["a"]["ms"] == pytest.approx({"1": 2.0, "4": 8.0})
    assert found["b"]["ms"] == pytest.approx({"1": 5.0, "4": 20.0})
    assert found["a"]["context"] == 30
    assert log[:2] == [("a", "begin", 30), ("b", "begin", 30)]
    turns = [(name, rows) for name, what, rows in log if what == "run"]
    down, up = ([(name, rows) for name in "ab" for rows in order] for order in ((1, 4, 1), (1, 1, 4)))
    assert turns == (down + up) * 2, "each turn begins with a pass that is not timed"
    assert log[-2:] == [("a", "end", 0), ("b", "end", 0)]


def test_a_models_cache_is_as_long_before_every_pass_and_gone_after() -> None:
    model = target()
    found = measure_curves({"target": ModelPasses(model)}, quick_probe(), 500, limit=200, rows=(1, 3), num_repeats=1)
    assert found["target"]["context"] == 197
    assert set(found["target"]["ms"]) == {"1", "3"}
    assert model.num_sequences == 0


def test_what_was_cached_is_freed_when_a_side_fails() -> None:
    class Broken(Side):
        def run_pass(self, rows: int) -> None:
            raise MemoryError

    log: list[Any] = []
    model = target()
    with pytest.raises(MemoryError):
        measure_curves({"t": ModelPasses(model), "b": Broken("b", log, [0.0], 1.0)}, quick_probe(), 5, rows=(1,))
    assert model.num_sequences == 0
    assert log[-1] == ("b", "end", 0)


def test_tokens_exist_in_the_vocabulary() -> None:
    assert max(curves.context_tokens(50, SIZE)) < SIZE
    assert max(curves.row_tokens(50, SIZE)) < SIZE
