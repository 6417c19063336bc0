"""Real weights for levels 3 and 4: one strict model, its prompts, and plain decoding's answers, made once a mode."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

from tests.ladder.cases import MODES
from tests.real.loaded import NAME, Length, Loaded, make_policy

from forerun.engine import Scheduler
from forerun.llm import LLM
from forerun.result import Result
from forerun.runtime.base import Model, Rows
from forerun.runtime.torch.strict import STRICT_ROWS
from forerun.types import Span

MEMORY = -2_000_000
"""Sequence ids from here down hold what was read before: no engine, twin or probe comes near."""


class Remembering:
    """A model that reads a prompt once: whoever begins with the same tokens gets a copy of that cache.

    In strict passes a row's bits depend on nothing but the tokens before it, so the copy is what reading would give;
    level 4 reads everything again (`remembers` off) and so tests just that. Reading is most of the ladder's time.
    """

    def __init__(self, model: Model) -> None:
        self._model = model
        self._known: list[tuple[int, ...]] = []
        self.remembers = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def forward(self, spans: Sequence[Span]) -> Rows:
        if not self.remembers:
            return self._model.forward(spans)
        read = [self._shortened(span) for span in spans]
        rows = self._model.forward(read)
        for span, left in zip(spans, read, strict=True):
            if span.start == 0 and span.num_rows and len(left.tokens) > STRICT_ROWS:  # more than a pass was read
                self._model.fork(span.sequence_id, MEMORY - len(self._known), len(span.tokens) - 1)
                self._known.append(tuple(span.tokens[:-1]))
        return rows

    def _shortened(self, span: Span) -> Span:
        """The span without what was read before; its rows, and at least one token, stay."""
        if span.start > 0:
            return span
        most = len(span.tokens) - max(span.num_rows, 1)
        common = [min(_num_common(known, span.tokens), most) for known in self._known]
        num = max(common, default=0)
        if num <= 0:
            return span
        self._model.free(span.sequence_id)
        self._model.fork(MEMORY - common.index(num), span.sequence_id, num)
        return dataclasses.replace(span, start=num, tokens=list(span.tokens[num:]))


def _num_common(left: Sequence[int], right: Sequence[int]) -> int:
    return next((i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))


@dataclasses.dataclass(frozen=True)
class Request:
    """A prompt by number, a mode's parameters, and after how many tokens its reader leaves (None: never)."""

    prompt: int
    params: Mapping[str, Any]
    leaves_after: int | None = None


class Bed(Loaded):
    """A strict model and the first prompts of HumanEval, spread evenly over its tasks."""

    def __init__(self, dtype: str, num_prompts: int, num_tokens: int) -> None:
        super().__init__(NAME, dtype, num_prompts)
        self.dtype, self.raw_model = dtype, self.model
        self.model: Any = Remembering(self.raw_model)
        self.num_tokens = num_tokens
        self._plain: dict[str, list[Result]] = {}

    def write(
        self,
        requests: Sequence[Request],
        drafter: str | None,
        length: Length,
        batch: int,
        *,
        rereads: bool = False,
        piece: int | None = None,
    ) -> list[Result]:
        """All requests in one batch, submitted in their order. `piece` is the number of missing tokens that a pass may
        read (default: the scheduler's)."""
        self.model.remembers = not rereads
        scheduler = Scheduler(batch) if piece is None else Scheduler(batch, piece)
        llm = LLM(self.model, self.tokenizer, self.drafter(drafter), make_policy(length), scheduler=scheduler)
        defaults = {"max_tokens": self.num_tokens, "ignore_eos": True}
        try:
            streams = [llm.stream(self.prompts[one.prompt], **{**defaults, **one.params}) for one in requests]
            for request, stream in zip(requests, streams, strict=True):
                if request.leaves_after is not None:
                    list(islice(stream, request.leaves_after))  # steps everybody, the others far beyond it
                    stream.close()
            return [stream.drain() for stream in streams]
        finally:  # a failure would leave its caches in the model that all share
            llm.close()
            self.model.remembers = True

    def all_of(self, mode: str) -> list[Request]:
        """Every prompt in a mode."""
        return [Request(number, MODES[mode]) for number in range(len(self.prompts))]

    def plain(self, mode: str) -> list[Result]:
        """Plain decoding's answers, each request alone in its batch."""
        if mode not in self._plain:
            self._plain[mode] = self.write(self.all_of(mode), None, 0, 1)
        return self._plain[mode]


def answer(result: Result) -> Any:
    """Everything of a result that must not depend on speculation or company."""
    return [
        (
            one.text,
            one.tokens,
            one.finish_reason,
            one.stop_reason,
            [(entry.rank, [(token, round(value, 6)) for token, value in entry.top]) for entry in one.logprobs or ()],
        )
        for one in result.choices
    ]


def digest(results: Sequence[Result]) -> str:
    """A hash of answers, the same in every process."""
    return hashlib.sha256(repr([answer(result) for result in results]).encode()).hexdigest()
