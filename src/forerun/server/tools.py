"""Calls of tools: what a forced call must look like, and where calls stand in a text that arrives in pieces."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from forerun.constraints.calls import call_schema
from forerun.server.errors import ApiError
from forerun.server.reasoning import held_back
from forerun.server.requests import ChatRequest, Tool

OPEN, CLOSE = "<tool_call>", "</tool_call>"
"""How models of the Qwen and Hermes families write calls, which is what templates that take tools ask for most."""

_HEAD = re.compile(r'\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"(?:arguments|parameters)"\s*:\s*')


@dataclass(frozen=True)
class ToolWish:
    """What a request wants of its tools. `forced` are those one of which must be called, () where the model may choose
    to call none; `tools` are shown to the model. `only_one`: where it may choose, the text ends with its first call."""

    tools: tuple[Tool, ...] = ()
    forced: tuple[Tool, ...] = ()
    may_call: bool = False
    only_one: bool = False

    @property
    def schema(self) -> dict[str, Any] | None:
        """The JSON schema of a forced call. ParameterError names the tool whose arguments cannot be enforced."""
        if not self.forced:
            return None
        return call_schema((tool.function.name, tool.function.parameters) for tool in self.forced)


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
    if choice is None or choice == "auto":
        return ToolWish(tools, may_call=True, only_one=request.parallel_tool_calls is False)
    if choice == "none":
        return ToolWish()
    if choice == "required":
        return ToolWish(tools, tools, may_call=True)
    if isinstance(choice, dict) and choice.get("type") == "function":
        wanted = (choice.get("function") or {}).get("name")
        for tool in tools:
            if tool.function.name == wanted:
                return ToolWish(tools, (tool,), may_call=True)
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
    """Splits an answer that arrives in pieces into text and calls, the same whatever the pieces are. `forced`: all of
    it is one call.

    A call that is no JSON of a known name and arguments is text after all. Blanks before and between calls are left
    out.
    """

    def __init__(self, forced: bool, names: Sequence[str]) -> None:
        self._forced, self._names = forced, frozenset(names)
        self._held = ""
        self._inside = forced
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
        if self._call is not None:  # closing marks behind a whole call, or nothing of a call that was cut
            return []
        if self._inside and not self._forced:
            rest = OPEN + rest
        elif self.num_calls and not rest.strip():
            rest = ""
        return [Part(rest)] if rest else []

    def _advance(self, parts: list[Part]) -> bool:
        if not self._inside:
            return self._outside(parts)
        if self._call is None:
            return self._head(parts)
        return self._body(parts, self._call)

    def _outside(self, parts: list[Part]) -> bool:
        at = self._held.find(OPEN)
        if at >= 0:
            before, self._held, self._inside = self._held[:at].rstrip(), self._held[at + len(OPEN) :], True
            if before:
                parts.append(Part(before))
            return True
        kept = self._held[: len(self._held) - held_back(self._held, OPEN)].rstrip()
        if kept:  # blanks wait for what follows them
            parts.append(Part(kept))
            self._held = self._held[len(kept) :]
        return False

    def _head(self, parts: list[Part]) -> bool:
        found = _HEAD.match(self._held)
        name = None if found is None else json.loads(found.group(1))
        if found is not None and name in self._names:
            self._held = self._held[found.end() :]
            self._call = _Call(self._begin(parts, name))
            return True
        at = self._held.find(CLOSE)
        if self._forced or at < 0:
            return False
        inner, self._held, self._inside = self._held[:at], self._held[at + len(CLOSE) :], False
        call = _read(inner, self._names)
        if call is None:
            parts.append(Part(OPEN + inner + CLOSE))
        else:
            parts.append(Part(call[1], self._begin(parts, call[0])))
        return True

    def _begin(self, parts: list[Part], name: str) -> int:
        parts.append(Part(call=self.num_calls, name=name, call_id=f"call_{uuid4().hex[:24]}"))
        self.num_calls += 1
        return self.num_calls - 1

    def _body(self, parts: list[Part], call: _Call) -> bool:
        if not call.is_done:
            if not call.has_begun:
                self._held = self._held.lstrip()
            taken = call.take(self._held)
            if taken:
                parts.append(Part(taken, call.number))
            self._held = self._held[len(taken) :]
            if not call.is_done:
                return False
        ends = [(at, mark) for mark in (CLOSE, OPEN) if (at := self._held.find(mark)) >= 0]
        if self._forced or not ends:
            return False
        at, mark = min(ends)
        self._held = self._held[at + (len(CLOSE) if mark == CLOSE else 0) :]
        self._inside, self._call = False, None
        return True


def _read(inner: str, names: Collection[str]) -> tuple[str, str] | None:
    """(name, arguments) of a call whose parts stand in another order; None if it is none."""
    try:
        call = json.loads(inner)
    except (ValueError, RecursionError):
        return None
    if not isinstance(call, dict) or not isinstance(call.get("name"), str) or call["name"] not in names:
        return None
    arguments = call.get("arguments", call.get("parameters"))
    return (call["name"], json.dumps(arguments, ensure_ascii=False)) if isinstance(arguments, dict) else None


class _Call:
    """The arguments of a call: one JSON value, to its end."""

    def __init__(self, number: int) -> None:
        self.number, self.is_done = number, False
        self._depth = 0
        self._in_string = self._is_escaped = self.has_begun = False

    def take(self, text: str) -> str:
        """As much of `text` as belongs to the value."""
        for place, sign in enumerate(text):
            if self._in_string:
                if self._is_escaped:
                    self._is_escaped = False
                elif sign == "\\":
                    self._is_escaped = True
                elif sign == '"':
                    self._in_string = False
                    if self._depth == 0:
                        self.is_done = True
                        return text[: place + 1]
            elif sign == '"':
                self._in_string = self.has_begun = True
            elif sign in "{[":
                self._depth += 1
                self.has_begun = True
            elif sign in "}]":
                if self._depth == 0:  # of a bare number or word: the call's own end
                    self.is_done = True
                    return text[:place]
                self._depth -= 1
                if self._depth == 0:
                    self.is_done = True
                    return text[: place + 1]
            elif not sign.isspace():
                self.has_begun = True
        return text
