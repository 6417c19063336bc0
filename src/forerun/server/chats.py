"""The choices of chats: content, reasoning and calls, as pieces of text arrive."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from forerun.result import IMPOSSIBLE, Piece
from forerun.server.answers import FINISH
from forerun.server.reasoning import ReasoningReader
from forerun.server.spelling import Spelling
from forerun.server.tools import CallReader, Part
from forerun.types import TokenLogprob


class ChatChoice:
    """One answer of a chat, whose calls, if it may have any, `calls` reads. `num_reasoning` counts the tokens of its
    reasoning."""

    def __init__(self, index: int, calls: CallReader | None, begins_inside: bool, spelling: Spelling) -> None:
        self.index, self._calls, self._spelling = index, calls, spelling
        self._reasoning = ReasoningReader(begins_inside)
        self.content = self.reasoning = ""
        self.calls: list[dict[str, Any]] = []
        self.logprobs: list[dict[str, Any]] = []
        self.finish_reason: str | None = None
        self.num_reasoning = 0
        self._has_begun = False

    def add(self, pieces: Sequence[Piece]) -> dict[str, Any] | None:
        """The next chunk's choice; None if these pieces show nothing yet."""
        reasoning = ""
        parts: list[Part] = []
        ended = None
        for piece in pieces:
            self.num_reasoning += self._reasoning.is_inside and piece.token is not None
            thought, content = self._reasoning.add(piece.text)
            reasoning += thought
            parts += self._split(content)
            ended = ended or piece.finish_reason
        if ended is not None:
            more, rest = self._reasoning.finish()
            reasoning += more
            parts += self._split(rest)
            if self._calls is not None:
                parts += self._calls.finish()
        entries = [chat_logprob(piece.logprob, self._spelling) for piece in pieces if piece.logprob is not None]
        delta = self._delta(reasoning, parts)
        self.logprobs += entries
        if ended is not None:
            self.finish_reason = "tool_calls" if self.calls and ended == "stop" else FINISH[ended]
        if not delta and not entries and ended is None:
            return None
        if not self._has_begun:
            delta = {"role": "assistant", "content": None if "tool_calls" in delta else "", **delta}
            self._has_begun = True
        return {
            "index": self.index, "delta": delta, "logprobs": {"content": entries, "refusal": None} if entries else None,
            "finish_reason": self.finish_reason,
        }  # fmt: skip

    def nothing(self) -> dict[str, Any]:
        """A chunk's choice that shows nothing."""
        return {"index": self.index, "delta": {}, "logprobs": None, "finish_reason": None}

    def whole(self) -> dict[str, Any]:
        """The choice of an answer that is not streamed."""
        content = self.content or (None if self.calls else "")
        message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
        if self.reasoning:
            message["reasoning_content"] = self.reasoning
        if self.calls:
            message["tool_calls"] = [
                {key: value for key, value in call.items() if key != "index"} for call in self.calls
            ]
        return {
            "index": self.index, "message": message, "finish_reason": self.finish_reason or "stop",
            "logprobs": {"content": self.logprobs, "refusal": None} if self.logprobs else None,
        }  # fmt: skip

    def _split(self, text: str) -> list[Part]:
        if self._calls is not None:
            return self._calls.add(text) if text else []
        return [Part(text)] if text else []

    def _delta(self, reasoning: str, parts: Sequence[Part]) -> dict[str, Any]:
        """What is new, also added to what there is."""
        delta: dict[str, Any] = {}
        if reasoning:
            self.reasoning += reasoning
            delta["reasoning_content"] = reasoning
        content = "".join(part.text for part in parts if part.call is None)
        if content:
            self.content += content
            delta["content"] = content
        changed: dict[int, dict[str, Any]] = {}
        for part in parts:
            if part.call is None:
                continue
            if part.name is not None:
                self.calls.append(_new_call(part))
                changed[part.call] = _new_call(part)
            else:
                self.calls[part.call]["function"]["arguments"] += part.text
                entry = changed.setdefault(part.call, {"index": part.call, "function": {"arguments": ""}})
                entry["function"]["arguments"] += part.text
        if changed:
            delta["tool_calls"] = list(changed.values())
        return delta


def _new_call(part: Part) -> dict[str, Any]:
    function = {"name": part.name, "arguments": ""}
    return {"index": part.call, "id": part.call_id, "type": "function", "function": function}


def chat_logprob(entry: TokenLogprob, spelling: Spelling) -> dict[str, Any]:
    """A token's entry in the shape of chats."""
    return {
        **_logprob(entry.token, entry.logprob, spelling),
        "top_logprobs": [_logprob(token, logprob, spelling) for token, logprob in entry.top],
    }


def _logprob(token: int, logprob: float, spelling: Spelling) -> dict[str, Any]:
    return {
        "token": spelling.text(token), "logprob": max(logprob, IMPOSSIBLE), "bytes": list(spelling.bytes(token)),
    }  # fmt: skip
