"""Arguments of a call, as they arrive: JSON as it is, or parameters one at a time, told as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Protocol

from forerun.constraints.marks import CallMarks
from forerun.constraints.parameters import Parameter
from forerun.server.reasoning import held_back


class Arguments(Protocol):
    """The arguments of one call, to their end."""

    @property
    def is_done(self) -> bool:
        """Whether they are complete."""
        ...

    def take(self, text: str) -> tuple[str, str]:
        """(JSON that is certain now, what has to be looked at again with more behind it), from what came."""
        ...


class JsonArguments:
    """One JSON object."""

    def __init__(self) -> None:
        self.is_done = False
        self._depth = 0
        self._in_string = self._is_escaped = False

    def take(self, text: str) -> tuple[str, str]:
        text = text if self._depth else text.lstrip()
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
                self._depth += 1
            elif sign in "}]":
                self._depth -= 1
                if self._depth <= 0:
                    self.is_done = True
                    return text[: place + 1], text[place + 1 :]
        return text, ""


class WrittenArguments:
    """Parameters of a tool, one at a time between marks. A line break at the beginning of a value is none of it."""

    def __init__(self, marks: CallMarks, parameters: Sequence[Parameter]) -> None:
        before, behind, self._end = marks.parameter or ("", "", "")
        self._openings = {before + one.name + behind: one for one in parameters}
        self._closing = marks.closing
        self.is_done = False
        self._inside: Parameter | None = None
        self._has_begun = False  # with the value, behind the line break
        self._num_written = 0

    def take(self, text: str) -> tuple[str, str]:
        shown = ""
        while not self.is_done:
            more, rest = self._value(self._inside, text) if self._inside is not None else self._between(text)
            shown += more
            if rest == text:
                break
            text = rest
        return shown, text

    def _between(self, text: str) -> tuple[str, str]:
        text = text.lstrip()
        if text.startswith(self._closing):
            self.is_done = True
            return ("}" if self._num_written else "{}"), text[len(self._closing) :]
        for opening, parameter in self._openings.items():
            if text.startswith(opening):
                self._inside, self._has_begun = parameter, False
                start = ", " if self._num_written else "{"
                self._num_written += 1
                quote = '"' if _is_text(parameter) else ""
                name = json.dumps(parameter.name, ensure_ascii=False)
                return f"{start}{name}: {quote}", text[len(opening) :]
        return "", text

    def _value(self, parameter: Parameter, text: str) -> tuple[str, str]:
        at = text.find(self._end)
        if not self._has_begun and at != 0:
            if self._end.startswith(text):  # nothing yet, or the line break that may belong to the end
                return "", text
            self._has_begun = True
            if text.startswith("\n"):
                return "", text[1:]
        if at >= 0:
            self._inside = None
            value, rest = text[:at], text[at + len(self._end) :]
            return (_inner(value) + '"' if _is_text(parameter) else parameter.read(value)), rest
        if not parameter.is_one_thing:  # the whole of it says what it is
            return "", text
        num_shown = len(text) - held_back(text, self._end)
        return (_inner(text[:num_shown]) if _is_text(parameter) else text[:num_shown]), text[num_shown:]


def _is_text(parameter: Parameter) -> bool:
    return bool(parameter.patterns) and parameter.is_one_thing


def _inner(text: str) -> str:
    """A text between the quotes of JSON."""
    return json.dumps(text, ensure_ascii=False)[1:-1]
