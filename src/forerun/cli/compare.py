"""`--compare`: the same request without a draft, over the same loaded target."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from forerun.cli.figures import together
from forerun.cli.play import Played, play
from forerun.drafting import ModelDrafter
from forerun.llm import LLM, Prompt
from forerun.result import Piece, Result
from forerun.runtime.cost import warm_up
from forerun.sampling import SamplingParams


def warm_up_all(llm: LLM) -> None:
    """Let every model make a few passes, unmeasured and unseen by the policy: whichever run comes first would pay for
    what only first passes cost, and that is not speculation's doing."""
    drafter = llm.engine.drafter
    sources = getattr(drafter, "sources", {"": drafter}).values()
    for model in (llm.engine.target, *(one.model for one in sources if isinstance(one, ModelDrafter))):
        warm_up(model)


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
        """Speculative over plain tokens per second, of a text on average."""
        fast, slow = (together(result).usage.tokens_per_s for result in (self.speculative, self.plain))
        return fast / slow if fast is not None and slow else None

    @property
    def difference(self) -> tuple[int, int] | None:
        """(text, output token) of the first token that differs, or that only one run has; None if there is none."""
        for number, (left, right) in enumerate(zip(self.speculative.choices, self.plain.choices, strict=False)):
            found = _first_difference(left.tokens, right.tokens)
            if found is not None:
                return number, found
        return None

    @property
    def first_difference(self) -> int | None:
        """Index of the first output token that differs, in the first text that does."""
        return None if self.difference is None else self.difference[1]

    @property
    def conclusion(self) -> str:
        """One line: how much faster, and whether the text is the same."""
        speed = f"{self.ratio:.2f}x the speed of plain decoding" if self.ratio is not None else "too short to time"
        where, num_texts = self.difference, len(self.plain.choices)
        if not self.is_determined:
            return f"{speed}; texts not compared: sampled without --seed, each run draws its own"
        if where is None:
            num_tokens = sum(len(text.tokens) for text in self.plain.choices)
            return f"{speed}; {'text' if num_texts == 1 else f'{num_texts} texts'} identical ({num_tokens} tokens)"
        which = "" if num_texts == 1 else f" {where[0] + 1}"
        return (
            f"{speed}; TEXT{which} DIFFERS from output token {where[1]} on (the first is 0). "
            "a near-tie between two tokens: rounding depends on the rows of a pass. "
            "--strict removes it, --dtype float32 makes it rarer"
        )

    def to_dict(self) -> dict[str, Any]:
        """The `comparison` object of the JSON document. `identical` is None for unseeded sampling."""
        difference = self.difference
        document: dict[str, Any] = {
            "plain": _plain(self.plain),
            "ratio": self.ratio,
            "identical": difference is None if self.is_determined else None,
            "first_difference": self.first_difference if self.is_determined else None,
        }
        if self.plain.others:
            document["plain"]["choices"] = [{"index": text.choice, **_plain(text)} for text in self.plain.choices]
            document["different_text"] = difference[0] if difference is not None and self.is_determined else None
        return document


def _plain(text: Result) -> dict[str, Any]:
    return {
        "text": text.text,
        "completion_tokens": text.usage.completion_tokens,
        "tokens_per_s": text.usage.tokens_per_s,
        "time_to_first_token_s": text.usage.time_to_first_token_s,
    }


def _first_difference(left: Sequence[int], right: Sequence[int]) -> int | None:
    for i, (one, other) in enumerate(zip(left, right, strict=False)):
        if one != other:
            return i
    return None if len(left) == len(right) else min(len(left), len(right))
