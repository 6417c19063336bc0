"""Arguments of a call that are written one at a time, a text as it is and everything else as JSON.

Nothing is escaped in a text: it ends where what stands behind a value comes for the first time, and one that holds
that cannot be written. Where a value may be a text or something else, only the text tells which: so it is written as
text only if every reading satisfies the schema; otherwise the value is JSON, texts between quotes included.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from llguidance import regex_to_lark

from forerun.constraints.checks import PIECE, as_pattern, short
from forerun.constraints.formats import TEXT_FORMATS
from forerun.constraints.schema import ANNOTATIONS, NUMBERS, move_references, resolved
from forerun.errors import ParameterError

ANY_TEXT = "(?s:.*)"
ROOT_KEYWORDS = {"type", "properties", "required", "additionalProperties", "$defs", "definitions", *ANNOTATIONS}
TEXT_KEYWORDS = {"minLength", "maxLength", "pattern", "format"}
COMBINED = ("$ref", "allOf", "anyOf", "oneOf")
KINDS = {
    "null": "null", "boolean": "true|false", "integer": "-?(0|[1-9][0-9]{0,17})",
    "number": r"-?(0|[1-9][0-9]{0,17})(\.[0-9]{1,17})?([eE][+-]?[0-9]{1,2})?",
    "array": None, "object": None, "string": None,
}  # fmt: skip
"""Types, with a pattern of their JSON where there is one."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """One argument of a call.

    `schema`: that of its JSON, if it is written so. Otherwise a text that one of `patterns` matches (each a conjunction
    of patterns in the library's syntax), or the JSON of one of the types `others` or of the values `exact`.
    """

    name: str
    is_required: bool
    schema: Any = None
    patterns: tuple[tuple[str, ...], ...] = ()
    others: frozenset[str] = frozenset()
    exact: tuple[str, ...] = ()

    @property
    def is_one_thing(self) -> bool:
        """Whether it is JSON, or a text, whatever it reads like, so that every piece of it is certain at once."""
        return not self.others and not self.exact

    def terminal(self, end: str) -> str:
        """What stands between the parameter's name and `end`, and `end`, as one terminal in the library's notation."""
        found = [" & ".join(f"/{regex_to_lark(one, '')}/" for one in group) for group in self.patterns]
        is_free = (ANY_TEXT,) in self.patterns
        if not is_free:
            found += [f"/{KINDS[kind]}/" for kind in sorted(self.others)] + [
                f"/{as_pattern(one)}/" for one in self.exact
            ]
        body = f'"\\n" ({" | ".join(f"({one})" for one in found)})'
        body = f"({body})?" if is_free else f"({body})"  # an empty text comes with two line breaks or one
        return f"({body} & ~/{ANY_TEXT}{as_pattern(end)}{ANY_TEXT}/) {json.dumps(end)}"

    def read(self, text: str) -> str:
        """The JSON of a value, from what was written for it."""
        if not self.patterns or text in self.exact:
            return text
        return text if self.others and _kind_of(text) & self.others else json.dumps(text, ensure_ascii=False)


class _Leaf(NamedTuple):
    """One of the types that a value may have, "" where it has to be looked for in the JSON, with what else the schema
    says of it; "const" with a value."""

    kind: str
    rules: Mapping[str, Any]

    @property
    def may_be_text(self) -> bool:
        return self.kind in ("string", "any", "") or (self.kind == "const" and isinstance(self.rules["const"], str))


def parameters_of(where: str, schema: Mapping[str, Any], end: str) -> tuple[Parameter, ...]:
    """The parameters of a tool, in the order they are written in. `schema` is that of its arguments, checked and with
    references from its own root; `end` stands behind every value. Names beyond its properties are not written.

    ParameterError (`where`) names what cannot be held to the schema in this form.
    """
    properties, required = schema.get("properties", {}), schema.get("required", [])
    for keyword, value in schema.items():
        if keyword not in ROOT_KEYWORDS or (
            keyword == "additionalProperties" and not isinstance(value, bool) and value
        ):
            fact = f"the keyword {keyword!r} at $ is not supported where a model writes arguments one at a time"
            raise ParameterError(where, fact, "name every argument in properties, and what is needed in required")
    if not isinstance(required, list) or not all(isinstance(one, str) for one in required):
        raise ParameterError(where, f"required at $ is {short(required)}", "a list of names is needed")
    for name in required:
        if properties.get(name, False) is False:
            fact = f"{short(name)} is required at $, and its properties have none that could be written"
            raise ParameterError(where, fact, "name every argument in properties")
    reader = _Schemas(where, schema, end)
    return tuple(
        reader.parameter(name, part, name in required) for name, part in properties.items() if part is not False
    )


class _Schemas:
    """What the schemas of one tool's arguments say of texts."""

    def __init__(self, where: str, root: Mapping[str, Any], end: str) -> None:
        self.where, self.root, self.end = where, root, end

    def parameter(self, name: str, schema: Any, is_required: bool) -> Parameter:
        path = f"$.properties.{name}"
        if not name or name != name.strip() or re.search(r"[<>\x00-\x1f]", name):
            fact = f"the name {short(name)} cannot be written where a model writes arguments one at a time"
            raise ParameterError(self.where, fact, "use letters, digits, _ and -")
        leaves = self._leaves(path, schema, ())
        texts = [leaf for leaf in leaves if leaf.may_be_text]
        others = [leaf for leaf in leaves if not leaf.may_be_text or leaf.kind == "any"]
        if texts and not any(leaf.kind == "" for leaf in texts):
            patterns = tuple(dict.fromkeys(self._pattern(path, leaf) for leaf in texts))
            kinds = {leaf.kind for leaf in others if leaf.kind not in ("const", "any")}
            kinds |= KINDS.keys() - {"string"} if any(leaf.kind == "any" for leaf in others) else set()
            is_free = (ANY_TEXT,) in patterns
            if all(self._is_told(leaf, is_free) for leaf in others):
                exact = [json.dumps(leaf.rules["const"]) for leaf in others if leaf.kind == "const"]
                return Parameter(name, is_required, None, patterns, frozenset(kinds), tuple(dict.fromkeys(exact)))
        return Parameter(name, is_required, self._alone(schema))

    def _is_told(self, leaf: _Leaf, is_free: bool) -> bool:
        """Whether a text that reads as JSON of this kind satisfies the schema, and can be described."""
        if leaf.kind == "const":
            return leaf.rules["const"] is None or isinstance(leaf.rules["const"], (bool, int, float))
        return not leaf.rules and (is_free or KINDS.get(leaf.kind) is not None)

    def _alone(self, schema: Any) -> Any:
        """A property's schema as one of its own, with the definitions that it refers to."""
        if '"$ref"' not in (text := json.dumps(schema)):
            return schema
        part, root = json.loads(text), json.loads(json.dumps(self.root))
        for copy in (part, root):
            move_references(self.where, copy, "#/$defs/root")
        return {**part, "$defs": {"root": root}}

    def _leaves(self, path: str, schema: Any, seen: tuple[str, ...]) -> list[_Leaf]:
        """The types that a value of `schema` may have."""
        if isinstance(schema, bool):
            return [_Leaf("any", {})] if schema else []
        rules = {key: value for key, value in schema.items() if key not in (*ANNOTATIONS, "$defs", "definitions")}
        kinds = rules.pop("type", None)
        kinds = [kinds] if isinstance(kinds, str) else kinds
        if kinds is not None and (not isinstance(kinds, list) or not all(kind in KINDS for kind in kinds)):
            raise ParameterError(
                self.where, f"the type {short(kinds)} at {path} is unknown", "it is " + ", ".join(KINDS)
            )
        if kinds is not None and "string" not in kinds:
            return [_Leaf(kind, rules) for kind in kinds]
        if "const" in rules or "enum" in rules:
            return self._values(path, rules, kinds)
        if found := [keyword for keyword in COMBINED if keyword in rules]:
            return self._combined(path, rules, kinds, found, seen)
        if kinds is None:
            return [_Leaf("", rules) if rules else _Leaf("any", {})]
        told = {key: value for key, value in rules.items() if key in TEXT_KEYWORDS}
        more = {key: value for key, value in rules.items() if key not in TEXT_KEYWORDS}
        return [_Leaf(kind, told if kind == "string" else more if kind in ("array", "object") else _numeric(more))
                for kind in kinds]  # fmt: skip

    def _values(self, path: str, rules: Mapping[str, Any], kinds: Sequence[str] | None) -> list[_Leaf]:
        values = rules["enum"] if "enum" in rules else [rules["const"]]
        if not isinstance(values, list):
            raise ParameterError(self.where, f"enum at {path} is {short(values)}", "a list of values is needed")
        if len(rules) > 1:
            raise self._refused(path, "beside values that may be texts", sorted(rules.keys() - {"enum"}))
        fitting = [value for value in values if kinds is None or _kind_of(json.dumps(value)) & set(kinds)]
        for value in fitting:
            if isinstance(value, str) and self.end in f"\n{value}":
                fact = f"the value {short(value)} at {path} cannot be written: {short(self.end)} ends a value"
                raise ParameterError(self.where, fact, "leave it out")
        if not fitting:
            raise ParameterError(self.where, f"no value satisfies the schema at {path}", "give values of its type")
        return [_Leaf("const", {"const": value}) for value in fitting]

    def _combined(
        self, path: str, rules: Mapping[str, Any], kinds: Sequence[str] | None, found: Sequence[str],
        seen: tuple[str, ...],
    ) -> list[_Leaf]:  # fmt: skip
        """The types behind a reference or alternatives. More than one of them at once is understood as far as no text
        comes of it."""
        sets: list[list[_Leaf]] = []
        for keyword in found:
            if keyword == "$ref":
                target = rules["$ref"]
                again = target in seen
                sets.append([] if again else self._leaves(path, resolved(self.root, target), (*seen, target)))
            elif keyword == "allOf":
                sets += [self._leaves(path, part, seen) for part in rules["allOf"]]
            else:
                sets.append([leaf for part in rules[keyword] for leaf in self._leaves(path, part, seen)])
        for leaves in sets:
            if not any(leaf.may_be_text for leaf in leaves):
                return leaves
        if len(sets) > 1 or kinds is not None or len(rules) > 1:
            raise self._refused(path, "together where a text may be meant", [*(["type"] if kinds else []), *rules])
        texts = [leaf for leaf in sets[0] if leaf.may_be_text]
        if "oneOf" in rules and len(texts) > 1:
            values = [leaf.rules["const"] for leaf in texts if leaf.kind == "const"]
            if len(set(values)) < len(texts):
                raise self._refused(path, "with alternatives that may be the same text", ["oneOf"])
        return sets[0]

    def _pattern(self, path: str, leaf: _Leaf) -> tuple[str, ...]:
        """The texts of a leaf, as patterns all of which have to match."""
        if leaf.kind == "any":
            return (ANY_TEXT,)
        if leaf.kind == "const":
            return (as_pattern(leaf.rules["const"]),)
        found: list[str] = []
        least, most = leaf.rules.get("minLength", 0), leaf.rules.get("maxLength")
        for keyword, value in (("minLength", least), ("maxLength", most)):
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
                raise ParameterError(self.where, f"{keyword} at {path} is {short(value)}", "a whole number is needed")
        if least or most is not None:
            found.append(f"(?s:.{{{least},{'' if most is None else most}}})")
        if "format" in leaf.rules:
            found.append(TEXT_FORMATS[leaf.rules["format"]])
        if "pattern" in leaf.rules:
            found.append(self._search(path, leaf.rules["pattern"]))
        return tuple(found) or (ANY_TEXT,)

    def _search(self, path: str, pattern: str) -> str:
        """A pattern of the texts in which `pattern` is found: it is looked for anywhere, unless it has anchors."""
        found: list[str] = []
        for one in _alternatives(pattern):
            begins, ends = one[:1] == ["^"], len(one) > 1 and one[-1] == "$"
            inner = one[begins : len(one) - ends]
            if {"^", "$"} & set(inner):
                raise self._refused(path, f"with ^ or $ in the middle ({short(pattern)})", ["pattern"])
            found.append(f"{'' if begins else ANY_TEXT}(?:{''.join(inner)}){'' if ends else ANY_TEXT}")
        return "|".join(found)

    def _refused(self, path: str, why: str, keywords: Iterable[str]) -> ParameterError:
        listed = ", ".join(repr(keyword) for keyword in keywords)
        fact = f"{listed} at {path} {why} is not supported where a model writes arguments one at a time"
        return ParameterError(self.where, fact, "simplify that part of the schema")


def _alternatives(pattern: str) -> list[list[str]]:
    """A pattern cut at its outermost alternatives, each in pieces."""
    found: list[list[str]] = [[]]
    depth = 0
    for piece in (match[0] for match in PIECE.finditer(pattern)):
        depth += (piece == "(") - (piece == ")")
        if piece == "|" and not depth:
            found.append([])
        else:
            found[-1].append(piece)
    return found


def _numeric(rules: Mapping[str, Any]) -> dict[str, Any]:
    """What of the rules beside several types speaks of numbers."""
    return {key: value for key, value in rules.items() if key in NUMBERS}


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def _kind_of(text: str) -> set[str]:
    """The types that a text has as JSON; none if it is none."""
    try:
        value = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return set()
    if value is None:
        return {"null"}
    if isinstance(value, float) and value in (float("inf"), float("-inf")):  # to a reader, no number at all
        return set()
    names = {bool: {"boolean"}, int: {"integer", "number"}, float: {"number"}, str: {"string"}, list: {"array"}}
    return names.get(type(value), {"object"})
