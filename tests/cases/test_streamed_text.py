"""cases.md C06 (whole kind): stop strings in streams, wherever block edges fall and tokens split the text."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cases.tools import (
    DRAFTERS,
    SCRIPTED,
    byte_tokenizer,
    check_r0,
    joined,
    pieces_tokenizer,
    writer,
    written,
)

import forerun.engine.commit as commit_module
from forerun.control import FixedLength
from forerun.drafting.scripted import OracleDrafter
from forerun.llm import LLM

FILLERS = ["a", "b", "c", " "]
SCRIPTS = [
    (["Lima", ".", "\n"], ["\n"], "Lima.", "\n"),
    ([" Ivo", ",", "\n"], ["\n", "Ivo:"], " Ivo,", "\n"),
    (["\nGu", "est", ":"], ["\nGuest:"], "", "\nGuest:"),
    (["red", " blue", " green"], [" green\n=="], "red blue green", None),
    (["aXY", "Zb", "ST", "x"], ["YZbS", "ST", "never"], "aX", "YZbS"),  # the one that ends first, in mid-token
    (["one", "--", "-", "two"], ["---"], "one", "---"),
    (["--", "--", "=="], ["-=-"], "----==", None),  # held back, released, held back again
]


def scripted(pieces: Sequence[str | bytes], num_fillers: int = 0, prompt: str = "ab", **settings: bool) -> Any:
    """(target factory, tokenizer) of a model that writes fillers, these pieces, and end of text; then it repeats."""
    tokenizer = pieces_tokenizer([*FILLERS, *dict.fromkeys(pieces)], **settings)
    table = [*FILLERS, *dict.fromkeys(pieces)]
    ids = [*[2] * num_fillers, *map(table.index, pieces), tokenizer.eos_ids[0]]
    length = len(tokenizer.encode(prompt))
    return lambda: writer(ids, tokenizer.vocabulary_size, length), tokenizer


# -- C06 ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pieces, stops, text, stop", SCRIPTS)
@pytest.mark.parametrize("num_fillers", range(4))
def test_c06_a_stop_string_ends_the_text_wherever_block_edges_fall(
    pieces: list[str], stops: list[str], text: str, stop: str | None, num_fillers: int
) -> None:
    make, tokenizer = scripted(pieces, num_fillers)
    drafters = [*SCRIPTED, "lookup"]
    result = check_r0(make, "ab", tokenizer=tokenizer, drafters=drafters, temperature=0, max_tokens=50, stop=stops)
    assert result.text == "c" * num_fillers + text
    assert result.finish_reason == "stop"
    assert result.stop_reason == (stop or tokenizer.eos_ids[0])


@pytest.mark.parametrize("pieces, stops, text, stop", SCRIPTS)
@pytest.mark.parametrize("size", [1, 3])
def test_c06_the_cut_does_not_depend_on_how_tokens_split_the_text(
    pieces: list[str], stops: list[str], text: str, stop: str | None, size: int
) -> None:
    whole = "".join(pieces).encode()
    make, tokenizer = scripted([whole[i : i + size] for i in range(0, len(whole), size)])
    for include in (False, True):
        result = check_r0(
            make, "ab", tokenizer=tokenizer, drafters=SCRIPTED, ks=(2, 7), temperature=0, max_tokens=50, stop=stops,
            include_stop_string=include,
        )  # fmt: skip
        assert result.text == text + (stop or "" if include else "")


@pytest.mark.parametrize("k", [0, 1, 3, 8])
def test_c06_only_what_may_still_become_a_stop_string_waits(k: int) -> None:
    expected = [["Lima", ".", ""], [" ", "Ivo,", ""], ["", "", ""], ["red", " blue", "", " green"]]
    for (pieces, stops, _, stop), texts in zip(SCRIPTS, expected, strict=False):
        make, tokenizer = scripted(pieces)
        params = {"temperature": 0, "max_tokens": 50, "stop": stops}
        drafter = DRAFTERS["oracle"](written(make, tokenizer, "ab", {}, params), make)
        shown = [piece.text for piece in LLM(make(), tokenizer, drafter, FixedLength(k)).stream("ab", **params)]
        assert shown == [*texts, ""] if stop else texts


@pytest.mark.parametrize("max_tokens, end", [(1, "length"), (2, "length"), (3, "length"), (50, "stop")])
@pytest.mark.parametrize("k", [0, 1, 3, 8])
def test_c06_held_text_is_flushed_once_however_the_text_ends(max_tokens: int, end: str, k: int) -> None:
    pieces = [" gr", "een", "\n"]
    make, tokenizer = scripted(pieces)
    for stop_ids in ([], [tokenizer.encode("\n")[0]]):
        result = check_r0(
            make, "ab", tokenizer=tokenizer, ks=(k,), temperature=0, max_tokens=max_tokens, stop=[" green\n=="],
            stop_token_ids=stop_ids,
        )  # fmt: skip
        kept = pieces[: min(max_tokens, 2 if stop_ids else 3)]
        assert (result.text, result.finish_reason) == ("".join(kept), "stop" if stop_ids and max_tokens > 2 else end)


@pytest.mark.parametrize("num_fillers", range(10))
@pytest.mark.parametrize("k", [0, 8])
def test_c06_held_text_of_a_stream_that_is_closed_is_shown_once(num_fillers: int, k: int) -> None:
    pieces = ["red", " gr", "een", *"x" * 20]
    make, tokenizer = scripted(pieces, num_fillers)
    params = {"temperature": 0, "max_tokens": 50, "stop": [" green\n=="]}
    texts = written(make, tokenizer, "ab", {}, params)
    stream = LLM(make(), tokenizer, DRAFTERS["oracle"](texts, make), FixedLength(k)).stream("ab", **params)
    shown = [next(stream) for _ in range(2)]
    stream.close()
    shown += stream
    assert shown[-1].finish_reason == stream.result.finish_reason == "cancelled"
    assert len(stream.result.tokens) == len(shown) - 1 == (10 if k else 2)
    assert joined(shown) == stream.result.text == "".join((["c"] * num_fillers + pieces)[: len(stream.result.tokens)])


@pytest.mark.parametrize("k", [0, 2])
def test_c06_held_text_of_tokens_that_nobody_took_is_not_shown(k: int) -> None:
    """Another stream's reader has stepped the engine further than this one's tokens were taken."""
    make, tokenizer = scripted(["red", " gr", "een", *"x" * 20])
    params = {"temperature": 0, "max_tokens": 20, "stop": [" green\n=="]}
    drafter = DRAFTERS["oracle"](written(make, tokenizer, "ab", {}, params), make)
    llm = LLM(make(), tokenizer, drafter, FixedLength(k))
    stream, other = llm.stream("ab", **params), llm.stream("ab", **params)
    shown = [next(stream)]
    list(itertools.islice(other, 3))
    stream.close()
    shown += stream
    assert joined(shown) == stream.result.text == "red"
    assert len(stream.result.tokens) == 1


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
@pytest.mark.parametrize("k", [0, 4])
def test_c06_a_round_that_was_interrupted_and_done_again_shows_its_text_once(
    error: type[BaseException], k: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, calls, real = "hello world, this is", itertools.count(), commit_module.token_logprob
    ids = [*text.encode(), 256]
    params = {"temperature": 0, "max_tokens": 50, "logprobs": 1, "stop": ["world!"]}

    def interrupted(*args: Any) -> Any:
        if next(calls) in (3, 9, 12):
            raise error
        return real(*args)

    monkeypatch.setattr(commit_module, "token_logprob", interrupted)
    llm = LLM(writer(ids, 257, 2), byte_tokenizer(), OracleDrafter({(97, 98): ids}), FixedLength(k))
    stream, shown, num_errors = llm.stream("ab", **params), "", 0
    while stream.result.finish_reason != "stop":
        try:
            shown += next(stream).text
        except error:
            num_errors += 1
    assert shown + joined(stream) == stream.result.text == text
    assert num_errors == 3
    assert [entry.token for entry in stream.result.logprobs or ()] == ids[:-1]


@pytest.mark.parametrize(
    "min_tokens, text", [(0, ""), (1, ""), (2, "ST"), (3, "STST"), (4, "STST"), (5, "STSTST"), (6, "STSTSTSTS")]
)
@pytest.mark.parametrize("include", [False, True])
def test_c06_a_stop_string_counts_from_min_tokens_on(min_tokens: int, text: str, include: bool) -> None:
    make, tokenizer = scripted(["ST", "ST", "S", "T", "ST", "S"])
    result = check_r0(
        make, "ab", tokenizer=tokenizer, temperature=0, max_tokens=6, stop="ST", min_tokens=min_tokens,
        include_stop_string=include,
    )  # fmt: skip
    found = min_tokens < 6
    assert result.text == text + ("ST" if include and found else "")
    assert (result.finish_reason, result.stop_reason) == (("stop", "ST") if found else ("length", None))
    assert result.usage.completion_tokens >= min_tokens


@pytest.mark.parametrize("include_token", [False, True])
@pytest.mark.parametrize("include_string", [False, True])
def test_c06_stop_strings_and_stop_tokens_together(include_token: bool, include_string: bool) -> None:
    """A delivered stop token's own text may complete a stop string; one that is left out is not looked at."""
    pieces = ["say", " e", "nd", "."]
    make, tokenizer = scripted(pieces)
    ids = {piece: tokenizer.encode(piece)[0] for piece in pieces}
    flags = {"include_stop_token": include_token, "include_stop_string": include_string}
    common = {"tokenizer": tokenizer, "temperature": 0, "max_tokens": 50, "logprobs": 1, **flags}
    result = check_r0(make, "ab", stop=["end"], stop_token_ids=[ids["nd"]], **common)
    if include_token:
        assert (result.text, result.stop_reason) == ("say end" if include_string else "say ", "end")
    else:
        assert (result.text, result.stop_reason) == ("say e", ids["nd"])
    assert result.usage.completion_tokens == 2 + include_token
    result = check_r0(make, "ab", stop=["nd."], stop_token_ids=[ids[" e"]], **common)
    assert (result.text, result.stop_reason) == ("say e" if include_token else "say", ids[" e"])
    result = check_r0(make, "ab", stop=["y e"], stop_token_ids=[ids["."]], **common)
    assert (result.text, result.stop_reason) == ("say e" if include_string else "sa", "y e")


