"""Which repeated characters of a grammar its lexer may take in one piece.

The library cuts a text into lexemes, the longest at each place, and follows rules over lexemes. A grammar of characters
means more: `[a-z]* "z"` derives "az". A lexeme of one character can never be cut wrongly, but inside a string of JSON
every token of the vocabulary would then be followed character by character. So a run `[...]*` becomes one lexeme where
the longest piece is the only right one: behind whatever may begin where the run does and shares a character with it,
nothing may begin with a byte that goes on with the run. What may begin together is found from the positions of the
grammar (Glushkov), with the rules' contexts forgotten: that finds too much, never too little.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from forerun.constraints.characters import Ranges, lead_bytes, overlap

MAX_STEPS = 200_000
"""Pairs of places that are looked at; beyond, every character is a lexeme."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """One place of a grammar that takes characters: number `index` of its leaves."""

    index: int


@dataclass(frozen=True, slots=True)
class Name:
    """What another rule derives."""

    name: str


@dataclass(frozen=True, slots=True)
class Row:
    """One after the other."""

    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """One of several."""

    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Times:
    """`inner`, `low` to `high` times (None: without end)."""

    inner: Part
    low: int
    high: int | None


Part = Leaf | Name | Row | Choice | Times


@dataclass(frozen=True, slots=True)
class Characters:
    """What a leaf takes: one character, or `low` to `high` (None: any number) in a row."""

    ranges: Ranges
    low: int = 1
    high: int | None = 1

    @property
    def is_run(self) -> bool:
        return self.high != 1


@dataclass(frozen=True, slots=True)
class _Ends:
    """Of a part: whether it may be empty, and its first and last leaves, as bits."""

    is_empty: bool = False
    first: int = 0
    last: int = 0


def whole_runs(rules: Mapping[str, Part], start: str, leaves: Sequence[Characters]) -> set[int]:
    """The runs that may be one lexeme. `rules` are in an order in which most come before those that refer to them."""
    ends = _ends_of_rules(rules, leaves)
    follow = [0] * len(leaves)
    for part in rules.values():
        _Following(ends, leaves, follow).of(part)
    runs = {index for index, leaf in enumerate(leaves) if leaf.is_run}
    leads = [lead_bytes(leaf.ranges) for leaf in leaves]
    shared = _overlaps(leaves)
    while runs:
        together = _together(ends[start].first, follow, shared)
        if together is None:
            return set()
        after = [_union(leads, bits) for bits in follow]
        wrong = {run for run in runs if any(after[other] & leads[run] for other in _bits(together[run] & shared[run]))}
        if not wrong:
            break
        runs -= wrong
        for run in wrong:  # from now on one character after the other
            follow[run] |= 1 << run
    return runs


def _ends_of_rules(rules: Mapping[str, Part], leaves: Sequence[Characters]) -> dict[str, _Ends]:
    """Least fixed point."""
    ends = dict.fromkeys(rules, _Ends())
    while True:
        before = dict(ends)
        for name, part in rules.items():
            ends[name] = _ends(part, ends, leaves)
        if ends == before:
            return ends


def _ends(part: Part, rules: Mapping[str, _Ends], leaves: Sequence[Characters]) -> _Ends:
    if isinstance(part, Leaf):
        bit = 1 << part.index
        return _Ends(leaves[part.index].low == 0, bit, bit)
    if isinstance(part, Name):
        return rules[part.name]
    if isinstance(part, Times):
        inner = _ends(part.inner, rules, leaves)
        return _Ends(inner.is_empty or part.low == 0, inner.first, inner.last)
    inside = [_ends(one, rules, leaves) for one in part.parts]
    if isinstance(part, Choice):
        first = last = 0
        for one in inside:
            first, last = first | one.first, last | one.last
        return _Ends(any(one.is_empty for one in inside), first, last)
    first = last = 0
    for one in inside:
        first |= one.first
        if not one.is_empty:
            break
    for one in reversed(inside):
        last |= one.last
        if not one.is_empty:
            break
    return _Ends(all(one.is_empty for one in inside), first, last)


class _Following:
    """Collects, for each leaf, the leaves that may come after it."""

    def __init__(self, ends: Mapping[str, _Ends], leaves: Sequence[Characters], follow: list[int]) -> None:
        self.ends, self.leaves, self.follow = ends, leaves, follow

    def of(self, part: Part) -> _Ends:
        if isinstance(part, (Leaf, Name)):
            return _ends(part, self.ends, self.leaves)
        if isinstance(part, Times):
            inner = self.of(part.inner)
            if part.high != 1:
                self._add(inner.last, inner.first)
            return _Ends(inner.is_empty or part.low == 0, inner.first, inner.last)
        if isinstance(part, Choice):
            for one in part.parts:
                self.of(one)
            return _ends(part, self.ends, self.leaves)
        before = 0
        for one in part.parts:
            found = self.of(one)
            self._add(before, found.first)
            before = found.last | (before if found.is_empty else 0)
        return _ends(part, self.ends, self.leaves)

    def _add(self, lasts: int, firsts: int) -> None:
        for leaf in _bits(lasts):
            self.follow[leaf] |= firsts


def _overlaps(leaves: Sequence[Characters]) -> list[int]:
    """For each leaf those that share a character with it."""
    by_set: dict[Ranges, int] = {}
    for index, leaf in enumerate(leaves):
        by_set[leaf.ranges] = by_set.get(leaf.ranges, 0) | 1 << index
    found = {one: sum(bits for other, bits in by_set.items() if overlap(one, other)) for one in by_set}
    return [found[leaf.ranges] for leaf in leaves]


def _together(first: int, follow: Sequence[int], shared: Sequence[int]) -> list[int] | None:
    """For each leaf those that may begin at the same place of some text, itself included; None if it takes too long."""
    together, done = [0] * len(follow), [0] * len(follow)
    waiting = set()
    for leaf in _bits(first):
        together[leaf] = first
        waiting.add(leaf)
    steps = 0
    while waiting:
        leaf = waiting.pop()
        new = together[leaf] & shared[leaf] & ~done[leaf]
        if not new:
            continue
        done[leaf] |= new
        after = _union(follow, new)
        for one in _bits(follow[leaf]):
            steps += 1
            if after & ~together[one]:
                together[one] |= after
                waiting.add(one)
        steps += new.bit_count()
        if steps > MAX_STEPS:
            return None
    return together


def _union(sets: Sequence[int], bits: int) -> int:
    found = 0
    for index in _bits(bits):
        found |= sets[index]
    return found


def _bits(bits: int) -> Iterator[int]:
    while bits:
        low = bits & -bits
        yield low.bit_length() - 1
        bits ^= low
