"""How much of a prompt may be read beside running streams."""

from __future__ import annotations

from collections.abc import Callable

from forerun.control import AdaptiveLength
from forerun.llm import LLM

MOST = 4096
LONGEST = 3.0
"""A pass that reads is to take at most so many times what the streams' own would, and at least `stall_ms`."""


class Pacer:
    """`pace(num_decoding)`: prompt tokens that a pass may feed so that no stream waits much longer than `stall_ms`.

    `pass_ms` says how long a pass of so many rows takes: a curve of another day will do, since it is a matter of two or
    four times.
    """

    def __init__(self, pass_ms: Callable[[int], float], stall_ms: float) -> None:
        self._pass_ms, self._stall_ms = pass_ms, stall_ms
        self._known: dict[int, int] = {}

    def __call__(self, num_decoding: int) -> int:
        found = self._known.get(num_decoding)
        if found is None:
            most_ms = max(self._stall_ms, LONGEST * self._pass_ms(num_decoding))
            found = 16
            while found < MOST and self._pass_ms(num_decoding + 2 * found) <= most_ms:
                found *= 2
            self._known[num_decoding] = found
        return found


def pass_ms(llm: LLM) -> Callable[[int], float]:
    """How long a pass of the target takes, by rows: what the policy knows, which may have been kept from an earlier
    start, else what is measured now."""
    policy = llm.engine.policy
    while not isinstance(policy, AdaptiveLength) and hasattr(policy, "policy"):
        policy = policy.policy
    if isinstance(policy, AdaptiveLength):
        return policy.target.at
    return llm.engine.target.cost().at
