"""The rules of a grammar, and what reading them has in common, whatever notation they are written in.

What is not understood is refused with its line and column: it could not be enforced.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from forerun.constraints.characters import Ranges
from forerun.constraints.checks import short
from forerun.errors import ParameterError

NAME = "grammar"
MAX_COUNT = 10_000
"""In x{n,m}."""

MAX_NESTING = 50
"""Brackets inside brackets."""

MAX_REPEATED = 2
"""Repetitions of a repetition: ("a"?)* is written without brackets too."""


@dataclass(frozen=True, slots=True)
class Chars:
    """One character out of a set."""

    ranges: Ranges


@dataclass(frozen=True, slots=True)
class Ref:
    """What another rule derives. `place` is where it stands in the text."""

    name: str
    place: int


@dataclass(frozen=True, slots=True)
class Seq:
    """One after the other."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Alt:
    """One of several."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """`inner`, `low` to `high` times (None: without end)."""

    inner: Node
    low: int
    high: int | None


@dataclass(frozen=True, slots=True)
class Terminal:
    """What the library reads for itself: Lark's patterns, ranges and imports."""


Node = Chars | Ref | Seq | Alt | Repeat | Terminal


@dataclass
class Notation:
    """The rules of a grammar: name -> what it derives. `places` are where each is defined."""

    text: str
    is_gbnf: bool
    rules: dict[str, Node] = field(default_factory=dict)
    places: dict[str, int] = field(default_factory=dict)
    imported: set[str] = field(default_factory=set)

    @property
    def start(self) -> str:
        return "root" if self.is_gbnf else "start"

    def where(self, place: int) -> str:
        """A place in the text, as an error names it."""
        line = self.text.count("\n", 0, place) + 1
        return f"line {line}, column {place - self.text.rfind(chr(10), 0, place)}"


class Token(NamedTuple):
    """A piece of the text: the name of its group in the notation's pattern, or "end"."""

    kind: str
    text: str
    place: int


class Reader:
    """Recursive descent over the tokens of one notation."""

    pattern: re.Pattern[str]
    definition: str
    refused: tuple[tuple[str, str], ...] = ()
    """What begins something that is not understood, and what is said of it; $ stands for it."""

    def __init__(self, notation: Notation) -> None:
        self.notation = notation
        self.tokens = [*self._tokens(), Token("end", "", len(notation.text))]
        self.at, self.depth = 0, 0

    @property
    def token(self) -> Token:
        return self.tokens[self.at]

    def read(self) -> None:
        while self.token.kind != "end":
            self._statement()
        rules = self.notation.rules
        if self.notation.start not in rules:
            known = f"it has {', '.join(list(rules)[:5])}" if rules else "it has no rule"
            raise ParameterError(NAME, f"no rule is named {self.notation.start}: {known}", "texts are derived from it")

    def fail(self, fact: str, place: int | None = None, remedy: str = "") -> ParameterError:
        where = self.notation.where(self.token.place if place is None else place)
        return ParameterError(NAME, f"{fact}, at {where}", remedy)

    def _tokens(self) -> Iterator[Token]:
        text, place = self.notation.text, 0
        while place < len(text):
            found = self.pattern.match(text, place)
            if found is None:
                for start, what in self.refused:
                    if refused := re.compile(start).match(text, place):
                        raise self.fail(what.replace("$", refused[0]), place)
                what = "a text without an end" if text[place] == '"' else f"{text[place]!r} means nothing here"
                raise self.fail(what, place)
            kind = found.lastgroup or ""
            if kind != "space":
                yield Token(kind, found[0], place)
            place = found.end()

    def _take(self, text: str) -> bool:
        if self.token.kind == "sign" and self.token.text == text:
            self.at += 1
            return True
        return False

    def _begins_rule(self) -> bool:
        return self.token.kind == "name" and self.tokens[self.at + 1].text == self.definition

    def _statement(self) -> None:
        if not self._begins_rule():
            raise self.fail(f"a rule (NAME {self.definition} ...) is needed, not {short(self.token.text)}")
        name, place = self.token.text, self.token.place
        if name in self.notation.rules or name in self.notation.imported:
            raise self.fail(f"the rule {name} is defined twice")
        self.at += 2
        self.notation.rules[name], self.notation.places[name] = self._alternatives(), place

    def _alternatives(self) -> Node:
        parts = [self._sequence()]
        while self._take("|"):
            parts.append(self._sequence())
        return parts[0] if len(parts) == 1 else Alt(tuple(parts))

    def _sequence(self) -> Node:
        parts: list[Node] = []
        while (part := self._item()) is not None:
            parts.append(self._repeated(part))
        return parts[0] if len(parts) == 1 else Seq(tuple(parts))

    def _item(self) -> Node | None:
        raise NotImplementedError

    def _group(self, close: str) -> Node:
        place = self.token.place
        self.depth += 1
        if self.depth > MAX_NESTING:
            raise self.fail("brackets are nested too deeply", remedy="name the inner ones as rules")
        inner = self._alternatives()
        self.depth -= 1
        if not self._take(close):
            raise self.fail(f"a group that begins here has no {close!r}", place - 1)
        return inner

    def _repeated(self, node: Node) -> Node:
        num_repeated = 0
        while self.token.kind in ("sign", "count"):
            token = self.token
            if token.kind == "count":
                node = self._counted(node, token)
            elif token.text in "*+?" and not self._is_modifier():
                node = Repeat(node, int(token.text == "+"), 1 if token.text == "?" else None)
            else:
                break
            self.at, num_repeated = self.at + 1, num_repeated + 1
            if num_repeated > MAX_REPEATED:
                raise self.fail("a repetition of a repetition of a repetition", token.place)
        return node

    def _is_modifier(self) -> bool:
        return False

    def _counted(self, node: Node, token: Token) -> Node:
        low, comma, high = re.sub(r"[{}~\s]", "", token.text).replace("..", ",").partition(",")
        bounds = int(low or 0), (int(high) if high else None) if comma else int(low or 0)
        for bound in bounds:
            if bound is not None and bound > MAX_COUNT:
                raise self.fail(f"the count {bound:,} is too large", remedy=f"at most {MAX_COUNT:,}, or without an end")
        if bounds[1] is not None and bounds[1] < bounds[0]:
            raise self.fail(f"the counts of {token.text} are the wrong way round")
        return Repeat(node, *bounds)
