"""/v1/chat/completions: texts, shapes, reasoning, calls, structured answers."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.server.serving import Serving, reasons_of, text_of

from forerun.llm import LLM

HELLO = [{"role": "user", "content": "Hello, what is the water?"}]
CHAT = "/v1/chat/completions"
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Oslo", "Rome"]}, "days": {"enum": [1, 2]}},
            "required": ["city", "days"],
            "additionalProperties": False,
        },
    },
}
CLOCK = {"type": "function", "function": {"name": "clock", "parameters": {"type": "object", "properties": {}}}}


@pytest.mark.parametrize("settings", [{"temperature": 0}, {"temperature": 1, "seed": 5, "top_p": 0.95}], ids=str)
def test_texts_are_those_of_generate_streamed_or_not(served: Serving, plain: LLM, settings: dict[str, Any]) -> None:
    expected = plain.generate(HELLO, max_tokens=24, **settings)
    whole = served.chat(HELLO, max_tokens=24, **settings)
    message = whole["choices"][0]["message"]
    assert (message["role"], message["content"]) == ("assistant", expected.text)
    assert whole["object"] == "chat.completion"
    assert whole["usage"]["completion_tokens"] == len(expected.tokens)
    chunks = served.stream(CHAT, messages=HELLO, max_completion_tokens=24, **settings)
    assert text_of(chunks) == expected.text
    assert reasons_of(chunks) == {0: expected.finish_reason}
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
    assert all("role" not in chunk["choices"][0]["delta"] for chunk in chunks[1:])
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}


def test_logprobs_have_their_tokens_bytes(served: Serving, plain: LLM) -> None:
    asked = {"temperature": 1, "seed": 4, "max_tokens": 12}
    expected = plain.generate(HELLO, logprobs=3, **asked)
    found = served.chat(HELLO, logprobs=True, top_logprobs=3, **asked)["choices"][0]
    entries = found["logprobs"]["content"]
    assert [one["logprob"] for one in entries] == pytest.approx([one.logprob for one in expected.logprobs or ()])
    assert all(len(one["top_logprobs"]) == 3 for one in entries)
    assert plain.tokenizer is not None
    assert [bytes(one["bytes"]) for one in entries] == [plain.tokenizer.token_bytes(one) for one in expected.tokens]
    chunks = served.stream(CHAT, messages=HELLO, logprobs=True, top_logprobs=3, **asked)
    parts = [chunk["choices"][0]["logprobs"] for chunk in chunks]
    assert [one for part in parts if part for one in part["content"]] == entries
    assert served.post(CHAT, 400, messages=HELLO, top_logprobs=3)["error"]["param"] == "top_logprobs"
    assert served.post(CHAT, 400, messages=HELLO, logprobs=True, top_logprobs=21)["error"]["param"] == "top_logprobs"


def test_choices_of_a_stream_end_one_by_one(served: Serving, plain: LLM) -> None:
    expected = [one.text for one in plain.generate(HELLO, n=3, seed=2, max_tokens=9).choices]
    chunks = served.stream(CHAT, messages=HELLO, n=3, seed=2, max_tokens=9, stream_options={"include_usage": True})
    assert [text_of(chunks, i) for i in range(3)] == expected
    assert sorted(reasons_of(chunks)) == [0, 1, 2]
    assert chunks[-1]["usage"]["completion_tokens"] <= 27


@pytest.mark.parametrize(
    ("messages", "same"),
    [
        ([{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}], "ab"),
        ([{"role": "user", "content": None}], ""),
        ([{"role": "user"}], ""),
    ],
    ids=["parts", "null", "none"],
)
def test_contents_in_parts_are_joined_and_null_is_empty(served: Serving, messages: Any, same: str) -> None:
    plainly = served.chat([{"role": "user", "content": same}], temperature=0, max_tokens=5)
    found = served.chat(messages, temperature=0, max_tokens=5)
    assert found["choices"] == plainly["choices"]
    assert found["usage"]["prompt_tokens"] == plainly["usage"]["prompt_tokens"]


def test_developers_are_systems_and_calls_without_content_are_read(served: Serving) -> None:
    one = served.chat([{"role": "developer", "content": "be"}, *HELLO], temperature=0, max_tokens=5)
    other = served.chat([{"role": "system", "content": "be"}, *HELLO], temperature=0, max_tokens=5)
    assert one["choices"] == other["choices"]
    call = {"id": "1", "type": "function", "function": {"name": "clock", "arguments": "{}"}}
    turns = [*HELLO, {"role": "assistant", "content": None, "tool_calls": [call]}, {"role": "tool", "content": "12"}]
    assert served.chat(turns, max_tokens=3)["choices"][0]["finish_reason"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({}, "messages"),
        ({"messages": [{"content": "a"}]}, "messages.0.role"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages.0.content"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages.0.content"),
        ({"messages": HELLO, "n": 0}, "n"),
        ({"messages": HELLO, "temperature": "hot"}, "temperature"),
        ({"messages": HELLO, "top_p": 0}, "top_p"),
        ({"messages": HELLO, "stream_options": {"include_usage": True}}, "stream_options"),
        ({"messages": HELLO, "tool_choice": "required"}, "tool_choice"),
        ({"messages": HELLO, "tools": [CLOCK], "tool_choice": {"type": "function", "function": {}}}, "tool_choice"),
        ({"messages": HELLO, "audio": {"voice": "x"}}, "audio"),
        ({"messages": HELLO, "chat_template_kwargs": {"self": 1}}, "chat_template_kwargs.self"),
        ({"messages": HELLO, "chat_template_kwargs": {"messages": []}}, "chat_template_kwargs.messages"),
        ({"messages": HELLO, "n": 65}, "n"),
    ],
    ids=str,
)  # fmt: skip
def test_what_is_wrong_is_named(served: Serving, body: Any, param: str) -> None:
    error = served.post(CHAT, 400, **body)["error"]
    assert error["param"] == param
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"


def test_unknown_fields_are_warned_of(served: Serving) -> None:
    found = served.chat(HELLO, max_tokens=1, store=True, wobble=3)
    assert found["warnings"] == ["store: no effect here (nothing is stored)", "wobble: unknown, and ignored"]
    chunks = served.stream(CHAT, messages=HELLO, max_tokens=3, wobble=3)
    assert chunks[0]["warnings"] == ["wobble: unknown, and ignored"]
    assert all("warnings" not in chunk for chunk in chunks[1:])
    wanted = {"type": "json_schema", "odd": 1, "json_schema": {"schema": {"const": 1}, "even": 2}}
    found = served.chat(HELLO, response_format=wanted, max_tokens=2, stream_options=None, user="me")
    assert found["warnings"] == [
        "response_format.odd: unknown, and ignored", "response_format.json_schema.even: unknown, and ignored",
    ]  # fmt: skip


# -- structured answers ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_answers_are_json_of_the_schema_and_generates(served: Serving, plain: LLM, seed: int) -> None:
    schema = WEATHER["function"]["parameters"]
    wanted = {"type": "json_schema", "json_schema": {"name": "weather", "schema": schema, "strict": True}}
    found = served.chat(HELLO, response_format=wanted, seed=seed, max_tokens=400)["choices"][0]
    assert found["finish_reason"] == "stop"
    value = json.loads(found["message"]["content"])
    assert value["city"] in ("Oslo", "Rome")
    assert value["days"] in (1, 2)
    expected = plain.generate(HELLO, json_schema=schema, seed=seed, max_tokens=400)
    assert found["message"]["content"] == expected.text
    chunks = served.stream(CHAT, messages=HELLO, response_format=wanted, seed=seed, max_tokens=400)
    assert text_of(chunks) == expected.text


def test_any_json_object_begins_as_one(served: Serving) -> None:
    found = served.chat(HELLO, response_format={"type": "json_object"}, seed=1, max_tokens=40)["choices"][0]
    assert found["message"]["content"].startswith("{")


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        ({"response_format": {"type": "yaml"}}, '"yaml" is not served'),
        ({"response_format": {"type": "json_schema"}}, "json_schema needs"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"not": {}}}}}, "not"),
        ({"regex": "(?=a)b"}, "look-arounds"),
        ({"regex": "a", "response_format": {"type": "json_object"}}, "cannot be combined with regex"),
        ({"grammar": "root ::= missing"}, "missing"),
        ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "cannot be combined"),
    ],
    ids=str,
)
def test_grammars_that_cannot_be_are_refused_by_name(served: Serving, wanted: Any, words: str) -> None:
    for stream in (False, True):
        error = served.post(CHAT, 400, messages=HELLO, max_tokens=5, stream=stream, **wanted)["error"]
        assert words in error["message"]
