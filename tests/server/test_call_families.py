"""Calls as other families of models write them, with marks that are control tokens or text, chosen by the template."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.cli.toys import EOS, SIZE
from tests.server.serving import ChattyTokenizer, Serving, reasons_of, text_of
from tests.server.test_calls import streamed_calls
from tests.server.test_chats import CHAT
from tests.server.test_chats import CLOCK as CLOCK_TOOL
from tests.server.test_chats import WEATHER as WEATHER_TOOL

from forerun.constraints.marks import CALL_MARKS, TAGGED, call_marks_of
from forerun.drafting import SuffixDrafter
from forerun.llm import LLM
from forerun.runtime.toy import ToyModel

MARKS = ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "<|python_tag|>", "<tool_call>", "</tool_call>", "<think>", "</think>")
MISTRAL = "{% for message in messages %}{{ '[TOOL_CALLS] [' }}{% endfor %}"
LLAMA = """{{- 'Respond as {"name": function name, "parameters": dictionary of argument name and its value}.' }}"""
CLOCK: Any = CLOCK_TOOL
WEATHER: Any = WEATHER_TOOL
OSLO: Any = {"city": "Oslo", "days": 1}


class MarkedTokenizer(ChattyTokenizer):
    """The toys' tokenizer with MARKS as control tokens (`is_control`), or as nothing but text."""

    vocabulary_size = SIZE + len(MARKS)

    def __init__(self, template: str, is_control: bool) -> None:
        super().__init__()
        self.chat_template = template
        self.marks = {SIZE + i: mark for i, mark in enumerate(MARKS)} if is_control else {}
        self.parts = SimpleNamespace(control_ids=frozenset({EOS, *self.marks}), added_ids=frozenset({EOS, *self.marks}))

    def token_bytes(self, token: int) -> bytes:
        return (
            self.marks[token].encode() if token in self.marks else super().token_bytes(token) if token < SIZE else b""
        )

    def script(self, text: str) -> list[int]:
        """A text as token ids, the marks in it as such."""
        ids = {mark: token for token, mark in self.marks.items()}
        pattern = "|".join(map(re.escape, ids)) or "(?!)"
        found: list[int] = []
        for part in re.split(f"({pattern})", text):
            found += [ids[part]] if part in ids else part.encode()
        return found

    def encode_chat(self, messages: Sequence[Any], enable_thinking: bool = True, **extra: Any) -> list[int]:
        return super().encode_chat(messages)

    def detokenizer(self, shown: frozenset[int] = frozenset(), **settings: bool) -> Any:  # type: ignore[override]
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        skipped = self.parts.control_ids - shown

        def add(token: int) -> str:
            return "" if token in skipped else decoder.decode(self.token_bytes(token))

        return SimpleNamespace(add=add, finish=lambda: decoder.decode(b"", True))


def scripted(text: str, template: str, is_control: bool, drafter: Any = None) -> LLM:
    """A toy that answers a chat with `text`."""
    tokenizer = MarkedTokenizer(template, is_control)
    script = [*tokenizer.script(text), EOS]
    marker = tuple(b"<a>")

    def logits_of(tokens: tuple[int, ...]) -> np.ndarray:
        at = next(i for i in range(len(tokens) - 3, -1, -1) if tokens[i : i + 3] == marker)
        row = np.full(tokenizer.vocabulary_size, -40.0)
        row[script[min(len(tokens) - at - 3, len(script) - 1)]] = 0.0
        return row

    return LLM(ToyModel(logits_of, tokenizer.vocabulary_size, 4096), tokenizer, drafter)  # type: ignore[arg-type]


def json_call(name: str, key: str = "arguments", **arguments: Any) -> str:
    return json.dumps({"name": name, key: arguments})


def llama(name: str, **arguments: Any) -> str:
    return json_call(name, "parameters", **arguments)


def test_the_template_says_how_calls_are_written() -> None:
    named, coder, tagged, mistral, llama3 = CALL_MARKS
    assert call_marks_of("[TOOL_CALLS]name[CALL_ID]id[ARGS]{}") is call_marks_of("[ARGS] [TOOL_CALLS]") is named
    assert call_marks_of("<tool_call>\\n<function=a>\\n<parameter=b>") is coder
    assert call_marks_of("<function=a><parameter=b>") is call_marks_of("<seed:tool_call><parameter=b>") is TAGGED
    assert call_marks_of(MISTRAL) is mistral
    assert call_marks_of(LLAMA) is llama3
    assert call_marks_of("{{ '<tool_call>' }} or [TOOL_CALLS]") is tagged is TAGGED
    assert call_marks_of("{{ messages }}") is call_marks_of(None) is TAGGED


