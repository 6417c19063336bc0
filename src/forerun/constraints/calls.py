"""Calls of tools as JSON: one schema for a call of any of several tools, each with arguments of its own."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from forerun.constraints.marks import TAGGED
from forerun.constraints.schema import AT_ROOT, check_schema, subschemas
from forerun.errors import ParameterError

ANY_ARGUMENTS: dict[str, Any] = {"type": "object"}


def call_schema(
    tools: Iterable[tuple[str, Mapping[str, Any] | None]], arguments: str = TAGGED.arguments
) -> dict[str, Any]:
    """The schema of `{"name": NAME, "arguments": {...}}` for any of `tools`, pairs of a name and the JSON schema of its
    arguments (None: any object). `arguments` is what that key is called.

    Every tool's schema keeps its own `$defs`: it moves under one of the whole and its references follow. ParameterError
    names the tool (`tools.NAME.parameters`) whose schema would not be enforced.
    """
    definitions, calls = dict[str, Any](), list[dict[str, Any]]()
    for number, (name, parameters) in enumerate(tools):
        where = f"tools.{name}.parameters"
        definitions[f"call{number}"] = _moved(where, parameters or ANY_ARGUMENTS, f"#/$defs/call{number}")
        calls.append(
            {
                "type": "object",
                "properties": {"name": {"const": name}, arguments: {"$ref": f"#/$defs/call{number}"}},
                "required": ["name", arguments],
                "additionalProperties": False,
            }
        )
    if not calls:
        raise ParameterError("tools", "there is none that could be called", "give one or more")
    return {**(calls[0] if len(calls) == 1 else {"anyOf": calls}), "$defs": definitions}


def _moved(where: str, schema: Mapping[str, Any], root: str) -> dict[str, Any]:
    """A copy of `schema` whose references work when it stands at `root`."""
    try:
        copy = json.loads(json.dumps(schema, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise ParameterError(where, f"it is not JSON: {error}", "give an object of JSON values") from error
    if not isinstance(copy, dict) or copy.get("type", "object") != "object":
        raise ParameterError(where, "arguments are an object", '{"type": "object", "properties": {...}}')
    copy = {"type": "object", **{key: value for key, value in copy.items() if key not in AT_ROOT}}
    check_schema(where, copy)
    for _, part in subschemas(where, "$", copy):
        if "$ref" in part:
            part["$ref"] = root + part["$ref"][1:]
    return copy
