"""Arguments written one at a time: what is legal, what is read out of it, and what is refused, against a validator."""

from __future__ import annotations

import importlib
import itertools
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.constraints.vocabularies import json_bytes

from forerun.constraints.calls import named_calls
from forerun.constraints.formats import TEXT_FORMATS
from forerun.constraints.forms import Form, compile_form
from forerun.constraints.grammar import CompiledGrammar, compile_json_schema
from forerun.constraints.marks import CALL_MARKS, CallMarks
from forerun.constraints.parameters import parameters_of
from forerun.constraints.schema import FORMATS
from forerun.errors import ParameterError
from forerun.server.tools import CallReader, Part

jsonschema: Any = importlib.import_module("jsonschema")  # it has no types

ARGS, CODER = CALL_MARKS[:2]
END = "\n</parameter>"
BYTES = json_bytes()


def form_of(marks: CallMarks, tools: dict[str, Any], **settings: Any) -> Form:
    return Form(call=json.dumps(named_calls(tools.items(), marks)), must_call=True, marks=marks, **settings)


def grammar_of(marks: CallMarks, tools: dict[str, Any], **settings: Any) -> CompiledGrammar:
    return compile_form(form_of(marks, tools, **settings), BYTES)


def takes(grammar: CompiledGrammar, text: str) -> bool:
    constraint = grammar.start()
    return all(constraint.advance(byte) for byte in text.encode()) and bool(constraint.mask()[256])


def read(marks: CallMarks, tools: dict[str, Any], text: str) -> list[tuple[str | None, str]]:
    """(name, arguments) of each call in a text."""
    calls = named_calls(tools.items(), marks)
    parameters = {name: parameters_of("", schema, END) for name, schema in calls.items()} if marks.parameter else {}
    reader = CallReader(marks, calls, parameters)
    return joined([*reader.add(text), *reader.finish()])


def joined(parts: list[Part]) -> list[tuple[str | None, str]]:
    found: list[tuple[str | None, str]] = []
    for part in parts:
        if part.call is None or part.name is not None:
            found.append((part.name, part.text))
        else:
            found[part.call] = (found[part.call][0], found[part.call][1] + part.text)
    return found


def coder(name: str, **values: str) -> str:
    """A call as templates write one; values as they stand there."""
    inside = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())
    return f"<tool_call>\n<function={name}>\n{inside}</function>\n</tool_call>"


def one(schema: Any, **more: Any) -> dict[str, Any]:
    return {"f": {"type": "object", "properties": {"v": schema}, "required": ["v"], **more}}


TEXT = {"type": "string"}
MAYBE_TEXT = {"anyOf": [TEXT, {"type": "null"}], "default": None, "title": "V"}
STEPS = {"type": "array", "items": {"type": "object", "properties": {"s": TEXT}, "required": ["s"]}}
VALUES: list[tuple[Any, str, Any]] = [
    (TEXT, "Oslo", "Oslo"),
    (TEXT, "", ""),
    (TEXT, "null", "null"),
    (TEXT, "12", "12"),
    (TEXT, 'a "b" \\ \t é 🚀\n\n  <b>&amp;', 'a "b" \\ \t é 🚀\n\n  <b>&amp;'),
    (TEXT, "x</parameter> </function> </tool_call>\n</paramete", "x</parameter> </function> </tool_call>\n</paramete"),
    (TEXT, "\n\nlines\n", "\n\nlines\n"),
    (TEXT, "<parameter=v>\n1", "<parameter=v>\n1"),
    ({"type": "string", "enum": ["C", "F °"]}, "F °", "F °"),
    ({"enum": ["a/b", "a"]}, "a/b", "a/b"),
    ({"const": "only"}, "only", "only"),
    ({"oneOf": [{"const": "a", "title": "A"}, {"const": "b"}]}, "b", "b"),
    ({"type": "string", "minLength": 2, "maxLength": 3}, "é\né", "é\né"),
    ({"type": "string", "pattern": "^[a-z]+-\\d{2}$"}, "ab-12", "ab-12"),
    ({"type": "string", "pattern": "o|^x"}, "xq", "xq"),
    ({"type": "string", "pattern": "l/o", "maxLength": 5}, "al/o!", "al/o!"),
    ({"type": "string", "format": "date"}, "2024-02-29", "2024-02-29"),
    ({"type": "integer", "minimum": 3}, "12", 12),
    ({"type": "number"}, "-1.5e3", -1500.0),
    ({"type": "boolean"}, "true", True),
    ({"type": "null"}, "null", None),
    ({"enum": [1, None, True]}, "null", None),
    ({"type": ["integer", "null"]}, "null", None),
    (STEPS, '[{"s": "a\\nb"}, {"s": "\\n</parameter>"}]', [{"s": "a\nb"}, {"s": "\n</parameter>"}]),
    ({"type": "object", "properties": {}, "additionalProperties": TEXT}, '{"k": "v"}', {"k": "v"}),
    (MAYBE_TEXT, "null", None),
    (MAYBE_TEXT, "nul", "nul"),
    ({"type": ["string", "null"], "maxLength": 3}, "null", None),
    ({"type": ["string", "integer", "boolean"]}, "12", 12),
    ({"type": ["string", "integer", "boolean"]}, "1.5", "1.5"),
    ({"type": ["string", "number"], "enum": ["auto", 5]}, "5", 5),
    ({"type": ["string", "number"], "enum": ["auto", 5]}, "auto", "auto"),
    ({"anyOf": [{"type": "string", "maxLength": 2}, {"type": "number"}]}, "3.25", 3.25),
    ({"anyOf": [TEXT, {"type": "array"}]}, '["a", 1]', ["a", 1]),
    ({"anyOf": [TEXT, {"type": "array", "items": TEXT}]}, '["a"]', ["a"]),  # all of it JSON
    ({"anyOf": [TEXT, {"type": "array", "items": TEXT}]}, '"a"', "a"),
    ({}, "anything", "anything"),
    ({"description": "?"}, '{"a": [1]}', {"a": [1]}),
    (True, "[NaN]", "[NaN]"),
    (True, "1e999", "1e999"),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "text", "value"), VALUES, ids=str)
