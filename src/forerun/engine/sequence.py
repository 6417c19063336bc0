"""A sequence: append-only tokens, and what is derived from them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

from forerun.checks import real, whole
from forerun.engine.statistics import Statistics
from forerun.randomness import Noise
from forerun.runtime.base import Rows
from forerun.sampling import Distribution, Processing, SamplingParams
from forerun.types import FinishReason, TokenLogprob

Watch = Callable[[int], bool]
"""Called with each delivered token, in order; True ends the text with that token (a stop string is complete)."""


@dataclass(frozen=True, slots=True)
class Service:
    """How a request is served. None of it changes its text.

    Smaller `priority` numbers go first. What has not ended at `deadline` (by `perf_counter`) fails. `max_draft` is the
    longest draft (None: what the policy likes; 0: no speculation), `sources` the only ones that may draft ("suffix",
    "model", ...; None: any).
    """

    priority: int = 0
    deadline: float | None = None
    max_draft: int | None = None
    sources: frozenset[str] | None = None

    def __post_init__(self) -> None:
        whole("priority", self.priority, -(2**63), 2**63 - 1, "a whole number; smaller ones go first")
        if self.max_draft is not None:
            whole("max_draft", self.max_draft, 0, None, "a whole number of tokens, 0 for no speculation")
        if self.deadline is not None:
            real("deadline", self.deadline, -math.inf, math.inf, "seconds of perf_counter, or None")


@dataclass
class Sequence:
    """One request in the engine. `tokens` only grows, and only the engine's commit appends.

    `limit` is the largest length it may reach (budget and context together); `num_missing` and `noise` are set by
    the engine for the round at hand. `stop_reason` is the id or the string that ended the text, if one did.
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
    processing: Processing
    watch: Watch | None = None
    service: Service = Service()
    is_begun: bool = False  # the target holds a cache for it
    num_shared: int = 0  # tokens that its cache began with, read for another text
    leader_id: int | None = None  # whose cache it will be forked from
    num_missing: int = 0
    round_noise: Noise | None = None
    finish_reason: FinishReason | None = None
    stop_token: int | None = None  # the stop id that ended the text
    statistics: Statistics = field(default_factory=Statistics)
    prompt_logprobs: list[TokenLogprob | None] | None = None
    sum_logprob: float = 0.0  # over all committed output tokens, if choices are ranked

    @property
    def noise(self) -> Noise:
        """This round's randomness."""
        if self.round_noise is None:
            raise RuntimeError("noise is only defined inside a round")
        return self.round_noise

    def distribution(self, rows: Rows, index: int, prefix: tuple[int, ...] = ()) -> Distribution:
        """q: row `index` of a draft model's pass, which follows the committed tokens and `prefix`, as this request
        samples it."""
        return self.processing.distribution(rows, index, prefix, "draft")

    @property
    def num_output(self) -> int:
        """Committed tokens after the prompt."""
        return len(self.tokens) - self.prompt_length

    @property
    def max_shape(self) -> int:
        """The longest useful draft that was not ruled out: one place is left for the target's own token."""
        most = max(self.limit - len(self.tokens) - 1, 0)
        return most if self.service.max_draft is None else min(most, self.service.max_draft)

    @property
    def num_keepable(self) -> int:
        """Tokens whose cache is of use: all but the last, whose row is wanted. While a prompt is scored, those whose
        rows were seen: a pass that was interrupted is done again."""
        return len(self.tokens) - 1 - self.num_unscored

    @property
    def num_unscored(self) -> int:
        """Prompt tokens whose log probability was asked for and is not known yet."""
        return 0 if self.prompt_logprobs is None else self.prompt_length - len(self.prompt_logprobs)

    @cached_property
    def prompt(self) -> tuple[int, ...]:
        """The prompt's tokens."""
        return tuple(self.tokens[: self.prompt_length])
