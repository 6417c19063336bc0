"""Calls whose names stand outside JSON, as newer models of Mistral and Qwen3-Coder write them, over HTTP."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from tests.server.serving import Serving, reasons_of, text_of
from tests.server.test_call_families import scripted
from tests.server.test_calls import babbling_llm, streamed_calls
from tests.server.test_chats import CHAT, CLOCK, HELLO, WEATHER

from forerun.drafting import SuffixDrafter

ARGS = "{{ '[TOOL_CALLS]' + name + '[CALL_ID]' + id + '[ARGS]' + arguments }}"
CODER = "{{ '<tool_call>\\n<function=' + name + '>\\n<parameter=' + key + '>\\n' }}"
OSLO: Any = {"city": "Oslo", "days": 1}
WRITE: Any = {
    "type": "function",
    "function": {
        "name": "write",
        "parameters": {
            "type": "object",
            "properties": {
                "path": {"type": "string"}, "lines": {"type": "array", "items": {"type": "string"}},
                "mode": {"type": ["string", "null"]}, "force": {"type": "boolean"},
            },
            "required": ["path"],
        },
    },
}  # fmt: skip
FEW: Any = {
    "type": "function",
    "function": {"name": "clock", "parameters": {"type": "object", "additionalProperties": False}},
}
TOOLS = [WEATHER, CLOCK, WRITE]


def args(name: str, call_id: str = "", **arguments: Any) -> str:
    return (
        f"[TOOL_CALLS]{name}{f'[CALL_ID]{call_id}' if call_id else ''}[ARGS]{json.dumps(arguments, ensure_ascii=False)}"
    )


def coder(name: str, **arguments: Any) -> str:
    """As templates write it."""
    values = {key: value if isinstance(value, str) else json.dumps(value) for key, value in arguments.items()}
    inside = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())
    return f"<tool_call>\n<function={name}>\n{inside}</function>\n</tool_call>"


TRICKY: Any = {
    "path": 'a </parameter>\n"\\é🚀</function>\n</tool_call\n</parameter', "lines": ["\n</parameter>", "}"],
    "mode": None, "force": True,
}  # fmt: skip
AUTO: list[tuple[str, str, str | None, list[tuple[str, Any]]]] = [
    (ARGS, args("clock"), None, [("clock", {})]),
    (ARGS, "I look. " + args("weather", "abcDEF123", **OSLO), "I look.", [("weather", OSLO)]),
    (ARGS, args("write", **TRICKY) + args("weather", **OSLO), None, [("write", TRICKY), ("weather", OSLO)]),
    (ARGS, args("clock") + " Wait. " + args("clock") + " So.", " Wait. So.", [("clock", {})] * 2),
    (ARGS, "[TOOL_CALL, [ARGS] no call", "[TOOL_CALL, [ARGS] no call", []),
    (CODER, coder("clock"), None, [("clock", {})]),
    (CODER, "I look.\n\n" + coder("weather", **OSLO), "I look.", [("weather", OSLO)]),
    (CODER, coder("write", **TRICKY) + "\n" + coder("weather", **OSLO), None, [("write", TRICKY), ("weather", OSLO)]),
    (CODER, coder("write", path="", mode="null") + "\nDone.", "\nDone.", [("write", {"path": "", "mode": None})]),
    (CODER, "<function=clock> is no call, <tool_cal", "<function=clock> is no call, <tool_cal", []),
]  # fmt: skip


@pytest.mark.parametrize("is_drafted", [False, True], ids=["plain", "drafts"])
@pytest.mark.parametrize("is_control", [False, True], ids=["text", "control"])
@pytest.mark.parametrize(("template", "text", "content", "calls"), AUTO)
def test_calls_are_found_streamed_or_not(
    template: str, text: str, content: str | None, calls: list[Any], is_control: bool, is_drafted: bool
) -> None:
    if is_control and "[TOOL_CALL," in text:
        text = content = "[TOOL_CALL, no call"  # [ARGS] is a token then, and free text has none
    with Serving(scripted(text, template, is_control, SuffixDrafter() if is_drafted else None)) as one:
        asked = {"tools": TOOLS, "temperature": 0, "max_tokens": 600}
        found = one.chat("hi", **asked)["choices"][0]
        assert found["message"]["content"] == content
        assert calls_of(found) == calls
        assert found["finish_reason"] == ("tool_calls" if calls else "stop")
        chunks = one.stream(CHAT, **asked)
        assert text_of(chunks) == (content or "")
        assert streamed_calls(chunks) == calls
        assert reasons_of(chunks) == {0: found["finish_reason"]}
        if calls and calls[0][0] == "write" and not is_drafted:  # a text comes as it is written
            assert len([1 for chunk in chunks if chunk["choices"][0]["delta"].get("tool_calls")]) > 3
        alone = one.chat("hi", parallel_tool_calls=False, **asked)["choices"][0]
        assert calls_of(alone) == calls[:1]
        if calls:
            assert (alone["message"]["content"] or "") in (content or "")


@pytest.mark.parametrize("is_control", [False, True], ids=["text", "control"])
@pytest.mark.parametrize(
    ("template", "text"),
    [(ARGS, args("clock", "000000000") + args("clock")), (CODER, coder("clock") + "\n" + coder("clock"))],
)
def test_calls_that_must_be_made(template: str, text: str, is_control: bool) -> None:
    named = {"type": "function", "function": {"name": "clock"}}
    asked: dict[str, Any] = {"tools": TOOLS, "temperature": 0, "max_tokens": 300}
    with Serving(scripted(text, template, is_control)) as one:
        for more, most in (
            ({"tool_choice": "required"}, 2),
            ({"tool_choice": "required", "parallel_tool_calls": False}, 1),
            ({"tool_choice": named}, 1),
        ):
            found = one.chat("hi", **more, **asked)["choices"][0]
            assert (calls_of(found), found["message"]["content"]) == ([("clock", {})] * most, None)
            chunks = one.stream(CHAT, **more, **asked)
            assert streamed_calls(chunks) == [("clock", {})] * most
            assert reasons_of(chunks) == {0: "tool_calls"}
    with Serving(scripted("I would rather talk.", template, is_control)) as one:
        for more in ({"tool_choice": "required", "parallel_tool_calls": False}, {"tool_choice": named}):
            found = one.chat("hi", **{**asked, "tools": [FEW]}, **more)["choices"][0]
            assert calls_of(found) == [("clock", {})]


@pytest.mark.parametrize("is_control", [False, True], ids=["text", "control"])
@pytest.mark.parametrize(
    ("template", "begin"),
    [
        (ARGS, "[TOOL_CALLS] no"), (ARGS, 'So[TOOL_CALLS]walk[ARGS]{"a": 1}'), (ARGS, "[TOOL_CALLS][ARGS]"),
        (ARGS, "[TOOL_CALLS]clock[CALL_ID]a[ARGS]"), (CODER, "<tool_call> no"), (CODER, "So <tool_call>{}"),
        (CODER, "<tool_call>\n<function=walk>\n"), (CODER, "<tool_call>\n<function=clock>\n<parameter=at>\nnow"),
        (CODER, "<tool_call><function=clock></tool_call>"),
    ],
)  # fmt: skip
def test_what_begins_as_a_call_becomes_one(template: str, begin: str, is_control: bool) -> None:
    """A model that leaves the form, names a tool that there is none of, or does not close a call, is held to it."""
    with Serving(scripted(begin, template, is_control)) as one:
        asked = {"tools": [FEW], "temperature": 0, "max_tokens": 300, "parallel_tool_calls": False}
        found = one.chat("hi", **asked)["choices"][0]
        assert calls_of(found) == [("clock", {})]
        assert streamed_calls(one.stream(CHAT, **asked)) == [("clock", {})]


@pytest.mark.parametrize("template", [ARGS, CODER], ids=["args", "coder"])
@pytest.mark.parametrize("num_opening", [0, 1, 2])
def test_whatever_a_model_is_like_its_calls_are_of_their_tools(template: str, num_opening: int) -> None:
    opening = {
        ARGS: ("[TOOL_CALLS]", "[TOOL_CALLS]weather[ARGS]{", "Hm [TOOL_CALLS]weat"),
        CODER: ("<tool_call>", "<tool_call>\n<function=weather>\n<par", "Hm <tool_call>\n<function=we"),
    }[template][num_opening]
    num_calls = 0
    for seed in range(6):
        llm = babbling_llm(opening, seed, SuffixDrafter())
        assert llm.tokenizer is not None
        llm.tokenizer.chat_template = template
        with Serving(llm) as one:
            asked = {"tools": [WEATHER], "temperature": 1, "seed": seed, "max_tokens": 500}
            found = one.chat("hi", **asked)["choices"][0]
            calls = calls_of(found) if found["finish_reason"] == "tool_calls" else []
            for name, arguments in calls:
                assert name == "weather"
                assert arguments["city"] in ("Oslo", "Rome")
                assert arguments["days"] in (1, 2)
                assert len(arguments) == 2
            if calls:
                chunks = one.stream(CHAT, **asked)
                assert streamed_calls(chunks) == calls
                assert text_of(chunks) == (found["message"]["content"] or "")
            num_calls += len(calls)
    assert num_calls >= 3


def test_ids_are_those_that_the_model_wrote_each_once() -> None:
    text = args("clock", "abcDEF123") + args("clock") + args("clock", "abcDEF123")
    for is_control in (False, True):
        with Serving(scripted(text, ARGS, is_control)) as one:
            found = one.chat("hi", tools=[CLOCK], temperature=0, max_tokens=300)["choices"][0]
            ids = [call["id"] for call in found["message"]["tool_calls"]]
            assert ids[0] == "abcDEF123"
            assert all(re.fullmatch("[A-Za-z0-9]{9}", each) for each in ids)
            assert len(set(ids)) == 3
    with Serving(scripted(coder("clock"), CODER, True)) as one:
        (call,) = one.chat("hi", tools=[CLOCK], temperature=0, max_tokens=300)["choices"][0]["message"]["tool_calls"]
        assert re.fullmatch("call_[0-9a-f]{24}", call["id"])


@pytest.mark.parametrize(
    ("template", "text", "num_tokens", "content", "arguments"),
    [
        (ARGS, "So " + args("clock"), 20, "So[TOOL_CALLS]clock", None),
        (ARGS, args("write", path="ab"), 33, None, '{"path": "'),
        (CODER, "So " + coder("clock"), 26, "So<tool_call>\n<function=c", None),
        (CODER, coder("write", path="ab\n</parameter>"), 55, None, '{"path": "ab'),
        (CODER, coder("write", path="ab", mode="null"), 90, None, '{"path": "ab", "mode": '),
    ],
)
def test_a_call_that_is_cut_is_text_or_unfinished(
    template: str, text: str, num_tokens: int, content: str | None, arguments: str | None
) -> None:
    with Serving(scripted(text, template, False)) as one:
        asked = {"tools": TOOLS, "temperature": 0, "max_tokens": num_tokens}
        found = one.chat("hi", **asked)["choices"][0]
        assert found["finish_reason"] == "length"
        assert found["message"]["content"] == content
        calls = found["message"].get("tool_calls", ())
        assert [call["function"]["arguments"] for call in calls] == ([] if arguments is None else [arguments])
        assert text_of(one.stream(CHAT, **asked)) == (content or "")


def test_what_cannot_be_held_to_its_schema_is_refused_also_where_it_need_not_be_called() -> None:
    """JSON would be any object then, which `warnings` says; of texts nothing is known that a schema does not say."""
    for schema, said in (
        (
            {"type": "object", "properties": {"a": {"type": "string", "pattern": "a(^b)"}}},
            "'pattern' at $.properties.a",
        ),
        ({"type": "object", "patternProperties": {"a": {}}}, "'patternProperties' at $"),
        ({"type": "object", "properties": {"a": {"not": {}}}}, "'not' at $.properties.a"),
        ({"type": "object", "properties": {"a": {"oneOf": [{"type": "integer"}, {"minimum": 2}]}}}, "oneOf"),
    ):
        odd = {"type": "function", "function": {"name": "odd", "parameters": schema}}
        with Serving(scripted(coder("clock"), CODER, True)) as one:
            for choice in ("auto", "required"):
                error = one.post(CHAT, 400, messages=HELLO, tools=[odd, CLOCK], tool_choice=choice)["error"]
                assert error["param"] in ("tools.odd.parameters", "tools")
                assert said in error["message"]
            assert one.chat("hi", tools=[odd], tool_choice="none", max_tokens=3)["choices"]
    odd = {"type": "function", "function": {"name": "odd", "parameters": {"properties": {"a": {"not": {}}}}}}
    with Serving(scripted(args("odd", b=1), ARGS, True)) as one:
        found = one.chat("hi", tools=[odd, CLOCK], temperature=0, max_tokens=200)
        assert calls_of(found["choices"][0]) == [("odd", {"b": 1})]
        assert "any object is taken" in found["warnings"][0]
        error = one.post(CHAT, 400, messages=HELLO, tools=[odd], tool_choice="required")["error"]
        assert error["param"] == "tools.odd.parameters"
        spaced = {"type": "function", "function": {"name": "a[b"}}
        assert "told apart" in one.post(CHAT, 400, messages=HELLO, tools=[spaced])["error"]["message"]


@pytest.mark.parametrize(("template", "text"), [(ARGS, args("clock")), (CODER, coder("clock"))])
def test_thoughts_and_forms_beside_calls(template: str, text: str) -> None:
    schema = {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"], "additionalProperties": False}
    wanted = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    asked: dict[str, Any] = {"tools": [CLOCK], "temperature": 0, "max_tokens": 200}
    with Serving(scripted(f"<think>hm</think>\n{text}", template + "<think>", True)) as one:
        found = one.chat("hi", **asked)["choices"][0]
        assert found["message"]["reasoning_content"] == "hm"
        assert calls_of(found) == [("clock", {})]
    for answer, content, calls in (('{"a": 1}', '{"a": 1}', []), (text, None, [("clock", {})])):
        with Serving(scripted(answer, template, True)) as one:
            found = one.chat("hi", response_format=wanted, **asked)["choices"][0]
            assert (found["message"]["content"], calls_of(found)) == (content, calls)


def calls_of(choice: Any) -> list[tuple[str, Any]]:
    found = [call["function"] for call in choice["message"].get("tool_calls", ())]
    return [(one["name"], json.loads(one["arguments"])) for one in found]
