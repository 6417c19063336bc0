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
from forerun.runtime.base import Model
from forerun.runtime.cost import UNUSED, read_tokens
from forerun.types import CostCurve, Span

WIDE = (1, 2, 4, 8, 16, 32, 64)
"""Rows that are timed, beside those of the longest draft."""
SHORT, LONG = 128, 768
"""Cached tokens behind which passes are timed, fewer where a model's context is shorter."""
NUM_REPEATS = 3
DEAR = 16
"""Passes of more rows are timed once."""


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
        everything = self.curve.at(sequences * rows)
        alone = everything - self._per_token(sequences * rows) * self.curve.context
        # A slope that noise made too steep must not leave nothing of the pass.
        return max(alone, 0.1 * everything) + sequences * own * context

    def is_extrapolated(self, rows: int, sequences: int, context: float) -> bool:
        """Whether that lies outside what was timed; several sequences always do, for the sum above is a model."""
        return sequences > 1 or rows > max(self.curve.milliseconds) or context > self.longest

    def _per_token(self, rows: int) -> float:
        (low, first), (high, last) = sorted(self.per_token_ms.items())[0], sorted(self.per_token_ms.items())[-1]
        share = 0.0 if high == low else min(max((rows - low) / (high - low), 0.0), 1.0)
        return first + share * (last - first)


def measure_surface(model: Model, longest: int) -> Surface:
    """Time passes behind two contexts, in turns, each with a pass of one row behind the short one just before it: what
    counts is their ratio, so that a machine whose speed drifts tilts nothing. `longest`: the longest draft, whose rows
    are timed behind both contexts."""
    limit, size = model.capabilities.context_length, model.capabilities.num_inputs
    rows = [n for n in sorted({*WIDE, longest + 1}) if limit is None or n < limit]
    room = limit - max(rows) if limit is not None else LONG
    short, long = max(1, min(SHORT, room - 1)), max(2, min(LONG, room))
    few = [1, min(longest + 1, max(rows))]
    pairs = [(n, short) for n in rows] + [(n, long) for n in few]
    ratios: dict[tuple[int, int], list[float]] = {pair: [] for pair in pairs}
    units: list[float] = []
    ids = {short: UNUSED, long: UNUSED + 2}
    try:
        for context, key in ids.items():
            read_tokens(model, key, context_tokens(context, size))

        def time_pass(num_rows: int, context: int) -> float:
            start_s = perf_counter()
            model.forward([Span(ids[context], context, row_tokens(num_rows, size), num_rows)]).wait()
            seconds = perf_counter() - start_s
            model.keep(ids[context], context)
            return 1e3 * seconds

        for repeat in range(NUM_REPEATS + 1):
            for n, context in pairs if repeat % 2 else reversed(pairs):
                if n > DEAR and repeat > 1:
                    continue  # and they were warmed up once
                unit, milliseconds = time_pass(1, short), time_pass(n, context)
                if repeat:  # the first time warms up
                    units.append(unit)
                    ratios[n, context].append(milliseconds / unit)
    finally:
        for key in ids.values():
            model.free(key)
    unit = median(units)
    found = {pair: unit * median(several) for pair, several in ratios.items()}
    curve = CostCurve(short, {n: found[n, short] for n in rows})
    slopes, least = {}, 0.0
    for n in sorted(set(few)):  # more rows look at as many cached tokens, or more
        least = max((found[n, long] - found[n, short]) / (long - short), least)
        slopes[n] = least
    return Surface(curve, slopes, long)


@dataclass(frozen=True, slots=True)
class Gain:
    """The best k of some load, its speed-up, that of the longest k, and whether the figures are extrapolated."""

    k: int
    speedup: float
    longest_speedup: float
    is_extrapolated: bool


@dataclass(frozen=True, slots=True)
class Drafting:
    """A source at any load: the draft model's passes (None: it has none), the host's part of a sequence's round, and
    `tokens[k]` per round, the same whatever the load. Of k tokens a `share` is proposed on average: rows and passes of
    drafts are taken to be that share fewer."""

    draft: Surface | None
    host: Host
    tokens: Mapping[int, float]
    share: float = 1.0


def gain(target: Surface, drafting: Drafting, sequences: int, context: int) -> Gain:
    """What drafting brings with `sequences` sequences behind `context` tokens each."""
    draft, host, tokens, share = drafting.draft, drafting.host, drafting.tokens, drafting.share

    def round_ms(k: int) -> float:
        spent = 0.0 if draft is None else share * k * draft.at(1, sequences, context)
        plain, drafted = target.at(1, sequences, context), target.at(k + 1, sequences, context)
        host_ms = sequences * (host.plain_ms + share * k * host.per_token_ms)
        return spent + plain + share * (drafted - plain) + host_ms

    speedups = {k: tokens[k] * round_ms(0) / round_ms(k) for k in tokens}
    longest = max(tokens)
    best = max(sorted(speedups), key=lambda k: speedups[k])
    outside = target.is_extrapolated(best + 1, sequences, context)
    outside |= draft is not None and draft.is_extrapolated(1, sequences, context)
    return Gain(best, speedups[best], speedups[longest], outside)
