"""What is shown of a text: `--compare`, colours, control characters, and what a redirected text is spared."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cli.conftest import Invoke, Terminal, start
from tests.cli.toys import PHRASE, plain_text

from forerun.cli.compare import Comparison
from forerun.cli.render import TextOutput
from forerun.engine.statistics import Statistics
from forerun.result import Piece, Result, Usage
from forerun.runtime.base import Rows
from forerun.runtime.cost import UNUSED
from forerun.runtime.toy import ToyModel
from forerun.types import Origin, Span

GREEDY = ("--target", "toy", "--temperature", "0")
DRAFTED = (*GREEDY, "--draft", "toy-draft", "--k", "3")


# -- compare ---------------------------------------------------------------------------------------------------------


def test_compare_runs_the_plain_target_too(invoke: Invoke) -> None:
    result = invoke("generate", "hello", *DRAFTED, "--max-tokens", "40", "--compare")
    assert result.exit_code == 0
    assert len(result.stdout) == 40, "the second run's text is not printed"
    assert "the speed of plain decoding; text identical (40 tokens)" in result.stderr


def test_compare_warms_both_models_up_first(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    """What only a model's first passes cost is charged to neither run; no policy and no trace sees those passes."""
    fed: dict[int, list[int]] = {}
    forward = ToyModel.forward

    def noted(self: ToyModel, spans: list[Span]) -> Rows:
        fed.setdefault(id(self), []).extend(span.sequence_id for span in spans)
        return forward(self, spans)

    monkeypatch.setattr(ToyModel, "forward", noted)
    for flags in ((), ("--k", "auto")):
        fed.clear()
        result = invoke("generate", "hello", *GREEDY, "--draft", "toy-draft", *flags, "--compare")
        assert result.exit_code == 0, result.stderr
        assert len(fed) == 2
        for ids in fed.values():
            first_of_the_request = next(place for place, one in enumerate(ids) if one != UNUSED)
            assert first_of_the_request >= 4
            assert UNUSED not in ids[first_of_the_request:]
    fed.clear()
    invoke("generate", "hello", *DRAFTED)
    assert not any(UNUSED in ids for ids in fed.values())


def test_compare_on_a_terminal_counts_the_second_run(terminal: type[Terminal]) -> None:
    one = terminal("generate", "hello", *DRAFTED, "--max-tokens", "12", "--compare")
    assert one.wait() == 0
    assert "\rthe same without a draft: 12 tokens\n" in one.seen
    assert one.seen.count("text identical (12 tokens)") == 1


def test_compare_in_json(invoke: Invoke) -> None:
    args = ("hello", "--target", "toy", "--drafter", "lookup", "--max-tokens", "40", "--compare", "--json")
    seeded = json.loads(invoke("generate", *args, "--seed", "3").stdout)
    comparison = seeded["comparison"]
    assert comparison["plain"]["text"] == seeded["text"]
    assert (comparison["identical"], comparison["first_difference"]) == (True, None)
    fast, slow = seeded["usage"]["tokens_per_s"], comparison["plain"]["tokens_per_s"]
    assert comparison["ratio"] == pytest.approx(fast / slow)
    assert json.loads(invoke("generate", *args).stdout)["comparison"]["identical"] is None


def test_unseeded_texts_are_not_called_different(invoke: Invoke) -> None:
    result = invoke("generate", "hello", "--target", "toy", "--drafter", "lookup", "--max-tokens", "40", "--compare")
    assert "texts not compared" in result.stderr


def result_of(tokens: list[int]) -> Result:
    return Result("", tuple(tokens), (), "length", Usage(1, len(tokens), 2.0, 0.1), Statistics())


@given(st.lists(st.integers(0, 2), max_size=6), st.lists(st.integers(0, 2), max_size=6))
def test_the_first_difference_is_found(left: list[int], right: list[int]) -> None:
    found = Comparison.of(result_of(left), result_of(right), {"temperature": 0}).first_difference
    if left == right:
        assert found is None
    else:
        assert left[:found] == right[:found]
        assert left[found : found + 1] != right[found : found + 1]


def test_a_difference_is_named() -> None:
    comparison = Comparison.of(result_of([1, 2, 3]), result_of([1, 2, 4]), {"seed": 1})
    assert "TEXT DIFFERS from output token 2 on" in comparison.conclusion
    assert comparison.to_dict()["identical"] is False


# -- rendering -------------------------------------------------------------------------------------------------------


@given(st.lists(st.text(max_size=8), max_size=8))
def test_a_redirected_text_is_unchanged(texts: list[str]) -> None:
    data = io.BytesIO()
    stream = io.TextIOWrapper(data, encoding="ascii", newline="\r\n")
    output = TextOutput(stream, by_origin=True)
    for text in texts:
        output.show(Piece(text, 1, "drafted"))
    stream.flush()
    assert data.getvalue() == "".join(texts).encode("utf-8")


