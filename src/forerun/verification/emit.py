"""The target's own token after an accepted prefix, and what happens where there is none."""

from __future__ import annotations

from forerun.errors import NumericalError, UserCodeError
from forerun.randomness import Noise, Purpose
from forerun.sampling import Distribution
from forerun.types import Verdict

UNUSABLE = (NumericalError, UserCodeError)
"""What looking at a row raises if no token can be chosen from it."""


def emit(distribution: Distribution, num_accepted: int, noise: Noise, purpose: Purpose) -> Verdict:
    """Accept `num_accepted` draft tokens and draw the next token from `distribution`."""
    try:
        return Verdict(tuple(range(num_accepted)), noise.draw(distribution, num_accepted, purpose))
    except UNUSABLE:
        return stuck(num_accepted)


def stuck(num_accepted: int) -> Verdict:
    """In an `except` block: accept what was accepted and choose no token. The row after it is looked at again in the
    next round, as plain decoding would have come to it, and ends the request there. Without an accepted token this is
    that round: the error is raised on."""
    if num_accepted == 0:
        raise
    return Verdict(tuple(range(num_accepted)), None)