AUTO: list[tuple[str, str, str | None, list[tuple[str, Any]]]] = [
    (MISTRAL, f"[TOOL_CALLS] [{json_call('clock')}]", None, [("clock", {})]),
    (
        MISTRAL, f"Let me look. [TOOL_CALLS][{json_call('weather', **OSLO)}, {json_call('clock', at='],[')}]",
        "Let me look.", [("weather", OSLO), ("clock", {"at": "],["})],
    ),
    (MISTRAL, "[TOOL, no call [", "[TOOL, no call [", []),
    (LLAMA, llama("clock"), None, [("clock", {})]),
    (LLAMA, f"\n<|python_tag|>{llama('weather', **OSLO)}", None, [("weather", OSLO)]),
    (LLAMA, f"I look.<|python_tag|>{llama('clock', at='}{')}", "I look.", [("clock", {"at": "}{"})]),
    (LLAMA, "So: {a} and < <|py", "So: {a} and < <|py", []),
    (LLAMA, f"{llama('clock')} and", " and", [("clock", {})]),
    (TAGGED.signs[0], f"Hm. <tool_call>\n{json_call('clock')}\n</tool_call>", "Hm.", [("clock", {})]),
]  # fmt: skip


@pytest.mark.parametrize("is_drafted", [False, True], ids=["plain", "drafts"])
@pytest.mark.parametrize("is_control", [False, True], ids=["text", "control"])
@pytest.mark.parametrize(("template", "text", "content", "calls"), AUTO)
def test_calls_are_found_streamed_or_not(
    template: str, text: str, content: str | None, calls: list[Any], is_control: bool, is_drafted: bool
) -> None:
    with Serving(scripted(text, template, is_control, SuffixDrafter() if is_drafted else None)) as one:
        asked = {"tools": [WEATHER, CLOCK], "temperature": 0, "max_tokens": 300, "stop": ["I looked"]}
        found = one.chat("hi", **asked)["choices"][0]
        assert found["message"]["content"] == content
        assert _calls(found) == calls
        assert found["finish_reason"] == ("tool_calls" if calls else "stop")
        chunks = one.stream(CHAT, **asked)
        assert text_of(chunks) == (content or "")
        assert streamed_calls(chunks) == calls
        assert reasons_of(chunks) == {0: found["finish_reason"]}
        usage = one.chat("hi", **asked)["usage"]
        assert usage["completion_tokens"] == len(one.llm.tokenizer.script(text))  # type: ignore[union-attr]


@pytest.mark.parametrize("is_control", [False, True], ids=["text", "control"])
@pytest.mark.parametrize(
    ("template", "text"),
    [
        (MISTRAL, f"[TOOL_CALLS] [{json_call('clock')}, {json_call('clock')}]"),
        (LLAMA, llama("clock")),
        (LLAMA, f"<|python_tag|>{llama('clock')}"),
        (TAGGED.signs[0], f"<tool_call>{json_call('clock')}</tool_call><tool_call>{json_call('clock')}</tool_call>"),
    ],
)
def test_calls_that_must_be_made(template: str, text: str, is_control: bool) -> None:
    num_calls = text.count("clock")
    with Serving(scripted(text, template, is_control)) as one, Serving(scripted("no", template, is_control)) as other:
        asked: dict[str, Any] = {"tools": [WEATHER, CLOCK], "temperature": 0, "max_tokens": 200}
        named = {"type": "function", "function": {"name": "clock"}}
        for choice, most in (("required", num_calls), (named, 1)):
            found = one.chat("hi", tool_choice=choice, **asked)["choices"][0]
            assert (_calls(found), found["message"]["content"]) == ([("clock", {})] * most, None)
            chunks = one.stream(CHAT, tool_choice=choice, **asked)
            assert streamed_calls(chunks) == [("clock", {})] * most
            assert reasons_of(chunks) == {0: "tool_calls"}
        # Whatever the model would rather say, it is a call that comes.
        few = {**WEATHER, "function": {**WEATHER["function"], "name": "other"}}
        forced = other.chat("hi", tools=[few], tool_choice="required", parallel_tool_calls=False, temperature=0)
        assert [name for name, _ in _calls(forced["choices"][0])] == ["other"]


