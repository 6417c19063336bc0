"""What holds for every grammar: independence, ends, bounds, errors, and one prefix tree per vocabulary."""

from __future__ import annotations

import gc
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tests.constraints.vocabularies import SIZE, by_trying, fed, json_bytes, letters
from tests.models.tiny_gguf import write_tiny_gguf

from forerun.constraints.grammar import NUM_KEPT, compile_json_schema, compile_regex
from forerun.constraints.vocabulary import _LIBRARIES, Vocabulary
from forerun.errors import ContractError, ParameterError
from forerun.models.tokenizer import load_tokenizer

VOCABULARY = json_bytes()


def accepts(pattern: str, text: str) -> bool:
    constraint = compile_regex(pattern, VOCABULARY).start()
    return all(constraint.advance(token) for token in text.encode()) and constraint.advance(256)


@pytest.mark.parametrize(
    "pattern",
    [
        "a/b", r"a\/b", r"a\\b", r"a\\/b", "a\nb", r"a\nb", '"', "a#b", "a //b", r"\d\d", r"[\]/]+", "é|日本", r"\x41",
        "(?i)straße", r"(?s:.)", ".", r"\w\W", "a*?b", "^ab$", r"[^a]", r"[/\\]+", r"%json \{\}", "<eos>", r"\$\^",
        " a ",
    ],
)  # fmt: skip
def test_the_whole_text_must_match_as_in_re(pattern: str) -> None:
    for text in (
        "a/b", "a\\b", "a\\/b", "a\nb", '"', "a#b", "a //b", "12", "1", "/", "]/", "é", "日本", "A", "straße",
        "\n", "x", "a!", "ab", "aab", "aa", "b", "\\/", "%json {}", "<eos>", "$^", " a ", "xab", "",
    ):  # fmt: skip
        assert accepts(pattern, text) == bool(re.fullmatch(pattern, text)), text


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        ("(?=a)a", "look-arounds are not supported: '\\(\\?=' at 0"),
        ("a(?<!b)", "look-arounds are not supported: '\\(\\?<!' at 1"),
        (r"(a)\1", r"back-references are not supported: '\\\\1' at 3"),
        ("(?P<x>a)(?P=x)", "back-references are not supported"),
        (r"\bfoo", "word boundaries are not supported"),
        ("a^b", "\\^ inside a pattern is one"),
        ("(?>a)", "atomic groups are not supported"),
        ("(?(1)a|b)", "conditional groups are not supported"),
        ("(?#x)a", "comments are not supported"),
        ("(?ix) a", "verbose patterns are not supported"),
        ("a++b", "possessive quantifiers are not supported"),
        ("a\\", "ends inside an escape"),
        ("(a", "unclosed group, at '\\('"),
        ("a{2,1}", "invalid repetition count range"),
        (r"a\Z", "unrecognized escape sequence"),
        (r"[^\s\S]", "no text that this vocabulary can spell"),
        ("a[b&&c]", "no text that this vocabulary can spell"),
        ("", "nothing but the empty text"),
        ("(|a{0})", "nothing but the empty text"),
        ("\ud800", "not valid Unicode"),
        ("a" * 100_001, "100,001 characters"),
        ("(" * 300 + "a" + ")" * 300, "nested"),
        (3, "a pattern is a string, not int"),
    ],
)  # fmt: skip
def test_what_cannot_be_compiled_is_refused_by_name(pattern: Any, said: str) -> None:
    with pytest.raises(ParameterError, match=said) as caught:
        compile_regex(pattern, VOCABULARY)
    assert caught.value.name == "regex"
    assert "\n" not in str(caught.value)


def test_pieces_that_look_special_inside_classes_and_escapes_are_fine() -> None:
    assert accepts(r"[*+]+\+\(\?=", "*+++(?=")
    assert accepts(r"[(?=]{3}", "(?=")


def test_no_token_is_forced_where_several_spell_the_same_text() -> None:
    constraint = compile_regex("ab", letters()).start()
    assert constraint.mask().nonzero()[0].tolist() == [0, 5, 7]