def test_c06_chat_answers_drop_their_first_space_before_stop_strings_are_looked_for() -> None:
    chat = [{"role": "user", "content": "ab"}]
    make, tokenizer = scripted([" ", " hi", " you"], strips_space=True)
    common = {"tokenizer": tokenizer, "temperature": 0, "max_tokens": 50}
    for prompt, stop, text in [
        (chat, None, " hi you"), ("ab", None, "  hi you"), (chat, "  hi", " hi you"), ("ab", "  hi", ""),
        (chat, " hi", ""), ("ab", " hi", " "), (chat, "hi ", " "), (chat, " ", ""), ("ab", " ", ""),
    ]:  # fmt: skip
        assert check_r0(make, prompt, ks=(2, 5), stop=stop, **common).text == text


@pytest.mark.parametrize("params", [{"seed": 3, "temperature": 0.9}, {"temperature": 0}])
def test_c06_every_choice_has_its_own_stop(params: dict) -> None:
    from forerun.runtime.toy import ToyModel

    tokenizer = pieces_tokenizer(["a", "b", "ab", "ba", " ", "c"])

    def make() -> ToyModel:
        return ToyModel.random(7, order=2, seed=2, spread=1.5)

    result = check_r0(make, "ab", tokenizer=tokenizer, n=4, max_tokens=30, stop=["bab", "cc"], logprobs=1, **params)
    assert all("bab" not in one.text and "cc" not in one.text for one in result.choices)
    assert "stop" in {one.finish_reason for one in result.choices}


