"""Answers in the shapes of the OpenAI API: their heads, their usage, and the choices of completions."""

from __future__ import annotations

from codecs import getincrementaldecoder
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import time
from typing import Any
from uuid import uuid4

from forerun.result import IMPOSSIBLE, Piece, Result
from forerun.server.spelling import Spelling
from forerun.types import TokenLogprob

FINISH = {"stop": "stop", "length": "length", "cancelled": "stop", "error": "stop"}
"""Reasons of the engine -> reasons of the API. Errors are told as such, and whoever cancels reads no more."""


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


def usage(num_prompt: int, num_written: int, num_reasoning: int = 0) -> dict[str, Any]:
    """Tokens of all prompts of a request, `n` answers to one prompt counting it once, and of everything written."""
    found: dict[str, Any] = {
        "prompt_tokens": num_prompt, "completion_tokens": num_written, "total_tokens": num_prompt + num_written,
    }  # fmt: skip
    if num_reasoning:
        found["completion_tokens_details"] = {"reasoning_tokens": num_reasoning}
    return found


def speculation(results: Sequence[Result]) -> dict[str, Any]:
    """What speculation did, for requests that asked."""
    return {
        "choices": [
            {**one.speculation.to_dict(), "tokens_per_s": one.usage.tokens_per_s,
             "time_to_first_token_s": one.usage.time_to_first_token_s}
            for result in results for one in result.choices
        ]
    }  # fmt: skip


class CompletionChoice:
    """One text of a completion, as its pieces arrive. `echo` is the prompt's text, which comes first where wanted."""

    num_reasoning = 0

    def __init__(self, index: int, spelling: Spelling, echo: str = "") -> None:
        self.index, self._spelling, self._echo = index, spelling, echo
        self.text = ""
        self.finish_reason: str | None = None
        self._tokens: list[TokenLogprob | None] = []  # None: a prompt's first token, which nothing predicts
        self._first: str | None = None
        self._offsets: list[int] = []

    def begin(self, scores: Sequence[TokenLogprob | None] | None, prompt: Sequence[int]) -> None:
        """The entries of an echoed prompt, of which each token has one."""
        if scores is None:
            return
        self._first, at = self._spelling.text(prompt[0]), 0
        decoder = getincrementaldecoder("utf-8")("replace")  # a character may be spread over several tokens
        for token, entry in zip(prompt, scores, strict=False):
            self._tokens.append(entry)
            self._offsets.append(at)
            at += len(decoder.decode(self._spelling.bytes(token)))

    def add(self, pieces: Sequence[Piece]) -> dict[str, Any] | None:
        """The next chunk's choice; None if these pieces show nothing yet."""
        start = 0 if self._echo else len(self._tokens)
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
        entries, text = self._tokens[start:], self._spelling.text
        return {
            "tokens": [self._first if entry is None else text(entry.token) for entry in entries],
            "token_logprobs": [None if entry is None else max(entry.logprob, IMPOSSIBLE) for entry in entries],
            "top_logprobs": [
                None if entry is None else {text(token): max(logprob, IMPOSSIBLE) for token, logprob in entry.top}
                for entry in entries
            ],
            "text_offset": self._offsets[start:],
        }
