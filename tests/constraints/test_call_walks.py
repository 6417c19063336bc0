"""Whatever a model writes behind the mark of a call, its arguments satisfy the tool's schema, says a validator."""

from __future__ import annotations

import importlib
import itertools
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tests.constraints.test_parameters import ARGS, CODER, MAYBE_TEXT, coder, form_of, read
from tests.constraints.vocabularies import text_of

from forerun.constraints.forms import compile_form
from forerun.constraints.grammar import CompiledGrammar
from forerun.constraints.marks import CallMarks
from forerun.constraints.vocabulary import Vocabulary

jsonschema: Any = importlib.import_module("jsonschema")  # it has no types

REFERRING = {
    "type": "object",
    "properties": {
        "path": {"$ref": "#/$defs/name"}, "tree": {"$ref": "#/$defs/tree"}, "note": MAYBE_TEXT, "any": {},
        "when": {"anyOf": [{"type": "string", "format": "date"}, {"type": "integer"}]},
    },
    "required": ["path", "tree"],
    "$defs": {
        "name": {"type": "string", "maxLength": 6},
        "tree": {
            "type": "object",
            "properties": {"v": {"$ref": "#/$defs/name"}, "l": {"$ref": "#/$defs/tree"},
                           "w": {"$ref": "#/properties/when"}},
            "required": ["v"],
            "additionalProperties": False,
        },
    },
}  # fmt: skip
PLAIN = {
    "type": "object", "properties": {"city": {"enum": ["Oslo", "Rome"]}, "days": {"type": "integer", "maximum": 9}},
    "required": ["city"], "additionalProperties": False,
}  # fmt: skip
TOOLS: dict[str, Any] = {"walk": REFERRING, "weather": PLAIN, "weather2": None}
SIGNS = [
    *'abn10-"{}[]:, \n</>',
    "</parameter>",
    "\n</",
    "\n</parameter>\n",
    "<tool_call>",
    "é",
    "null",
    "</function>",
    "}",
]


def walked(grammar: CompiledGrammar, vocabulary: Vocabulary, seed: int, most: int = 900) -> tuple[str, bool]:
    """(a text that a model writes which likes a few tokens, and to end; whether it is complete)."""
    random, constraint = np.random.default_rng(seed), grammar.start()
    liked = random.normal(0.0, 2.0, vocabulary.size)
    liked[[i for i in range(256) if chr(i) not in 'abn10-"{}[]:, \n</>p']] -= 4.0
    tokens: list[int] = []
    for _ in range(most):
        scores = np.where(constraint.mask(), liked + random.gumbel(size=vocabulary.size), -np.inf)
        token = int(scores.argmax())
        if token in vocabulary.eos_ids or constraint.is_finished:
            return text_of(vocabulary, tokens).decode(errors="replace"), True
        assert constraint.advance(token)
        tokens.append(token)
        if not constraint.mask().any():
            return text_of(vocabulary, tokens).decode(errors="replace"), True
    return text_of(vocabulary, tokens).decode(errors="replace"), False


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    table = [*(bytes([i]) for i in range(256)), b"<eos>", *(sign.encode() for sign in SIGNS if len(sign) > 1)]
    return Vocabulary(len(table), table.__getitem__, frozenset({256}), (256,))


@pytest.mark.parametrize("marks", [ARGS, CODER], ids=["args", "coder"])
@pytest.mark.parametrize("only_one", [False, True], ids=["any", "one"])
def test_whatever_a_model_writes_its_arguments_satisfy_the_schema(
    marks: CallMarks, only_one: bool, vocabulary: Vocabulary
) -> None:
    grammar = compile_form(form_of(marks, TOOLS, only_one=only_one), vocabulary)
    num_calls, names = 0, set[str]()
    for text in _texts(grammar, vocabulary):
        calls = read(marks, TOOLS, text)
        assert calls
        assert len(calls) == 1 or not only_one
        for name, arguments in calls:
            assert name is not None, text
            jsonschema.validate(json.loads(arguments), TOOLS[name] or {})
            num_calls += 1
            names.add(name)
    assert num_calls >= 10
    assert len(names) >= 2


def _texts(grammar: CompiledGrammar, vocabulary: Vocabulary) -> Iterator[str]:
    for seed in range(60):
        text, is_whole = walked(grammar, vocabulary, seed)
        if is_whole:
            yield text


def test_long_texts_are_followed_over_many_tokens() -> None:
    """The library bounds its work: a lexeme that is looked at beyond its end took too much of it here."""
    letters = "abcdefghijklmnopqrstuvwxyz \n</>"
    table = [*(bytes([i]) for i in range(256)), b"<eos>"]
    table += ["".join(signs).encode() for signs in itertools.product(letters, repeat=3)]
    many = Vocabulary(len(table), table.__getitem__, frozenset({256}), (256,))
    long = {"type": "string", "minLength": 4, "maxLength": 20_000, "pattern": "d"}
    tools = {"f": {"properties": {"a": {"type": "string", "maxLength": 500}, "b": long}}}
    constraint = compile_form(form_of(CODER, tools), many).start()
    text = coder("f", a="abc </paramete\n</param", b="abc def\n<")
    for byte in text.encode():
        assert constraint.mask()[byte]
        assert constraint.advance(byte)
    assert constraint.mask()[256]
