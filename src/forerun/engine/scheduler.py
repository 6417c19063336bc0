"""The scheduler: which sequences take part in the next pass, and how many missing tokens each may feed."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from forerun.checks import whole
from forerun.engine.sequence import Sequence

PROMPT_ROWS = 64
"""Prompt tokens fed in one pass, of all sequences whose prompts' log probabilities are wanted: each has a row as wide
as the vocabulary (64 x 152k x 4 bytes = 39 MB), which is reduced and dropped before the next pass."""


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
    """First come, first served: at most `max_sequences` at once, at most `max_tokens` missing tokens a pass.

    Decoding sequences (one token missing) always take part; what is left of the budget goes to prompts in order of
    arrival, so a long prompt is read in chunks beside running streams.
    """

    def __init__(self, max_sequences: int = 64, max_tokens: int = 512) -> None:
        whole("max_sequences", max_sequences, 1, None, "a whole number of at least 1")
        whole("max_tokens", max_tokens, 1, None, "a whole number of at least 1")
        self.max_sequences, self.max_tokens = max_sequences, max_tokens
        self.running: list[Sequence] = []
        self.waiting: deque[Sequence] = deque()

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence."""
        self.waiting.append(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Drop a sequence wherever it is."""
        if sequence in self.running:
            self.running.remove(sequence)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)

    def admit(self) -> None:
        """Move waiting sequences into free places."""
        while self.waiting and len(self.running) < self.max_sequences:
            self.running.append(self.waiting.popleft())

    def slices(self) -> list[Slice]:
        """The next pass, from every running sequence's `num_missing`."""
        scored = PROMPT_ROWS
        left = max(self.max_tokens - sum(1 for sequence in self.running if sequence.num_missing == 1), 1)
        parts = []
        for sequence in self.running:
            most = min(left, scored) if sequence.num_unscored else left
            num_tokens = 1 if sequence.num_missing == 1 else min(sequence.num_missing, most)
            scored -= num_tokens if sequence.num_unscored else 0
            left -= num_tokens if sequence.num_missing > 1 else 0
            if num_tokens:
                parts.append(Slice(sequence, num_tokens))
        return parts
