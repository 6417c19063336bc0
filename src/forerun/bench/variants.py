"""What is measured: something that turns a prompt into exactly so many tokens, and a record of how it went.

The clock is read where a user's program would read it, outside the engine: in front of the stream of a request.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Protocol

from forerun.engine.statistics import Statistics
from forerun.errors import ForerunError
from forerun.llm import LLM
from forerun.types import Origin

DRAFT_MODELS = ("model", "requantised")
"""The draft model as its file stores it, and the same rounded to 4 bits at load."""
ADAPTIVE = "adaptive"
"""Suffix and the draft model under the adaptive policy, which chooses between them, and how far, every round."""
NEED_MODELS = {"model": "model", "requantised": "requantised", "stack": "model"}
"""Drafters that draft with a draft model -> which of DRAFT_MODELS."""
DRAFTERS = (*NEED_MODELS, "lookup", "suffix", ADAPTIVE)
PARTS = ("draft", "target", "verify", "host")
"""What the seconds of a `Step` are for."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One generation. Decoding begins when the first tokens arrive: `num_first` of them (1, or a whole accepted block
    from an engine that drafts while it reads the prompt), after `first_s`; it ends with the last token, after
    `total_s`. `statistics`, `num_passes` and `origins` cover decoding only; None or () where the engine
    does not tell.
    """

    tokens: tuple[int, ...]
    num_first: int
    first_s: float
    total_s: float
    num_passes: int | None = None
    statistics: Statistics | None = None
    origins: tuple[Origin, ...] = ()

    @property
    def num_decoded(self) -> int:
        """Tokens after the first."""
        return len(self.tokens) - self.num_first

    @property
    def decode_s(self) -> float:
        """Seconds between the first tokens and the last."""
        return self.total_s - self.first_s

    @property
    def ms_per_token(self) -> float:
        """Milliseconds per decoded token: the figure that is compared."""
        return 1e3 * self.decode_s / self.num_decoded

    @property
    def end_to_end_tokens_per_s(self) -> float:
        """All tokens over all seconds, reading the prompt included."""
        return len(self.tokens) / self.total_s


class Variant(Protocol):
    """One way to generate. `drafter` and `k` say how forerun drafts; peers and plain decoding have None and 0."""

    @property
    def name(self) -> str: ...

    @property
    def drafter(self) -> str | None: ...

    @property
    def k(self) -> int: ...

    @property
    def is_peer(self) -> bool:
        """Whether it is another engine: its failure ends its own measurements, not the bench."""
        ...

    def prepare(self, prompts: Sequence[Sequence[int]], num_tokens: int) -> None:
        """Warm up for a workload, uncounted; peers also choose their best settings here."""
        ...

    def generate(self, prompt: Sequence[int], num_tokens: int) -> Sample:
        """Exactly `num_tokens` tokens; end of text is ignored."""
        ...

    def describe(self) -> dict[str, Any]:
        """Settings to report."""
        ...


class ForerunVariant:
    """forerun itself, plain (k = 0) or with a drafter. Variants share the loaded models, never a cache."""

    is_peer = False

    def __init__(self, name: str, llm: LLM, drafter: str | None = None, k: int = 0, **sampling: Any) -> None:
        self.name, self.drafter, self.k = name, drafter, k
        self._llm = llm
        self._sampling = sampling
        self._is_warm = False

    def prepare(self, prompts: Sequence[Sequence[int]], num_tokens: int) -> None:
        if not self._is_warm:
            self.generate(min(prompts, key=len), min(num_tokens, 2 + 2 * (self.k + 1)))
            self._is_warm = True

    def generate(self, prompt: Sequence[int], num_tokens: int) -> Sample:
        start = perf_counter()
        stream = self._llm.stream(list(prompt), max_tokens=num_tokens, ignore_eos=True, **self._sampling)
        next(stream)
        first_s = perf_counter() - start
        read = deepcopy(stream.result.speculation)
        num_first = len(stream.result.tokens)
        result = stream.drain()
        total_s = perf_counter() - start
        if len(result.tokens) != num_tokens:
            raise ForerunError(
                f"{len(result.tokens)} tokens were generated where {num_tokens} were asked for",
                f"the prompt has {len(prompt)} tokens; the text ended with {result.finish_reason!r}",
                "use fewer --max-tokens, or a model with a longer context",
            )
        decoded = since(result.speculation, read)
        origins = result.origins[num_first:]
        return Sample(result.tokens, num_first, first_s, total_s, decoded.num_rounds, decoded, origins)

    def describe(self) -> dict[str, Any]:
        return {"drafter": self.drafter, "k": self.k}


def since(now: Statistics, earlier: Statistics) -> Statistics:
    """What `now` counts beyond `earlier`, a snapshot of the same request."""
    seconds = {f"{part}_s": getattr(now, f"{part}_s") - getattr(earlier, f"{part}_s") for part in PARTS}
    depths = now.depths - earlier.depths
    return Statistics(now.rounds - earlier.rounds, now.num_emitted - earlier.num_emitted, depths=depths, **seconds)


def combined(all_statistics: Sequence[Statistics]) -> Statistics:
    """The counts and seconds of several requests together."""
    total = Statistics(Counter())
    for one in all_statistics:
        total.rounds.update(one.rounds)
        total.depths.update(one.depths)
        total.num_emitted += one.num_emitted
        for part in PARTS:
            setattr(total, f"{part}_s", getattr(total, f"{part}_s") + getattr(one, f"{part}_s"))
    return total
