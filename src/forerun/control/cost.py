"""What a round costs: measured curves, kept true while the machine changes its speed.

A curve is measured once; a machine then runs other programs, changes its clock and its memory's speed within seconds,
and holds texts longer than those that were measured. So every pass that is made is compared with what was predicted for
it, and the prediction follows by one factor for the whole curve: of the last three passes the middle one counts, so
that a single slow pass changes nothing. The curve's shape is corrected only by passes of different rows that follow
each other, whose machine was the same: else a machine that grows slower would speak against what is done just then. In
the same way it is learnt what longer texts add (`context.py`).
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Mapping

from forerun.control.context import APART, ContextCost
from forerun.errors import ContractError
from forerun.types import CostCurve, Step

SPEED_RATE = 0.25
"""Share of a deviation that the curve's common factor takes over from one pass."""
NUM_COMPARED = 3
"""Comparisons of two kinds of passes, of which the middle one counts."""
BEND_PRIOR, BEND_RATE = 6, 0.05
"""For how many comparisons the measured curve counts, and the least share of a deviation that one takes over."""
FAR = 5
"""Kinds of passes that tell nothing of each other: so many rows apart, or somewhat more than a doubling above 16."""
AGREED, AGREED_RATE = 0.1, 0.7
"""Where the last three passes all deviate by more than this to one side, so much of it is taken over."""
FAR_RATE = 0.5
"""Share of a deviation that passes take over which are larger than all that were measured."""
LARGEST_STEP = 0.5
"""Deviations count for at most this (natural logarithm: a factor of 1.6), so that a stall is no new speed."""
HOST_RATE = 0.1
"""Share of a deviation that a usual figure of the host takes over from one step."""


