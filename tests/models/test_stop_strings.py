"""Stop strings in streams: cases.md C06, C07 and C20's texts, and a slow reference that scans characters."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from forerun.errors import ContractError, ParameterError
from forerun.models.detokenizer import Detokenizer
from forerun.models.reader import TextReader
from forerun.models.stop_strings import StopStrings, check_stops

# -- the reference: what the words say, with no regard for speed -------------------------------------------------------


def cut(text: str, stops: Iterable[str], first_end: int = 1) -> tuple[str, str | None]:
    """The text before the first match and the stop string, of matches that end at character `first_end` or later."""
    for end in range(first_end, len(text) + 1):
        if ending := [stop for stop in stops if text[:end].endswith(stop)]:
            longest = max(ending, key=len)
            return text[: end - len(longest)], longest
    return text, None


def certain(text: str, stops: Iterable[str]) -> str:
    """`text` without its longest suffix that is a proper prefix of a stop string."""
    prefixes = {"", *(stop[:size] for stop in stops for size in range(len(stop)))}
    return text[: min(start for start in range(len(text) + 1) if text[start:] in prefixes)]


def decoded(pieces: Sequence[bytes]) -> list[str]:
    """The text known once each piece is, and at last with the end of a text that ends inside a character."""
    decoders = [codecs.getincrementaldecoder("utf-8")("replace") for _ in pieces]
    known = [decoder.decode(b"".join(pieces[:count])) for count, decoder in enumerate(decoders, 1)]
    return [*known, b"".join(pieces).decode("utf-8", "replace")]


def read(pieces: Sequence[str | bytes], stops: Sequence[str], **settings: Any) -> TextReader:
    """A reader that was fed `pieces` as tokens, up to the one that completes a stop string, and finished."""
    table = [piece.encode() if isinstance(piece, str) else piece for piece in pieces]
    reader = TextReader(Detokenizer(table.__getitem__), stops, **settings)
    any(map(reader.add, range(len(table))))
    reader.finish()
    return reader


@st.composite
def splits(draw: st.DrawFn, whole: str | bytes) -> list[Any]:
    """`whole` cut into pieces, some of them empty."""
    edges = sorted(draw(st.lists(st.integers(0, len(whole)), max_size=len(whole) + 2)))
    return [whole[a:b] for a, b in zip([0, *edges], [*edges, len(whole)], strict=True)]


STOPS = st.lists(st.text("ab", min_size=1, max_size=5), max_size=5)
TEXTS = st.text("ab", max_size=30)
WIDE_STOPS = st.lists(st.text("a\né日🚀\u200d\ufffd\u0301", min_size=1, max_size=3), max_size=4)
WIDE_BYTES = st.text("a\né日🚀\u200d\u0301", max_size=12).map(str.encode) | st.lists(
    st.sampled_from([*"aé日🚀".encode(), 0xFF, 0xFE, 10]), max_size=16
).map(bytes)

# -- C06, C07 and C20's texts ------------------------------------------------------------------------------------------

SCRIPTS = [
    (["Lima", ".", "\n"], ["\n"], "Lima.", "\n"),
    ([" Ivo", ",", "\n"], ["\n", "Ivo:"], " Ivo,", "\n"),
    (["\nGu", "est", ":"], ["\nGuest:"], "", "\nGuest:"),
    (["red", " blue", " green"], [" green\n=="], "red blue green", None),
]


@pytest.mark.parametrize("pieces, stops, text, stop", SCRIPTS)
def test_c06_scripts_end_where_they_should(pieces: list[str], stops: list[str], text: str, stop: str | None) -> None:
    reader = read(pieces, stops)
    assert (reader.text, reader.stop_string) == (text, stop)
    assert "".join(reader.texts) + reader.finish() == text
    assert len(reader.texts) == len(pieces)
    assert read(pieces, stops, include_stop=True).text == text + (stop or "")
    whole = "".join(pieces).encode()
    for size in (1, 2, 3, 5, 100):
        assert read([whole[i : i + size] for i in range(0, len(whole), size)], stops).text == text


def test_c06_text_is_shown_at_once_unless_it_may_still_become_a_stop_string() -> None:
    texts = [read(pieces, stops).texts for pieces, stops, _, _ in SCRIPTS]
    assert texts == [["Lima", ".", ""], [" ", "Ivo,", ""], ["", "", ""], ["red", " blue", ""]]
    assert read(*SCRIPTS[3][:2]).finish() == " green"
    assert read(*SCRIPTS[2][:2], include_stop=True).texts == ["", "", "\nGuest:"]


def test_c06_nothing_behind_the_stop_string_is_shown() -> None:
    for include, rest in ((False, ""), (True, "ST")):
        reader = read(["abS", "Tcd", "ef"], ["ST"], include_stop=include)
        assert (reader.texts, reader.finish(), reader.text) == (["ab", rest], "", "ab" + rest)


ALLOWED = [
    (None, ()), ([], ()), ((), ()), ("x", ("x",)), ("ab", ("ab",)), (["b", "a", "b", "c", "a"], ("b", "a", "c")),
    (("1", "2", "3", "4", "5"), ("1", "2", "3", "4", "5")), ("x" * 10_000, ("x" * 10_000,)), ("\0", ("\0",)),
    (["🚀", " ", "\ud7ff", "\ue000"], ("🚀", " ", "\ud7ff", "\ue000")),
]  # fmt: skip
REFUSED = [
    ("", "found at once"), ([""], "found at once"), (["", "x"], "found at once"), (["x", ""], "found at once"),
    ("\ud83d", r"'\\ud83d' is half of a UTF-16 pair, and decoded text never holds half a character"),
    (["x", "a\udfff"], r"'a\\udfff' can never be found: '\\udfff' is half"), ("\ud83d\ude80", "the whole character"),
    ("\ud800", "write the whole"),
    (b"x", "b'x' is neither"), (b"", "nor a sequence of strings"), (bytearray(), "nor a sequence of strings"),
    ([b"x"], "b'x' is not a string"), (["x", 3], "3 is not a string. stop_token_ids"), ([None], "None is not a"),
    ([["x"]], "is not a string"), (3, "3 is neither"), (0, "0 is neither"), (False, "False is neither"),
    ({"x"}, "is neither"), ({"x": 1}, "is neither"), (iter("x"), "is neither"),
    ([b"x" * 1000], r"stop: b'x{55}\.\.\. is not a string\."),
]  # fmt: skip


@pytest.mark.parametrize("stop, expected", ALLOWED)
def test_c07_what_stop_may_be(stop: Any, expected: tuple[str, ...]) -> None:
    assert check_stops(stop) == expected


@pytest.mark.parametrize("stop, message", REFUSED)
def test_c07_what_stop_may_not_be(stop: Any, message: str) -> None:
    with pytest.raises(ParameterError, match=message) as caught:
        check_stops(stop)
    assert caught.value.name == "stop"


def test_c07_an_empty_stop_string_never_reaches_the_matcher() -> None:
    with pytest.raises(ParameterError, match="found at once"):
        StopStrings(["x", ""])


def test_c07_a_long_stop_string_holds_back_only_what_begins_it() -> None:
    stop = "x" * 10_000
    assert read(["hello", " world"], [stop]).texts == ["hello", " world"]
    reader = read(["ab", "x" * 9_999], [stop])
    assert (reader.texts, reader.finish(), reader.stop_string) == (["ab", ""], "x" * 9_999, None)
    assert read(["ab", "x" * 9_999, "y"], [stop]).texts == ["ab", "", "x" * 9_999 + "y"]
    reader = read(["ab", *["x"] * 10_000], [stop])
    assert (reader.text, reader.stop_string) == ("ab", stop)


def test_c07_a_stop_string_is_not_joined_with_text_from_before_the_first_token() -> None:
    """The prompt is never fed: a stop string half in it and half in the answer is none."""
    assert read(["er: hi"], ["User:", "User: hi"]).texts == ["er: hi"]


C20 = ["hi 🚀 ok", "日本", "👨‍👩‍👧", "e\u0301", '    ."', " begins with a space", "\ufffd", "a\ufffdb"]


@pytest.mark.parametrize("text", C20)
@pytest.mark.parametrize("size", [1, 2, 3, 4, 7, 100])
def test_c20_stop_strings_anywhere_in_texts_whose_characters_are_split(text: str, size: int) -> None:
    pieces = [text.encode()[i : i + size] for i in range(0, len(text.encode()), size)]
    for stop in {text[begin:end] for begin in range(len(text)) for end in range(begin + 1, len(text) + 1)}:
        reader = read(pieces, [stop])
        assert (reader.text, reader.stop_string) == (text[: text.index(stop)], stop)
    assert read(pieces, ["absent", text + "!"]).text == text


def test_c20_an_unfinished_character_is_flushed_once_and_can_complete_a_stop_string() -> None:
    for size in (1, 2, 3):
        pieces = [b"hi ", *(bytes([byte]) for byte in "🚀".encode()[:size])]
        reader = read(pieces, ["never"])
        assert (reader.texts, reader.finish(), reader.finish()) == (["hi ", *[""] * size], "\ufffd", "\ufffd")
        assert reader.text == "hi \ufffd"
        for include, text in ((False, "h"), (True, "hi \ufffd")):
            reader = read(pieces, ["i \ufffd"], include_stop=include, min_tokens=1 + size)
            assert (reader.stop_string, reader.text, reader.texts[0]) == ("i \ufffd", text, "h")
        assert read(pieces, ["i \ufffd"], min_tokens=2 + size).stop_string is None


def test_c20_invalid_bytes_do_not_stall() -> None:
    assert read([b"a\xff", b"\xfe", b"b"], ["\ufffdb!"]).texts == ["a", "\ufffd", ""]
    assert read([b"a\xff", b"\xfe", b"b"], ["\ufffdb"]).text == "a\ufffd"


# -- the rule, against the reference -----------------------------------------------------------------------------------

RULE = [
    ("xabcd", ["abcd", "bc"], "xa", "bc"),  # the one that ends first, though the other begins first
    ("xabcx", ["bc", "abc", "c"], "x", "abc"),  # the longest of those that end together
    ("xabcx", ["c", "bc", "abc"], "x", "abc"),
    ("xabcx", ["ab", "abc"], "x", "ab"),  # the shorter one ends first
    ("aabab", ["abab"], "a", "abab"),  # falls back inside itself
    ("abcabd", ["abcabe", "cabe", "bd"], "abca", "bd"),  # falls back from one into another, twice
    ("ab", ["ba", "bb"], "ab", None),
    ("", ["a"], "", None),
    ("abc", [], "abc", None),
]


@pytest.mark.parametrize("text, stops, before, stop", RULE)
def test_the_first_end_wins_then_the_longest(text: str, stops: list[str], before: str, stop: str | None) -> None:
    assert cut(text, stops) == (before, stop)
    for pieces in ([text], list(text), ["", text, ""]):
        matcher = StopStrings(stops)
        assert "".join(map(matcher.add, pieces)) + matcher.finish() == before
        assert (matcher.matched, matcher.cut) == (stop, len(before) if stop else None)
        assert stop is None or (matcher.add("more"), matcher.finish()) == ("", "")


@given(data=st.data(), text=TEXTS, stops=STOPS, num_passed=st.just(0) | st.integers(0, 12))
def test_any_pieces_give_what_scanning_characters_gives(
    data: st.DataObject, text: str, stops: list[str], num_passed: int
) -> None:
    matcher, fed, shown, pieces = StopStrings(stops), "", "", data.draw(splits(text))
    first_end = len("".join(pieces[:num_passed])) + 1
    for number, piece in enumerate(pieces):
        shown, fed = shown + matcher.add(piece, counts=number >= num_passed), fed + piece
        known, stop = cut(fed, stops, first_end)
        assert (matcher.matched, matcher.cut) == (stop, len(known) if stop else None)
        # All that is certain and no more: never a beginning of the stop string that is matched later.
        assert shown == (known if stop else certain(fed, stops))
    assert shown + matcher.finish() == cut(text, stops, first_end)[0]
    assert matcher.finish() == ""


@given(data=st.data(), whole=WIDE_BYTES, stops=WIDE_STOPS, min_tokens=st.integers(0, 8))
@example(data=None, whole=b"aa\xf0\x9f", stops=["a\ufffd"], min_tokens=2)
def test_tokens_that_split_characters_are_read_as_their_text(
    data: st.DataObject | None, whole: bytes, stops: list[str], min_tokens: int
) -> None:
    pieces = data.draw(splits(whole)) if data else [bytes([byte]) for byte in whole]
    known = decoded(pieces)
    # No match may end in text known before token number min_tokens; the end of the text comes after every token.
    first_end = 1 + max((len(text) for number, text in enumerate(known[:-1], 1) if number < min_tokens), default=0)
    first_end = 1 + len(known[-1]) if len(pieces) < min_tokens else first_end
    expected, stop = cut(known[-1], stops, first_end)

    reader = TextReader(Detokenizer(pieces.__getitem__), stops, min_tokens=min_tokens)
    kept = TextReader(Detokenizer(pieces.__getitem__), stops, min_tokens=min_tokens, include_stop=True)
    for token in range(len(pieces)):
        completed = reader.add(token)
        before, found = cut(known[token], stops, first_end)
        assert kept.add(token) == completed == (found is not None)
        assert len(reader.texts) == token + 1
        assert "".join(reader.texts) == reader.text == (before if found else certain(known[token], stops))
        if completed:
            assert (reader.finish(), kept.finish()) == ("", "")
            break
    assert "".join(reader.texts) + reader.finish() == reader.text == expected
    assert "".join(kept.texts) + kept.finish() == kept.text == expected + (stop or "")
    assert reader.stop_string == kept.stop_string == stop


# -- min_tokens, and the reader's contract -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "min_tokens, text, stop",
    [(0, "a", "--"), (1, "a", "--"), (2, "a", "--"), (3, "a-", "--"), (4, "a--", "-b"), (5, "a---b", None)],
)
def test_matches_before_min_tokens_are_passed_over(min_tokens: int, text: str, stop: str | None) -> None:
    """`--` is completed by token 2 and, overlapping itself, by token 3; `-b` by token 4."""
    reader = read(["a-", "-", "-", "b"], ["--", "-b"], min_tokens=min_tokens)
    assert (reader.text, reader.stop_string) == (text, stop)


def test_min_tokens_counts_tokens_without_text_and_looks_at_when_a_match_is_completed() -> None:
    pieces = [b"a\xf0", b"\x9f", b"\x9a", b"\x80", b""]  # the emoji is complete with token 4
    for min_tokens in range(7):
        assert read(pieces, ["a🚀"], min_tokens=min_tokens).text == ("" if min_tokens <= 4 else "a🚀")


def test_nothing_may_be_added_behind_the_end() -> None:
    for tokens, message in (("ab", "token number 3.*stop string"), ("a", "token number 2.*finished")):
        reader = read(tokens, ["b"])
        with pytest.raises(ContractError, match=message):
            reader.add(0)
        assert (reader.text, reader.texts[0]) == ("a", "a")
    reader = TextReader(Detokenizer([b"b"].__getitem__), ["b"])
    assert reader.add(0)
    with pytest.raises(ContractError, match=r"number 2.*stop string"):
        reader.add(0)


def test_add_says_when_a_stop_string_is_complete_and_text_holds_what_is_shown() -> None:
    reader = TextReader(Detokenizer([b"a", b"--", b"-"].__getitem__), ["---"])
    assert [reader.text, *((reader.add(token), reader.text) for token in (0, 1))] == ["", (False, "a"), (False, "a")]
    assert [(reader.add(token), reader.text) for token in (0, 1)] == [(False, "a--a")] * 2
    assert (reader.add(2), reader.text) == (True, "a--a")
    assert (reader.texts, reader.stop_string) == (["a", "", "--a", "", ""], "---")


def test_without_a_detokenizer_there_is_no_text() -> None:
    reader = TextReader(None, min_tokens=2)
    assert [reader.add(token) for token in (5, 6)] == [False, False]
    assert (reader.texts, reader.finish(), reader.text, reader.stop_string) == (["", ""], "", "", None)
    with pytest.raises(ContractError, match="stop strings need a detokenizer"):
        TextReader(None, ["x"])


def test_tokens_that_are_skipped_have_no_text_to_match() -> None:
    reader = TextReader(Detokenizer([b" a", b"<end>"].__getitem__, skip={1}, strip_space=True), ["<end>", "a a"])
    assert [reader.add(token) for token in (0, 1, 0)] == [False, False, True]
    assert (reader.texts, reader.text) == (["", "", ""], "")
