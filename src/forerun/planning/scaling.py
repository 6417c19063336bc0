"""How the gain falls with batch and context, from passes measured here, and what of it is extrapolated.

Passes of more rows of one sequence, and of a few behind a longer context, are timed in turns. A pass of `sequences`
sequences of r rows behind c tokens each is then taken to cost

    t = w(sequences * r) + sequences * a(r) * c

with a(r) the milliseconds that r rows of one sequence take per cached token, and w the rest, a function of all rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from time import perf_counter

from forerun.bench.curves import context_tokens, row_tokens
from forerun.planning.predict import Host
from forerun.planning.recorded import CHUNK
from forerun.runtime.base import Model
from forerun.runtime.cost import ROWS, UNUSED
from forerun.types import CostCurve, Span

WIDE = (*ROWS, 32, 64)
SHORT, LONG = 128, 640
"""Cached tokens behind which passes are timed, fewer where a model's context is shorter."""
NUM_REPEATS = 2
BATCHES = (1, 2, 4, 8, 16, 32, 64)
CONTEXTS = (512, 1024, 2048, 4096, 8192, 16384, 32768)


@dataclass(frozen=True, slots=True)
class Surface:
    """t(rows, context) of one model. `per_token_ms[r]`: a(r), for two numbers of rows; `longest`: cached tokens beyond
    which it is extrapolated."""

    curve: CostCurve
    per_token_ms: dict[int, float]
    longest: int

    def at(self, rows: int, sequences: int = 1, context: float = 0.0) -> float:
        """Milliseconds of a pass of `sequences` sequences with `rows` rows each, behind `context` tokens each."""
        own = self._per_token(rows)
        alone = self.curve.at(sequences * rows) - self._per_token(sequences * rows) * self.curve.context
        return max(alone, 0.0) + sequences * own * context

    def is_extrapolated(self, rows: int, sequences: int, context: float) -> bool:
        """Whether that lies outside what was timed; several sequences always do, for the sum above is a model."""
        return sequences * rows > max(self.curve.milliseconds) or context > self.longest

    def _per_token(self, rows: int) -> float:
        (low, first), (high, last) = sorted(self.per_token_ms.items())[0], sorted(self.per_token_ms.items())[-1]
        share = 0.0 if high == low else min(max((rows - low) / (high - low), 0.0), 1.0)
        return first + share * (last - first)


def measure_surface(model: Model, longest: int, num_repeats: int = NUM_REPEATS) -> Surface:
    """Time passes behind two contexts, in turns. `longest`: the longest draft, whose rows are timed behind both."""
    limit, size = model.capabilities.context_length, model.capabilities.num_inputs
    rows = [n for n in sorted({*WIDE, longest + 1}) if limit is None or n < limit]
    room = limit - max(rows) if limit is not None else LONG
    contexts = (max(1, min(SHORT, room - 1)), max(2, min(LONG, room)))
    pairs = [(n, contexts[0]) for n in rows] + [(n, contexts[1]) for n in (1, min(longest + 1, max(rows)))]
    times: dict[tuple[int, int], list[float]] = {pair: [] for pair in pairs}
    ids = dict(zip(contexts, (UNUSED, UNUSED + 2), strict=True))
    try:
        for context, key in ids.items():
            tokens = context_tokens(context, size)
            model.begin(key)
            for start in range(0, context, CHUNK):
                model.forward([Span(key, start, tokens[start : start + CHUNK], 0)]).wait()
        for repeat in range(num_repeats + 1):
            for n, context in pairs if repeat % 2 else reversed(pairs):
                if n > max(ROWS) and repeat > 1:
                    continue  # the dearest ones once are enough
                start_s = perf_counter()
                model.forward([Span(ids[context], context, row_tokens(n, size), n)]).wait()
                times[n, context].append(1e3 * (perf_counter() - start_s))
                model.keep(ids[context], context)
    finally:
        for key in ids.values():
            model.free(key)
    found = {pair: median(several[1:] or several) for pair, several in times.items()}
    curve = CostCurve(contexts[0], {n: found[n, contexts[0]] for n in rows})
    step = contexts[1] - contexts[0]
    slopes = {n: max(found[n, context] - found[n, contexts[0]], 0.0) / step for n, context in pairs[len(rows) :]}
    return Surface(curve, slopes, contexts[1])


@dataclass(frozen=True, slots=True)
class Gain:
    """The best k of some load, its speed-up, that of the longest k, and whether the figures are extrapolated."""

    k: int
    speedup: float
    longest: float
    is_extrapolated: bool


def gain(
    target: Surface,
    draft: Surface | None,
    host: Host,
    tokens: Mapping[int, float],
    sequences: int,
    context: int,
) -> Gain:
    """`tokens[k]`: tokens per round, the same whatever the load. The host's part is paid for every sequence."""

    def round_ms(k: int) -> float:
        drafting = 0.0 if draft is None else k * draft.at(1, sequences, context)
        return target.at(k + 1, sequences, context) + drafting + sequences * host.at(k)

    speedups = {k: tokens[k] * round_ms(0) / round_ms(k) for k in tokens}
    longest = max(tokens)
    best = max(sorted(speedups), key=lambda k: speedups[k])
    outside = target.is_extrapolated(best + 1, sequences, context) or sequences > 1
    outside |= draft is not None and draft.is_extrapolated(1, sequences, context)
    return Gain(best, speedups[best], speedups[longest], outside)
