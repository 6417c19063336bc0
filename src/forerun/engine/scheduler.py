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
    """At most `max_sequences` at once, at most `max_tokens` missing tokens a pass, at most `max_cached` tokens in caches
    (None: any number; drafts come on top).

    Who waits is admitted by priority (smaller numbers first, as in vLLM), then by how little its tenant has been served,
    then by arrival; nobody overtakes a request of its own kind because it is smaller. Where a place or memory is
    missing, a running sequence of a larger priority number gives way: its caches are freed, and it waits in its old
    place and reads its text again when it is resumed.

    Decoding sequences (one token missing) always take part; what is left of the budget goes to prompts in order of
    arrival, so a long prompt is read in chunks beside running streams. `pace` makes those chunks small enough for the
    streams; without it they are limited by `max_tokens` alone.
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
        self._served: Counter[str | None] = Counter()  # tokens fed for each tenant

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence."""
        tenant = sequence.params.tenant
        if not any(other.params.tenant == tenant for other in (*self.running, *self.waiting)):
            # Who comes back owes nothing and is owed nothing: it stands where the least served of the others does.
            others = [self._served[other.params.tenant] for other in (*self.running, *self.waiting)]
            self._served[tenant] = min(others, default=0)
        self.waiting.append(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Drop a sequence wherever it is."""
        if sequence in self.running:
            self.running.remove(sequence)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)
        if not self.running and not self.waiting:
            self._served.clear()

    def admit(self, is_needed: Callable[[Sequence], bool] = lambda sequence: False) -> list[Sequence]:
        """Move waiting sequences into free places. Returns those that gave way, whose caches are to be freed; nobody does
        of whom `is_needed` says that others wait for what it reads."""
        gave_way = [] if self.max_cached is None else self._shrink(self.max_cached, is_needed)
        while self.waiting:
            candidate = min(self.waiting, key=self._rank)
            while not self._fits(candidate):
                victim = self._last(is_needed)
                if victim is None or victim.service.priority <= candidate.service.priority:
                    return gave_way
                self._put_back(victim)
                gave_way.append(victim)
            self.waiting.remove(candidate)
            self.running.append(candidate)
        return gave_way

    def slices(self) -> list[Slice]:
        """The next pass, from every running sequence's `num_missing`."""
        scored = PROMPT_ROWS
        num_decoding = sum(1 for sequence in self.running if sequence.num_missing == 1)
        left = max(self.max_tokens - num_decoding, 1)
        if num_decoding and self.pace is not None:
            left = max(min(left, self.pace(num_decoding)), min(left, LEAST_PIECE))
        parts = []
        for sequence in self.running:
            most = min(left, scored) if sequence.num_unscored else left
            num_tokens = 1 if sequence.num_missing == 1 else min(sequence.num_missing, most)
            scored -= num_tokens if sequence.num_unscored else 0
            left -= num_tokens if sequence.num_missing > 1 else 0
            if num_tokens:
                parts.append(Slice(sequence, num_tokens))
                self._served[sequence.params.tenant] += num_tokens
        return parts

    @property
    def num_cached(self) -> int:
        """Tokens in the caches of the running sequences once the next pass is over."""
        return sum(len(sequence.tokens) for sequence in self.running)

    def _rank(self, sequence: Sequence) -> tuple[int, int, int]:
        return sequence.service.priority, self._served[sequence.params.tenant], sequence.sequence_id

    def _fits(self, candidate: Sequence) -> bool:
        if len(self.running) >= self.max_sequences:
            return False
        # One more for each: whoever is admitted must be able to go on for a round.
        needed = self.num_cached + len(candidate.tokens) + len(self.running) + 1
        return not self.running or self.max_cached is None or needed <= self.max_cached

    def _shrink(self, max_cached: int, is_needed: Callable[[Sequence], bool]) -> list[Sequence]:
        """Have the last ones give way while the texts, having grown, no longer fit."""
        gave_way = []
        while self.num_cached > max_cached and len(self.running) > 1:
            victim = self._last(is_needed)
            if victim is None:
                break
            self._put_back(victim)
            gave_way.append(victim)
        return gave_way

    def _last(self, is_needed: Callable[[Sequence], bool]) -> Sequence | None:
        """Who gives way first: the largest priority number, of those the latest."""
        able = (sequence for sequence in self.running if not is_needed(sequence))
        return max(able, key=lambda sequence: (sequence.service.priority, sequence.sequence_id), default=None)

    def _put_back(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self.waiting.append(sequence)
