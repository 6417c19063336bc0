"""JSON schemas: random texts always parse and validate, and a schema that would not be enforced is refused."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from typing import Any

import pytest
from tests.constraints.vocabularies import fed, json_bytes, text_of

from forerun.constraints import Grammar
from forerun.constraints.grammar import compile_json_schema
from forerun.errors import ParameterError

VOCABULARY = json_bytes()
C22 = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}, "n": {"type": "integer"}},
    "required": ["ok", "n"],
    "additionalProperties": False,
}
ORDER = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "properties": {
        "id": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{1,3}$"},
        "day": {"type": "string", "format": "date"},
        "state": {"enum": ["new", "sent", None, 3]},
        "lines": {"type": "array", "minItems": 1, "maxItems": 3, "items": {"$ref": "#/$defs/line"}},
        "note": {"anyOf": [{"type": "string", "maxLength": 5}, {"type": "null"}]},
    },
    "required": ["id", "day", "lines"],
    "additionalProperties": False,
    "$defs": {
        "line": {
            "type": "object",
            "properties": {
                "count": {"type": "integer", "minimum": 1, "maximum": 40},
                "parts": {"$ref": "#/$defs/parts"},
            },
            "required": ["count"],
            "additionalProperties": False,
        },
        "parts": {"type": "array", "items": {"$ref": "#/$defs/line"}, "maxItems": 2},
    },
}


def written(grammar: Grammar, seed: int) -> str:
    """A text of random legal tokens. Tokens that close something are preferred as it grows, so that it ends."""
    choose, constraint, tokens = random.Random(seed), grammar.start(), list[int]()
    while not constraint.is_finished:
        legal = constraint.mask().nonzero()[0].tolist()
        assert legal, (text_of(VOCABULARY, tokens), "nothing may follow, and the text is not finished")
        closing = [token for token in legal if token in VOCABULARY.eos_ids or chr(token) in '"]},']
        token = choose.choice(closing if closing and choose.random() < len(tokens) / 100 else legal)
        assert constraint.advance(token)
        tokens.append(token)
        assert len(tokens) < 2000
    return text_of(VOCABULARY, tokens).decode()


def is_c22(value: Any) -> bool:
    return list(value) == ["ok", "n"] and type(value["ok"]) is bool and type(value["n"]) is int


def is_line(value: Any) -> bool:
    known = set(value) <= {"count", "parts"} and type(value["count"]) is int and 1 <= value["count"] <= 40
    return known and len(value.get("parts", [])) <= 2 and all(map(is_line, value.get("parts", [])))


def is_order(value: Any) -> bool:
    note = value.get("note")
    return (
        {"id", "day", "lines"} <= set(value) <= set(ORDER["properties"])  # type: ignore[call-overload]
        and re.fullmatch("[A-Z]{2}-[0-9]{1,3}", value["id"]) is not None
        and re.fullmatch(r"[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])", value["day"]) is not None
        and value.get("state", "new") in ["new", "sent", None, 3]
        and 1 <= len(value["lines"]) <= 3
        and all(map(is_line, value["lines"]))
        and (note is None or (isinstance(note, str) and len(note) <= 5))
    )


@pytest.mark.parametrize(
    ("schema", "is_valid", "num_texts"), [(C22, is_c22, 200), (ORDER, is_order, 60)], ids=["c22", "order"]
)
def test_random_texts_parse_and_validate(schema: Any, is_valid: Callable[[Any], bool], num_texts: int) -> None:
    grammar = compile_json_schema(schema, VOCABULARY)
    texts = [written(grammar, seed) for seed in range(num_texts)]
    assert all(is_valid(json.loads(text)) for text in texts)
    assert len(set(texts)) > num_texts / 2


def accepts(schema: Any, text: str) -> bool:
    """Whether a text, cut into bytes, is legal to its end and may end there."""
    constraint = compile_json_schema(schema, VOCABULARY).start()
    return all(constraint.advance(token) for token in text.encode()) and constraint.advance(256)


def test_a_text_and_a_dict_are_the_same_schema() -> None:
    assert accepts(json.dumps(C22), '{"ok": true, "n": -7}')
    assert not accepts(json.dumps(C22), '{"ok": true, "n": -7, "m": 1}')
    assert accepts("true", "[1, null]")
    assert accepts({}, '"x"')


def test_whitespace_is_one_space_or_one_line_break_with_its_indentation() -> None:
    value = {"ok": True, "n": 12}
    for text in (json.dumps(value), json.dumps(value, indent=4), json.dumps(value, separators=(",", ":"))):
        assert accepts(C22, text)
    assert accepts(C22, json.dumps(value, indent="\t"))
    for text in ('{  "ok":true,"n":1}', '{\n\n"ok":true,"n":1}', ' {"ok":true,"n":1}', '{"ok":true,"n":1}\n'):
        assert not accepts(C22, text)
    assert not accepts(C22, "{\n" + 33 * " " + '"ok":true,"n":1}')


def test_the_text_is_finished_at_its_last_brace() -> None:
    constraint = fed(compile_json_schema(C22, VOCABULARY), list(b'{"ok":true,"n":1}'))
    assert constraint.is_finished
    assert constraint.mask().nonzero()[0].tolist() == [256, 257]
    assert not constraint.advance(ord("\n"))
    assert constraint.advance(257)
    assert constraint.is_finished
    assert not constraint.mask().any()
    assert not constraint.advance(256)
    constraint.rollback(2)
    assert not constraint.is_finished
    assert constraint.advance(ord("}"))


def test_a_model_without_end_of_text_ids_still_finishes() -> None:
    vocabulary = json_bytes(eos_ids=())
    constraint = fed(compile_json_schema(C22, vocabulary), list(b'{"ok":true,"n":1}'))
    assert constraint.is_finished
    assert not constraint.mask().any()
    number = fed(compile_json_schema({"type": "integer"}, vocabulary), list(b"12"))
    assert not number.is_finished
    assert number.mask().nonzero()[0].tolist()[:10] == list(b"0123456789")


def test_patterns_formats_references_and_unions_are_enforced() -> None:
    digits = {"type": "string", "pattern": r"^\d{2}$"}
    assert accepts(digits, '"12"')
    assert not accepts(digits, '"123"')
    assert accepts({"type": "string", "pattern": "b"}, '"abc"')  # a pattern is searched for, as JSON Schema says
    assert not accepts({"type": "string", "pattern": "b"}, '"ac"')
    assert not accepts({"type": "string", "format": "date"}, '"2024-02-30"')
    assert accepts({"oneOf": [{"type": "string"}, {"type": "integer"}]}, "7")
    tree = {"$ref": "#/$defs/tree", "$defs": {"tree": {"type": "array", "items": {"$ref": "#/$defs/tree"}}}}
    assert accepts(tree, "[[], [[]]]")
    assert not accepts(tree, "[1]")
    linked = {
        "anyOf": [{"type": "null"}, {"properties": {"next": {"$ref": "#"}}, "required": ["next"], "type": "object"}]
    }
    assert accepts(linked, '{"next": {"next": null}}')
    assert accepts({"const": 2**53}, str(2**53))
    assert accepts({"type": "number", "multipleOf": 0.25}, "1.75")
    assert not accepts({"type": "number", "multipleOf": 0.25}, "1.8")
    assert accepts({"properties": {"$id": {"type": "null"}}, "type": "object"}, '{"$id": null}')


LOOP = {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}
PING = {
    "ping": {"type": "array", "minItems": 1, "items": {"$ref": "#/$defs/pong"}},
    "pong": {"anyOf": [{"$ref": "#/$defs/ping"}]},
}


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"not": {}}, "'not' at \\$ is not supported"),
        ({"properties": {"a": {"items": {"uniqueItems": True}}}}, r"'uniqueItems' at \$.properties.a.items"),
        ({"type": "integer", "minimun": 1}, "'minimun' at"),
        ({"type": "integer", "nullable": True}, "'nullable' at"),
        ({"x-guidance": {"lenient": True}, "not": {}}, "'x-guidance' at"),
        ({"properties": {"a": {"$id": "b"}}}, r"'\$id' at \$.properties.a"),
        ({"if": {}, "then": {}}, "'if' at"),
        ({"type": "string", "format": "unknown"}, "the format 'unknown'"),
        ({"type": "integer", "format": "int32"}, "the format 'int32'"),
        ({"type": "string", "pattern": "(?=a)a"}, "look-arounds are not supported: '\\(\\?='"),
        ({"type": "string", "pattern": "a$b"}, "look-arounds are not supported, and \\$ inside"),
        ({"patternProperties": {r"(a)\1": {}}}, "back-references are not supported"),
        ({"oneOf": [{"type": "number"}, {"type": "integer"}]}, "oneOf is supported only where"),
        ({"$ref": "https://example.org/schema"}, "\\$ref at \\$ is 'https://example.org/schema'"),
        ({"$ref": "#/$defs/nothing"}, "no schema is there"),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}, "always contains itself"),
        (LOOP, "the schema at \\$ always contains itself"),
        ({"type": "object", "properties": {"p": {"$ref": "#/$defs/ping"}}, "$defs": PING}, "always contains itself"),
        ({"items": [{}]}, "\\$.items is \\[{}\\]"),
        ({"properties": []}, "an object of schemas is needed"),
        ({"anyOf": {}}, "a list of schemas is needed"),
        ({"const": 2**53 + 1}, "9007199254740993 at \\$.const is too large"),
        ({"enum": [[{"a": -(2**60)}]]}, "at \\$.enum is too large"),
        ({"type": "integer", "multipleOf": 99_999_989}, "the common multiple is too large"),
        ({"allOf": [{"multipleOf": 9973}, {"multipleOf": 0.97}]}, "the common multiple is too large"),
        ({"type": "string", "minLength": 3, "maxLength": 2}, "minLength \\(3\\) is greater than maxLength \\(2\\)"),
        ({"type": "string", "maxLength": 2, "pattern": "^abc$"}, "Regex is empty"),
        ({"type": "text"}, "Invalid type: text"),
        ({"properties": {f"p{i}": {} for i in range(451)}}, r"at \$ has 451 properties that may be left out"),
        ({"enum": []}, "anyOf is empty"),
        (False, "nothing satisfies the schema false"),
        ("{", "it is not JSON"),
        ('{"minimum": NaN}', "NaN is no JSON number"),
        ("[1]", "the schema at \\$ is \\[1\\]"),
        ({"default": object()}, "it is not JSON"),
        ({"maximum": float("inf")}, "it is not JSON"),
        (3, "the schema at \\$ is 3"),
    ],
)  # fmt: skip
def test_what_would_not_be_enforced_is_refused(schema: Any, said: str) -> None:
    with pytest.raises(ParameterError, match=said) as caught:
        compile_json_schema(schema, VOCABULARY)
    assert caught.value.name == "json_schema"
    assert "\n" not in str(caught.value)


def chain(length: int) -> dict[str, Any]:
    """A schema whose references go `length` deep: the library's recursion follows them."""
    links = {f"d{i}": {"type": "array", "items": {"$ref": f"#/$defs/d{i + 1}"}} for i in range(length)}
    return {"$ref": "#/$defs/d0", "$defs": {**links, f"d{length}": {"type": "null"}}}


def test_deep_references_neither_overflow_nor_hang() -> None:
    assert accepts(chain(2000), "[[[]]]")
    with pytest.raises(ParameterError, match="more than 10,000 schemas"):
        compile_json_schema(chain(6000), VOCABULARY)


def test_exploding_schemas_end_in_an_error() -> None:
    choices = [{"anyOf": [{"properties": {f"{side}{i}": {"const": 1}}} for side in "ab"]} for i in range(30)]
    nested: Any = {}
    for _ in range(200):
        nested = {"items": nested}
    for schema in ({"allOf": choices}, nested, {"enum": [f"{i * 7919}" for i in range(200_000)]}):
        with pytest.raises(ParameterError):
            compile_json_schema(schema, VOCABULARY)
    loop: dict[str, Any] = {}
    loop["items"] = loop
    with pytest.raises(ParameterError, match="it is not JSON"):
        compile_json_schema(loop, VOCABULARY)
