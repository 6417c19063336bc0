"""What a finished request returns, and what a stream yields."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from forerun.engine.statistics import Statistics
from forerun.types import FinishReason, Origin


@dataclass(frozen=True, slots=True)
class Usage:
    """`completion_tokens` counts the tokens delivered; `tokens_per_s` covers decoding only (tokens after the first
    over the time since the first), None below two tokens."""

    prompt_tokens: int
    completion_tokens: int
    tokens_per_s: float | None
    time_to_first_token_s: float | None


@dataclass(frozen=True, slots=True)
class Piece:
    """One token of a stream. `text` is what can be shown now: "" while a character is incomplete. `token` is None in
    a last piece that only carries held-back text or the finish reason."""

    text: str
    token: int | None
    origin: Origin | None
    finish_reason: FinishReason | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """A finished request. `logprobs` is None: asking for them is not built yet."""

    text: str
    tokens: tuple[int, ...]
    origins: tuple[Origin, ...]
    finish_reason: FinishReason
    usage: Usage
    speculation: Statistics
    logprobs: None = None

    def to_dict(self) -> dict[str, Any]:
        """The JSON document that `forerun generate --json` prints."""
        return {
            "text": self.text,
            "tokens": list(self.tokens),
            "finish_reason": self.finish_reason,
            "usage": {
                "prompt_tokens": self.usage.prompt_tokens,
                "completion_tokens": self.usage.completion_tokens,
                "tokens_per_s": self.usage.tokens_per_s,
                "time_to_first_token_s": self.usage.time_to_first_token_s,
            },
            "speculation": self.speculation.to_dict(),
        }
