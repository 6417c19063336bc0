"""Grammars for the library: what is wrong with one is said here, and GBNF becomes what means the same there.

The library's own notation is Lark's, with a lexer. GBNF has none. A grammar without recursion is a single pattern,
which is matched as a whole; in any other a lexeme is one character, or a run that cannot be cut wrongly (lexemes.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from forerun.constraints.characters import Ranges, as_pattern, merged
from forerun.constraints.gbnf import Gbnf
from forerun.constraints.lark import Lark
from forerun.constraints.lexemes import Characters, Choice, Leaf, Name, Part, Row, Times, whole_runs
from forerun.constraints.notation import NAME, Alt, Chars, Node, Notation, Ref, Repeat, Seq, Terminal
from forerun.errors import ParameterError

MAX_GRAMMAR = 100_000
"""Characters in a grammar."""

MAX_RULES, MAX_LEAVES = 2_000, 10_000
"""Rules of a grammar, and the places in it that take a character."""

MAX_PATTERN_LEAVES, MAX_PATTERN_DEPTH = 5_000, 60
"""A grammar without recursion that is larger written out, or deeper, is followed rule by rule."""

MAX_INSIDE = 64
"""Places of a rule that is written out inside a repetition, so that its characters may be part of a run."""


MAX_SINGLE = 16
"""Characters that are looked at one by one in x{n}, which is then no run."""


def read(text: str) -> Notation:
    """The rules of a grammar, in the notation that it is written in. ParameterError names what is wrong and where."""
    if len(text) > MAX_GRAMMAR:
        raise ParameterError(NAME, f"it has {len(text):,} characters", f"at most {MAX_GRAMMAR:,} are taken")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ParameterError(NAME, f"it is not valid Unicode: {error}") from error
    is_gbnf = re.search(r"^[ \t]*[\w-]+\s*::=", text, re.MULTILINE) is not None
    notation = Notation(text, is_gbnf)
    (Gbnf if is_gbnf else Lark)(notation).read()
    _check(notation)
    return notation


def to_library(text: str) -> str:
    """The same grammar as the library takes it: a rule named start and those that it needs."""
    notation = read(text)
    if not notation.is_gbnf:
        return text
    used = _Order(notation)
    rules = {name: notation.rules[name] for name in used.order}
    if not used.is_recursive and (pattern := _as_pattern(rules)) is not None:
        return f"start: /{pattern}/"
    return _Written(rules, used.recursive).text(notation.start)


def _check(notation: Notation) -> None:
    """Refuse names that nothing defines, sizes beyond the bounds, and rules that derive no finite text."""
    if len(notation.rules) > MAX_RULES:
        raise ParameterError(NAME, f"it has {len(notation.rules):,} rules", f"at most {MAX_RULES:,} are taken")
    num_leaves = 0
    for node in notation.rules.values():
        for one in _inside(node):
            if isinstance(one, Ref) and one.name not in notation.rules and one.name not in notation.imported:
                where = notation.where(one.place)
                raise ParameterError(NAME, f"there is no rule {one.name}, which is used at {where}", "define it")
            num_leaves += isinstance(one, (Chars, Terminal))
    if num_leaves > MAX_LEAVES:
        raise ParameterError(NAME, f"it takes characters at {num_leaves:,} places", f"at most {MAX_LEAVES:,} are taken")
    finite, before = set(notation.imported), -1
    while len(finite) != before:
        before = len(finite)
        finite |= {name for name, node in notation.rules.items() if name not in finite and _is_finite(node, finite)}
    for name in _Order(notation).order:
        if name not in finite:
            where = notation.where(notation.places[name])
            raise ParameterError(NAME, f"the rule {name}, at {where}, derives no finite text", "let the recursion end")


def _inside(node: Node) -> Iterator[Node]:
    """A node and every one inside it."""
    waiting = [node]
    while waiting:
        one = waiting.pop()
        yield one
        if isinstance(one, (Seq, Alt)):
            waiting.extend(reversed(one.parts))
        elif isinstance(one, Repeat):
            waiting.append(one.inner)


def _is_finite(node: Node, finite: set[str]) -> bool:
    if isinstance(node, Ref):
        return node.name in finite
    if isinstance(node, Seq):
        return all(_is_finite(part, finite) for part in node.parts)
    if isinstance(node, Alt):
        return any(_is_finite(part, finite) for part in node.parts)
    return not isinstance(node, Repeat) or node.low == 0 or _is_finite(node.inner, finite)


class _Order:
    """The rules that texts can come from. `order`: each after those that it refers to, as far as there is no circle;
    `recursive` are those that are on a circle, or refer to one."""

    def __init__(self, notation: Notation) -> None:
        self.order: list[str] = []
        self.recursive: set[str] = set()
        seen: set[str] = set()
        done: set[str] = set()
        stack = [(notation.start, False)]
        while stack:
            name, is_done = stack.pop()
            refs = [one.name for one in _inside(notation.rules[name]) if isinstance(one, Ref)]
            refs = [ref for ref in refs if ref in notation.rules]
            if is_done:
                # What is not in order yet is being looked at: a circle.
                if any(ref in self.recursive or ref not in done for ref in refs):
                    self.recursive.add(name)
                self.order.append(name)
                done.add(name)
            elif name not in seen:
                seen.add(name)
                stack.append((name, True))
                stack.extend((ref, False) for ref in refs)

    @property
    def is_recursive(self) -> bool:
        return bool(self.recursive)


def _as_pattern(rules: dict[str, Node]) -> str | None:
    """The last of these rules, none of which is recursive, as one pattern; None if that would be too large."""
    sizes: dict[str, tuple[int, int]] = {}

    def size(node: Node) -> tuple[int, int]:
        if isinstance(node, Ref):
            return sizes[node.name]
        if isinstance(node, (Seq, Alt)):
            inside = [size(part) for part in node.parts]
            return sum(num for num, _ in inside), 1 + max((depth for _, depth in inside), default=0)
        if isinstance(node, Repeat):
            num, depth = size(node.inner)
            return num, depth + 1
        return 1, 1

    patterns: dict[str, str] = {}
    for name, node in rules.items():
        sizes[name] = size(node)
        if sizes[name][0] > MAX_PATTERN_LEAVES or sizes[name][1] > MAX_PATTERN_DEPTH:
            return None
        patterns[name] = _pattern(node, patterns)
    return patterns[name]


def _pattern(node: Node, rules: dict[str, str]) -> str:
    if isinstance(node, Chars):
        return as_pattern(node.ranges)
    if isinstance(node, Ref):
        return rules[node.name]
    if isinstance(node, Seq):
        return "".join(_pattern(part, rules) for part in node.parts)
    if isinstance(node, Alt):
        return "(?:" + "|".join(_pattern(part, rules) for part in node.parts) + ")"
    if isinstance(node, Repeat):
        return f"(?:{_pattern(node.inner, rules)}){_times(node.low, node.high)}"
    raise TypeError(f"{node} is no part of a GBNF grammar")


def _times(low: int, high: int | None) -> str:
    return f"{{{low},{'' if high is None else high}}}"


class _Written:
    """Rules over lexemes, as the library reads them."""

    def __init__(self, rules: dict[str, Node], recursive: set[str]) -> None:
        self.nodes, self.recursive = rules, recursive
        self.leaves: list[Characters] = []
        self.rules = {name: self._part(node) for name, node in rules.items()}
        if len(self.leaves) > MAX_LEAVES:
            raise ParameterError(NAME, f"it takes characters at more than {MAX_LEAVES:,} places", "simplify it")

    def text(self, start: str) -> str:
        self.runs = whole_runs(self.rules, start, self.leaves)
        self.names = {name: f"r{number}" for number, name in enumerate(self.rules)}
        lines = [f"{self.names[name]}: {self._write(part)}" for name, part in self.rules.items()]
        return "\n".join([f"start: {self.names[start]}", *lines])

    def _part(self, node: Node) -> Part:
        if isinstance(node, Chars):
            return self._leaf(Characters(node.ranges))
        if isinstance(node, Ref):
            return Name(node.name)
        if isinstance(node, Seq):
            return Row(tuple(self._part(part) for part in node.parts))
        if isinstance(node, Alt):
            return Choice(tuple(self._part(part) for part in node.parts))
        if isinstance(node, Repeat):
            return self._repeat(node)
        raise TypeError(f"{node} is no part of a GBNF grammar")

    def _leaf(self, leaf: Characters) -> Leaf:
        self.leaves.append(leaf)
        return Leaf(len(self.leaves) - 1)

    def _repeat(self, node: Repeat) -> Part:
        """(C | X)* is written as C* (X C*)*, so that the characters C form runs; (C | X)+ begins with one of both."""
        options = list(self._options(node.inner))
        ranges = merged(pair for one in options if isinstance(one, Chars) for pair in one.ranges)
        others = [one for one in options if not isinstance(one, Chars)]
        if not ranges or (others and (node.high is not None or node.low > 1)):
            return Times(self._part(node.inner), node.low, node.high)
        if not others and node.low == node.high and node.low <= MAX_SINGLE:
            return Row(tuple(self._leaf(Characters(ranges)) for _ in range(node.low)))
        if not others:
            return self._leaf(Characters(ranges, node.low, node.high))
        other = Choice(tuple(self._part(one) for one in others))
        loop = Times(Row((other, self._run(ranges, 0))), 0, None)
        if node.low == 0:
            return Row((self._run(ranges, 0), loop))
        return Choice((Row((self._run(ranges, 1), loop)), Row((other, self._run(ranges, 0), loop))))

    def _run(self, ranges: Ranges, low: int) -> Leaf:
        return self._leaf(Characters(ranges, low, None))

    def _options(self, node: Node) -> Iterator[Node]:
        """The alternatives of what is repeated, small rules written out."""
        if isinstance(node, Alt):
            for part in node.parts:
                yield from self._options(part)
        elif isinstance(node, Ref) and node.name not in self.recursive and self._is_small(node.name):
            yield from self._options(self.nodes[node.name])
        else:
            yield node

    def _is_small(self, name: str) -> bool:
        return sum(1 for _ in _inside(self.nodes[name])) <= MAX_INSIDE

    def _write(self, part: Part) -> str:
        if isinstance(part, Leaf):
            return self._lexeme(part)
        if isinstance(part, Name):
            return self.names[part.name]
        if isinstance(part, Times):
            return f"({self._write(part.inner)}){_times(part.low, part.high)}"
        inside = [self._write(one) for one in part.parts]
        return f"({(' ' if isinstance(part, Row) else ' | ').join(inside)})" if inside else '""'

    def _lexeme(self, part: Leaf) -> str:
        leaf = self.leaves[part.index]
        one = as_pattern(leaf.ranges)
        if not leaf.is_run or part.index not in self.runs:
            times = "" if (leaf.low, leaf.high) == (1, 1) else _times(leaf.low, leaf.high)
            return f"/{one}/{times}"
        run = f"/{one}{_times(max(leaf.low, 1), leaf.high)}/"
        return f"({run})?" if leaf.low == 0 else run
