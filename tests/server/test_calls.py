"""Calls and thoughts in chats: found as they arrive, held to the schemas of the tools, thoughts before a form."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import pytest
from tests.cli.toys import EOS, SIZE
from tests.server.serving import ChattyTokenizer, Serving, reasons_of, scripted_llm, text_of
from tests.server.test_chats import CHAT, CLOCK, HELLO, WEATHER

from forerun.constraints.calls import call_schema
from forerun.constraints.forms import Form
from forerun.drafting import SuffixDrafter
from forerun.llm import LLM
from forerun.runtime.toy import ToyModel

# -- calls -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}], ids=str)
def test_forced_calls_are_calls_streamed_or_not(served: Serving, choice: Any) -> None:
    asked = {"tools": [WEATHER], "tool_choice": choice, "seed": 3, "max_tokens": 400, "parallel_tool_calls": False}
    found = served.chat(HELLO, **asked)["choices"][0]
    assert found["finish_reason"] == "tool_calls"
    assert found["message"]["content"] is None
    (call,) = found["message"]["tool_calls"]
    assert call["function"]["name"] == "weather"
    assert json.loads(call["function"]["arguments"])["city"] in ("Oslo", "Rome")
    chunks = served.stream(CHAT, messages=HELLO, **asked)
    deltas = [one for chunk in chunks for one in chunk["choices"][0]["delta"].get("tool_calls", ())]
    assert [one["function"].get("name") for one in deltas if "id" in one] == ["weather"]
    assert {one["index"] for one in deltas} == {0}
    assert "".join(one["function"]["arguments"] for one in deltas) == call["function"]["arguments"]
    assert reasons_of(chunks) == {0: "tool_calls"}


def test_a_call_that_must_be_made_may_be_followed_by_others() -> None:
    """As the model likes; not where one tool is named, or one call wanted."""
    twice = call_of("clock") + "\n" + call_of("clock", at=1)
    named = {"type": "function", "function": {"name": "clock"}}
    with Serving(scripted_llm(twice)) as one:
        for wish, num_calls in (
            ({"tool_choice": "required"}, 2),
            ({"tool_choice": "required", "parallel_tool_calls": False}, 1),
            ({"tool_choice": named}, 1),
        ):
            found = one.chat("hi", tools=[WEATHER, CLOCK], temperature=0, max_tokens=300, **wish)["choices"][0]
            assert found["message"]["content"] is None
            assert [_call(call) for call in found["message"]["tool_calls"]] == [("clock", {}), ("clock", {"at": 1})][
                :num_calls
            ]
            assert found["finish_reason"] == "tool_calls"
        asked = {"messages": HELLO, "tools": [CLOCK], "tool_choice": "required"}
        for more in ({"response_format": {"type": "json_object"}}, {"regex": "a"}):
            assert one.post(CHAT, 400, **asked, **more)["error"]["param"] == "tool_choice"
        assert one.post(CHAT, 400, **asked, ignore_eos=True)["error"]["param"] == "ignore_eos"


OSLO = {"city": "Oslo", "days": 1}


def call_of(name: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        ("Hello there.", "Hello there.", []),
        (call_of("clock"), None, [("clock", {})]),
        ("Let me look.\n" + call_of("weather", **OSLO), "Let me look.", [("weather", OSLO)]),
        (call_of("clock") + "\n" + call_of("clock", at='"}{"'), None, [("clock", {}), ("clock", {"at": '"}{"'})]),
        ("a < b and <tool", "a < b and <tool", []),
    ],
)
def test_calls_are_found_in_texts(text: str, content: str | None, calls: list[tuple[str, Any]]) -> None:
    with Serving(scripted_llm(text)) as one:
        asked = {"tools": [WEATHER, CLOCK], "temperature": 0, "max_tokens": 300}
        found = one.chat("hi", **asked)["choices"][0]
        assert found["message"]["content"] == content
        assert [_call(call) for call in found["message"].get("tool_calls", ())] == calls
        assert found["finish_reason"] == ("tool_calls" if calls else "stop")
        chunks = one.stream(CHAT, **asked)
        assert text_of(chunks) == (content or "")
        assert streamed_calls(chunks) == calls


def streamed_calls(chunks: Any) -> list[tuple[str, Any]]:
    """What a client puts together from the deltas of calls."""
    merged: dict[int, list[str]] = {}
    for chunk in chunks:
        for part in chunk["choices"][0]["delta"].get("tool_calls", ()):
            name, arguments = merged.setdefault(part["index"], ["", ""])
            function = part["function"]
            merged[part["index"]] = [name + (function.get("name") or ""), arguments + function["arguments"]]
    return [(name, json.loads(arguments)) for name, arguments in merged.values()]


# -- calls that the model may make -------------------------------------------------------------------------------------

WORDS = 'abc {}":,<>/_\n'


def babbling_llm(begin: str, seed: int, drafter: Any = None) -> LLM:
    """A toy that writes `begin`, then anything: letters, signs of JSON, and the marks of calls."""
    signs = np.frombuffer(WORDS.encode(), dtype=np.uint8)
    script = begin.encode()

    def logits_of(tokens: tuple[int, ...]) -> np.ndarray:
        at = next((i for i in range(len(tokens) - 3, -1, -1) if bytes(tokens[i : i + 3]) == b"<a>"), -3) + 3
        row = np.full(SIZE, -4.0)
        row[signs] = np.random.default_rng((seed, *tokens[-2:])).normal(0.0, 2.0, len(signs))
        if (place := len(tokens) - at) < len(script):
            row[script[place]] = 60.0
        row[EOS] = -1.0
        return row

    return LLM(ToyModel(logits_of, SIZE, 4096), ChattyTokenizer(), drafter)  # type: ignore[arg-type]


@pytest.mark.parametrize("begin", ["", "Well.\n<tool_call>", "<tool_call>\n{", '<tool_call>{"name": "clo'])
def test_a_call_that_begins_is_one_of_a_tool_that_was_given(begin: str) -> None:
    """Whatever the model is like: with drafts, streamed or not, one text."""
    few = {**CLOCK, "function": {**CLOCK["function"], "parameters": {"type": "object", "additionalProperties": False}}}
    num_calls = 0
    for seed in range(3):
        with (
            Serving(babbling_llm(begin, seed, SuffixDrafter())) as one,
            babbling_llm(begin, seed) as alone,
        ):
            asked = {"tools": [WEATHER, few], "temperature": 1, "seed": seed, "max_tokens": 400}
            found = one.chat("hi", **asked)["choices"][0]
            calls = [_call(call) for call in found["message"].get("tool_calls", ())]
            for name, arguments in calls:
                assert name in ("weather", "clock")
                assert set(arguments) == ({"city", "days"} if name == "weather" else set())
            assert bool(calls) >= (bool(begin) and found["finish_reason"] == "tool_calls")
            chunks = one.stream(CHAT, **asked)
            assert (text_of(chunks) or None) == found["message"]["content"]
            assert streamed_calls(chunks) == calls
            num_calls += len(calls)
            schema = call_schema((tool["function"]["name"], tool["function"]["parameters"]) for tool in (WEATHER, few))
            form = alone.grammar("form", Form(call=json.dumps(schema)))
            text = alone.generate(
                [{"role": "user", "content": "hi"}], constraint=form, temperature=1, seed=seed, max_tokens=400
            ).text
            assert text.startswith(begin)
            if not calls:
                assert text == (found["message"]["content"] or "")
            for call in found["message"].get("tool_calls", ()):
                assert call["function"]["arguments"] in text
    assert num_calls >= (3 if begin else 0)


def test_schemas_that_cannot_be_enforced_are_told_and_refused_where_they_are_strict() -> None:
    odd = {"type": "object", "properties": {"a": {"not": {}}}}
    tool = {"type": "function", "function": {"name": "odd", "parameters": odd}}
    with Serving(scripted_llm(call_of("odd", b=1))) as one:
        found = one.chat("hi", tools=[tool, CLOCK], temperature=0, max_tokens=200)
        assert [_call(call) for call in found["choices"][0]["message"]["tool_calls"]] == [("odd", {"b": 1})]
        (warning,) = found["warnings"]
        assert re.search(
            r"tools\.odd\.parameters: any object is taken .* the keyword 'not' at \$\.properties\.a", warning
        )
        strict = {**tool, "function": {**tool["function"], "strict": True}}
        error = one.post(CHAT, 400, messages=HELLO, tools=[strict, CLOCK])["error"]
        assert error["param"] == "tools.odd.parameters"
        forced = one.post(CHAT, 400, messages=HELLO, tools=[tool], tool_choice="required")["error"]
        assert forced["param"] == "tools.odd.parameters"


def test_tools_beside_other_wishes() -> None:
    """JSON that was asked for, or calls; a pattern leaves no room for calls, which is told."""
    schema = {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"], "additionalProperties": False}
    wanted = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    asked: dict[str, Any] = {"tools": [CLOCK], "temperature": 0, "max_tokens": 200}
    for text, content, calls in (('{"a": 1}', '{"a": 1}', []), (call_of("clock") * 2, None, [("clock", {})] * 2)):
        with Serving(scripted_llm(text)) as one:
            found = one.chat("hi", response_format=wanted, **asked)
            assert "warnings" not in found
            message = found["choices"][0]["message"]
            assert message["content"] == content
            assert [_call(call) for call in message.get("tool_calls", ())] == calls
    with Serving(scripted_llm("aaa")) as one:
        found = one.chat("hi", regex="a+", **asked)
        assert found["choices"][0]["message"]["content"] == "aaa"
        assert found["warnings"] == ["tools: none can be called, since the whole text is what regex says"]
        assert one.post(CHAT, 400, messages=HELLO, tools=[CLOCK], ignore_eos=True)["error"]["param"] == "ignore_eos"


def test_one_call_alone_ends_the_text() -> None:
    with Serving(scripted_llm(call_of("clock") + call_of("clock"))) as one:
        found = one.chat("hi", tools=[CLOCK], temperature=0, parallel_tool_calls=False)["choices"][0]
        assert len(found["message"]["tool_calls"]) == 1
        assert found["finish_reason"] == "tool_calls"


def _call(call: Any) -> tuple[str, Any]:
    assert call["id"].startswith("call_")
    assert call["type"] == "function"
    return call["function"]["name"], json.loads(call["function"]["arguments"])


# -- reasoning ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "reasoning", "content"),
    [
        ("<think>\nWell.</think>\n\nYes.", "\nWell.", "Yes."),
        ("  <think>a < b</think>c", "a < b", "c"),
        ("Yes <think> no", None, "Yes <think> no"),
        ("<think>cut", "cut", ""),
    ],
)
def test_reasoning_stands_apart(text: str, reasoning: str | None, content: str) -> None:
    with Serving(scripted_llm(text)) as one:
        found = one.chat("hi", temperature=0, max_tokens=100)
        message = found["choices"][0]["message"]
        assert message.get("reasoning_content") == reasoning
        assert message["content"] == content
        details = found["usage"].get("completion_tokens_details", {"reasoning_tokens": 0})
        assert (details["reasoning_tokens"] > 0) == (reasoning is not None)
        chunks = one.stream(CHAT, temperature=0, max_tokens=100)
        assert text_of(chunks) == content
        deltas = [chunk["choices"][0]["delta"].get("reasoning_content", "") for chunk in chunks]
        assert "".join(deltas) == (reasoning or "")


POINT = {"type": "object", "properties": {"x": {"enum": [1, 2]}}, "required": ["x"], "additionalProperties": False}
POINT_FORMAT = {"type": "json_schema", "json_schema": {"name": "p", "schema": POINT}}


@pytest.mark.parametrize("is_drafted", [False, True], ids=["plain", "drafts"])
@pytest.mark.parametrize(
    ("text", "reasoning", "content"),
    [
        ('{"x": 1} is {"x": 1} to </think>\n\n{"x": 1}', '{"x": 1} is {"x": 1} to ', '{"x": 1}'),
        ('{"x": 1}</think>{"x": 3', '{"x": 1}', '{"x": 1}'),
        ("</think>nothing", "", '{"x": 1}'),
    ],
)
def test_a_form_comes_after_thoughts(text: str, reasoning: str, content: str, is_drafted: bool) -> None:
    """Where the template opens them, and where the model does; the thoughts are free."""
    for opening, script in (("<think>", text), ("", "<think>" + text)):
        llm = scripted_llm(script, opening, SuffixDrafter() if is_drafted else None)
        assert llm.tokenizer is not None
        llm.tokenizer.chat_template = "{{ '<think>' }}"
        with Serving(llm) as one:
            asked = {"response_format": POINT_FORMAT, "temperature": 0, "max_tokens": 300}
            found = one.chat("hi", **asked)["choices"][0]
            assert found["finish_reason"] == "stop"
            assert found["message"].get("reasoning_content", "") == reasoning
            # Off its script the toy takes the first legal byte, so only the form of it is certain.
            assert json.loads(found["message"]["content"]) == json.loads(content)
            chunks = one.stream(CHAT, **asked)
            assert text_of(chunks) == found["message"]["content"]
            deltas = [chunk["choices"][0]["delta"].get("reasoning_content", "") for chunk in chunks]
            assert "".join(deltas) == reasoning


def test_a_forced_call_comes_after_thoughts() -> None:
    with Serving(scripted_llm("The time?\n</think>\n\n" + call_of("clock"), "<think>")) as one:
        asked = {"tools": [CLOCK], "tool_choice": "required", "temperature": 0, "max_tokens": 300}
        message = one.chat("hi", **asked)["choices"][0]["message"]
        assert message["reasoning_content"] == "The time?\n"
        assert [_call(call) for call in message["tool_calls"]] == [("clock", {})]
        chunks = one.stream(CHAT, **asked)
        assert streamed_calls(chunks) == [("clock", {})]
        assert reasons_of(chunks) == {0: "tool_calls"}


def test_a_call_in_thoughts_is_none() -> None:
    text = "I may <tool_call>so</think>\nNow.\n" + call_of("clock")
    with Serving(scripted_llm(text, "<think>")) as one:
        message = one.chat("hi", tools=[CLOCK], temperature=0, max_tokens=300)["choices"][0]["message"]
        assert message["reasoning_content"] == "I may <tool_call>so"
        assert message["content"] == "Now."
        assert [_call(call) for call in message["tool_calls"]] == [("clock", {})]


def test_thoughts_can_be_switched_off() -> None:
    asked = {"response_format": POINT_FORMAT, "temperature": 0, "max_tokens": 300}
    off = {"chat_template_kwargs": {"enable_thinking": False}}
    with Serving(scripted_llm('{"x": 2}', "<think>")) as one:
        message = one.chat("hi", **asked, **off)["choices"][0]["message"]
        assert message["content"] == '{"x": 2}'
        assert "reasoning_content" not in message
        # What is JSON to the eye is a thought to a model that was not told otherwise, and has to be closed.
        cut = one.chat("hi", **asked)["choices"][0]
        assert cut["finish_reason"] == "length"
        assert cut["message"]["content"] == ""
        assert cut["message"]["reasoning_content"].startswith('{"x": 2}')


def test_models_that_do_not_think_begin_with_the_form() -> None:
    with Serving(scripted_llm('<think>well</think>{"x": 2}')) as one:
        found = one.chat("hi", response_format=POINT_FORMAT, temperature=0, max_tokens=300)["choices"][0]["message"]
        assert "reasoning_content" not in found
        assert json.loads(found["content"])["x"] in (1, 2)
