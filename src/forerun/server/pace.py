"""How much of a prompt may be read beside running streams."""

from __future__ import annotations

from forerun.runtime.base import Model

MOST = 4096
LONGEST = 3.0
"""A pass that reads is to take at most so many times what the streams' own would, and at least `stall_ms`."""


class Pacer:
    """`pace(num_decoding)`: prompt tokens that a pass may feed so that no stream waits much longer than `stall_ms`. By
    the target's measured curve: one of another day will do, since it is a matter of two or four times."""

    def __init__(self, target: Model, stall_ms: float) -> None:
        self._target, self._stall_ms = target, stall_ms
        self._known: dict[int, int] = {}

    def __call__(self, num_decoding: int) -> int:
        found = self._known.get(num_decoding)
        if found is None:
            cost = self._target.cost()
            most_ms = max(self._stall_ms, LONGEST * cost.at(num_decoding))
            found = 16
            while found < MOST and cost.at(num_decoding + 2 * found) <= most_ms:
                found *= 2
            self._known[num_decoding] = found
        return found
