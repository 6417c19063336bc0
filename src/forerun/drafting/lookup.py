"""Lookup drafting: the continuation of the last n tokens where they occurred before, in prompt or output."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from forerun.checks import whole
from forerun.drafting.base import SequenceView
from forerun.errors import ParameterError
from forerun.runtime.base import Rows
from forerun.types import Draft, Plan, Prospect, Verdict

MODULUS = (1 << 61) - 1
BASE = 0x1F3D5B79A2C4E6D
MAX_SIZES = 12


@dataclass
class _Index:
    """Where each n-gram of one sequence was last (or most often) continued. Derived from the tokens alone."""

    prefix: list[int] = field(default_factory=lambda: [0])  # rolling hashes of tokens[:i]
    tables: dict[int, dict[int, int]] = field(default_factory=dict)  # size -> n-gram hash -> position after it
    counts: dict[int, dict[tuple[int, int], int]] = field(default_factory=dict)  # (n-gram, next token) -> times


class LookupDrafter:
    """Longest match first: the largest n in `max_size` .. `min_size` whose last n tokens occurred before is continued
    from there. `prefer` "recent" continues the latest occurrence, "frequent" the continuation seen most often (the
    latest among equals).

    Cost per token is constant: one table entry for each n, found by rolling hash, so long histories and large n cost
    no more. Beyond 12 sizes, sizes are spaced geometrically between the two ends. A hash collision could only make a
    bad draft, never a wrong text. A match that runs into the end of the text goes on periodically.

    Nothing is shared between sequences, and `release` forgets everything.
    """

    needs: tuple[str, ...] = ()

    def __init__(self, max_size: int = 4, min_size: int = 2, prefer: Literal["recent", "frequent"] = "recent") -> None:
        whole("min_size", min_size, 1, None, "a whole number of at least 1")
        whole("max_size", max_size, min_size, None, "a whole number of at least min_size")
        if prefer not in ("recent", "frequent"):
            raise ParameterError("prefer", f"{prefer!r} is not allowed", "recent or frequent")
        self.prefer = prefer
        self.sizes = _spaced(min_size, max_size)
        self._powers = {size: pow(BASE, size, MODULUS) for size in self.sizes}
        self._indexes: dict[int, _Index] = {}

    def prospects(self, sequences: Sequence[SequenceView], longest: Sequence[int]) -> list[list[Prospect]]:
        found = []
        for sequence, most in zip(sequences, longest, strict=True):
            size, _ = self._match(sequence) if most > 0 else (0, 0)
            found.append([Prospect("lookup", most, num_free=most, context=str(size))] if size else [])
        return found

    def propose(self, sequences: Sequence[SequenceView], plans: Sequence[Plan]) -> list[Draft]:
        return [
            Draft(tuple(self._continue(sequence, plan.shape)) if plan.shape > 0 else (), source="lookup")
            for sequence, plan in zip(sequences, plans, strict=True)
        ]

    def observe(self, sequences: Sequence[SequenceView], rows: Rows, verdicts: Sequence[Verdict | None]) -> None:
        pass

    def release(self, sequence_id: int) -> None:
        self._indexes.pop(sequence_id, None)

    def _continue(self, sequence: SequenceView, shape: int) -> list[int]:
        tokens = sequence.tokens
        size, position = self._match(sequence)
        period = len(tokens) - position
        return [tokens[position + i % period] for i in range(shape)] if size else []

    def _match(self, sequence: SequenceView) -> tuple[int, int]:
        """(size of the longest n-gram at the end that occurred before, place after that occurrence); (0, 0) if none."""
        tokens = sequence.tokens
        index = self._indexes.setdefault(sequence.sequence_id, _Index())
        self._extend(index, tokens)
        for size in reversed(self.sizes):
            if size < len(tokens):
                position = index.tables.get(size, {}).get(self._gram(index, len(tokens), size))
                if position is not None:
                    return size, position
        return 0, 0

    def _gram(self, index: _Index, end: int, size: int) -> int:
        return (index.prefix[end] - index.prefix[end - size] * self._powers[size]) % MODULUS

    def _extend(self, index: _Index, tokens: Sequence[int]) -> None:
        """Take in new tokens: every n-gram that now has a next token is entered with that token's position."""
        for position in range(len(index.prefix) - 1, len(tokens)):
            token = tokens[position]
            for size in self.sizes:
                if size <= position:
                    self._enter(index, size, self._gram(index, position, size), position, token, tokens)
            index.prefix.append((index.prefix[position] * BASE + token + 1) % MODULUS)

    def _enter(self, index: _Index, size: int, gram: int, position: int, token: int, tokens: Sequence[int]) -> None:
        table = index.tables.setdefault(size, {})
        if self.prefer == "frequent":
            counts = index.counts.setdefault(size, {})
            counts[gram, token] = counts.get((gram, token), 0) + 1
            held = table.get(gram)
            if held is not None and counts[gram, tokens[held]] > counts[gram, token]:
                return
        table[gram] = position


def _spaced(low: int, high: int) -> tuple[int, ...]:
    """All sizes from low to high, or 12 of them spaced geometrically."""
    if high - low < MAX_SIZES:
        return tuple(range(low, high + 1))
    ratio = (high / low) ** (1 / (MAX_SIZES - 1))
    return tuple(sorted({round(low * ratio**i) for i in range(MAX_SIZES)} | {low, high}))
