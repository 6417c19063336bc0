"""The scheduler: which sequences take part in the next pass, and how many missing tokens each may feed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from forerun.checks import whole
from forerun.engine.sequence import Sequence

PROMPT_ROWS = 64
"""Prompt tokens fed in one pass, of all sequences whose prompts' log probabilities are wanted: each has a row as wide
as the vocabulary (64 x 152k x 4 bytes = 39 MB), which is reduced and dropped before the next pass."""
LEAST_PIECE = 16
"""Prompt tokens fed in one pass at least, however slow the machine is, so that every prompt is read to its end."""

HEADROOM = 16
"""Tokens that whoever is admitted is to have room for, drafts included: a text that is read only to give way at once
costs more than one that waits."""

Pace = Callable[[int], int]
"""How many prompt tokens a pass may feed beside so many decoding sequences, so that none of them is stalled."""


@dataclass(frozen=True, slots=True)
class Slice:
    """A sequence's part of a pass: feed its first `num_tokens` missing tokens."""

    sequence: Sequence
    num_tokens: int

    @property
    def is_complete(self) -> bool:
        """Whether everything missing is fed, so that the pass yields a row to choose the next token from."""
        return self.num_tokens == self.sequence.num_missing

    @property
    def num_rows(self) -> int:
        """Rows wanted of these tokens: the last one's if nothing is missing after it, all while a prompt is scored."""
        return self.num_tokens if self.sequence.num_unscored else int(self.is_complete)