def test_a_value_is_legal_and_read_as_its_schema_says(schema: Any, text: str, value: Any) -> None:
    tools = one(schema)
    whole = coder("f", v=text)
    assert takes(grammar_of(CODER, tools), whole)
    ((name, arguments),) = read(CODER, tools, whole)
    found = json.loads(arguments)
    assert (name, found) == ("f", {"v": value})
    assert type(found["v"]) is type(value)
    jsonschema.validate(found, tools["f"])


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        (TEXT, "a\n</parameter>b"),
        ({"type": "string", "enum": ["C", "F"]}, "K"),
        ({"type": "string", "enum": ["C", "F"]}, "C "),
        ({"type": "string", "enum": ["C", "F"]}, '"C"'),
        ({"type": "string", "minLength": 2}, "a"),
        ({"type": "string", "minLength": 30}, "a\n</parameter>" + "b" * 30),
        ({"type": "string", "maxLength": 2}, "abc"),
        ({"type": "string", "pattern": "^a|b$"}, "ca"),
        ({"type": "string", "pattern": "b", "maxLength": 2}, "aab"),
        ({"type": "string", "format": "date"}, "2023-02-29"),
        ({"type": "integer"}, "1.5"),
        ({"type": "integer"}, '"1"'),
        ({"type": "integer", "minimum": 3}, "2"),
        ({"type": "boolean"}, "True"),  # Python's, as some templates write it; the client gets JSON
        ({"type": "null"}, "None"),
        (STEPS, '[{"t": "a"}]'),
        (STEPS, "[]\n"),
        ({"type": ["string", "null"], "maxLength": 3}, "nully"),
        ({"anyOf": [TEXT, {"type": "array", "items": TEXT}]}, "a"),
        ({"anyOf": [TEXT, {"type": "array", "items": TEXT}]}, "[1]"),
    ],
    ids=str,
)
def test_a_value_that_its_schema_forbids_is_illegal(schema: Any, text: str) -> None:
    assert not takes(grammar_of(CODER, one(schema)), coder("f", v=text))


A, B, C = "<parameter=a>\nx\n</parameter>\n", "<parameter=b>\n1\n</parameter>\n", "<parameter=c>\n\n</parameter>\n"


@pytest.mark.parametrize(
    ("inside", "is_legal"),
    [
        (A + B + C, True), (A + B, True), (B, True), (B + C, True), ("", False), (A, False), (A + C, False),
        (A + A + B, False), (B + B, False), (B + A, False), (B + C + C, False),
        (B + "<parameter=d>\n1\n</parameter>", False),
        (B.replace("b", "B"), False), ((A + B).replace("\n<", "<"), False), ((A + B).replace(">\n<", "><"), True),
        ("<parameter=b>1\n</parameter>", False), ("<parameter=a>\n</parameter>" + B, True),
    ],
)  # fmt: skip
def test_each_parameter_comes_once_in_the_schemas_order_and_what_is_required_comes(inside: str, is_legal: bool) -> None:
    tools = {"f": {"properties": {"a": TEXT, "b": {"type": "integer"}, "c": TEXT}, "required": ["b"]}, "g": None}
    grammar = grammar_of(CODER, tools)
    text = f"<tool_call>\n<function=f>\n{inside}</function>\n</tool_call>"
    assert takes(grammar, text) == is_legal
    if is_legal:
        jsonschema.validate(json.loads(read(CODER, tools, text)[0][1]), tools["f"])
    other = text.replace("=f>", "=g>")
    assert takes(grammar, other) == (not inside)
    assert not takes(grammar, text.replace("=f>", "=h>"))
    if not inside:
        assert read(CODER, tools, other) == [("g", "{}")]


