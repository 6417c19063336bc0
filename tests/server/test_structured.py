"""Structured output over HTTP: every way to ask for it, and a 400 for what cannot be enforced."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from tests.server.serving import Serving, reasons_of, text_of

from forerun.llm import LLM

PROMPT = "the water is"
POINT = {
    "type": "object",
    "properties": {"x": {"type": "integer", "minimum": 0, "maximum": 99}, "ok": {"type": "boolean"}},
    "required": ["x", "ok"],
    "additionalProperties": False,
}
GRAMMAR = 'root ::= "(" root ")" | [ab]{1,3}'
SCHEMA_FORMAT = {"type": "json_schema", "json_schema": {"name": "point", "strict": True, "schema": POINT}}
WISHES: list[tuple[dict[str, Any], dict[str, Any]]] = [  # (over HTTP, for LLM.generate)
    ({"response_format": SCHEMA_FORMAT}, {"json_schema": POINT}),
    ({"response_format": {"type": "json_object"}}, {"json_schema": {"type": "object"}}),
    ({"response_format": {"type": "grammar", "grammar": GRAMMAR}}, {"grammar": GRAMMAR}),
    ({"response_format": {"type": "text"}}, {}),
    ({"guided_json": POINT}, {"json_schema": POINT}),
    ({"guided_json": json.dumps(POINT)}, {"json_schema": POINT}),
    ({"guided_regex": "[a-c]{4,9}"}, {"regex": "[a-c]{4,9}"}),
    ({"guided_grammar": GRAMMAR}, {"grammar": GRAMMAR}),
    ({"guided_choice": ["yes", "no", "perhaps"]}, {"one_of": ["yes", "no", "perhaps"]}),
    ({"structured_outputs": {"json": POINT}}, {"json_schema": POINT}),
    ({"structured_outputs": {"choice": ["yes", "no"]}}, {"one_of": ["yes", "no"]}),
    ({"structured_outputs": {"grammar": GRAMMAR}}, {"grammar": GRAMMAR}),
    ({"structured_outputs": {"regex": "a+b"}}, {"regex": "a+b"}),
    ({"grammar": 'start: x+\nx: "a" | "b" "c"'}, {"grammar": 'start: x+\nx: "a" | "b" "c"'}),
]


@pytest.mark.parametrize(("asked", "meant"), WISHES, ids=lambda value: json.dumps(value)[:60])
def test_every_way_to_ask_means_the_same(served: Serving, plain: LLM, asked: Any, meant: Any) -> None:
    """With speculation over HTTP, streamed or not, and without it in Python: one text."""
    for more in ({"temperature": 0}, {"temperature": 1, "seed": 11}):
        expected = plain.generate(PROMPT, max_tokens=40, **meant, **more)
        whole = served.completion(PROMPT, max_tokens=40, **asked, **more)["choices"][0]
        assert (whole["text"], whole["finish_reason"]) == (expected.text, expected.finish_reason)
        chunks = served.stream("/v1/completions", prompt=PROMPT, max_tokens=40, **asked, **more)
        assert (text_of(chunks), reasons_of(chunks)) == (expected.text, {0: expected.finish_reason})


def test_a_chats_answer_is_json_of_its_schema(served: Serving) -> None:
    for seed in range(12):
        asked = {"response_format": SCHEMA_FORMAT, "temperature": 1, "seed": seed, "max_tokens": 120}
        choice = served.chat("a point", **asked)["choices"][0]
        assert choice["finish_reason"] == "stop"
        value = json.loads(choice["message"]["content"])
        assert list(value) == ["x", "ok"]
        assert type(value["x"]) is int
        assert 0 <= value["x"] <= 99
        assert type(value["ok"]) is bool
        chunks = served.stream("/v1/chat/completions", messages=[{"role": "user", "content": "a point"}], **asked)
        assert text_of(chunks) == choice["message"]["content"]


NESTED: Any = {}
for _ in range(300):
    NESTED = {"items": NESTED}
EXPLODING = {"allOf": [{"anyOf": [{"properties": {f"{s}{i}": {"const": 1}}} for s in "ab"]} for i in range(30)]}


def schema(given: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": given}}}


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (schema({"type": "object", "properties": {"a": {"not": {}}}}), r"'not' at \$\.properties\.a is not supported"),
        (schema({"type": "string", "format": "colour"}), "the format 'colour' at"),
        (schema({"type": "string", "pattern": "(?=a)"}), "look-arounds are not supported: '\\(\\?=' at 0"),
        (schema({"$ref": "#/$defs/nothing"}), "no schema is there"),
        (schema({"$ref": "https://example.org/s"}), "references go to schemas inside the schema"),
        (schema({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}), "always contains itself"),
        (schema(EXPLODING), "json_schema"),
        (schema(NESTED), "json_schema"),
        (schema({"enum": [f"{i * 7919}" for i in range(150_000)]}), "json_schema"),
        (schema(False), "nothing satisfies the schema false"),
        ({"response_format": {"type": "json_schema"}}, "json_schema needs"),
        ({"response_format": {"type": "xml"}}, "xml"),
        ({"regex": "a(?!b)"}, "look-arounds are not supported: '\\(\\?!' at 1"),
        ({"guided_regex": "(a"}, "unclosed group, at '\\('"),
        ({"grammar": 'root ::= "a" b'}, "there is no rule b, which is used at line 1, column 14"),
        ({"grammar": 'root ::= "a" root'}, "the rule root, at line 1, column 1, derives no finite text"),
        ({"guided_grammar": "root ::= [a-"}, "a set of characters without an end, at line 1, column 10"),
        ({"grammar": "start: A\nA: A \"b\" | \"c\""}, 'circular reference in token "A"'),
        ({"grammar": 'root ::= "a"{1,100000}'}, "the count 100,000 is too large, at line 1, column 13"),
        ({"grammar": "x" * 200_000}, "200,000 characters"),
        ({"guided_choice": []}, "a list of texts is needed"),
        ({"guided_choice": ["a", ""]}, '"" is no text that can be written|\'\' is no text that can be written'),
        ({"regex": "a", "guided_choice": ["a"]}, "cannot be combined with"),
        ({"regex": "a", "response_format": {"type": "json_object"}}, "cannot be combined with"),
        ({"regex": "a", "ignore_eos": True}, "cannot be combined with a grammar"),
    ],
    ids=lambda value: json.dumps(value)[:60] if isinstance(value, dict) else None,
)  # fmt: skip
def test_what_cannot_be_enforced_is_refused(served: Serving, asked: dict[str, Any], said: str) -> None:
    """Before the headers of a stream too. Nothing is left of it, and the next request is served."""
    for stream in (False, True):
        error = served.post("/v1/completions", 400, prompt=PROMPT, stream=stream, **asked)["error"]
        assert error["type"] == "invalid_request_error"
        assert re.search(said, error["message"]), error["message"]
        assert "\n" not in error["message"]
        assert len(error["message"]) < 1000
    assert served.completion(PROMPT, max_tokens=2, temperature=0)["choices"][0]["finish_reason"] == "length"
    served.wait_until_idle()


def test_a_grammar_that_becomes_too_complex_ends_its_own_text_only(served: Serving, plain: LLM) -> None:
    """Never a text that goes on without its grammar."""
    pattern = "((((a{0,99}){0,99}){0,99}){0,99}){0,99}b"
    expected = plain.generate(PROMPT, temperature=0, max_tokens=30).text
    with served.client.stream(
        "POST", "/v1/completions", json={"prompt": PROMPT, "temperature": 0, "max_tokens": 30, "stream": True}
    ) as other:
        bias = {str(token): 100 for token in plain.encode("a")}
        answer = served.client.post(
            "/v1/completions", json={"prompt": PROMPT, "regex": pattern, "max_tokens": 200, "logit_bias": bias}
        )
        assert answer.status_code == 422, answer.text
        assert "too complex to be followed beyond" in answer.json()["error"]["message"]
        lines = [line.removeprefix("data: ") for line in other.iter_lines() if line.startswith("data: {")]
    assert text_of([json.loads(line) for line in lines]) == expected


WEATHER = {
    "type": "object", "properties": {"city": {"$ref": "#/$defs/name"}}, "required": ["city"],
    "additionalProperties": False, "$defs": {"name": {"enum": ["Oslo", "Rome"]}},
}  # fmt: skip
SQUARE = {
    "type": "object", "properties": {"n": {"$ref": "#/$defs/name"}}, "required": ["n"], "additionalProperties": False,
    "$defs": {"name": {"type": "integer", "minimum": 0, "maximum": 9}},
}  # fmt: skip
TOOLS = [
    {"type": "function", "function": {"name": "weather", "parameters": WEATHER}},
    {"type": "function", "function": {"name": "square", "parameters": SQUARE}},
]


def is_call(name: str, arguments: Any) -> bool:
    if name == "weather":
        return list(arguments) == ["city"] and arguments["city"] in ("Oslo", "Rome")
    return name == "square" and list(arguments) == ["n"] and arguments["n"] in range(10)


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "square"}}], ids=str)
def test_a_forced_call_is_one_of_a_given_tool(served: Serving, choice: Any) -> None:
    names = set()
    for seed in range(12):
        asked = {"tools": TOOLS, "tool_choice": choice, "temperature": 9, "seed": seed, "max_tokens": 120}
        asked["parallel_tool_calls"] = False
        answer = served.chat("call", **asked)["choices"][0]
        [call] = answer["message"]["tool_calls"]
        name, arguments = call["function"]["name"], json.loads(call["function"]["arguments"])
        assert is_call(name, arguments)
        names.add(name)
    assert names == ({"weather", "square"} if choice == "required" else {"square"})


def test_a_tools_schema_that_cannot_be_enforced_is_refused_by_the_tools_name(served: Serving) -> None:
    bad = {"type": "function", "function": {"name": "bad", "parameters": {"type": "object", "not": {}}}}
    error = served.post(
        "/v1/chat/completions", 400, messages=[{"role": "user", "content": "x"}], tools=[*TOOLS, bad],
        tool_choice="required",
    )["error"]  # fmt: skip
    assert "tools.bad.parameters" in error["message"]
    assert "'not' at $ is not supported" in error["message"]