def test_every_end_of_text_id_is_legal_exactly_at_a_match() -> None:
    constraint = compile_regex("a|ab", letters()).start()
    assert not constraint.advance(13)
    assert not constraint.advance(14)
    for eos in (13, 14):
        assert constraint.advance(0)
        assert constraint.mask().nonzero()[0].tolist() == [1, 13, 14]
        assert not constraint.is_finished
        assert constraint.advance(eos)
        assert constraint.is_finished
        assert not constraint.mask().any()
        constraint.rollback(2)
        assert by_trying(constraint, SIZE) == constraint.mask().nonzero()[0].tolist() == [0, 5, 7]


def test_ids_outside_the_vocabulary_are_illegal_and_padding_is_too() -> None:
    constraint = compile_regex("(?s:.*)", letters()).start()
    assert not any(constraint.advance(token) for token in (-1, -2, 18, 19, 20, 2**31, 2**70, 12, 10, 17))
    assert constraint.mask().shape == (20,)
    assert compile_regex("a", letters(size=18)).start().mask().shape == (18,)


def test_masks_stay_valid_and_cannot_be_written_to() -> None:
    constraint = compile_regex("ab*", letters()).start()
    first = constraint.mask()
    kept = first.copy()
    assert constraint.advance(0)
    second = constraint.mask()
    assert second is constraint.mask()
    constraint.rollback(1)
    assert constraint.mask() is first
    assert (first == kept).all()
    assert second.nonzero()[0].tolist() != first.nonzero()[0].tolist()
    for mask in (first, second):
        with pytest.raises(ValueError, match="read-only"):
            mask[0] = False


def test_long_texts_keep_few_masks_and_roll_back_over_all_of_them() -> None:
    grammar = compile_regex("(ab){1,30}", letters())
    constraint = grammar.start()
    for token in [0, 1] * 15:
        assert constraint.mask().any()
        assert constraint.advance(token)
    assert sum(kept is not None for kept in constraint._nexts) <= NUM_KEPT
    constraint.rollback(23)
    assert constraint.mask().tolist() == fed(grammar, [0, 1] * 3 + [0]).mask().tolist()


def test_texts_of_one_grammar_are_independent() -> None:
    grammar = compile_regex("(ab){1,3}", letters())
    one, two = grammar.start(), grammar.start()
    assert one.advance(0)
    assert two.advance(5)
    assert one.mask().nonzero()[0].tolist() == fed(grammar, [0]).mask().nonzero()[0].tolist()
    assert two.mask().nonzero()[0].tolist() == fed(grammar, [5]).mask().nonzero()[0].tolist()
    one.rollback(1)
    assert one.mask().nonzero()[0].tolist() == grammar.start().mask().nonzero()[0].tolist()


def test_only_what_was_taken_can_be_undone() -> None:
    constraint = compile_regex("ab*", letters()).start()
    constraint.rollback(0)
    with pytest.raises(ContractError, match="undo 1 tokens"):
        constraint.rollback(1)
    assert constraint.advance(0)
    with pytest.raises(ContractError, match="undo 2 tokens"):
        constraint.rollback(2)
    with pytest.raises(ContractError):
        constraint.rollback(-1)
    assert constraint.mask().nonzero()[0].tolist() == [1, 13, 14]


def test_a_text_that_the_vocabulary_cannot_go_on_with_has_no_legal_token() -> None:
    """No engine can go on there either, but the constraint says so and rolls back."""
    constraint = compile_regex("a(c|ba)", letters()).start()
    assert constraint.advance(0)
    assert constraint.advance(1)
    assert constraint.advance(0)
    assert constraint.is_finished
    dead = compile_regex("ba|ac", letters()).start()
    assert dead.advance(0)
    assert not dead.mask().any()
    assert not dead.is_finished
    assert by_trying(dead, SIZE) == []
    dead.rollback(1)
    assert dead.advance(6)
    assert dead.is_finished


EXPLODING = "((((a{0,99}){0,99}){0,99}){0,99}){0,99}b"


def test_a_library_that_gives_up_is_an_error_of_the_request(capfd: pytest.CaptureFixture[str]) -> None:
    """Nested repetitions explode after a while: an error that names the place, not a hang, and a way back."""
    grammar = compile_regex(EXPLODING, letters())
    constraint = grammar.start()
    tokens = 0
    with pytest.raises(
        ParameterError, match=r"regex: it is too complex to be followed beyond \d+ tokens \(lexer error"
    ) as caught:
        for tokens in range(1000):  # noqa: B007
            constraint.mask()
            assert constraint.advance(0)
    assert 5 < tokens < 1000
    assert "\n" not in str(caught.value)
    constraint.rollback(5)
    assert constraint.mask().tolist() == fed(grammar, [0] * (tokens - 5)).mask().tolist()
    assert capfd.readouterr() == ("", "")


