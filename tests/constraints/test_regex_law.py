"""Masks against Python's re: a token is legal exactly if some continuation of it matches as a whole.

The reference is exact, not bounded: a pattern of at most `POSITIONS` characters (repetitions written out) reaches a
match, from wherever it can, within that many more characters, and every text that long is tried.
"""

from __future__ import annotations

import re
from itertools import product

from hypothesis import given
from hypothesis import strategies as st
from tests.constraints.vocabularies import LETTERS, SIZE, by_trying, fed, letters, text_of

from forerun.constraints.grammar import compile_regex
from forerun.errors import ParameterError

ALPHABET, POSITIONS, STEPS = "abé", 4, 3
TEXTS = ["".join(letters) for length in range(POSITIONS + STEPS + 1) for letters in product(ALPHABET, repeat=length)]
VOCABULARY = letters()

Sized = tuple[str, int]
"""A pattern and how many characters it is made of, repetitions written out."""


def _repeat(inner: Sized, low: int, more: int, lazy: str) -> Sized:
    return f"(?:{inner[0]}){{{low},{low + more}}}{lazy}", inner[1] * (low + more)


def _grow(inner: st.SearchStrategy[Sized]) -> st.SearchStrategy[Sized]:
    pairs = st.tuples(inner, inner)
    lazy = st.sampled_from(["", "?"])
    return st.one_of(
        pairs.map(lambda two: (two[0][0] + two[1][0], two[0][1] + two[1][1])),
        pairs.map(lambda two: (f"(?:{two[0][0]}|{two[1][0]})", two[0][1] + two[1][1])),
        st.tuples(inner, st.sampled_from("*+?"), lazy).map(lambda t: (f"({t[0][0]}){t[1]}{t[2]}", t[0][1])),
        st.builds(_repeat, inner, st.integers(0, 2), st.integers(0, 2), lazy),
    )


LEAVES = st.sampled_from(["a", "b", "é", "[ab]", "[aé]", "[bé]", "(?i:A)", "", r"\x61"]).map(
    lambda p: (p, 1 if p else 0)
)
PATTERNS = st.recursive(LEAVES, _grow, max_leaves=4).filter(lambda sized: sized[1] <= POSITIONS).map(lambda s: s[0])


class Reference:
    """The texts that a pattern matches, and what can begin one, in bytes."""

    def __init__(self, pattern: str) -> None:
        compiled = re.compile(pattern)
        self.matches = {text.encode() for text in TEXTS if compiled.fullmatch(text)}
        self.alive = {text[:length] for text in self.matches for length in range(len(text) + 1)}

    def legal(self, so_far: bytes) -> list[int]:
        """Legal ids after `so_far`: text that stays alive, and both ends of text after a match."""
        found = []
        for token in range(len(LETTERS)):
            if token in VOCABULARY.eos_ids:
                is_legal = so_far in self.matches
            else:
                text = LETTERS[token]
                is_legal = bool(text) and token not in VOCABULARY.control_ids and so_far + text in self.alive
            if is_legal:
                found.append(token)
        return found


@given(PATTERNS, st.data())
def test_masks_are_exact_along_random_texts(pattern: str, data: st.DataObject) -> None:
    reference = Reference(pattern)
    try:
        grammar = compile_regex(pattern, VOCABULARY)
    except ParameterError:
        assert reference.matches <= {b""}
        return
    constraint = grammar.start()
    tokens: list[int] = []
    while True:
        so_far = text_of(VOCABULARY, tokens)
        legal = reference.legal(so_far)
        mask = constraint.mask()
        assert mask.shape == (SIZE,)
        assert mask.nonzero()[0].tolist() == legal == by_trying(constraint, SIZE)
        assert constraint.mask().tolist() == mask.tolist()
        assert constraint.is_finished == (so_far in reference.matches and set(legal) == set(VOCABULARY.eos_ids))
        going_on = [token for token in legal if len((so_far + LETTERS[token]).decode(errors="ignore")) <= STEPS]
        if not going_on or len(tokens) > 2 * STEPS:
            return
        token = data.draw(st.sampled_from(going_on))
        assert constraint.advance(token)
        tokens.append(token)
        if token in VOCABULARY.eos_ids:
            assert constraint.is_finished
            assert not constraint.mask().any()
            assert by_trying(constraint, SIZE) == []
            return


@given(PATTERNS, st.lists(st.one_of(st.integers(-4, -1), st.integers(0, SIZE - 1)), max_size=30))
def test_rollback_leaves_no_trace(pattern: str, moves: list[int]) -> None:
    """Whatever was taken and undone, the constraint is that of the tokens that are left. A move below 0 undoes, another
    takes the next legal id at or after it."""
    try:
        grammar = compile_regex(pattern, VOCABULARY)
    except ParameterError:
        return
    constraint, tokens = grammar.start(), []
    for move in moves:
        if move < 0:
            num_tokens = min(-move, len(tokens))
            constraint.rollback(num_tokens)
            del tokens[len(tokens) - num_tokens :]
        else:
            taken = next((token for token in range(move, SIZE) if constraint.advance(token)), None)
            tokens.extend([] if taken is None else [taken])
        fresh = fed(grammar, tokens)
        assert constraint.mask().tolist() == fresh.mask().tolist()
        assert constraint.is_finished == fresh.is_finished