class PassCost:
    """Milliseconds of one pass of one model on one device. `curve` is t(rows) as it was measured at `curve.context`
    cached tokens."""

    def __init__(self, curve: CostCurve) -> None:
        if not curve.milliseconds or not all(0.0 < found < math.inf for found in curve.milliseconds.values()):
            raise ContractError(
                "a model's cost curve must have milliseconds above 0 for at least one number of rows",
                f"it is {curve.milliseconds}"[:200],
                "see Model.cost",
            )
        self.curve = CostCurve(curve.context, _never_falling(curve.milliseconds))
        self._context = ContextCost(curve.context)
        self._measured: dict[int, float] = {}
        self._speed = 0.0  # natural logarithm of the common factor
        self._bends: dict[int, float] = {}  # by bucket of rows, the same
        self._bent: dict[int, float] = {}  # by rows, until a bend changes: a decision asks for the same ones again
        self._compared: dict[tuple[int, int], _Compared] = {}  # by two buckets, the smaller first
        self._last: tuple[int, float, float] | None = None  # bucket, deviation from the measured curve, cached tokens
        self._recent: deque[float] = deque(maxlen=3)  # deviations from the curve as it is bent
        self._num_noted = 0

    def at(self, num_rows: int, num_cached: float | None = None) -> float:
        """Milliseconds of a pass of `num_rows` rows (at least 1), whose sequences have `num_cached` tokens on average;
        None: as many as those of the last passes."""
        return (
            self._measured_at(num_rows)
            * self._context.factor(num_cached)
            * math.exp(self._speed + self._bend(num_rows))
        )

    def table(self, num_cached: float | None = None) -> PassTable:
        """What passes cost now, for a decision that asks for many."""
        return PassTable(self, num_cached)

    def note(self, num_rows: int, num_cached: float, milliseconds: float) -> None:
        """A pass took so long; its sequences had `num_cached` tokens on average."""
        if num_rows < 1 or not (0.0 < milliseconds < math.inf):
            return
        bucket = _bucket(num_rows)
        whole = math.log(milliseconds / self._measured_at(num_rows)) - self._bend(num_rows)
        before = self._context.factor(num_cached)
        if num_rows > 2 * max(self.curve.milliseconds):
            # Nothing like it was measured (a prompt is read): of no meaning for passes that were.
            self._bends[bucket] = self._bend_at(bucket) + FAR_RATE * (whole - math.log(before) - self._speed)
            self._bent.clear()
            self._last = None  # what comes next does not follow what came before
            return
        if self._context.note(num_cached, math.exp(whole)):
            # What a text's length explains now is no longer the machine's doing: predictions for this pass stay.
            moved = math.log(before / self._context.factor(num_cached))
            self._speed += moved
            self._recent = deque((found + moved for found in self._recent), maxlen=self._recent.maxlen)
        unbent = whole + self._bend(num_rows) - math.log(self._context.factor(num_cached))
        self._compare(bucket, unbent, num_cached)
        deviation = unbent - self._bend(num_rows)
        self._recent.append(deviation)
        self._num_noted += 1
        left = _clipped(statistics.median_low(self._recent) - self._speed)
        away = [found - self._speed for found in self._recent]
        agree = len(away) == self._recent.maxlen and (min(away) > AGREED or max(away) < -AGREED)
        if self._num_noted == 1 or agree:
            # The curve was measured on another day, or the machine has another speed now.
            self._speed += AGREED_RATE * left
            return
        self._speed += SPEED_RATE * left

    def _compare(self, bucket: int, deviation: float, num_cached: float) -> None:
        """Bend the curve by what a pass and the one before it tell of each other, half at each end, so that bends have
        no common part: that is the machine's speed. `deviation` is from the curve as it was measured.

        No pass is compared twice, and of the last three comparisons of two kinds the middle one counts: a slow pass
        changes nothing."""
        before, self._last = self._last, (bucket, deviation, num_cached)
        if before is None or before[0] == bucket or abs(num_cached - before[2]) >= APART:
            return
        self._last = None
        low, high = sorted((bucket, before[0]))
        known = self._compared.setdefault((low, high), _Compared())
        known.recent.append(deviation - before[1] if bucket == high else before[1] - deviation)
        if len(known.recent) < NUM_COMPARED:
            return
        bends = self._bend_at(low), self._bend_at(high)
        off = statistics.median(known.recent) - (bends[1] - bends[0])
        moved = max(1.0 / (BEND_PRIOR + known.num), BEND_RATE) * off / 2
        known.num += 1
        self._bends[low], self._bends[high] = bends[0] - moved, bends[1] + moved
        self._bent.clear()

    def _bend(self, num_rows: int) -> float:
        """The correction of passes of about as many rows: between two kinds a straight line, for a step in a curve
        would look like the price of a single row."""
        found = self._bent.get(num_rows)
        if found is None:
            place = _place(num_rows)
            low = int(place)
            share = place - low
            found = self._bend_at(low) if share == 0.0 else self._between(low, low + 1, share)
            self._bent[num_rows] = found
        return found

    def _between(self, low: int, high: int, share: float) -> float:
        return (1 - share) * self._bend_at(low) + share * self._bend_at(high)

    def _bend_at(self, bucket: int) -> float:
        """Where no pass was made, between two kinds that are near each other in a straight line; else the nearest one's
        correction, the less of it the further away that is."""
        known = self._bends.get(bucket)
        if known is not None or not self._bends:
            return known or 0.0
        low = max((one for one in self._bends if one < bucket), default=bucket - FAR)
        high = min((one for one in self._bends if one > bucket), default=bucket + FAR)
        if high - low <= 2 * FAR and low in self._bends and high in self._bends:
            return self._between(low, high, (bucket - low) / (high - low))
        nearest = min(low, high, key=lambda one: abs(one - bucket))
        return max(1.0 - abs(nearest - bucket) / FAR, 0.0) * self._bends.get(nearest, 0.0)

    @property
    def factor(self) -> float:
        """By how much passes are slower now than when the curve was measured."""
        return math.exp(self._speed)

    def _measured_at(self, num_rows: int) -> float:
        base = self._measured.get(num_rows)
        if base is None:
            base = self._measured[num_rows] = self.curve.at(num_rows)
        return base