def test_a_text_that_uses_up_the_library_harms_no_other() -> None:
    """The library's lexer is shared by the texts of a grammar, and an error in it is final."""
    grammar, alone = compile_regex(EXPLODING, letters()), compile_regex(EXPLODING, letters())
    greedy, before, waiting, shared = grammar.start(), fed(grammar, [0, 5]), grammar.start(), grammar.shared
    assert waiting.mask().any()
    with pytest.raises(ParameterError):
        while True:
            assert greedy.advance(0)
    assert grammar.shared is not shared
    assert waiting.advance(1)
    assert waiting.is_finished
    expected, after = alone.start(), grammar.start()
    before.rollback(1)
    assert expected.mask().tolist() == after.mask().tolist()
    for token in (0, 7, 15, 1):
        assert expected.advance(token) == after.advance(token)
        assert expected.mask().tolist() == after.mask().tolist()
        if token in (7, 15):
            assert before.advance(token)
    assert expected.is_finished
    assert after.is_finished
    assert before.mask().tolist() == fed(alone, [0, 7, 15]).mask().tolist()
    assert by_trying(before, SIZE) == before.mask().nonzero()[0].tolist()


def test_vocabularies_that_are_equal_share_one_prefix_tree() -> None:
    tokens = [b"a", b"b", b"<eos>"]
    one, two = (Vocabulary(3, tokens.__getitem__, frozenset(), (2,)) for _ in range(2))
    other = Vocabulary(3, tokens.__getitem__, frozenset({0}), (2,))
    assert one.library is not other.library
    get = tokens.__getitem__
    one, two = (Vocabulary(3, get, frozenset(), (2, 2)) for _ in range(2))
    assert one.library is two.library
    grammar = compile_regex("ab", one)
    del one, two, other
    gc.collect()
    assert Vocabulary(3, get, frozenset(), (2,)).library is grammar.library
    before = len(_LIBRARIES)
    del grammar
    gc.collect()
    assert len(_LIBRARIES) == before - 1


@pytest.mark.parametrize("size", [None, 700, 300])
def test_a_tokenizers_vocabulary(tmp_path: Any, size: int | None) -> None:
    tokenizer = load_tokenizer(write_tiny_gguf(tmp_path / "tiny.gguf", vocabulary_only=True))
    vocabulary = Vocabulary.of(tokenizer, size)
    assert vocabulary == Vocabulary.of(tokenizer, size)
    assert vocabulary.size == (tokenizer.vocabulary_size if size is None else size)
    constraint = compile_regex("[a-c ]{1,9}", vocabulary).start()
    assert constraint.mask().shape == (vocabulary.size,)
    for token in map(tokenizer.parts.backend.token_to_id, "abcab"):
        assert constraint.advance(token)
    assert set(vocabulary.eos_ids) == {token for token in tokenizer.eos_ids if token < vocabulary.size}
    assert all(constraint.mask()[token] for token in vocabulary.eos_ids)
    assert not constraint.mask()[min(600, vocabulary.size) :].any()


@pytest.mark.parametrize(
    ("keywords", "said"),
    [
        ({"eos_ids": (3,)}, "id 3 is outside"), ({"control_ids": {-1}}, "id -1 is outside"),
        ({"num_tokens": 4}, "4 tokens cannot"), ({"size": 0}, "0 tokens cannot"),
    ],
)  # fmt: skip
def test_vocabularies_that_contradict_themselves_are_refused(keywords: Any, said: str) -> None:
    with pytest.raises(ParameterError, match=said):
        Vocabulary(**{"size": 3, "token_bytes": lambda _: b"a", **keywords})


def test_grammars_are_compiled_and_texts_followed_on_several_threads() -> None:
    def follow(index: int) -> list[int]:
        grammar = compile_regex(f"(ab){{{index + 1}}}", letters()) if index % 2 else compile_json_schema({}, VOCABULARY)
        constraint, counts = grammar.start(), []
        for token in [0, 1] * (index + 1) if index % 2 else b'{"a": [1, true]}':
            counts.append(int(constraint.mask().sum()))
            assert constraint.advance(token)
        return counts

    alone = [follow(index) for index in range(8)]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(follow, range(8))) == alone
