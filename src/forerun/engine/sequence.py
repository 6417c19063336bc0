"""A sequence: append-only tokens, and what is derived from them."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from forerun.engine.statistics import Statistics
from forerun.randomness import Noise
from forerun.sampling import SamplingParams
from forerun.types import FinishReason


@dataclass
class Sequence:
    """One request in the engine. `tokens` only grows, and only the engine's commit appends.

    `limit` is the largest length it may reach (budget and context together); `num_missing` and `noise` are set by
    the engine for the round at hand.
    """

    sequence_id: int
    tokens: list[int]
    prompt_length: int
    params: SamplingParams
    vocabulary_size: int
    seed: int
    choice: int
    limit: int
    stop_ids: frozenset[int]
    num_missing: int = 0
    round_noise: Noise | None = None
    finish_reason: FinishReason | None = None
    statistics: Statistics = field(default_factory=Statistics)

    @property
    def noise(self) -> Noise:
        """This round's randomness."""
        if self.round_noise is None:
            raise RuntimeError("noise is only defined inside a round")
        return self.round_noise

    @property
    def num_output(self) -> int:
        """Committed tokens after the prompt."""
        return len(self.tokens) - self.prompt_length

    @property
    def max_shape(self) -> int:
        """The longest useful draft: one place is left for the target's own token."""
        return max(self.limit - len(self.tokens) - 1, 0)

    @cached_property
    def prompt(self) -> tuple[int, ...]:
        """The prompt's tokens."""
        return tuple(self.tokens[: self.prompt_length])
