"""Calls of tools: what a request wants of them, and where calls stand in a text that arrives in pieces."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from uuid import uuid4

from forerun.constraints.marks import CallMarks
from forerun.server.errors import ApiError
from forerun.server.reasoning import held_back
from forerun.server.requests import ChatRequest, Tool

_HEAD = re.compile(r'\s*\[?\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"(?:arguments|parameters)"\s*:\s*')


@dataclass(frozen=True)
class ToolWish:
    """What a request wants of its tools. `forced` are those one of which must be called, () where the model may choose
    to call none; `tools` are shown to the model. `only_one`: the text ends with its first call."""

    tools: tuple[Tool, ...] = ()
    forced: tuple[Tool, ...] = ()
    may_call: bool = False
    only_one: bool = False


def wish_of(request: ChatRequest) -> ToolWish:
    """ApiError 400 where `tool_choice` names no tool that was given."""
    tools, choice = tuple(request.tools or ()), request.tool_choice
    if not tools:
        if choice not in (None, "none", "auto"):
            raise ApiError(400, "tool_choice: no tools were given", param="tool_choice")
        return ToolWish()
    names = [tool.function.name for tool in tools]
    if len(set(names)) != len(names):
        raise ApiError(400, "tools: two of them have the same name", param="tools")
    only_one = request.parallel_tool_calls is False
    if choice is None or choice == "auto":
        return ToolWish(tools, may_call=True, only_one=only_one)
    if choice == "none":
        return ToolWish()
    if choice == "required":
        return ToolWish(tools, tools, may_call=True, only_one=only_one)
    if isinstance(choice, dict) and choice.get("type") == "function":
        wanted = (choice.get("function") or {}).get("name")
        for tool in tools:
            if tool.function.name == wanted:
                return ToolWish(tools, (tool,), may_call=True, only_one=True)
        raise ApiError(400, f"tool_choice: no tool is named {wanted!r}", param="tool_choice")
    raise ApiError(400, "tool_choice: none, auto, required, or a function by its name", param="tool_choice")


@dataclass(frozen=True)
class Part:
    """A stretch of an answer: text, or a part of call number `call`: its `name` once, then pieces of its arguments."""

    text: str = ""
    call: int | None = None
    name: str | None = None
    call_id: str = ""


class CallReader:
    """Splits an answer that arrives in pieces into text and calls, the same whatever the pieces are. Of the answer it
    takes for granted what its grammar says: behind a mark there are calls of `names`.

    Blanks before and between calls are left out, and so is a call that was cut before its arguments; without any other
    behind the same mark it is text.
    """

    def __init__(self, marks: CallMarks, names: Iterable[str]) -> None:
        self._marks, self._names = marks, frozenset(names)
        self._held = ""
        self._has_text = False
        self._mark: str | None = None  # that calls are being read behind; None: outside
        self._is_first = True  # of those calls
        self._call: _Call | None = None
        self.num_calls = 0

    def add(self, text: str) -> list[Part]:
        """The parts that are certain now."""
        self._held += text
        parts: list[Part] = []
        while self._advance(parts):
            pass
        return parts

    def finish(self) -> list[Part]:
        """What was held back."""
        rest, self._held = self._held, ""
        if self._mark is not None:  # marks behind a whole call, or nothing of a call that was cut
            rest = self._mark + rest if self._call is None and self._is_first else ""
        elif self.num_calls and not rest.strip():
            rest = ""
        return [Part(rest)] if rest else []

    def _advance(self, parts: list[Part]) -> bool:
        if self._mark is None:
            return self._outside(parts)
        if self._call is None:
            return self._head(parts)
        return self._body(parts, self._call)

    def _outside(self, parts: list[Part]) -> bool:
        begin, bare = self._marks.begin, self._marks.bare
        if bare and not self._has_text and not self.num_calls and self._held.lstrip().startswith(bare):
            self._mark, self._is_first = "", True
            return True
        at = self._held.find(begin)
        if at >= 0:
            before, self._held = self._held[:at].rstrip(), self._held[at + len(begin) :]
            self._mark, self._is_first = begin, True
        else:  # blanks wait for what follows them
            before = self._held[: len(self._held) - held_back(self._held, begin)].rstrip()
            self._held = self._held[len(before) :]
        if before:
            self._has_text = True
            parts.append(Part(before))
        return at >= 0

    def _head(self, parts: list[Part]) -> bool:
        found = _HEAD.match(self._held)
        name = None if found is None else json.loads(found.group(1))
        if found is None or name not in self._names:  # more is to come, or it is JSON that begins like a call
            return False
        self._held = self._held[found.end() :]
        parts.append(Part(call=self.num_calls, name=name, call_id=self._marks.call_id.format(uuid4().hex)))
        self._call = _Call(self.num_calls)
        self.num_calls += 1
        return True

    def _body(self, parts: list[Part], call: _Call) -> bool:
        if not call.is_done:
            if not call.depth:
                self._held = self._held.lstrip()
            taken = call.take(self._held)
            if taken:
                parts.append(Part(taken, call.number))
            self._held = self._held[len(taken) :]
            if not call.is_done:
                return False
        marks = self._marks
        ends = [
            (at, mark) for mark in (marks.between, marks.behind or "}") if mark and (at := self._held.find(mark)) >= 0
        ]
        if not ends:
            return False
        at, mark = min(ends)
        self._held = self._held[at + len(mark) :]
        self._call, self._is_first = None, False
        if mark != marks.between:
            self._mark = None
        return True


class _Call:
    """The arguments of a call: one JSON object, to its end."""

    def __init__(self, number: int) -> None:
        self.number, self.depth, self.is_done = number, 0, False
        self._in_string = self._is_escaped = False

    def take(self, text: str) -> str:
        """As much of `text` as belongs to the object."""
        for place, sign in enumerate(text):
            if self._in_string:
                if self._is_escaped:
                    self._is_escaped = False
                elif sign == "\\":
                    self._is_escaped = True
                elif sign == '"':
                    self._in_string = False
            elif sign == '"':
                self._in_string = True
            elif sign in "{[":
                self.depth += 1
            elif sign in "}]":
                self.depth -= 1
                if self.depth <= 0:
                    self.is_done = True
                    return text[: place + 1]
        return text
