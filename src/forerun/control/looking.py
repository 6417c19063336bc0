"""Whom a round is thought through for.

Thinking takes the host's time, and where nothing pays it brings nothing: what was declined a moment ago is declined
again, unless something has changed.
"""

from __future__ import annotations

from collections.abc import Sequence

from forerun.drafting.base import SequenceView
from forerun.types import Prospect

LONGEST_GAP = 4
"""Rounds from one look at everybody to the next, at most."""
SURPRISE = 1.1
"""How many times as many tokens as all that it declined a source has to promise before a sequence is looked at in
between."""
CHANGE = 8
"""A pass that has grown or shrunk by one row in so many is another round, which everybody is looked at for."""
NUM_PROMISED = 8
"""Tokens whose guesses make a promise."""


class Looks:
    """Rounds in which all sequences are looked at, and who is looked at between two of them: whoever drafted in the
    last round it was looked at in, whoever is new, and whoever is offered more than it has declined since it drafted.

    For one sequence the gap between two looks doubles while it drafts nothing, up to LONGEST_GAP. Several may have to
    share a draft model's passes to afford them, which is found out where all are looked at: in every round while a
    draft model takes part, and every LONGEST_GAP rounds otherwise, whoever drafts from text. (One that is looked at
    alone is offered its draft model too: it may be new, and the others about to end.)
    """

    def __init__(self) -> None:
        self.is_full = True
        self._gap, self._next = 1, 0  # rounds; the round of the next look at everybody
        self._num_rows = 0  # of the pass that everybody was last looked at for
        # What each sequence has declined, by source and context: the most tokens promised. Nothing of who drafts.
        self._declined: dict[int, dict[tuple[str, str], float]] = {}

    def begin(
        self, now: int, texts: Sequence[SequenceView], prospects: Sequence[Sequence[Prospect]], num_rows: int
    ) -> list[bool]:
        """Round `now` begins, whose pass has `num_rows` rows without any draft; [i]: whether to look at sequence i.
        From here on `is_full` tells whether all are looked at."""
        if abs(num_rows - self._num_rows) * CHANGE > self._num_rows:
            self._gap, self._next = 1, now
        self.is_full = now >= self._next
        if self.is_full:
            self._num_rows = num_rows
        return [
            self.is_full or self._is_awake(text.sequence_id, found)
            for text, found in zip(texts, prospects, strict=True)
        ]

    def _is_awake(self, sequence_id: int, found: Sequence[Prospect]) -> bool:
        declined = self._declined.get(sequence_id)
        return declined is None or any(
            promise(one) > SURPRISE * declined.get((one.source, one.context), -1.0) for one in found
        )

    def drafts(self, sequence_id: int) -> None:
        """A sequence that was looked at drafts in this round, or waits for its turn to."""
        self._declined.pop(sequence_id, None)

    def declines(self, sequence_id: int, found: Sequence[Prospect]) -> None:
        """A sequence that was looked at drafts nothing of what it was offered."""
        declined = self._declined.setdefault(sequence_id, {})
        for one in found:
            place = one.source, one.context
            declined[place] = max(promise(one), declined.get(place, 0.0))

    def end(self, now: int, num_sequences: int, *, somebody_drafts: bool, a_model_drafts: bool) -> None:
        """Round `now` is planned; if all were looked at, that settles when they are again."""
        if not self.is_full:
            return
        if num_sequences > 1 and not a_model_drafts:
            self._gap = LONGEST_GAP
        else:
            self._gap = 1 if somebody_drafts else min(2 * self._gap, LONGEST_GAP)
        self._next = now + self._gap

    def forget(self, *sequence_ids: int) -> None:
        """Drop what is known of sequences that have ended."""
        for sequence_id in sequence_ids:
            self._declined.pop(sequence_id, None)


def promise(prospect: Prospect) -> float:
    """Tokens that a source expects to be accepted, by its own guesses; 0 where it makes none."""
    total, reached = 0.0, 1.0
    for expected in prospect.expected[:NUM_PROMISED]:
        reached *= expected
        total += reached
    return total