@pytest.mark.parametrize("env, coloured", [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)])
def test_colours_on_a_terminal(terminal: type[Terminal], env: dict[str, str], coloured: bool) -> None:
    one = terminal("generate", "hello", *DRAFTED, "--max-tokens", "40", "--show-drafts", **env)
    assert one.wait() == 0
    text = one.seen.partition("tokens ")[0]
    assert ("\x1b[32m" in text, "\x1b[33m" in text, "\x1b[36m" in text) == (coloured, coloured, coloured)
    assert ("no colours" in one.seen) is not coloured
    if not coloured:
        assert "\x1b[3" not in one.seen


def test_no_colours_unless_asked_for(terminal: type[Terminal]) -> None:
    one = terminal("generate", "hello", *DRAFTED, "--max-tokens", "40")
    assert one.wait() == 0
    assert "\x1b[32m" not in one.seen
    assert "token origin" not in one.seen


def test_a_text_cannot_steer_the_terminal(terminal: type[Terminal]) -> None:
    one = terminal("generate", "x", "--target", "toy-phrase", "--max-tokens", str(len(PHRASE)))
    assert one.wait() == 0
    assert one.seen.startswith(PHRASE.decode().replace("\x1b", "\u241b"))


def test_a_missing_prompt_on_a_terminal_is_a_usage_error(terminal: type[Terminal]) -> None:
    one = terminal("generate", "--target", "toy", NO_COLOR="1")
    assert one.wait() == 2
    assert one.seen.startswith("error: there is no PROMPT. give one in quotes, or - to read it from standard input")


def test_redirected_show_drafts_has_no_escapes() -> None:
    out, _ = start("generate", "hello", *DRAFTED, "--max-tokens", "40", "--show-drafts").communicate(timeout=60)
    assert b"\x1b" not in out
    assert len(out) == 40


# -- text that is held back for a stop string -----------------------------------------------------------------------


class Screen(io.StringIO):
    """A terminal that remembers."""

    def isatty(self) -> bool:
        return True


def coloured(*pieces: tuple[str, Origin | None]) -> str:
    screen = Screen()
    output = TextOutput(screen, by_origin=True)
    for text, origin in pieces:
        output.show(Piece(text, None if origin is None else 1, origin))
    return screen.getvalue()


def test_held_back_text_has_the_colour_of_the_token_that_released_it() -> None:
    shown = coloured(("a", "drafted"), ("", "drafted"), ("bc", "recovered"), ("d", "decoded"))
    assert shown == "\x1b[32ma\x1b[0m\x1b[33mbc\x1b[0md"


def test_text_that_the_end_released_has_the_last_token_s_colour() -> None:
    assert coloured(("a", "decoded"), ("", "bonus"), ("b", None)) == "a\x1b[36mb\x1b[0m"
    assert coloured(("b", None)) == "b"


@pytest.mark.parametrize("flags", [(), ("--include-stop-string",)])
def test_show_drafts_and_stop_strings(terminal: type[Terminal], flags: tuple[str, ...]) -> None:
    """One stop string is found, the others only begin here and there, so that text is held back all the way."""
    text = plain_text()
    stops = [text[20:24], text[3:6] + "!", text[9:15] + "!", "j!"]
    args = [part for stop in stops for part in ("--stop", stop)]
    one = terminal("generate", "hello", *DRAFTED, "--max-tokens", "40", "--show-drafts", *args, *flags)
    assert one.wait() == 0
    shown = re.sub(r"\x1b\[[0-9;]*m", "", one.seen)
    assert shown.startswith(text[: 24 if flags else 20] + "\n")
    assert "\x1b[32m" in one.seen
    assert f"24 (stop at {stops[0]!r})" in shown


def test_held_back_text_comes_when_the_text_ends(terminal: type[Terminal]) -> None:
    text = plain_text(max_tokens=12)
    one = terminal("generate", "hello", *DRAFTED, "--max-tokens", "12", "--show-drafts", "--stop", text[8:12] + "!")
    assert one.wait() == 0
    shown = re.sub(r"\x1b\[[0-9;]*m", "", one.seen)
    assert shown.startswith(text + "\n")
    assert "12 (length)" in shown


def test_a_difference_among_several_texts_is_named() -> None:
    left, right = (replace(result_of([1, 2]), others=(result_of(tokens),)) for tokens in ([3, 4], [3, 5]))
    comparison = Comparison.of(left, right, {"seed": 1, "n": 2})
    assert "TEXT 2 DIFFERS from output token 1 on" in comparison.conclusion
    document = comparison.to_dict()
    assert (document["different_text"], document["first_difference"], document["identical"]) == (1, 1, False)