class _Compared:
    """What passes of two kinds told of each other: how much more those of more rows deviate (natural logarithm)."""

    def __init__(self) -> None:
        self.recent: deque[float] = deque(maxlen=NUM_COMPARED)
        self.num = 0


class PassTable:
    """A pass's milliseconds by rows, at one moment. Rows may be expected numbers: between whole ones it is a straight
    line, and part of one row is part of a pass, one that happens with this probability."""

    def __init__(self, cost: PassCost | None, num_cached: float | None) -> None:
        self._cost, self._num_cached = cost, num_cached
        self._known: dict[int, float] = {0: 0.0}

    def __call__(self, num_rows: float) -> float:
        low = int(num_rows)
        found = self._known.get(low)
        if found is None:
            found = self._known[low] = self._of(low)
        share = num_rows - low
        if share == 0.0:
            return found
        high = self._known.get(low + 1)
        if high is None:
            high = self._known[low + 1] = self._of(low + 1)
        return found + share * (high - found)

    def _of(self, num_rows: int) -> float:
        return 0.0 if self._cost is None else self._cost.at(num_rows, self._num_cached)


class HostCost:
    """Milliseconds that the host adds: to every round, for every row it verifies, for every token that is drafted."""

    def __init__(self) -> None:
        self._step, self._row, self._draft_token = _Usual(), _Usual(), _Usual()

    @property
    def per_step_ms(self) -> float:
        return self._step.value

    @property
    def per_row_ms(self) -> float:
        return self._row.value

    @property
    def per_draft_token_ms(self) -> float:
        return self._draft_token.value

    def note(self, step: Step, draft_passes_ms: float, num_drafted: int) -> None:
        """A step of the engine; `draft_passes_ms` of its drafting were passes of the draft model."""
        self._step.note(1e3 * step.host_s)
        if step.num_rows:
            self._row.note(1e3 * step.verify_s / step.num_rows)
        if num_drafted:
            self._draft_token.note(max(1e3 * step.draft_s - draft_passes_ms, 0.0) / num_drafted)


class _Usual:
    """A moving average of what is usual: of the last three the middle one counts. The very first, in which much is done
    for the first time and never again, counts for nothing alone, and at the start the least is believed."""

    def __init__(self) -> None:
        self.value = 0.0
        self._num = 0
        self._recent: deque[float] = deque(maxlen=3)

    def note(self, found: float) -> None:
        self._recent.append(found)
        self._num += 1
        if 2 <= self._num <= 3:
            self.value = min(self._recent)
        elif self._num > 3:
            self.value += HOST_RATE * (statistics.median_low(self._recent) - self.value)


def _never_falling(measured: Mapping[int, float]) -> dict[int, float]:
    """The nearest curve by which more rows never cost less (isotonic regression, Ayer et al. 1955: neighbours that fall
    are averaged). Where they seem to, something else ran, and a decision would take it for a bargain."""
    blocks: list[tuple[float, list[int]]] = []
    for rows in sorted(measured):
        blocks.append((measured[rows], [rows]))
        while len(blocks) > 1 and blocks[-2][0] > blocks[-1][0]:
            (low, first), (high, last) = blocks[-2:]
            mean = (low * len(first) + high * len(last)) / (len(first) + len(last))
            blocks[-2:] = [(mean, first + last)]
    return {row: mean for mean, several in blocks for row in several}


def _clipped(deviation: float) -> float:
    return max(-LARGEST_STEP, min(LARGEST_STEP, deviation))


def _place(num_rows: int) -> float:
    """Single row counts up to 16, then four to each doubling."""
    return float(num_rows) if num_rows <= 16 else 4.0 * math.log2(num_rows)


def _bucket(num_rows: int) -> int:
    """Row counts that share a correction."""
    return round(_place(num_rows))
