"""The cost of a pass, measured: the premise of speculative decoding is a number, not an assumption."""

from __future__ import annotations

import time
from collections.abc import Sequence

from forerun.runtime.base import Model
from forerun.types import CostCurve, Span

ROWS = (1, 2, 3, 4, 5, 6, 8, 12, 16)
"""Rows of one pass that are timed: plain decoding, and verification of short drafts."""

UNUSED = -(1 << 40)
"""A sequence id that no engine gives out."""

WARM_TOKENS = 64
"""A prompt's tokens in a pass that only warms up."""

PIECE = 512
"""Tokens that `read_tokens` feeds in one pass, as many as the scheduler does by default."""


def measure_cost(
    model: Model, *, context: int = 128, rows: Sequence[int] = ROWS, budget_s: float = 2.5, sequence_id: int = UNUSED
) -> CostCurve:
    """Milliseconds of a pass that verifies `rows` tokens of one sequence after `context` cached tokens.

    Rounds over all row counts, upwards and downwards in turn, repeat until `budget_s` seconds are used, so that a
    machine whose speed drifts tilts no part of the curve. A fast model gets many rounds, a slow one just one, which
    keeps first use within seconds. Each point is the lower quartile of its passes: a first use, or whatever else runs
    on the machine, only ever adds.

    A short context of the model lowers `context` and drops row counts that do not fit. `sequence_id` must not be in
    use.
    """
    limit = model.capabilities.context_length
    if limit is not None:
        rows = [count for count in rows if count < limit]
        context = max(1, min(context, limit - max(rows, default=1)))
    size = model.capabilities.num_inputs
    times: dict[int, list[float]] = {count: [] for count in rows}
    model.begin(sequence_id)
    try:
        model.forward([Span(sequence_id, 0, [i % size for i in range(context)], 0)])
        model.forward([Span(sequence_id, context, [0], 1)]).wait()  # the first pass is dearer, whatever its rows
        model.keep(sequence_id, context)
        deadline = time.perf_counter() + budget_s
        order = list(rows)
        while order:
            for count in order:
                span = Span(sequence_id, context, [(31 * i + 7) % size for i in range(count)], count)
                start = time.perf_counter()
                model.forward([span]).wait()
                times[count].append(time.perf_counter() - start)
                model.keep(sequence_id, context)
            if time.perf_counter() >= deadline:
                break
            order.reverse()
    finally:
        model.free(sequence_id)
    return CostCurve(context, {count: 1e3 * _low_quartile(found) for count, found in times.items()})


def warm_up(model: Model) -> None:
    """Make one pass of each kind that a request makes: a few rows, and a prompt's tokens. What only first ones pay
    (weights that come from the disk, threads, kernels that are compiled) is then no part of what is timed."""
    limit, size = model.capabilities.context_length, model.capabilities.num_inputs
    model.begin(UNUSED)
    try:
        start = 0
        for num_tokens, num_rows in ((1, 1), (2, 2), (4, 4), (WARM_TOKENS, 0)):
            if limit is not None:
                num_tokens = min(num_tokens, limit - start)
            if num_tokens < max(num_rows, 1):
                break
            model.forward([Span(UNUSED, start, [(start + i) % size for i in range(num_tokens)], num_rows)]).wait()
            start += num_tokens
    finally:
        model.free(UNUSED)


def read_tokens(model: Model, sequence_id: int, tokens: Sequence[int]) -> None:
    """Begin a sequence outside an engine and cache `tokens` for it, piece by piece; done when this returns. The caller
    frees it, and picks an id that is not in use (UNUSED and its neighbours)."""
    model.begin(sequence_id)
    for start in range(0, len(tokens), PIECE):
        model.forward([Span(sequence_id, start, tokens[start : start + PIECE], 0)]).wait()


def _low_quartile(found: Sequence[float]) -> float:
    return sorted(found)[(len(found) - 1) // 4]
