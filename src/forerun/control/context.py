"""By how much passes are longer behind longer texts, learnt from passes that follow each other.

While one text grows, its cost and the machine's speed cannot be told apart, and need not be: the prediction follows
both. Where a short text follows a long one they can, and then the next long one is predicted at once.
"""

from __future__ import annotations

import statistics

APART = 64
"""Cached tokens by which passes must differ to tell anything; a smaller difference is one text that grows."""
NUM_ALIKE = 3
"""Passes behind a new context that are waited for: their middle one counts, so that one slow pass teaches nothing."""
NOISE, USUAL = 0.1, 2e-4
"""What a machine's speed differs by between two such stretches, and what a cached token may cost of a pass: how much
is believed of a difference (ridge regression; 1.7e-4 was measured on the pairs of docs/native.md, "Speed"). A pass
that is taken for twice as long at most can thus be put down to .001 a token at most."""
RIDGE = (NOISE / USUAL) ** 2
FOLLOW = 0.25
"""Share of a pass that the usual context and speed take over."""
LEAST = 0.3
"""No pass gets shorter than so much of what was measured: a price of nothing would be divided by."""


class ContextCost:
    """Passes behind c tokens take 1 + share (c - measured) times what they take behind `measured` tokens; `share` is 0
    until something was learnt."""

    def __init__(self, measured: int) -> None:
        self.measured = measured
        self.share = 0.0
        self._usual: tuple[float, float] | None = None  # (context, length of a pass over the curve's) of this stretch
        self._next: list[tuple[float, float]] = []  # passes behind another context, until they are enough
        self._square = self._product = 0.0

    def factor(self, num_cached: float | None) -> float:
        """A pass behind so many tokens over one behind `measured`; None: behind as many as the last ones."""
        if num_cached is None:
            num_cached = self.measured if self._usual is None else self._usual[0]
        return max(1.0 + self.share * (num_cached - self.measured), LEAST)

    def note(self, num_cached: float, relative: float) -> bool:
        """A pass behind `num_cached` tokens took `relative` times what the curve says. Whether `share` was changed."""
        if self._usual is None:
            self._usual = num_cached, relative
        usual, before = self._usual
        if abs(num_cached - usual) < APART:
            self._next.clear()
            self._usual = usual + FOLLOW * (num_cached - usual), before + FOLLOW * (relative - before)
            return False
        if self._next and abs(num_cached - self._next[0][0]) >= APART:
            self._next.clear()
        self._next.append((num_cached, relative))
        if len(self._next) < NUM_ALIKE:
            return False
        after = statistics.median(value for _, value in self._next)
        lever = (num_cached - usual) / self.factor(usual)
        self._square += lever * lever
        self._product += lever * max(min(after / before - 1.0, 1.0), -0.5)
        self.share = max(0.0, self._product / (self._square + RIDGE))
        self._usual = num_cached, after
        self._next.clear()
        return True
