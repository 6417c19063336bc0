"""Trying what is expected to lose, to learn when it no longer does: what that may cost, and what is tried."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from forerun.control.choice import Choice, Prices
from forerun.control.records import Pending, with_latest
from forerun.drafting.base import SequenceView
from forerun.types import Plan, Prospect

FIRST_GAP, LARGEST_GAP = 8, 512
"""Rounds between two tries of one thing: the first, and the longest that doubling leads to."""
MOST_SAVED = 4.0
"""How many of the dearest tries may be saved up, or given in advance."""
FADING = 0.999
"""What the dearest try counts for a question later: one that is too dear for good is forgotten in some thousand."""
PROBE_WINDOW = 64
"""Tokens of the text that a draft model reads for a try."""


class Credit:
    """Milliseconds that may be lost. A `share` of all time is earned, and no more than a few tries' worth is kept, so
    that a long time of success is no licence to waste.

    Each key (a sequence and a source) is tried with gaps that double while it stays unused, so that a text which turns
    is met soon, and a hopeless source is left alone.
    """

    def __init__(self, share: float) -> None:
        self._share = share
        self._left_ms = 0.0
        self._owed_ms = 0.0  # given in advance, and not earned yet
        self._dearest_ms = 1.0
        self._gaps: dict[Hashable, tuple[int, int]] = {}  # (gap, round of the last use or try)

    def earn(self, milliseconds: float) -> None:
        """A step took so long. What was given in advance is paid back first."""
        earned_ms = self._share * milliseconds
        repaid_ms = min(earned_ms, self._owed_ms)
        self._owed_ms -= repaid_ms
        self._left_ms = min(self._left_ms + earned_ms - repaid_ms, MOST_SAVED * self._dearest_ms)

    def allow(self, milliseconds: float) -> None:
        """A sequence has begun that will take about so long: what it may lose is given in advance, as far as nothing is
        left and nothing owed for others."""
        most_ms = min(self._share * milliseconds, MOST_SAVED * self._dearest_ms)
        given_ms = max(most_ms - self._left_ms - self._owed_ms, 0.0)
        self._left_ms += given_ms
        self._owed_ms += given_ms

    def note_used(self, key: Hashable, now: int) -> None:
        """Chosen for its own merits in round `now`."""
        self._gaps[key] = (FIRST_GAP, now)

    def spend(self, key: Hashable, cost_ms: float, now: int) -> bool:
        """Whether `key` may be tried in round `now` for an expected loss of `cost_ms`; if so, it is paid for."""
        gap, last = self._gaps.setdefault(key, (FIRST_GAP, now))
        if now - last < gap or not self.take(cost_ms):
            return False
        self._gaps[key] = (min(2 * gap, LARGEST_GAP), now)
        return True

    def take(self, cost_ms: float) -> bool:
        """Whether so much may be lost now, whoever asks; if so, it is paid for. What is expected to gain (a loss below
        zero) is free."""
        self._dearest_ms = max(self._dearest_ms * FADING, cost_ms)
        if cost_ms > max(self._left_ms, 0.0):
            return False
        self._left_ms -= max(cost_ms, 0.0)
        return True

    @property
    def has_some(self) -> bool:
        """Whether anything may be lost now."""
        return self._left_ms > 0.0

    def note_success(self, key: Hashable) -> None:
        """A try turned out well: the next may come soon."""
        if key in self._gaps:
            self._gaps[key] = (FIRST_GAP, self._gaps[key][1])

    def forget(self, *sequence_ids: int) -> None:
        """Drop the keys that begin with one of these sequences' ids."""
        ended = frozenset(sequence_ids)
        for key in [key for key in self._gaps if isinstance(key, tuple) and key[0] in ended]:
            del self._gaps[key]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A sequence that decodes: its kind of request, what it is offered, and the plan that was made for it."""

    sequence: SequenceView
    kind: str
    prospects: Sequence[Prospect]
    plan: Plan


def find_try(
    candidates: Sequence[Candidate], credit: Credit, now: int, best: Choice, prices: Prices, num_plain: int, most: int
) -> tuple[int, Pending] | None:
    """What is tried in round `now`, and of which candidate: the first source that was not chosen for one, has not been
    tried for long, and may be; it is paid for. The round as it is planned is `best`, its pass has `num_plain` rows
    without any draft, and at most `most` draft tokens are verified in one."""
    num_drafted = sum(one.plan.shape for one in candidates)
    for place, one in enumerate(candidates):
        others = num_drafted - one.plan.shape
        for prospect in one.prospects:
            key = (one.sequence.sequence_id, prospect.source, one.kind)
            if one.plan.source == prospect.source:
                credit.note_used(key, now)
                continue
            length, most_unread = _smallest_draft(prospect, len(one.sequence.tokens))
            if others + length > most:
                continue
            loss_ms = _draft_ms(prospect, length, most_unread, num_plain + others, prices)
            if one.plan.shape or one.plan.read:
                # A round that was to make more tokens of its time makes fewer.
                loss_ms += max(best.num_tokens / len(best.taken) - 1.0, 0.0) / best.rate
            if credit.spend(key, loss_ms, now):
                plan = Plan(length, prospect.source, most_unread=most_unread)
                tried = with_latest(prospect, most_unread, len(one.sequence.tokens))
                return place, Pending((prospect.source, one.kind), tried, plan, length)
    return None


def _smallest_draft(prospect: Prospect, num_tokens: int) -> tuple[int, int]:
    """(length, most tokens that a draft model reads) of a draft that tells whether a source is of use."""
    length = 1 if prospect.num_free == 0 else min(prospect.num_free, 2)
    if not prospect.num_cut and 2 * prospect.num_unread < num_tokens:
        # A text that was read from its beginning is not thrown away for a look at its end.
        return length, max(PROBE_WINDOW, prospect.num_unread)
    return length, PROBE_WINDOW


def _draft_ms(prospect: Prospect, length: int, most_unread: int, num_rows: int, prices: Prices) -> float:
    """What a draft costs beside the other `num_rows` rows of its pass."""
    cost_ms = length * prices.row_ms + prices.target_ms(num_rows + length) - prices.target_ms(num_rows)
    if prospect.num_free == 0:
        cost_ms += prices.draft_ms(1.0 + min(prospect.num_unread, most_unread)) + prices.token_ms
    return cost_ms
