"""JSON schemas that are refused before the library sees them.

The library refuses most of what it does not implement. Checked here is the rest: keywords that it takes for annotations
(misspelt ones, OpenAPI's), its own settings inside a schema, numbers that it would round, types that no finite text
satisfies, and sizes that it does not bound itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from math import lcm
from typing import Any

from forerun.constraints.checks import check_pattern, short
from forerun.errors import ParameterError

MAX_SUBSCHEMAS = 10_000
"""Schemas inside a schema: the library recurses through `$ref` and needs up to 5 KiB of stack for each."""

MAX_OPTIONAL = 450
"""Properties of one object that may be left out: every one may follow every earlier one, and the library gives up
beyond 2,000 ways to go on, after seconds."""

MAX_MULTIPLE = 10_000
"""Common multiple of every `multipleOf`, in units of the last decimal place: the library builds an automaton of that
many states (0.1 s at 10,000, 4 s at 400,000)."""

MAX_INTEGER = 2**53
"""The library reads numbers as floats, exact up to here."""

ONE, MANY, NAMED = "a schema (a tuple: prefixItems)", "a list of schemas", "an object of schemas"
SHAPES = {ONE: (dict, bool), MANY: (list,), NAMED: (dict,)}
SUBSCHEMAS = {
    "items": ONE, "additionalProperties": ONE, "allOf": MANY, "anyOf": MANY, "oneOf": MANY, "prefixItems": MANY,
    "properties": NAMED, "patternProperties": NAMED, "$defs": NAMED, "definitions": NAMED,
}  # fmt: skip
NUMBERS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "const", "enum")
SUPPORTED = {
    *SUBSCHEMAS, *NUMBERS, "$ref", "type", "minItems", "maxItems", "required", "minProperties", "maxProperties",
    "minLength", "maxLength", "pattern", "format",
}  # fmt: skip
ANNOTATIONS = {
    "title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "$comment",
    "contentMediaType", "contentEncoding",
}  # fmt: skip
AT_ROOT = {"$schema", "$id", "id"}
"""Left out at the root and refused elsewhere: draft 2020-12 is meant, and references stay inside."""

FORMATS = {"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"}


def check_schema(name: str, schema: Any) -> None:
    """Refuse, naming the place, a schema (plain JSON values) that would constrain less than it says, or for ever."""
    parts = dict(subschemas(name, "$", schema))
    multiples: list[Decimal] = []
    for path, part in parts.items():
        _check_keywords(name, path, part)
        for keyword in NUMBERS:
            _check_numbers(name, f"{path}.{keyword}", part.get(keyword))
        if _is_number(part.get("multipleOf")):
            multiples.append(abs(Decimal(str(part["multipleOf"]))))
    _check_multiples(name, multiples)
    _Recursion(name, schema, parts).check()


def subschemas(name: str, path: str, schema: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """(path, schema) of a schema and of every one inside it that is an object."""
    waiting, count = [(path, schema)], 0
    while waiting:
        path, part = waiting.pop()
        if isinstance(part, bool):
            continue
        if not isinstance(part, dict):
            raise ParameterError(name, f"the schema at {path} is {short(part)}", "a schema is an object, true or false")
        if (count := count + 1) > MAX_SUBSCHEMAS:
            raise ParameterError(name, f"it holds more than {MAX_SUBSCHEMAS:,} schemas", "use a smaller one")
        yield path, part
        for keyword in SUBSCHEMAS.keys() & part.keys():
            inside, shape = part[keyword], SUBSCHEMAS[keyword]
            if not isinstance(inside, SHAPES[shape]):
                raise ParameterError(name, f"{path}.{keyword} is {short(inside)}", f"{shape} is needed")
            if isinstance(inside, list):
                waiting.extend((f"{path}.{keyword}[{index}]", one) for index, one in enumerate(inside))
            elif shape == NAMED and isinstance(inside, dict):
                waiting.extend((f"{path}.{keyword}.{key}", one) for key, one in inside.items())
            else:
                waiting.append((f"{path}.{keyword}", inside))


def resolved(root: Any, reference: str) -> Any:
    """What a reference inside a schema, "#/...", stands for; None where nothing is."""
    found = root
    for step in reference.split("/")[1:]:
        key = step.replace("~1", "/").replace("~0", "~")
        if isinstance(found, list):
            found = found[int(key)] if key.isdecimal() and int(key) < len(found) else None
        else:
            found = found.get(key) if isinstance(found, dict) else None
    return found


def move_references(name: str, schema: Any, root: str) -> None:
    """Let the references in `schema`, from its root, work when that stands at `root` instead ("#/$defs/NAME")."""
    for _, part in subschemas(name, "$", schema):
        if "$ref" in part:
            part["$ref"] = root + part["$ref"][1:]


def _check_keywords(name: str, path: str, schema: dict[str, Any]) -> None:
    for keyword in schema:
        if keyword not in SUPPORTED and keyword not in ANNOTATIONS and not (path == "$" and keyword in AT_ROOT):
            known = "what is supported: " + ", ".join(sorted(SUPPORTED))
            raise ParameterError(name, f"the keyword {keyword!r} at {path} is not supported", known)
    required = schema["required"] if isinstance(schema.get("required"), list) else []
    num_optional = len(schema.get("properties", {}).keys() - {key for key in required if isinstance(key, str)})
    if num_optional > MAX_OPTIONAL:
        fact = f"the object at {path} has {num_optional:,} properties that may be left out"
        raise ParameterError(name, fact, f"at most {MAX_OPTIONAL} are taken: name more of them in required")
    if "format" in schema and schema["format"] not in FORMATS:
        known = "what is supported: " + ", ".join(sorted(FORMATS))
        raise ParameterError(name, f"the format {short(schema['format'])} at {path} is not supported", known)
    for pattern in [*schema.get("patternProperties", {}), schema.get("pattern", "")]:
        if not isinstance(pattern, str):
            raise ParameterError(name, f"the pattern at {path} is {short(pattern)}", "a pattern is a string")
        check_pattern(name, pattern)


def _check_numbers(name: str, path: str, value: Any) -> None:
    """Refuse whole numbers, at any depth of `value`, that a float does not hold exactly."""
    waiting = [value]
    while waiting:
        part = waiting.pop()
        if isinstance(part, (list, dict)):
            waiting.extend(part.values() if isinstance(part, dict) else part)
        elif isinstance(part, int) and abs(part) > MAX_INTEGER:
            raise ParameterError(name, f"{short(part)} at {path} is too large", "whole numbers up to 2^53 are exact")


def _check_multiples(name: str, multiples: list[Decimal]) -> None:
    if not (multiples := [value for value in multiples if value]):
        return
    unit = min(int(value.as_tuple().exponent) for value in multiples)
    common = lcm(*(int(value.scaleb(-unit)) for value in multiples)) if unit > -20 else MAX_MULTIPLE + 1
    if common > MAX_MULTIPLE:
        listed = ", ".join(str(value) for value in sorted(set(multiples))[:5])
        raise ParameterError(
            name,
            f"multipleOf {listed}: the common multiple is too large",
            f"it may be {MAX_MULTIPLE:,} units of the last decimal place",
        )


class _Recursion:
    """Whether the targets of `$ref` have finite instances: a type that always contains itself would go on for ever.

    Least fixed point: a target is finite once it can be satisfied by finite references alone. Targets are looked at
    after those that they refer to, so one pass is enough unless they refer to each other in a circle.
    """

    def __init__(self, name: str, root: Any, parts: dict[str, dict[str, Any]]) -> None:
        self.name, self.root = name, root
        known = {id(part) for part in parts.values()}
        self.targets = {id(part): self._target(path, part, known) for path, part in parts.items() if "$ref" in part}
        self.paths = {id(part): path for path, part in parts.items()}
        self.finite: set[int] = set()

    def check(self) -> None:
        """Refuse a schema with a reference that no finite text satisfies, naming its place."""
        waiting = self._in_order()
        while waiting:
            left = [target for target in waiting if not self._add_if_finite(target)]
            if len(left) == len(waiting):
                path = self.paths[id(left[0])]
                raise ParameterError(self.name, f"the schema at {path} always contains itself", "let the recursion end")
            waiting = left

    def _target(self, path: str, part: dict[str, Any], known: set[int]) -> Any:
        reference = part["$ref"]
        if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
            text = f"$ref at {path} is {short(reference)}"
            raise ParameterError(self.name, text, "references go to schemas inside the schema: #/$defs/NAME")
        found = resolved(self.root, reference)
        if id(found) not in known and not isinstance(found, bool):
            raise ParameterError(self.name, f"$ref at {path} is {short(reference)}, and no schema is there")
        return found

    def _in_order(self) -> list[Any]:
        """Every target once, after the targets that it refers to (as far as there is no circle)."""
        order: list[Any] = []
        seen: set[int] = set()
        for start in self.targets.values():
            stack = [(start, False)]
            while stack:
                target, is_done = stack.pop()
                if is_done:
                    order.append(target)
                elif id(target) not in seen:
                    seen.add(id(target))
                    stack.append((target, True))
                    inside = (part for _, part in subschemas(self.name, "$", target))
                    stack.extend((self.targets[id(part)], False) for part in inside if id(part) in self.targets)
        return order

    def _add_if_finite(self, target: Any) -> bool:
        if not self._is_finite(target):
            return False
        self.finite.add(id(target))
        return True

    def _is_finite(self, schema: Any) -> bool:
        """Whether finite references alone can satisfy a schema."""
        if not isinstance(schema, dict) or "const" in schema or "enum" in schema:
            return True
        if "$ref" in schema and id(self.targets[id(schema)]) not in self.finite:
            return False
        if not all(self._is_finite(part) for part in schema.get("allOf", ())):
            return False
        for keyword in ("anyOf", "oneOf"):
            if keyword in schema and not any(self._is_finite(part) for part in schema[keyword]):
                return False
        kinds = schema.get("type", "null")
        return any(self._kind_is_finite(kind, schema) for kind in (kinds if isinstance(kinds, list) else [kinds]))

    def _kind_is_finite(self, kind: Any, schema: dict[str, Any]) -> bool:
        if kind == "object":
            named, others, required = (
                schema.get("properties", {}),
                schema.get("additionalProperties", True),
                schema.get("required"),
            )
            keys = [key for key in required if isinstance(key, str)] if isinstance(required, list) else []
            return all(self._is_finite(named.get(key, others)) for key in keys)
        if kind == "array" and _is_number(least := schema.get("minItems", 0)):
            first = schema.get("prefixItems", [])[: max(int(least), 0)]
            rest = [schema.get("items", True)] if least > len(first) else []
            return all(self._is_finite(part) for part in [*first, *rest])
        return True


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
