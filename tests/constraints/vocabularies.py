"""Small vocabularies with every oddity a real one has, and walks over constraints."""

from __future__ import annotations

from collections.abc import Sequence

from forerun.constraints import Constraint, Grammar
from forerun.constraints.vocabulary import Vocabulary

LETTERS = (
    b"a", b"b", "é".encode(), b"\xc3", b"\xa9", b"ab", b"ba", b"a", "aé".encode(), b"\xa9b", b"", b"b\xc3",
    b"<think>", b"<end>", b"a", b"aab", "éé".encode(), b"\xff",
)  # fmt: skip
CONTROL, EOS_IDS = frozenset({12, 13}), (13, 14)
"""Id 13 is a control token that ends the text; 14 ends it too and is none, with the bytes of "a". Ids 0 and 7 have the
same bytes, id 10 has none, 3, 4, 9 and 11 hold parts of a character, 17 is no part of any text."""

SIZE = 20
"""Two more ids than there are tokens."""


def letters(size: int = SIZE, eos_ids: Sequence[int] = EOS_IDS) -> Vocabulary:
    """A vocabulary that spells every text over a, b and é."""
    return Vocabulary(size, LETTERS.__getitem__, CONTROL, tuple(eos_ids), len(LETTERS))


MERGED = (
    b'{"',
    b'"}',
    b'": ',
    b'", "',
    b"true",
    b"  ",
    b"\n  ",
    "日本".encode(),
    "🚀".encode()[:2],
    b"12",
    b"}}",
    b"```",
)


def json_bytes(eos_ids: Sequence[int] = (256, 257)) -> Vocabulary:
    """All bytes, two end-of-text ids, and some tokens that cross the borders of JSON's own."""
    tokens = [bytes([i]) for i in range(256)] + [b"<eos>", b"<eot>"] + list(MERGED)
    return Vocabulary(len(tokens), tokens.__getitem__, frozenset({256, 257}), tuple(eos_ids))


def text_of(vocabulary: Vocabulary, tokens: Sequence[int]) -> bytes:
    """What the tokens spell, end-of-text ids left out."""
    return b"".join(vocabulary.token_bytes(token) for token in tokens if token not in vocabulary.eos_ids)


def fed(grammar: Grammar, tokens: Sequence[int]) -> Constraint:
    """A fresh constraint that took `tokens`."""
    constraint = grammar.start()
    for token in tokens:
        assert constraint.advance(token)
    return constraint


def by_trying(constraint: Constraint, size: int) -> list[int]:
    """The legal ids as `advance` has them, one after the other."""
    legal = []
    for token in range(size):
        if constraint.advance(token):
            legal.append(token)
            constraint.rollback(1)
    return legal
