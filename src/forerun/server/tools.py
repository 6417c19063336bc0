"""Calls of tools: what a forced call must look like, and where calls stand in a text that arrives in pieces."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from forerun.server.errors import ApiError
from forerun.server.requests import ChatRequest, Tool

OPEN, CLOSE = "<tool_call>", "</tool_call>"
"""How models of the Qwen and Hermes families write calls, which is what templates that take tools ask for most."""

_HEAD = re.compile(r'\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"(?:arguments|parameters)"\s*:\s*')


@dataclass(frozen=True)
class ToolWish:
    """What a request wants of its tools. `forced` are those one of which must be called, () where the model may choose
    to call none; `tools` are shown to the model."""

    tools: tuple[Tool, ...] = ()
    forced: tuple[Tool, ...] = ()
    may_call: bool = False

    @property
    def schema(self) -> dict[str, Any] | None:
        """The JSON schema of a forced call."""
        if not self.forced:
            return None
        calls = [
            {
                "type": "object",
                "properties": {"name": {"const": tool.function.name}, "arguments": tool.function.parameters or {"type": "object"}},
                "required": ["name", "arguments"],
                "additionalProperties": False,
            }
            for tool in self.forced
        ]
        return calls[0] if len(calls) == 1 else {"anyOf": calls}


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
        return ToolWish(tools, may_call=True)
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
    """Splits an answer that arrives in pieces, of any size, into text and calls. `forced`: all of it is one call.

    A call that is no JSON of a name and arguments is text after all: nothing of an answer is ever lost.
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
        parts: list[Part] = []
        rest, self._held = self._held, ""
        if self._inside and self._call is None and not self._forced:
            rest = OPEN + rest
        if self._call is not None:
            rest = ""  # blanks and closing marks behind a whole call, or nothing of a call that was cut
        if rest:
            parts.append(Part(rest))
        return parts

    def _advance(self, parts: list[Part]) -> bool:
        if not self._inside:
            return self._outside(parts)
        if self._call is None:
            return self._head(parts)
        return self._body(parts)

    def _outside(self, parts: list[Part]) -> bool:
        at = self._held.find(OPEN)
        if at >= 0:
            before, self._held, self._inside = self._held[:at], self._held[at + len(OPEN) :], True
            if before.strip() or (before and not self.num_calls and before.strip("\n")):
                parts.append(Part(before))
            return True
        keep = next((n for n in range(min(len(OPEN) - 1, len(self._held)), 0, -1) if OPEN.startswith(self._held[-n:])), 0)
        shown, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        if shown and not (self.num_calls and not shown.strip()):
            parts.append(Part(shown))
        return False

    def _head(self, parts: list[Part]) -> bool:
        found = _HEAD.match(self._held)
        if found is None:
            if not self._forced and (CLOSE in self._held or len(self._held) > 4096):
                at = self._held.find(CLOSE)
                end = at + len(CLOSE) if at >= 0 else len(self._held)
                parts.append(Part(OPEN + self._held[:end]))
                self._held, self._inside = self._held[end:], False
                return True
            return False
        name = json.loads(found.group(1))
        if name not in self._names:
            if self._forced:
                return False
            if CLOSE not in self._held:
                return False
            end = self._held.find(CLOSE) + len(CLOSE)
            parts.append(Part(OPEN + self._held[:end]))
            self._held, self._inside = self._held[end:], False
            return True
        self._held = self._held[found.end() :]
        self._call = _Call(self.num_calls)
        parts.append(Part(call=self.num_calls, name=name, call_id=f"call_{uuid4().hex[:24]}"))
        self.num_calls += 1
        return True

    def _body(self, parts: list[Part]) -> bool:
        call = self._call
        if call is None:
            return False
        if not call.is_done:
            taken = call.take(self._held)
            if taken:
                parts.append(Part(taken, call.number))
            self._held = self._held[len(taken) :]
            if not call.is_done:
                return False
        at = self._held.find(CLOSE)
        if self._forced or at < 0:
            return False
        self._held, self._inside, self._call = self._held[at + len(CLOSE) :], False, None
        return True


class _Call:
    """The arguments of a call: one JSON value, to its end."""

    def __init__(self, number: int) -> None:
        self.number, self.is_done = number, False
        self._depth = 0
        self._in_string = self._is_escaped = self._has_begun = False

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
                self._in_string = self._has_begun = True
            elif sign in "{[":
                self._depth += 1
                self._has_begun = True
            elif sign in "}]":
                if self._depth == 0:  # of a bare number or word: the call's own end
                    self.is_done = True
                    return text[:place]
                self._depth -= 1
                if self._depth == 0:
                    self.is_done = True
                    return text[: place + 1]
            elif not sign.isspace():
                self._has_begun = True
        return text
