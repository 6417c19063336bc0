"""Calls of tools: a union of their arguments' schemas, each with its own definitions."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.constraints.vocabularies import json_bytes

from forerun.constraints.calls import call_schema
from forerun.constraints.grammar import compile_json_schema
from forerun.errors import ParameterError

VOCABULARY = json_bytes()
PLACE = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "properties": {"city": {"$ref": "#/$defs/name"}, "$ref": {"const": "#/$defs/name"}},
    "required": ["city"],
    "additionalProperties": False,
    "$defs": {"name": {"type": "string", "maxLength": 8}},
}
TREE = {
    "properties": {"value": {"$ref": "#/$defs/name"}, "left": {"$ref": "#"}},
    "required": ["value"],
    "additionalProperties": False,
    "$defs": {"name": {"type": "integer"}},
}
TOOLS: list[tuple[str, Any]] = [("weather", PLACE), ("plant", TREE), ("wait", None)]


def takes(schema: Any, value: Any) -> bool:
    constraint = compile_json_schema(schema, VOCABULARY).start()
    text = value if isinstance(value, str) else json.dumps(value)
    return all(constraint.advance(byte) for byte in text.encode()) and constraint.advance(256)


@pytest.mark.parametrize(
    ("name", "arguments", "is_legal"),
    [
        ("weather", {"city": "Oslo"}, True),
        ("weather", {"city": "Oslo", "$ref": "#/$defs/name"}, True),
        ("weather", {"city": 7}, False),  # the other tool's `name`
        ("weather", {}, False),
        ("weather", {"value": 1}, False),
        ("plant", {"value": 7, "left": {"value": 8, "left": {"value": 9}}}, True),
        ("plant", {"value": "Oslo"}, False),
        ("plant", {"value": 7, "left": {}}, False),
        ("wait", {}, True),
        ("wait", {"anything": [1, {"at": "all"}]}, True),
        ("wait", [], False),
        ("walk", {}, False),
    ],
)
def test_each_tool_has_its_own_arguments(name: str, arguments: Any, is_legal: bool) -> None:
    assert takes(call_schema(TOOLS), {"name": name, "arguments": arguments}) == is_legal


def test_a_named_tool_leaves_no_other() -> None:
    only = call_schema([TOOLS[1]])
    assert takes(only, {"name": "plant", "arguments": {"value": 1}})
    assert not takes(only, {"name": "wait", "arguments": {}})
    assert not takes(only, {"arguments": {"value": 1}, "name": "plant"})  # the name comes first


def test_the_given_schemas_are_left_as_they_are() -> None:
    before = json.dumps(TOOLS)
    call_schema(TOOLS)
    assert json.dumps(TOOLS) == before


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ({"type": "string"}, "arguments are an object"),
        (
            {"type": "object", "properties": {"a": {"not": {}}}},
            r"the keyword 'not' at \$.properties.a is not supported",
        ),
        ({"type": "object", "properties": {"a": {"$ref": "#/$defs/b"}}}, "no schema is there"),
        ({"type": "object", "properties": {"a": object()}}, "it is not JSON"),
    ],
)
def test_what_would_not_be_enforced_names_the_tool(parameters: Any, said: str) -> None:
    with pytest.raises(ParameterError, match=said) as caught:
        call_schema([TOOLS[0], ("b", parameters)])
    assert caught.value.name == "tools.b.parameters"


def test_no_tool_is_no_call() -> None:
    with pytest.raises(ParameterError, match="none that could be called"):
        call_schema([])
