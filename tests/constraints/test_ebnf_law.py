"""GBNF grammars against what they derive, worked out by substitution: no lexer may take anything away from a grammar.

Grammars are random, recursive ones included (left, right and in the middle), over characters that overlap in sets, in
runs, and in the first byte of their UTF-8.
"""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.constraints.vocabularies import fed

from forerun.constraints.grammar import compile_grammar
from forerun.constraints.vocabulary import Vocabulary
from forerun.errors import ParameterError

ALPHABET, LONGEST, SHOWN = "aéèb", 5, 3
TOKENS = [sign.encode() for sign in ALPHABET] + [b"\xc3", b"\xa9", b"ab", "éa".encode(), b"b\xc3", b"aab"]
VOCABULARY = Vocabulary(len(TOKENS) + 1, [*TOKENS, b"<eos>"].__getitem__, frozenset({len(TOKENS)}), (len(TOKENS),))
EOS = len(TOKENS)
Language = frozenset[str]

NAMES = ("root", "x", "y")
SETS = {"[a]": "a", "[éa]": "éa", "[^a]": "éèb", "[è-é]": "éè", ".": ALPHABET, "[ab]": "ab"}


def join(one: Language, other: Language) -> Language:
    return frozenset(a + b for a in one for b in other if len(a) + len(b) <= LONGEST)


class Written:
    """A piece of a grammar as text, and what it derives given what the rules derive."""

    def __init__(self, text: str, derive: object) -> None:
        self.text, self.derive = text, derive

    def __repr__(self) -> str:
        return self.text


def times(inner: Written, low: int, high: int | None) -> Written:
    sign = {(0, None): "*", (1, None): "+", (0, 1): "?"}.get((low, high), f"{{{low},{'' if high is None else high}}}")

    def derive(rules: dict[str, Language]) -> Language:
        once, power = inner.derive(rules), frozenset({""})  # type: ignore[operator]
        found = power if low == 0 else frozenset()
        for number in range(1, (LONGEST + low if high is None else high) + 1):
            power = join(power, once)
            found |= power if number >= low else frozenset()
        return found

    return Written(f"({inner.text}){sign}", derive)


def row(parts: list[Written]) -> Written:
    def derive(rules: dict[str, Language]) -> Language:
        found = frozenset({""})
        for part in parts:
            found = join(found, part.derive(rules))  # type: ignore[operator]
        return found

    return Written("(" + " ".join(part.text for part in parts) + ")", derive)


def choice(parts: list[Written]) -> Written:
    return Written(
        "(" + " | ".join(part.text for part in parts) + ")",
        lambda rules: frozenset().union(*(part.derive(rules) for part in parts)),  # type: ignore[operator]
    )


LEAVES = st.one_of(
    st.sampled_from(sorted(SETS)).map(lambda text: Written(text, lambda rules: frozenset(SETS[text]))),
    st.text(ALPHABET, max_size=2).map(lambda text: Written(f'"{text}"', lambda rules: frozenset({text}))),
    st.sampled_from(NAMES).map(lambda name: Written(name, lambda rules: rules[name])),
)
BOUNDS = st.sampled_from([(0, None), (1, None), (0, 1), (2, 2), (1, 2), (2, None)])
PIECES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map(row),
        st.lists(inner, min_size=1, max_size=3).map(choice),
        st.builds(lambda one, bounds: times(one, *bounds), inner, BOUNDS),
    ),
    max_leaves=5,
)


def languages(rules: dict[str, Written]) -> dict[str, Language]:
    """What each rule derives, as far as it is at most LONGEST characters: the least fixed point."""
    found: dict[str, Language] = dict.fromkeys(rules, frozenset())
    while True:
        after = {name: piece.derive(found) for name, piece in rules.items()}  # type: ignore[operator]
        if after == found:
            return found
        found = after


def accepted(grammar: object, text: str) -> bool:
    constraint = grammar.start()  # type: ignore[attr-defined]
    return all(constraint.advance(ALPHABET.index(sign)) for sign in text) and bool(constraint.mask()[EOS])


@settings(max_examples=120, deadline=None)
@given(st.tuples(PIECES, PIECES, PIECES))
def test_a_grammar_takes_exactly_what_it_derives(pieces: tuple[Written, ...]) -> None:
    rules = dict(zip(NAMES, pieces, strict=True))
    language = languages(rules)["root"]
    text = "\n".join(f"{name} ::= {piece.text}" for name, piece in rules.items())
    try:
        grammar = compile_grammar(text, VOCABULARY)
    except ParameterError as error:
        refused = str(error)
    else:
        refused = ""
    if refused:
        assert language <= {""} or "derives no finite text" in refused
        return
    texts = ["".join(signs) for length in range(SHOWN + 1) for signs in product(ALPHABET, repeat=length)]
    assert [one for one in texts if accepted(grammar, one)] == [one for one in texts if one in language]
    for one in sorted(language)[:40]:
        assert accepted(grammar, one)
    alive = {one[:length] for one in language for length in range(len(one) + 1)}
    for one in sorted(alive, key=lambda one: (len(one), one))[:20]:
        constraint = fed(grammar, [ALPHABET.index(sign) for sign in one])
        for token, spelled in enumerate(TOKENS):
            longer = (one.encode() + spelled).decode(errors="ignore")
            is_whole = longer.encode() == one.encode() + spelled
            if is_whole and longer in alive:
                assert constraint.mask()[token], (text, one, spelled)


@pytest.mark.parametrize(
    ("text", "inside", "outside"),
    [
        ('root ::= [a]* "a" | root "é" [a]*', ["a", "aa", "aéa", "aé", "aéaé"], ["", "é", "aèa"]),
        ('root ::= "a" "bb" | "ab" "a" | root "è"', ["abb", "aba", "abaèè"], ["ab", "abab"]),
        ('root ::= [^è]* "é" | "(" root ")"', ["é", "aéé"], ["", "a", "éa"]),
        ('root ::= root root | "a" | ""', ["", "a", "aaaa"], ["b", "ab"]),
        ('root ::= x [é]* "è" | x root\nx ::= "a" x? "b"', ["abè", "abéè", "aabbabè"], ["aè", "ab", "abéa"]),
    ],
)
def test_what_a_lexer_would_cut_wrongly(text: str, inside: list[str], outside: list[str]) -> None:
    grammar = compile_grammar(text, Vocabulary(257, lambda token: bytes([token % 256]), frozenset({256}), (256,)))

    def takes(one: str) -> bool:
        constraint = grammar.start()
        return all(constraint.advance(byte) for byte in one.encode()) and bool(constraint.mask()[256])

    assert [takes(one) for one in inside] == [True] * len(inside)
    assert [takes(one) for one in outside] == [False] * len(outside)
