"""t(rows) of every side, interleaved: what one pass costs by the number of rows it verifies, after a given context.

A drafter pays where this curve is flat. All sides are measured in turn within each round of repeats, so that a machine
whose speed drifts tilts no curve against another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median, median_low
from time import perf_counter
from typing import Any, Protocol

from forerun.bench.probe import BandwidthProbe
from forerun.runtime.base import Model
from forerun.runtime.cost import ROWS, UNUSED
from forerun.types import Span

NUM_REPEATS = 5


class Passes(Protocol):
    """A side whose passes can be timed."""

    def begin_passes(self, context: int) -> None:
        """Cache `context` tokens."""
        ...

    def run_pass(self, rows: int) -> None:
        """Feed `rows` tokens behind the context and compute the logits of all of them."""
        ...

    def undo_pass(self) -> None:
        """Forget what the last pass cached."""
        ...

    def end_passes(self) -> None:
        """Forget everything."""
        ...


class ModelPasses:
    """A model of forerun as a side."""

    def __init__(self, model: Model) -> None:
        self._model, self._context = model, 0

    def begin_passes(self, context: int) -> None:
        self._context = context
        self._model.begin(UNUSED)
        self._model.forward([Span(UNUSED, 0, context_tokens(context, self._model.capabilities.num_inputs), 0)])

    def run_pass(self, rows: int) -> None:
        span = Span(UNUSED, self._context, row_tokens(rows, self._model.capabilities.num_inputs), rows)
        self._model.forward([span]).wait()

    def undo_pass(self) -> None:
        self._model.keep(UNUSED, self._context)

    def end_passes(self) -> None:
        self._model.free(UNUSED)


def context_tokens(count: int, vocabulary_size: int) -> list[int]:
    """Tokens to cache: any will do, for a pass costs the same whatever they are."""
    return [(7 * i + 3) % min(1000, vocabulary_size) for i in range(count)]


def row_tokens(count: int, vocabulary_size: int) -> list[int]:
    """Tokens of a pass that is timed."""
    return [(31 * i + 7) % min(1000, vocabulary_size) for i in range(count)]


def measure_curves(
    sides: Mapping[str, Passes],
    probe: BandwidthProbe,
    context: int,
    limit: int | None = None,
    rows: Sequence[int] = ROWS,
    num_repeats: int = NUM_REPEATS,
) -> dict[str, dict[str, Any]]:
    """Per side {"context", "ms": {rows: median milliseconds}, "probe_gb_s"}. `limit`: the shortest context length
    among the sides; it lowers `context` and drops row counts that do not fit."""
    if limit is not None:
        rows = [count for count in rows if count < limit]
        context = max(1, min(context, limit - max(rows, default=1)))
    times: dict[str, dict[int, list[float]]] = {name: {count: [] for count in rows} for name in sides}
    probes: list[float] = []
    begun: list[Passes] = []
    try:
        for side in sides.values():
            begun.append(side)
            side.begin_passes(context)
        for repeat in range(num_repeats + 1):
            probes.append(probe.measure())
            for name, side in sides.items():
                side.run_pass(1)  # untimed: the first pass after somebody else's is dearer, whatever its rows
                side.undo_pass()
                for count in rows if repeat % 2 else reversed(rows):
                    start = perf_counter()
                    side.run_pass(count)
                    seconds = perf_counter() - start
                    side.undo_pass()
                    if repeat:  # the first time warms up
                        times[name][count].append(seconds)
    finally:
        for side in begun:
            side.end_passes()
    return {
        name: {
            "context": context,
            "ms": {str(count): 1e3 * median_low(found) for count, found in of_side.items()},
            "probe_gb_s": median(probes),
        }
        for name, of_side in times.items()
    }