class Scheduler:
    """At most `max_sequences` at once, at most `max_tokens` missing tokens a pass, at most `max_cached` tokens in the
    target's caches (None: any number), drafts, kept texts and prompts that are held for other choices included. A
    draft model's caches hold as many again at most.

    Who waits is admitted by priority (smaller numbers first, as in vLLM), then by how little its tenant has been
    served, then by arrival; nobody overtakes a request of its own kind because it is smaller. So nobody starves of
    others of the same priority, while a larger number may wait for as long as smaller ones keep coming.

    Where a place or memory is missing, a running sequence of a larger priority number gives way: its caches are freed,
    and it waits in its old place and reads its text again when it is resumed. Where texts have grown so that they no
    longer fit, the last one does: the largest priority number, of those the latest.

    Decoding sequences (one token missing) always take part; what is left of the budget goes to prompts in the order of
    admission, so a long prompt is read in chunks beside running streams. Half of it goes first to the one that is
    nearest to its end, so that short prompts do not wait until long ones are read. `pace` makes those chunks small
    enough for the streams; without it they are limited by `max_tokens` alone.

    Not safe for several threads: whoever steps the engine calls it.
    """

    def __init__(
        self,
        max_sequences: int = 64,
        max_tokens: int = 512,
        *,
        max_cached: int | None = None,
        pace: Pace | None = None,
    ) -> None:
        whole("max_sequences", max_sequences, 1, None, "a whole number of at least 1")
        whole("max_tokens", max_tokens, 1, None, "a whole number of at least 1")
        if max_cached is not None:
            whole("max_cached", max_cached, 2, None, "a whole number of tokens, at least 2")
        self.max_sequences, self.max_tokens = max_sequences, max_tokens
        self.max_cached, self.pace = max_cached, pace
        self.running: list[Sequence] = []
        self.waiting: list[Sequence] = []
        self.num_preempted = 0  # times that a sequence gave its place up, since the beginning
        self._served: Counter[str | None] = Counter()  # tokens fed for each tenant

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence; one that is there is left where it is."""
        if sequence in self.waiting or sequence in self.running:
            return
        tenant = sequence.params.tenant
        present = {other.params.tenant for other in (*self.running, *self.waiting)}
        if tenant not in present:
            # Who comes back is owed nothing for its absence: it stands where the least served of the others does, or
            # behind, if it had been served more. Whoever else is away and not ahead of that need not be remembered.
            least = min((self._served[other] for other in present), default=0)
            self._served[tenant] = max(self._served[tenant], least)
            for other in [one for one, num in self._served.items() if num <= least and one not in {*present, tenant}]:
                del self._served[other]
        self.waiting.append(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Drop a sequence wherever it is."""
        if sequence in self.running:
            self.running.remove(sequence)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)
        if not self.running and not self.waiting:
            self._served.clear()

    def admit(self) -> None:
        """Move waiting sequences into free places, and running ones that give way back among those that wait."""
        while self.max_cached is not None and self.num_cached > self.max_cached and len(self.running) > 1:
            self._put_back(max(self.running, key=_order))
        while self.waiting:
            candidate = min(self.waiting, key=self._rank)
            leaving = self._leaving_for(candidate)
            if leaving is None:
                return
            for sequence in leaving:
                self._put_back(sequence)
            self.running.append(candidate)
            self.waiting.remove(candidate)

    def slices(self) -> list[Slice]:
        """The next pass, from every running sequence's `num_missing`."""
        reading = [sequence for sequence in self.running if sequence.num_missing > 1]
        num_decoding = sum(1 for sequence in self.running if sequence.num_missing == 1)
        left = max(self.max_tokens - num_decoding, 1)
        if num_decoding and self.pace is not None:
            left = max(min(left, self.pace(num_decoding)), min(left, LEAST_PIECE))
        shares = self._shares(reading, left)
        parts = []
        for sequence in self.running:
            num_tokens = 1 if sequence.num_missing == 1 else shares[sequence.sequence_id]
            if num_tokens:
                parts.append(Slice(sequence, num_tokens))
                self._served[sequence.params.tenant] += num_tokens
        return parts

    @property
    def num_cached(self) -> int:
        """Tokens in the caches of the running sequences once the next pass is over, without drafts."""
        return sum(len(sequence.tokens) for sequence in self.running)

    @property
    def num_reserved(self) -> int:
        """The same, and room to write and to draft."""
        return _reserved(self.running)

    def _shares(self, reading: list[Sequence], left: int) -> Counter[int]:
        """How many of `left` tokens each prompt may feed, by sequence."""
        shares: Counter[int] = Counter()
        if not reading:
            return shares
        scored = PROMPT_ROWS
        first = min(reading, key=lambda one: (one.service.priority, one.num_missing, one.sequence_id))
        for sequence, most in ((first, (left + 1) // 2), *((one, left) for one in sorted(reading, key=self._rank))):
            num_tokens = min(most, left, sequence.num_missing - shares[sequence.sequence_id])
            if sequence.num_unscored:
                num_tokens = min(num_tokens, scored)
                scored -= num_tokens
            shares[sequence.sequence_id] += num_tokens
            left -= num_tokens
        return shares

    def _rank(self, sequence: Sequence) -> tuple[int, int, int]:
        return sequence.service.priority, self._served[sequence.params.tenant], sequence.sequence_id

    def _leaving_for(self, candidate: Sequence) -> list[Sequence] | None:
        """Who has to give way to a candidate, [] if it fits beside everybody; None where it cannot be helped. Nobody
        gives way in vain."""
        staying, leaving = sorted(self.running, key=_order), []
        while not self._fits(candidate, staying):
            if staying[-1].service.priority <= candidate.service.priority:
                return None
            leaving.append(staying.pop())
        return leaving

    def _fits(self, candidate: Sequence, others: list[Sequence]) -> bool:
        """Whether there is a place and room beside the others. One alone may have all there is."""
        if not others:
            return True
        has_room = self.max_cached is None or _reserved([*others, candidate]) <= self.max_cached
        return has_room and len(others) < self.max_sequences

    def _put_back(self, sequence: Sequence) -> None:
        self.num_preempted += 1
        self.waiting.append(sequence)
        self.running.remove(sequence)


def _order(sequence: Sequence) -> tuple[int, int]:
    """Who gives way first has the largest."""
    return sequence.service.priority, sequence.sequence_id


def _reserved(sequences: list[Sequence]) -> int:
    return sum(min(len(one.tokens) + HEADROOM, one.limit) for one in sequences)
