"""Structured output under speculation has the law of structured output without: enumerated on the toy model.

Compiled grammars, not stand-ins, go through the real engine with chains and trees; what plain decoding does is worked
out from the grammars' languages, written down here as texts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.constraints.vocabularies import by_trying, fed
from tests.verification.laws import Text, draft_with, engine_law, pairs, violations
from tests.verification.reference import plain_law, table_rows

from forerun.constraints.grammar import COMPILERS
from forerun.constraints.vocabulary import Vocabulary
from forerun.drafting import SuffixDrafter
from forerun.sampling.masks import Masks
from forerun.verification import RULES

LETTERS, BRACKETS = ("a", "b", "ab"), ("[", "]", "1", ",", "[1")
LONGEST = 9


def words(alphabet: str, is_inside: Callable[[str], bool]) -> set[str]:
    texts = ("".join(signs) for length in range(LONGEST + 1) for signs in product(alphabet, repeat=length))
    return {text for text in texts if is_inside(text)}


def only_a(text: str) -> bool:
    return set(text) <= {"a"}


CASES: dict[str, tuple[Sequence[str], str, Any, set[str]]] = {
    "gbnf, recursive": (
        LETTERS, "grammar", 'root ::= "a" root "b" | "ab"', {"a" * n + "b" * n for n in range(1, LONGEST)},
    ),
    "gbnf, a run": (
        LETTERS, "grammar", 'root ::= [a]* "b" | root "a"',
        words("ab", lambda text: text.count("b") == 1),
    ),
    "lark": (
        LETTERS, "grammar", 'start: x+\nx: "a" "b"?',
        words("ab", lambda text: text[:1] == "a" and "bb" not in text),
    ),
    "regex": (LETTERS, "regex", "a*|b(a|b)b", {*words("a", only_a), "bab", "bbb"}),
    "one of": (LETTERS, "one_of", ("a", "ab", "abba", "bb"), {"a", "ab", "abba", "bb"}),
    "schema": (
        BRACKETS, "json_schema", {"type": "array", "items": {"const": 1}, "maxItems": 2}, {"[]", "[1]", "[1,1]"},
    ),
}  # fmt: skip
SHAPES: dict[str, int | tuple[int, ...]] = {
    "k=1": 1, "k=2": 2, "pair": (-1, -1), "comb": (-1, -1, 0), "second goes on": (-1, -1, 1),
}  # fmt: skip


class Spelled:
    """A language over tokens, for `plain_law`. Texts and what can begin one are known up to LONGEST characters and more
    than the engine's texts have, so a prefix of one is a prefix here."""

    def __init__(self, pieces: Sequence[str], language: set[str]) -> None:
        self.pieces, self.language = pieces, language
        self.alive = {text[:length] for text in language for length in range(len(text) + 1)}

    def state(self, text: Text) -> Mapping[int, int]:
        so_far = "".join(self.pieces[token] for token in text)
        legal = {token: 0 for token, piece in enumerate(self.pieces) if so_far + piece in self.alive}
        return legal | {len(self.pieces): 0} if legal and so_far in self.language else legal


def vocabulary_of(pieces: Sequence[str]) -> Vocabulary:
    table = [piece.encode() for piece in pieces] + [b"<end>"]
    return Vocabulary(len(table), table.__getitem__, frozenset({len(pieces)}), (len(pieces),))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("case", CASES)
def test_the_law_is_that_of_plain_decoding(case: str, shape: str) -> None:
    pieces, kind, given_, language = CASES[case]
    grammar, reference = COMPILERS[kind](given_, vocabulary_of(pieces)), Spelled(pieces, language)
    eos, num_tokens = len(pieces), 3
    seen: set[Text] = set()

    @settings(max_examples=3, deadline=None)
    @given(pairs(eos + 1), st.sampled_from(sorted(RULES)), st.sampled_from(["sampled", "deterministic"]))
    def check(pair: tuple[Any, Any], rule: str, noise: str) -> None:
        target, draft = (np.array(one) + 1 for one in pair)
        request = ([0], {"max_tokens": num_tokens, "constraint": grammar})
        law = engine_law(
            target, draft_with(draft), SHAPES[shape], [request], kind=noise, rules=RULES[rule], eos_ids=[eos]
        )
        expected = plain_law(table_rows(target), [0], num_tokens, [eos], constraint=reference)
        assert not violations(law, expected)
        seen.update(law)

    check()
    assert len(seen) > 3
    assert any(text[-1] == eos or len(text) < num_tokens for text in seen)  # some end before the budget does


@pytest.mark.parametrize("case", ["gbnf, recursive", "schema"])
@settings(max_examples=5, deadline=None)
@given(data=st.data())
def test_drafts_from_text_are_cut_where_the_grammar_ends_them(case: str, data: Any) -> None:
    pieces, kind, given_, language = CASES[case]
    grammar, eos = COMPILERS[kind](given_, vocabulary_of(pieces)), len(pieces)
    target = np.array(data.draw(pairs(eos + 1))[0]) + 1
    prompt = data.draw(st.lists(st.integers(0, eos - 1), min_size=2, max_size=5))
    law = engine_law(
        target, SuffixDrafter, 3, [(prompt, {"max_tokens": 4, "constraint": grammar})], kind="deterministic",
        eos_ids=[eos],
    )  # fmt: skip
    expected = plain_law(table_rows(target), prompt, 4, [eos], constraint=Spelled(pieces, language))
    assert not violations(law, expected)


@pytest.mark.parametrize("case", CASES)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_rounds_of_trees_leave_a_grammar_at_the_committed_tokens(case: str, data: Any) -> None:
    """Rounds: prefixes of a draft tree are looked at in any order, illegal ones included, then some legal path is
    committed. What each look says is what a fresh text says, and nothing of a rejected branch is left."""
    pieces, kind, given_, _ = CASES[case]
    grammar, size = COMPILERS[kind](given_, vocabulary_of(pieces)), len(pieces) + 1
    walked, committed = grammar.start(), list[int]()
    masks = Masks([walked], size)
    tokens = st.lists(st.integers(0, size - 1), max_size=4)
    for _ in range(data.draw(st.integers(1, 4))):
        for prefix in data.draw(st.lists(tokens, min_size=1, max_size=5)):
            fresh = fed(grammar, committed)
            is_legal = all(fresh.advance(token) for token in prefix)
            mask = masks.after(prefix)
            if is_legal and not fresh.is_finished:
                assert mask is not None
                assert mask.nonzero()[0].tolist() == fresh.mask().nonzero()[0].tolist()
            else:
                assert mask is None
            assert masks.is_finished(prefix) == (is_legal and fresh.is_finished)
        fresh, path = fed(grammar, committed), list[int]()
        for _ in range(data.draw(st.integers(0, 3))):
            legal = fresh.mask().nonzero()[0].tolist()
            if fresh.is_finished or not legal:
                break
            path.append(data.draw(st.sampled_from(legal)))
            assert fresh.advance(path[-1])
        masks.commit(path)
        committed += path
        fresh = fed(grammar, committed)
        assert walked.is_finished == fresh.is_finished
        assert by_trying(walked, size) == by_trying(fresh, size)
        if fresh.is_finished:
            break
