"""What drafting is worth, from costs and acceptance: our arithmetic, and the textbooks' beside it.

A round with k draft tokens feeds the target once and commits the accepted ones and one token of the target's own. With
T(k) the seconds of such a round, T(0) those of plain decoding, and E(k) the tokens that it commits on average,

    speed-up = E(k) * T(0) / T(k)

Acceptance may differ from depth to depth: a[j] is the chance that draft token j + 1 is accepted, given that those
before it were. One number for all depths is the textbooks' case (Leviathan et al., arXiv 2211.17192, section 3).
"""

from __future__ import annotations

from collections.abc import Sequence

BATCHES = (1, 2, 4, 8, 16, 32, 64)
CONTEXTS = (512, 1024, 2048, 4096, 8192, 16384, 32768)
"""Sequences at once, and cached tokens of each, for which a plan tells the gain."""


def tokens_per_pass(acceptance: Sequence[float], k: int) -> float:
    """E(k): 1 + a[0] + a[0] a[1] + ... over the first k depths; where fewer are known, the last one goes on."""
    total = chance = 1.0
    for depth in range(k):
        chance *= acceptance[min(depth, len(acceptance) - 1)] if acceptance else 0.0
        total += chance
    return total


def mean_acceptance(acceptance: Sequence[float], k: int) -> float:
    """Accepted over examined draft tokens of rounds of k: (E(k) - 1) / E(k - 1). What one number says of several."""
    return (tokens_per_pass(acceptance, k) - 1.0) / tokens_per_pass(acceptance, k - 1) if k else acceptance[0]


def even(acceptance: float, k: int) -> float:
    """E(k) where every depth has the same acceptance."""
    return tokens_per_pass([acceptance], k)


def break_even(k: int, ratio: float) -> float | None:
    """The acceptance, the same at every depth, from which on rounds that take `ratio` = T(k) / T(0) are not slower than
    plain decoding: E(k) = ratio. 0.0 if any is, None if not even certain drafts are."""
    if ratio <= 1.0:
        return 0.0
    if ratio > k + 1:
        return None
    low, high = 0.0, 1.0
    while high - low > 1e-12:
        middle = (low + high) / 2
        low, high = (low, middle) if even(middle, k) >= ratio else (middle, high)
    return high


def textbook_from_accepted(accepted: float, k: int, c: float) -> float:
    """(accepted + 1) / (k c + 1): speed-up with `accepted` draft tokens a round, where a draft token costs `c` passes
    of the target and verifying any number of rows costs one."""
    return (accepted + 1.0) / (k * c + 1.0)


def textbook_from_acceptance(acceptance: float, k: int, c: float) -> float:
    """(1 - a^(k + 1)) / ((1 - a) (k c + 1)): the same, with one acceptance at every depth (theorem 3.8 of Leviathan et
    al.); at a = 1 its limit, (k + 1) / (k c + 1)."""
    return even(acceptance, k) / (k * c + 1.0)
