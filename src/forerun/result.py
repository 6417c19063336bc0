"""What a finished request returns, and what a stream yields."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from forerun.engine.statistics import Statistics
from forerun.types import FinishReason, Origin, TokenLogprob

IMPOSSIBLE = -9999.0
"""What JSON gets for the log probability of something impossible, as in the OpenAI API: it has no minus infinity."""


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
    """One token of a stream. `text` is what can be shown now: "" while a character is incomplete or a stop string may
    be beginning. `token` is None in a choice's last piece, which only carries held-back text and the finish reason.
    `choice` tells apart the texts of `n` above 1; their pieces arrive interleaved."""

    text: str
    token: int | None
    origin: Origin | None
    finish_reason: FinishReason | None = None
    logprob: TokenLogprob | None = None
    choice: int = 0


@dataclass(frozen=True, slots=True)
class Result:
    """A finished request: its first text, and in `others` the other ones of `n` above 1.

    `stop_reason` is the token id or the stop string that ended the text, if one did. `logprobs` has an entry for each
    of `tokens` if they were asked for, `prompt_logprobs` one for each prompt token (None for the first, which nothing
    predicts). `choice` is the index that, with the seed, names the text's randomness; `mean_logprob` is what choices
    were ranked by (over all committed tokens, the one that ended the text included), None without `best_of`.
    """

    text: str
    tokens: tuple[int, ...]
    origins: tuple[Origin, ...]
    finish_reason: FinishReason
    usage: Usage
    speculation: Statistics
    logprobs: tuple[TokenLogprob, ...] | None = None
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None
    stop_reason: int | str | None = None
    choice: int = 0
    mean_logprob: float | None = None
    others: tuple[Result, ...] = ()

    @property
    def choices(self) -> tuple[Result, ...]:
        """All texts: this one, then the others."""
        return (self, *self.others)

    def to_dict(self) -> dict[str, Any]:
        """The JSON document that `forerun generate --json` prints. Figures that were not asked for are left out."""
        document: dict[str, Any] = {
            "text": self.text,
            "tokens": list(self.tokens),
            "finish_reason": self.finish_reason,
            "stop_reason": self.stop_reason,
            "usage": {
                "prompt_tokens": self.usage.prompt_tokens,
                "completion_tokens": self.usage.completion_tokens,
                "tokens_per_s": self.usage.tokens_per_s,
                "time_to_first_token_s": self.usage.time_to_first_token_s,
            },
            "speculation": self.speculation.to_dict(),
        }
        if self.logprobs is not None:
            document["logprobs"] = [_entry(one) for one in self.logprobs]
        if self.prompt_logprobs is not None:
            document["prompt_logprobs"] = [None if one is None else _entry(one) for one in self.prompt_logprobs]
        if self.mean_logprob is not None:
            document["mean_logprob"] = max(self.mean_logprob, IMPOSSIBLE)
        if self.others:
            document["choices"] = [{"index": one.choice, **one._alone()} for one in self.choices]
        return document

    def _alone(self) -> dict[str, Any]:
        """The document of this text, without the others."""
        return replace(self, others=()).to_dict()


def _entry(one: TokenLogprob) -> dict[str, Any]:
    return {
        "token": one.token,
        "logprob": max(one.logprob, IMPOSSIBLE),
        "rank": one.rank,
        "top": [{"token": token, "logprob": max(logprob, IMPOSSIBLE)} for token, logprob in one.top],
    }
