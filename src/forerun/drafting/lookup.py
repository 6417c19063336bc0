"""Lookup drafting: the continuation of the last n tokens where they occurred before, in prompt or output."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from forerun.checks import whole
from forerun.drafting.base import SequenceView
from forerun.drafting.occurrences import OwnTexts
from forerun.errors import ParameterError
from forerun.runtime.base import Rows
from forerun.types import Draft, Plan, Prospect, Verdict

MAX_SIZES = 12
"""Sizes of match that a drafter tells apart, at most: each is a table entry for every token."""
VOTERS = {"recent": 1, "frequent": 64}
"""Latest occurrences that are asked, by what is preferred."""


class LookupDrafter:
    """Longest match first: the largest n in `max_size` .. `min_size` whose last n tokens occurred before is continued
    from there. `prefer` "recent" continues the latest occurrence, "frequent" goes with most of the latest 64, token by
    token (the latest among equals).

    Cost per token is constant: one table entry for each n, found by rolling hash, so long histories and large n cost
    no more. Beyond 12 sizes, sizes are spaced geometrically between the two ends. A match that runs into the end of
    the text goes on periodically.

    Nothing is shared between sequences, and `release` forgets everything.
    """

    source = "lookup"
    needs: tuple[str, ...] = ()

    def __init__(self, max_size: int = 4, min_size: int = 2, prefer: Literal["recent", "frequent"] = "recent") -> None:
        whole("min_size", min_size, 1, None, "a whole number of at least 1")
        whole("max_size", max_size, min_size, None, "a whole number of at least min_size")
        if prefer not in VOTERS:
            raise ParameterError("prefer", f"{prefer!r} is not allowed", "recent or frequent")
        self.prefer = prefer
        self.sizes = _spaced(min_size, max_size)
        self._texts = OwnTexts(self.sizes)

    def prospects(self, sequences: Sequence[SequenceView], longest: Sequence[int]) -> list[list[Prospect]]:
        found = []
        for sequence, most in zip(sequences, longest, strict=True):
            index = self._texts.read(sequence)
            size = index.follow(0, 1)[0] if index is not None and most > 0 else 0
            found.append([Prospect(self.source, most, num_free=most, context=str(size))] if size else [])
        return found

    def propose(self, sequences: Sequence[SequenceView], plans: Sequence[Plan]) -> list[Draft]:
        drafts = []
        for sequence, plan in zip(sequences, plans, strict=True):
            index = self._texts.read(sequence)
            tokens = [] if index is None else index.follow(plan.shape, VOTERS[self.prefer])[1]
            drafts.append(Draft(tuple(tokens), source=self.source))
        return drafts

    def observe(self, sequences: Sequence[SequenceView], rows: Rows, verdicts: Sequence[Verdict | None]) -> None:
        pass

    def release(self, sequence_id: int) -> None:
        self._texts.forget(sequence_id)


def _spaced(low: int, high: int) -> tuple[int, ...]:
    """All sizes from low to high, or 12 of them spaced geometrically."""
    if high - low < MAX_SIZES:
        return tuple(range(low, high + 1))
    ratio = (high / low) ** (1 / (MAX_SIZES - 1))
    return tuple(sorted({round(low * ratio**i) for i in range(MAX_SIZES)} | {low, high}))
