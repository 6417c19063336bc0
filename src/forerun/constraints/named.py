"""Calls whose names stand outside JSON, as rules of a grammar: the arguments behind a name are those of that tool."""

from __future__ import annotations

import json

from forerun.constraints.grammar import NOTATIONS, REMEDIES, CompiledGrammar
from forerun.constraints.marks import CALL_ID, CallMarks
from forerun.constraints.parameters import Parameter, parameters_of
from forerun.constraints.vocabulary import Vocabulary


def named_rules(call: str, marks: CallMarks, vocabulary: Vocabulary) -> tuple[str, dict[str, str]]:
    """(rules for a `call`, beside a terminal GAP that they need; grammars of their own that they refer to). `call` is a
    JSON object, from each tool's name to the schema of its arguments. ParameterError as of a JSON schema."""
    tools, (before, behind) = json.loads(call), marks.name or ("", "")
    rules, inner = ["call: " + " | ".join(f"call{i}" for i in range(len(tools)))], dict[str, str]()
    given_id = ""
    if marks.id_mark:
        given_id = f"({quoted(marks.id_mark, vocabulary)} CALL_ID)? "
        rules.append(f"CALL_ID: /{CALL_ID}/")
    for i, (name, schema) in enumerate(tools.items()):
        head = f"{quoted(before, vocabulary)} {json.dumps(name, ensure_ascii=False)} {given_id}"
        head += quoted(behind, vocabulary)
        if marks.parameter is None:
            inner[f"arguments{i}"] = NOTATIONS["json_schema"](json.dumps(schema))
            rules.append(f"call{i}: {head} GAP @arguments{i}")
            continue
        where, end = f"tools.{name}.parameters", marks.parameter[2]
        uses = []
        for j, parameter in enumerate(parameters_of(where, schema, end)):
            value = f"value{i}_{j}"
            uses.append(value if parameter.is_required else f"({value})?")
            opening = marks.parameter[0] + parameter.name + marks.parameter[1]
            if parameter.patterns:
                rules += _text(where, value, opening, parameter, end, vocabulary)
            else:
                inner[value] = NOTATIONS["json_schema"](json.dumps(parameter.schema))
                rules.append(f"{value}: GAP {_literal(opening + chr(10))} @{value} {_literal(end)}")
        rules.append(f"call{i}: {head} {' '.join(uses)} GAP {quoted(marks.closing, vocabulary)}")
    return "\n".join(rules), inner


def _text(where: str, value: str, opening: str, parameter: Parameter, end: str, vocabulary: Vocabulary) -> list[str]:
    """Rules for a value that is written as text."""
    terminal = parameter.terminal(end)
    if any(len(group) > 1 for group in parameter.patterns):  # each may be satisfied, and not all of them at once
        CompiledGrammar(where, f"start: TEXT\nTEXT: {terminal}", vocabulary, REMEDIES["json_schema"])
    # Lazy, since a greedy lexeme looks behind its end: the library gave up at a maxLength of 300.
    whole = f"{value}_end"
    return [
        f"{value}: GAP {_literal(opening)} {whole}", f"{whole}[lazy]: {value.upper()}", f"{value.upper()}: {terminal}",
    ]  # fmt: skip


def quoted(mark: str, vocabulary: Vocabulary) -> str:
    """A mark as a control token or as text; nothing for one that is empty."""
    if not mark:
        return ""
    token = vocabulary.control_id(mark)
    return _literal(mark) if token is None else f"<[{token}]>"


def _literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
