"""500 texts of JSON schemas at temperature 1 with speculation on: every one is valid, says an independent validator."""

from __future__ import annotations

import importlib
import json
from typing import Any

import numpy as np
import pytest
from tests.cases.tools import pieces_tokenizer
from tests.verification.laws import FixedTopology

from forerun.constraints.calls import call_schema
from forerun.control import FixedLength
from forerun.drafting import ModelDrafter, StackDrafter, SuffixDrafter
from forerun.llm import LLM
from forerun.runtime.toy import ToyModel

jsonschema: Any = importlib.import_module("jsonschema")  # it has no types

PIECES: list[str | bytes] = [
    *(chr(code) for code in range(32, 127)), "\n", '{"', '":', '": "', '", "', '"}', "},", "true", "false", "null",
    "12", '"name"', "ok", "city", "arguments", "  ", "\u65e5".encode()[:1], "\u65e5".encode()[1:], "é", "\\u00",
    "```json\n",
]  # fmt: skip
TOKENIZER = pieces_tokenizer(PIECES)
SIZE = TOKENIZER.vocabulary_size
TEXT = {"type": "string", "maxLength": 12}
ORDER = {
    "type": "object",
    "properties": {
        "name": TEXT,
        "ok": {"type": "boolean"},
        "count": {"type": "integer", "minimum": -3, "maximum": 4000},
        "price": {"type": "number", "minimum": 0.5, "exclusiveMaximum": 20},
        "day": {"type": "string", "format": "date"},
        "tags": {"type": "array", "items": {"enum": ["new", "old", None, 7]}, "minItems": 1, "maxItems": 4},
        "parent": {"anyOf": [{"$ref": "#/$defs/link"}, {"type": "null"}]},
    },
    "required": ["name", "ok", "count", "tags", "parent"],
    "additionalProperties": False,
    "$defs": {
        "link": {
            "type": "object",
            "properties": {"id": {"type": "string", "pattern": "^[A-Z]{2}-\\d{1,3}$"}},
            "required": ["id"],
            "additionalProperties": False,
        }
    },
}
CITY = {
    "type": "object", "properties": {"city": {"$ref": "#/$defs/c"}}, "required": ["city"],
    "additionalProperties": False, "$defs": {"c": TEXT},
}  # fmt: skip
NUMBER = {
    "type": "object", "properties": {"n": {"$ref": "#/$defs/c"}}, "required": ["n"], "additionalProperties": False,
    "$defs": {"c": {"type": "integer", "minimum": 0, "maximum": 99}},
}  # fmt: skip
SCHEMAS: dict[str, Any] = {
    "order": ORDER,
    "calls": call_schema([("weather", CITY), ("square", NUMBER)]),
    "list": {"type": "array", "items": {"type": "array", "items": {"type": "boolean"}, "maxItems": 3}, "maxItems": 5},
}
DRAFTS: dict[str, Any] = {
    "chain": FixedLength(4),
    "tree": FixedTopology((-1, -1, 0, 0, 1, 2)),
}
NUM_EACH = 84
"""Texts of each schema under each shape of drafts: 504 in all."""


def toy(seed: int) -> ToyModel:
    """Any token after any other, with what closes and ends likely enough."""
    table = np.random.default_rng(3).normal(0.0, 1.5, (SIZE, SIZE)) + np.random.default_rng(seed).normal(
        0, 0.4, (SIZE, SIZE)
    )
    return ToyModel.from_table(table)


@pytest.mark.parametrize("name", SCHEMAS)
@pytest.mark.parametrize("shape", DRAFTS)
def test_every_generation_is_valid(name: str, shape: str) -> None:
    schema = SCHEMAS[name]
    validator = jsonschema.Draft202012Validator(schema, format_checker=jsonschema.FormatChecker(["date"]))
    drafter = ModelDrafter(toy(2), start_after=0)
    stacked = StackDrafter([SuffixDrafter(), drafter]) if shape == "chain" else drafter
    llm = LLM(toy(1), TOKENIZER, stacked, DRAFTS[shape])
    texts, num_accepted, num_proposed = set(), 0, 0
    for start in range(0, NUM_EACH, 12):
        result = llm.generate("{}", json_schema=schema, temperature=1.0, max_tokens=900, n=12, seed=start)
        for choice in result.choices:
            assert choice.finish_reason == "stop", choice.text
            validator.validate(json.loads(choice.text))
            texts.add(choice.text)
            num_accepted += choice.speculation.num_accepted
            num_proposed += choice.speculation.num_proposed
    assert len(texts) > NUM_EACH / 3
    assert 0 < num_accepted < num_proposed  # some drafts were followed, and some were rolled back
