"""Answers in the shapes of the OpenAI API, whole and in pieces."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import time
from typing import Any
from uuid import uuid4

from forerun.result import IMPOSSIBLE, Piece, Result
from forerun.server.reasoning import ReasoningReader
from forerun.server.tools import CallReader, Part, ToolWish
from forerun.types import TokenLogprob

Spelled = Callable[[int], str]
"""The text of a token."""

FINISH = {"stop": "stop", "length": "length", "cancelled": "stop", "error": "stop"}


@dataclass
class Head:
    """What all parts of an answer begin with."""

    kind: str
    model: str
    fingerprint: str
    prefix: str
    id: str = ""
    created: int = field(default_factory=lambda: int(time()))

    def __post_init__(self) -> None:
        self.id = f"{self.prefix}-{uuid4().hex}"

    def with_(self, **more: Any) -> dict[str, Any]:
        """A document of this answer."""
        return {
            "id": self.id, "object": self.kind, "created": self.created, "model": self.model,
            "system_fingerprint": self.fingerprint, **more,
        }  # fmt: skip


def usage(results: Sequence[Result]) -> dict[str, Any]:
    """Tokens of all prompts of a request, `n` answers to one prompt counting it once."""
    prompt = sum(result.usage.prompt_tokens for result in results)
    completion = sum(one.usage.completion_tokens for result in results for one in result.choices)
    accepted = sum(one.speculation.num_accepted for result in results for one in result.choices)
    proposed = sum(one.speculation.num_proposed for result in results for one in result.choices)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "completion_tokens_details": {
            "accepted_prediction_tokens": accepted,
            "rejected_prediction_tokens": proposed - accepted,
            "reasoning_tokens": 0,
        },
    }


def running_usage(num_prompt: int, num_written: int) -> dict[str, int]:
    """The same, while it is being written."""
    return {
        "prompt_tokens": num_prompt, "completion_tokens": num_written, "total_tokens": num_prompt + num_written,
    }  # fmt: skip


def speculation(results: Sequence[Result]) -> dict[str, Any]:
    """What speculation did, for requests that asked."""
    return {
        "choices": [
            {**one.speculation.to_dict(), "tokens_per_s": one.usage.tokens_per_s,
             "time_to_first_token_s": one.usage.time_to_first_token_s}
            for result in results for one in result.choices
        ]
    }  # fmt: skip


# -- chats -------------------------------------------------------------------------------------------------------------


class ChatChoice:
    """One answer of a chat, as its pieces arrive."""

    def __init__(self, index: int, wish: ToolWish, begins_inside: bool, spelled: Spelled) -> None:
        self.index, self._spelled = index, spelled
        self._reasoning = ReasoningReader(begins_inside)
        self._calls = None
        if wish.may_call:
            self._calls = CallReader(bool(wish.forced), [tool.function.name for tool in wish.tools])
        self.content = self.reasoning = ""
        self.calls: list[dict[str, Any]] = []
        self.logprobs: list[dict[str, Any]] = []
        self.finish_reason: str | None = None
        self._has_begun = False

    def add(self, pieces: Sequence[Piece]) -> dict[str, Any] | None:
        """The next chunk's choice; None if these pieces show nothing yet."""
        text = "".join(piece.text for piece in pieces)
        reasoning, content = self._reasoning.add(text)
        parts = self._split(content)
        ended = next((piece.finish_reason for piece in pieces if piece.finish_reason), None)
        if ended is not None:
            more, rest = self._reasoning.finish()
            reasoning += more
            parts += self._split(rest)
            if self._calls is not None:
                parts += self._calls.finish()
        entries = [chat_logprob(piece.logprob, self._spelled) for piece in pieces if piece.logprob is not None]
        delta = self._delta(reasoning, parts)
        self.logprobs += entries
        if ended is not None:
            self.finish_reason = "tool_calls" if self.calls and ended == "stop" else FINISH[ended]
        if not delta and not entries and ended is None:
            return None
        if not self._has_begun:
            delta = {"role": "assistant", "content": "", **delta} if "tool_calls" not in delta else {"role": "assistant", "content": None, **delta}
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
        message: dict[str, Any] = {"role": "assistant", "content": self.content or (None if self.calls else ""), "refusal": None}
        if self.reasoning:
            message["reasoning_content"] = self.reasoning
        if self.calls:
            message["tool_calls"] = [{key: value for key, value in call.items() if key != "index"} for call in self.calls]
        return {
            "index": self.index, "message": message, "finish_reason": self.finish_reason or "stop",
            "logprobs": {"content": self.logprobs, "refusal": None} if self.logprobs else None,
        }  # fmt: skip

    def _split(self, text: str) -> list[Part]:
        if self._calls is not None:
            return self._calls.add(text) if text else []
        return [Part(text)] if text else []

    def _delta(self, reasoning: str, parts: Sequence[Part]) -> dict[str, Any]:
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
                self.calls.append(
                    {"index": part.call, "id": part.call_id, "type": "function", "function": {"name": part.name, "arguments": ""}}
                )
                changed[part.call] = {
                    "index": part.call, "id": part.call_id, "type": "function",
                    "function": {"name": part.name, "arguments": ""},
                }  # fmt: skip
            else:
                self.calls[part.call]["function"]["arguments"] += part.text
                entry = changed.setdefault(part.call, {"index": part.call, "function": {"arguments": ""}})
                entry["function"]["arguments"] += part.text
        if changed:
            delta["tool_calls"] = list(changed.values())
        return delta