def test_c06_byte_tokens_and_stops_in_the_middle_of_characters() -> None:
    """A stop string is complete when its last character is, in whichever token its last byte comes."""
    text = "né 🚀 x"
    ids = [*text.encode(), 256]
    for stop in ("é", "🚀", " 🚀 ", "x"):
        result = check_r0(
            lambda: writer(ids, 257, 2), "ab", tokenizer=byte_tokenizer(), drafters=SCRIPTED, temperature=0,
            max_tokens=50, stop=stop,
        )  # fmt: skip
        end = text.index(stop) + len(stop)
        assert result.text == text[: text.index(stop)]
        assert list(result.tokens) == list(text[:end].encode())


def expected(
    ids: list[int], table: list[bytes], eos: int, *, max_tokens: int, min_tokens: int, stop: list[str],
    stop_token_ids: list[int], include_stop_string: bool, include_stop_token: bool,
) -> tuple[Any, ...]:  # fmt: skip
    """What plain decoding returns, said once more without sharing code; `ids` are the model's favourites."""
    ends, tokens, known, reason, why = {eos, *stop_token_ids}, list[int](), 0, "length", None
    for place in range(max_tokens):
        favourite = ids[place] if place < len(ids) else eos
        if favourite in ends and place < min_tokens:
            favourite = min(set(range(eos)) - ends)
        is_end = favourite in ends
        if not is_end or include_stop_token:
            tokens.append(favourite)
            text = b"".join(table[token] for token in tokens).decode("utf-8", "ignore")
            matches = [
                (end, -len(one), one) for one in stop for end in range(known + 1, len(text) + 1)
                if text[:end].endswith(one)
            ]  # fmt: skip
            known = len(text)
            if matches and len(tokens) >= min_tokens:
                end, _, one = min(matches)
                return tokens, text[: end if include_stop_string else end - len(one)], "stop", one
        if is_end:
            reason, why = "stop", favourite
            break
    return tokens, b"".join(table[token] for token in tokens).decode("utf-8", "replace"), reason, why


