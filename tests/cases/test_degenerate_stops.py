"""cases.md C07 (whole kind): degenerate stop strings are refused by name or mean what they say."""

from __future__ import annotations

from typing import Any

import pytest
from tests.cases.test_streamed_text import scripted
from tests.cases.tools import DRAFTERS, check_r0, outcome, request, writer, written

from forerun.control import FixedLength
from forerun.errors import ForerunError, ParameterError
from forerun.llm import LLM


def hello() -> Any:
    return scripted(["x", "ab", " hello"])


@pytest.mark.parametrize(
    "stop", ["", [""], ["", "x"], ["x", ""], "\ud83d", ["x", "\ude80"], "\ud83d\ude80", b"x", [b"x"], [3], 3, {"x"}]
)  # fmt: skip
def test_c07_what_could_only_be_a_mistake_is_refused_by_name_and_the_engine_lives(stop: object) -> None:
    make, tokenizer = hello()
    llm = LLM(make(), tokenizer)
    for call in (llm.generate, llm.stream):
        with pytest.raises(ParameterError, match=r"^stop: ") as caught:
            call("ab", temperature=0, max_tokens=9, stop=stop)
        assert caught.value.name == "stop"
    with pytest.raises(ForerunError):
        llm.generate(["ab", "ba"], temperature=0, max_tokens=9, stop=stop)
    assert request(llm, "ab", temperature=0, max_tokens=9).text == "xab hello"


@pytest.mark.parametrize(
    "stop, text, reason",
    [(None, "xab hello", None), ([], "xab hello", None), ((), "xab hello", None),
     (["1", "2", "3", "4", "5"], "xab hello", None), (["1", "2", "3", "4", "5", "ab", "ab"], "x", "ab"),
     ("\0", "xab hello", None), ("x" * 10_000, "xab hello", None), ("x", "", "x"), ("xab hello", "", "xab hello")],
)  # fmt: skip
def test_c07_what_stop_may_be(stop: Any, text: str, reason: str | None) -> None:
    make, tokenizer = hello()
    result = check_r0(make, "ab", tokenizer=tokenizer, ks=(1, 4), temperature=0, max_tokens=9, stop=stop)
    assert (result.text, result.stop_reason) == (text, reason or tokenizer.eos_ids[0])


def test_c07_a_null_character_is_a_character() -> None:
    make, tokenizer = scripted(["x", "\0", "y"])
    assert check_r0(make, "ab", tokenizer=tokenizer, temperature=0, max_tokens=9, stop="\0").text == "x"
    assert check_r0(make, "ab", tokenizer=tokenizer, temperature=0, max_tokens=9).text == "x\0y"


@pytest.mark.parametrize("stop", ["ab", "b", "bx", "cabx", " ab"])
def test_c07_text_of_the_prompt_never_matches_nor_does_a_stop_begin_in_it(stop: str) -> None:
    make, tokenizer = scripted(["x", " hello"], prompt="c ab")
    result = check_r0(make, "c ab", tokenizer=tokenizer, ks=(1, 4), temperature=0, max_tokens=9, stop=stop)
    assert (result.text, result.finish_reason) == ("x hello", "stop")
    make, tokenizer = scripted(["x", "ab", "bx"], prompt="c ab")
    result = check_r0(make, "c ab", tokenizer=tokenizer, ks=(1, 4), temperature=0, max_tokens=9, stop=stop)
    assert result.text == {"ab": "x", "b": "xa", "bx": "xab", "cabx": "xabbx", " ab": "xabbx"}[stop]


@pytest.mark.parametrize("end", ["length", "eos", "token"])
@pytest.mark.parametrize("k", [0, 8])
def test_c07_a_long_stop_string_delays_what_begins_it_and_no_longer_than_the_end(end: str, k: int) -> None:
    stop = "x" * 10_000
    make, tokenizer = scripted(["hi", "x", "y", *["xx"] * 20, "z"])
    params = {"temperature": 0, "stop": stop, "max_tokens": 18 if end == "length" else 99}
    params["stop_token_ids"] = tokenizer.encode("z") if end == "token" else []
    drafter = DRAFTERS["oracle"](written(make, tokenizer, "ab", {}, params), make)
    shown = [piece.text for piece in LLM(make(), tokenizer, drafter, FixedLength(k)).stream("ab", **params)]
    assert shown[:3] == ["hi", "", "xy"]
    assert set(shown[3:18]) == {""}
    held = {"length": "xx" * 15, "eos": "", "token": "xx" * 20}[end]
    assert shown[-1] == held
    assert end != "eos" or shown[-2] == "xx" * 20 + "z"


def test_c07_a_long_stop_string_is_found_like_any_other() -> None:
    stop = "ab" * 5_000
    make, tokenizer = scripted(["hi", *["ab" * 8] * 624, "ab" * 7 + "a", "baba"])
    params = {"temperature": 0, "max_tokens": 1_000, "stop": [stop]}
    plain = outcome(request(LLM(make(), tokenizer), "ab", **params))
    drafter = DRAFTERS["oracle"](written(make, tokenizer, "ab", {}, params), make)
    assert outcome(request(LLM(make(), tokenizer, drafter, FixedLength(8)), "ab", **params)) == plain
    assert plain[1:4] == ("hi", "stop", stop)


def test_c07_text_parameters_without_a_tokenizer_are_refused_by_name() -> None:
    llm = LLM(writer([3], 5, 1))
    for stop in ("x", ["x"]):
        with pytest.raises(ParameterError, match="stop: text means nothing"):
            llm.generate([1], max_tokens=2, stop=stop)
    assert llm.generate([1], max_tokens=2, temperature=0, stop=[]).tokens[0] == 3
