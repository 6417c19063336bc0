"""How much may be lost on trying what is expected to lose: a share of the time, saved up and spent."""

from __future__ import annotations

from collections.abc import Hashable

FIRST_GAP, LARGEST_GAP = 8, 512
"""Rounds between two tries of one thing: the first, and the longest that doubling leads to."""


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
        self._left_ms = min(self._left_ms + earned_ms - repaid_ms, 4.0 * self._dearest_ms)

    def allow(self, milliseconds: float) -> None:
        """A sequence has begun that will take about so long: what it may lose is given in advance, as far as nothing is
        left and nothing owed for others."""
        most_ms = min(self._share * milliseconds, 4.0 * self._dearest_ms)
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
        """Whether so much may be lost now, whoever asks; if so, it is paid for."""
        self._dearest_ms = max(self._dearest_ms * 0.999, cost_ms)
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
