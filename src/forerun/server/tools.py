"""Calls of tools: what a request wants of them, and where calls stand in a text that arrives in pieces."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from uuid import uuid4

from forerun.constraints.marks import CALL_ID, CallMarks
from forerun.constraints.parameters import Parameter
from forerun.server.arguments import Arguments, JsonArguments, WrittenArguments
from forerun.server.errors import ApiError
from forerun.server.reasoning import held_back
from forerun.server.requests import ChatRequest, Tool

JSON_HEAD = re.compile(
    r'\s*\[?\s*\{\s*"name"\s*:\s*(?P<json>"(?:[^"\\]|\\.)*")\s*,\s*"(?:arguments|parameters)"\s*:\s*'
)


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
    behind the same mark it is text. `parameters` are those of each tool, of families that write them one at a time.
    """

    def __init__(
        self, marks: CallMarks, names: Iterable[str], parameters: Mapping[str, Sequence[Parameter]] | None = None
    ) -> None:
        self._marks, self._names, self._parameters = marks, frozenset(names), parameters or {}
        self._head_pattern = _head_of(marks, self._names)
        self._ids: set[str] = set()
        self._held = ""
        self._has_text = False
        self._mark: str | None = None  # that calls are being read behind; None: outside
        self._is_first = True  # of those calls
        self._call: Arguments | None = None
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
        found = self._head_pattern.match(self._held)
        given = {} if found is None else found.groupdict()
        name = json.loads(given["json"]) if "json" in given else given.get("name")
        if found is None or name not in self._names:  # more is to come, or it is JSON that begins like a call
            return False
        self._held = self._held[found.end() :]
        call_id = given.get("id")
        if call_id is None or call_id in self._ids:
            call_id = self._marks.call_id.format(uuid4().hex)
        self._ids.add(call_id)
        parts.append(Part(call=self.num_calls, name=name, call_id=call_id))
        is_json = self._marks.parameter is None
        self._call = JsonArguments() if is_json else WrittenArguments(self._marks, self._parameters.get(name, ()))
        self.num_calls += 1
        return True

    def _body(self, parts: list[Part], call: Arguments) -> bool:
        if not call.is_done:
            taken, self._held = call.take(self._held)
            if taken:
                parts.append(Part(taken, self.num_calls - 1))
            if not call.is_done:
                return False
        between, last = self._marks.between, self._marks.last
        marks = [between, last] if between else [last]
        ends = [(at, mark) for mark in marks if (at := self._held.find(mark)) >= 0]
        if not ends:
            return False
        at, mark = min(ends)
        self._held = self._held[at + len(mark) :]
        self._call, self._is_first = None, False
        if mark == last:
            self._mark = None
        return True


def _head_of(marks: CallMarks, names: Iterable[str]) -> re.Pattern[str]:
    """What a call begins with, up to its arguments: its `name`, or `json` of it, and an `id` where it has one."""
    if marks.name is None:
        return JSON_HEAD
    known = "|".join(map(re.escape, sorted(names, key=len, reverse=True))) or "(?!)"
    given_id = f"(?:{re.escape(marks.id_mark)}(?P<id>{CALL_ID}))?" if marks.id_mark else ""
    before, behind = map(re.escape, marks.name)
    return re.compile(rf"\s*{before}(?P<name>{known}){given_id}{behind}")
