"""Calls of tools as schemas: one of a call of any of several tools as JSON, or one for the arguments of each."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from forerun.constraints.checks import short
from forerun.constraints.marks import TAGGED, CallMarks
from forerun.constraints.parameters import parameters_of
from forerun.constraints.schema import AT_ROOT, check_schema, move_references
from forerun.errors import ParameterError

NAME = re.compile(r"[^\s<>\[\]\x00-\x1f]([^<>\[\]\x00-\x1f]*[^\s<>\[\]\x00-\x1f])?")
"""Names of tools that can stand between marks."""

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
        definitions[f"call{number}"] = moved(where, parameters or ANY_ARGUMENTS, f"#/$defs/call{number}")
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


def named_calls(tools: Iterable[tuple[str, Mapping[str, Any] | None]], marks: CallMarks) -> dict[str, Any]:
    """Name -> schema of the arguments, for families that write names outside JSON: each tool's own, checked.

    ParameterError names what would not be enforced: the tool's name or schema; where parameters are written one at a
    time, also what cannot be held to its schema there.
    """
    found = dict[str, Any]()
    for name, parameters in tools:
        if not NAME.fullmatch(name):
            fact = f"this model's calls cannot be told apart with the name {short(name)}"
            raise ParameterError(f"tools.{short(name)}", fact, "use letters, digits, _ and -")
        where = f"tools.{name}.parameters"
        found[name] = moved(where, parameters or ANY_ARGUMENTS, "#")
        if marks.parameter is not None:
            parameters_of(where, found[name], marks.parameter[2])
    if not found:
        raise ParameterError("tools", "there is none that could be called", "give one or more")
    return found


def moved(where: str, schema: Mapping[str, Any], root: str) -> dict[str, Any]:
    """A copy of `schema` whose references work when it stands at `root`."""
    try:
        copy = json.loads(json.dumps(schema, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise ParameterError(where, f"it is not JSON: {error}", "give an object of JSON values") from error
    if not isinstance(copy, dict) or copy.get("type", "object") != "object":
        raise ParameterError(where, "arguments are an object", '{"type": "object", "properties": {...}}')
    copy = {"type": "object", **{key: value for key, value in copy.items() if key not in AT_ROOT}}
    check_schema(where, copy)
    move_references(where, copy, root)
    return copy