@pytest.mark.parametrize("is_control", [False, True], ids=["text", "control"])
@pytest.mark.parametrize(
    ("template", "begin"),
    [(MISTRAL, "[TOOL_CALLS] no"), (MISTRAL, "Well[TOOL_CALLS][{}"), (LLAMA, "{no"), (LLAMA, "a <|python_tag|>no")],
)
def test_what_begins_as_a_call_becomes_one(template: str, begin: str, is_control: bool) -> None:
    """A model that leaves the form is held to it: its next token is the likeliest that goes on with a call."""
    few = {**CLOCK, "function": {**CLOCK["function"], "parameters": {"type": "object", "additionalProperties": False}}}
    with Serving(scripted(begin, template, is_control)) as one:
        asked = {"tools": [few], "temperature": 0, "max_tokens": 300, "parallel_tool_calls": False}
        found = one.chat("hi", **asked)["choices"][0]
        assert _calls(found) == [("clock", {})]
        assert streamed_calls(one.stream(CHAT, **asked)) == [("clock", {})]


def test_only_one_of_a_list() -> None:
    text = f"[TOOL_CALLS] [{json_call('clock')}, {json_call('clock')}]"
    with Serving(scripted(text, MISTRAL, True)) as one:
        asked = {"tools": [CLOCK], "temperature": 0, "parallel_tool_calls": False, "max_tokens": 200}
        assert _calls(one.chat("hi", **asked)["choices"][0]) == [("clock", {})]


def test_ids_are_what_templates_take_back() -> None:
    """Mistral's templates refuse ids that are not nine letters and digits."""
    text = f"[TOOL_CALLS] [{json_call('clock')}, {json_call('clock')}]"
    with Serving(scripted(text, MISTRAL, True)) as one:
        calls = one.chat("hi", tools=[CLOCK], temperature=0, max_tokens=200)["choices"][0]["message"]["tool_calls"]
        ids = [call["id"] for call in calls]
        assert all(re.fullmatch("[a-z0-9]{9}", each) for each in ids)
        assert len(set(ids)) == 2


@pytest.mark.parametrize(
    ("template", "text", "num_tokens", "content", "num_calls"),
    [
        (MISTRAL, f"[TOOL_CALLS] [{json_call('clock')}, {json_call('clock')}]", 55, None, 1),  # in the second
        (MISTRAL, f"So [TOOL_CALLS] [{json_call('clock')}]", 24, 'So[TOOL_CALLS] [{"name"', 0),
        (LLAMA, llama("clock"), 9, '{"name": ', 0),
        (LLAMA, f"<|python_tag|>{llama('clock')}", 24, '<|python_tag|>{"name": "', 0),
    ],
)
def test_a_call_that_is_cut_is_text_or_left_out(
    template: str, text: str, num_tokens: int, content: str | None, num_calls: int
) -> None:
    with Serving(scripted(text, template, False)) as one:
        found = one.chat("hi", tools=[CLOCK], temperature=0, max_tokens=num_tokens)["choices"][0]
        assert found["finish_reason"] == "length"
        assert found["message"]["content"] == content
        assert len(found["message"].get("tool_calls", ())) == num_calls
        chunks = one.stream(CHAT, tools=[CLOCK], temperature=0, max_tokens=num_tokens)
        assert text_of(chunks) == (content or "")


def test_json_that_was_asked_for_is_no_call() -> None:
    """Where calls begin as JSON does: what is none of them is the answer."""
    schema = {
        "type": "object", "properties": {"name": {"const": "clock"}, "a": {"const": 1}}, "required": ["name", "a"],
        "additionalProperties": False,
    }  # fmt: skip
    wanted = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    for text, content, calls in (
        ('{"name": "clock", "a": 1}', '{"name": "clock", "a": 1}', []),
        (llama("clock"), None, [("clock", {})]),
    ):
        with Serving(scripted(text, LLAMA, True)) as one:
            found = one.chat("hi", tools=[CLOCK], response_format=wanted, temperature=0, max_tokens=100)["choices"][0]
            assert found["message"]["content"] == content
            assert _calls(found) == calls


def test_marks_are_no_text_where_nothing_can_be_called() -> None:
    with Serving(scripted("a[TOOL_CALLS]b<think>c", MISTRAL, True)) as one:
        assert one.chat("hi", temperature=0)["choices"][0]["message"]["content"] == "ab<think>c"
        assert one.completion("<a>", temperature=0, max_tokens=9)["choices"][0]["text"] == "abc"


def test_thoughts_in_control_tokens_stand_apart() -> None:
    with Serving(scripted(f"<think>hm</think>\n{llama('clock')}", LLAMA + "<think>", True)) as one:
        for asked in ({}, {"tools": [CLOCK]}):
            found = one.chat("hi", temperature=0, max_tokens=100, **asked)["choices"][0]
            assert found["message"]["reasoning_content"] == "hm"
            assert _calls(found) == ([("clock", {})] if asked else [])


def _calls(choice: Any) -> list[tuple[str, Any]]:
    found = [call["function"] for call in choice["message"].get("tool_calls", ())]
    return [(one["name"], json.loads(one["arguments"])) for one in found]