def test_a_text_ends_where_the_mark_is_complete_and_nowhere_else() -> None:
    """Every text of up to five pieces, against the definition."""
    pieces = ("\n", "</parameter>", "</par", "a", "<")
    grammar = grammar_of(CODER, one(TEXT))
    opening = "<tool_call><function=f><parameter=v>"
    for length in range(1, 6):
        for chosen in itertools.product(pieces, repeat=length):
            text = "".join(chosen)
            constraint = grammar.start()
            is_alive = all(constraint.advance(byte) for byte in (opening + text).encode())
            value, end, behind = text.partition(END)
            if end:  # then blanks and the rest of the call
                expected = not value or value.startswith("\n")
                expected &= behind in ("", "\n", "\n\n") or (behind.lstrip("\n") == "<" and len(behind) < 4)
            else:
                expected = text.startswith("\n")
            assert is_alive == expected, text
            if expected and end and not behind:
                ((_, arguments),) = read(CODER, one(TEXT), opening + text + "</function></tool_call>")
                assert json.loads(arguments) == {"v": value[1:]}


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"type": "object", "minProperties": 1}, r"the keyword 'minProperties' at \$"),
        ({"type": "object", "patternProperties": {"a": TEXT}}, r"the keyword 'patternProperties' at \$"),
        ({"type": "object", "additionalProperties": TEXT}, r"the keyword 'additionalProperties' at \$"),
        ({"type": "object", "anyOf": [{"required": ["a"]}]}, r"the keyword 'anyOf' at \$"),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"type": "object"}}}, r"the keyword '\$ref' at \$"),
        ({"required": ["a"]}, "'a' is required at"),
        ({"properties": {"a": False}, "required": ["a"]}, "'a' is required at"),
        ({"properties": {"a>b": TEXT}}, "the name 'a>b' cannot be written"),
        ({"properties": {"": TEXT}}, "the name '' cannot be written"),
        ({"properties": {"a": {"type": "text"}}}, r'the type \["text"\] at \$.properties.a is unknown'),
        ({"properties": {"a": {"enum": ["b", "\n</parameter>"]}}}, "ends a value"),
        ({"properties": {"a": {"enum": ["</parameter>"]}}}, "ends a value"),
        ({"properties": {"a": {"enum": [], "type": "string"}}}, "no value satisfies"),
        ({"properties": {"a": {"enum": ["b"], "minLength": 2}}}, "'minLength' at .* beside values"),
        ({"properties": {"a": {"type": "string", "pattern": "a(^b|c)"}}}, r"'pattern' at .* \^ or \$ in the middle"),
        ({"properties": {"a": {"type": "string", "minLength": "2"}}}, "minLength at .* whole number"),
        ({"properties": {"a": {"allOf": [TEXT, {"type": "string", "maxLength": 2}]}}}, "'allOf' at .* together"),
        ({"properties": {"a": {"type": "string", "anyOf": [{"maxLength": 2}]}}}, "'type', 'anyOf' at"),
        ({"properties": {"a": {"oneOf": [TEXT, {"const": "b"}]}}}, "'oneOf' at .* the same text"),
        ({"properties": {"a": {"not": TEXT}}}, "the keyword 'not'"),
        ({"properties": {"a": {"type": "string", "format": "regex"}}}, "the format 'regex'"),
    ],
    ids=str,
)  # fmt: skip
def test_what_cannot_be_held_to_its_schema_is_refused_by_name(schema: Any, said: str) -> None:
    with pytest.raises(ParameterError, match=said) as caught:
        named_calls([("g", None), ("f", schema)], CODER)
    assert caught.value.name == "tools.f.parameters"


def test_texts_that_nothing_satisfies_are_refused() -> None:
    """Rules that exclude each other are found when they are compiled, not in the middle of a call."""
    for rules in ({"pattern": "^a{5}$", "maxLength": 3}, {"minLength": 3, "maxLength": 2}):
        schema = {"type": "string", **rules}
        with pytest.raises(ParameterError) as caught:
            grammar_of(CODER, one(schema))
        assert caught.value.name in ("tools", "tools.f.parameters")


@pytest.mark.parametrize("name", ["a>b", "a[b", " a", "a\n", ""])
@pytest.mark.parametrize("marks", [ARGS, CODER], ids=["args", "coder"])
def test_names_that_are_no_names_between_marks_are_refused(name: str, marks: CallMarks) -> None:
    with pytest.raises(ParameterError, match="cannot be told apart"):
        named_calls([(name, None)], marks)
    with pytest.raises(ParameterError, match="none that could be called"):
        named_calls([], marks)


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_formats_of_texts_are_those_of_strings(name: str) -> None:
    """What the pattern of a format matches, the library takes inside JSON."""
    inside = compile_json_schema({"type": "string", "format": name}, BYTES)

    @settings(max_examples=60, deadline=None)
    @given(st.from_regex(f"(?:{TEXT_FORMATS[name]})", fullmatch=True))
    def check(text: str) -> None:
        assert takes(inside, json.dumps(text)), text
        jsonschema.validate(text, {"type": "string", "format": name})

    assert TEXT_FORMATS.keys() == FORMATS
    check()