TABLE = [b"a", b"b", b"ab", b"ba", b"\n", b"\xc3", b"\xa9", "é".encode(), b"", b"a\nb"]


@given(
    ids=st.lists(st.integers(0, len(TABLE)), max_size=14),
    stop=st.lists(st.text("ab\né", min_size=1, max_size=4), max_size=3, unique=True),
    stop_token_ids=st.lists(st.integers(2, len(TABLE) - 1), max_size=2),
    min_tokens=st.just(0) | st.integers(0, 8),
    extra=st.integers(1, 10),
    flags=st.tuples(st.booleans(), st.booleans()),
    k=st.sampled_from([0, 1, 3, 8]),
    drafter=st.sampled_from(list(DRAFTERS)),
)
def test_c06_any_script_reads_as_plain_decoding_reads(
    ids: list[int], stop: list[str], stop_token_ids: list[int], min_tokens: int, extra: int,
    flags: tuple[bool, bool], k: int, drafter: str,
) -> None:  # fmt: skip
    # U+FFFD for bytes that are no UTF-8 is C20's; here every first byte of the accent is followed by its second.
    ids = [token for one in ids for token in ([5, 6] if one in (5, 6) else [one])]
    tokenizer = pieces_tokenizer(TABLE)
    params = {
        "max_tokens": min_tokens + extra, "min_tokens": min_tokens, "stop": stop,
        "stop_token_ids": [i for i in stop_token_ids if i not in (5, 6)],
        "include_stop_string": flags[0], "include_stop_token": flags[1],
    }  # fmt: skip
    result = check_r0(
        lambda: writer([*ids, 10], 11, 2), [0, 1], tokenizer=tokenizer, drafters=[drafter], ks=[k], temperature=0,
        **params,
    )  # fmt: skip
    found = (list(result.tokens), result.text, result.finish_reason, result.stop_reason)
    assert found == expected(ids, [*TABLE, b""], 10, **params)