def chat_logprob(entry: TokenLogprob, spelled: Spelled) -> dict[str, Any]:
    """A token's entry in the shape of chats."""
    return {
        **_spelled_logprob(entry.token, entry.logprob, spelled),
        "top_logprobs": [_spelled_logprob(token, logprob, spelled) for token, logprob in entry.top],
    }


def _spelled_logprob(token: int, logprob: float, spelled: Spelled) -> dict[str, Any]:
    text = spelled(token)
    return {"token": text, "logprob": max(logprob, IMPOSSIBLE), "bytes": list(text.encode())}


# -- completions -------------------------------------------------------------------------------------------------------


class CompletionChoice:
    """One text of a completion, as its pieces arrive. `echo` is the prompt's text, which comes first if it is wanted."""

    def __init__(self, index: int, spelled: Spelled, echo: str = "") -> None:
        self.index, self._spelled, self._echo = index, spelled, echo
        self.text = ""
        self.finish_reason: str | None = None
        self._tokens: list[TokenLogprob | None] = []
        self._offsets: list[int] = []
        self._num_shown = 0

    def begin(self, prompt_logprobs: Sequence[TokenLogprob | None] | None, prompt: Sequence[int]) -> None:
        """The entries of an echoed prompt."""
        if prompt_logprobs is None:
            return
        at = 0
        for token, entry in zip(prompt, prompt_logprobs, strict=False):
            self._tokens.append(entry if entry is not None else TokenLogprob(token, 0.0, 0, ()))
            self._offsets.append(at)
            at += len(self._spelled(token))
        self._firsts = True

    def add(self, pieces: Sequence[Piece]) -> dict[str, Any] | None:
        """The next chunk's choice; None if these pieces show nothing yet."""
        start = len(self._tokens)
        echoed, self._echo = self._echo, ""
        at = len(self.text) + len(echoed)
        for piece in pieces:
            if piece.logprob is not None:
                self._tokens.append(piece.logprob)
                self._offsets.append(at)
            at += len(piece.text)
        text = echoed + "".join(piece.text for piece in pieces)
        self.text += text
        ended = next((piece.finish_reason for piece in pieces if piece.finish_reason), None)
        if ended is not None:
            self.finish_reason = FINISH[ended]
        if not text and start == len(self._tokens) and ended is None:
            return None
        return {
            "index": self.index, "text": text, "finish_reason": self.finish_reason,
            "logprobs": self._logprobs(start) if len(self._tokens) > start else None,
        }  # fmt: skip

    def nothing(self) -> dict[str, Any]:
        """A chunk's choice that shows nothing."""
        return {"index": self.index, "text": "", "logprobs": None, "finish_reason": None}

    def whole(self) -> dict[str, Any]:
        """The choice of an answer that is not streamed."""
        return {
            "index": self.index, "text": self.text, "finish_reason": self.finish_reason or "stop",
            "logprobs": self._logprobs(0) if self._tokens else None,
        }  # fmt: skip

    def _logprobs(self, start: int) -> dict[str, Any]:
        entries = [entry for entry in self._tokens[start:] if entry is not None]
        first = start == 0 and getattr(self, "_firsts", False)  # nothing predicts the first token of a prompt
        return {
            "tokens": [self._spelled(entry.token) for entry in entries],
            "token_logprobs": [
                None if first and i == 0 else max(entry.logprob, IMPOSSIBLE) for i, entry in enumerate(entries)
            ],
            "top_logprobs": [
                None if first and i == 0 else {self._spelled(token): max(logprob, IMPOSSIBLE) for token, logprob in entry.top}
                for i, entry in enumerate(entries)
            ],
            "text_offset": self._offsets[start:],
        }
