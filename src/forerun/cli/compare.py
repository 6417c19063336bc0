"""`--compare`: the same request without a draft, over the same loaded target."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from forerun.cli.play import Played, play
from forerun.llm import LLM, Prompt
from forerun.result import Piece, Result
from forerun.sampling import SamplingParams


def play_plain(llm: LLM, prompt: Prompt, params: dict[str, Any], show: Callable[[Piece], None]) -> Played:
    """Run a request on `llm`'s target alone. The target is shared, so nothing of `llm` may be running."""
    engine = llm.engine
    plain = LLM(engine.target, llm.tokenizer, vocabulary_size=engine.vocabulary_size, eos_ids=tuple(engine.eos_ids))
    with plain:
        return play(plain, prompt, params, show)


@dataclass(frozen=True)
class Comparison:
    """A speculative and a plain run of the same request. `is_determined`: greedy or seeded, so the text must agree."""

    speculative: Result
    plain: Result
    is_determined: bool

    @classmethod
    def of(cls, speculative: Result, plain: Result, params: dict[str, Any]) -> Comparison:
        """Compare two results of the request `params`."""
        sampling = SamplingParams.from_keywords(params)
        return cls(speculative, plain, sampling.is_greedy or sampling.seed is not None)

    @property
    def ratio(self) -> float | None:
        """Speculative over plain tokens per second."""
        fast, slow = self.speculative.usage.tokens_per_s, self.plain.usage.tokens_per_s
        return fast / slow if fast is not None and slow else None

    @property
    def first_difference(self) -> int | None:
        """Index of the first output token that differs (or that only one run has); None if there is none."""
        left, right = self.speculative.tokens, self.plain.tokens
        for i, (one, other) in enumerate(zip(left, right, strict=False)):
            if one != other:
                return i
        return None if len(left) == len(right) else min(len(left), len(right))

    @property
    def conclusion(self) -> str:
        """One line: how much faster, and whether the text is the same."""
        speed = f"{self.ratio:.2f}x the speed of plain decoding" if self.ratio is not None else "too short to time"
        where = self.first_difference
        if not self.is_determined:
            return f"{speed}; texts not compared: sampled without --seed, each run draws its own"
        if where is None:
            return f"{speed}; text identical ({len(self.plain.tokens)} tokens)"
        return (
            f"{speed}; TEXT DIFFERS from output token {where} on (the first is 0). a near-tie between two tokens: "
            "rounding depends on the rows of a pass. --strict removes it, --dtype float32 makes it rarer"
        )

    def to_dict(self) -> dict[str, Any]:
        """The `comparison` object of the JSON document. `identical` is None for unseeded sampling."""
        usage = self.plain.usage
        return {
            "plain": {
                "text": self.plain.text,
                "completion_tokens": usage.completion_tokens,
                "tokens_per_s": usage.tokens_per_s,
                "time_to_first_token_s": usage.time_to_first_token_s,
            },
            "ratio": self.ratio,
            "identical": self.first_difference is None if self.is_determined else None,
            "first_difference": self.first_difference if self.is_determined else None,
        }
