"""The target's own token after an accepted path, and what happens where there is none."""

from __future__ import annotations

from forerun.errors import NumericalError, UserCodeError
from forerun.randomness import Noise, Purpose
from forerun.sampling import Distribution
from forerun.types import Verdict

UNUSABLE = (NumericalError, UserCodeError)
"""What looking at a row raises if no token can be chosen from it."""


def emit(distribution: Distribution, path: tuple[int, ...], noise: Noise, purpose: Purpose) -> Verdict:
    """Accept the nodes of `path` and draw the next token from `distribution`. The draw is keyed by the path's length: a
    round emits once, and follows one path."""
    try:
        return Verdict(path, noise.draw(distribution, len(path), purpose))
    except UNUSABLE:
        return stuck(path)


def stuck(path: tuple[int, ...]) -> Verdict:
    """In an `except` block: accept what was accepted and choose no token. The row after it is looked at again in the
    next round, as plain decoding would have come to it, and ends the request there. Without an accepted token this is
    that round: the error is raised on."""
    if not path:
        raise
    return Verdict(path, None)
