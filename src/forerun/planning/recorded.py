"""Instruments: a model whose passes are timed and whose prompt is read once, and a policy that records rounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from time import perf_counter

from forerun.control.policy import FixedLength, Load
from forerun.drafting.base import Drafter, SequenceView
from forerun.runtime.base import Model, Rows
from forerun.runtime.cost import UNUSED, read_tokens
from forerun.runtime.wrapped import WrappedModel
from forerun.types import Draft, Plan, Prospect, Round, Span, Step, Verdict

READ = UNUSED + 1
"""The sequence that holds the prompt which generations begin from: an id that no engine gives out."""


class TimedModel(WrappedModel):
    """A model as it is, with the seconds of its passes added up. Between `read` and `forget` every new sequence begins
    with the prompt that was read: caches are derived, so the engine feeds what is left and nothing else changes."""

    def __init__(self, model: Model) -> None:
        super().__init__(model)
        self.seconds = 0.0
        self._num_read = 0

    def read(self, tokens: Sequence[int]) -> None:
        """Cache `tokens` for the sequences that begin from now on."""
        self.forget()
        read_tokens(self.model, READ, tokens)
        self._num_read = len(tokens)

    def forget(self) -> None:
        """Let sequences begin empty again."""
        self.model.free(READ)
        self._num_read = 0

    def begin(self, sequence_id: int) -> None:
        if self._num_read:
            self.model.fork(READ, sequence_id, self._num_read)
        else:
            self.model.begin(sequence_id)

    def forward(self, spans: Sequence[Span]) -> Rows:
        start = perf_counter()
        rows = self.model.forward(spans)
        rows.wait()
        self.seconds += perf_counter() - start
        return rows


class Keeping:
    """A drafter that does not release its first sequence before `end`: a draft model's later caches of the same prompt
    are forked from that one's, so that the prompt is read once. `draft` is the model that drafts, if one does."""

    def __init__(self, drafter: Drafter, draft: TimedModel | None = None) -> None:
        self._drafter, self.draft = drafter, draft
        self._kept: int | None = None

    @property
    def needs(self) -> tuple[str, ...]:
        return self._drafter.needs

    def prospects(self, sequences: Sequence[SequenceView], longest: Sequence[int]) -> list[list[Prospect]]:
        return self._drafter.prospects(sequences, longest)

    def propose(self, sequences: Sequence[SequenceView], plans: Sequence[Plan]) -> list[Draft]:
        return self._drafter.propose(sequences, plans)

    def observe(self, sequences: Sequence[SequenceView], rows: Rows, verdicts: Sequence[Verdict | None]) -> None:
        self._drafter.observe(sequences, rows, verdicts)

    def release(self, sequence_id: int) -> None:
        if self._kept is None:
            self._kept = sequence_id
        if sequence_id != self._kept:
            self._drafter.release(sequence_id)

    def end(self) -> None:
        """Release what was kept."""
        if self._kept is not None:
            self._drafter.release(self._kept)
        self._kept = None


@dataclass(frozen=True, slots=True)
class Tick:
    """One round of one sequence: its seconds since the round before it ended, and those of its models' passes."""

    round: Round
    whole_s: float
    target_s: float
    draft_s: float


@dataclass(slots=True)
class Recorder:
    """The policy of fixed lengths, with a record of every round; `draft` is the model that drafts, if one does."""

    k: int = 0
    draft: TimedModel | None = None
    ticks: list[Tick] = field(default_factory=list)
    num_emitted: int = 0
    _drafted_s: float = 0.0
    _since: float = 0.0

    def start(self, k: int) -> None:
        """Begin a new record."""
        self.k, self.ticks, self.num_emitted, self._drafted_s = k, [], 0, self._seconds()
        self._since = perf_counter()

    def leave_out(self, seconds: float) -> None:
        """Count so many of the seconds since the last round to no round."""
        self._since += seconds

    def plan(
        self, sequences: Sequence[SequenceView], prospects: Sequence[Sequence[Prospect]], load: Load
    ) -> list[Plan]:
        return FixedLength(self.k).plan(sequences, prospects, load)

    def update(self, rounds: Sequence[Round], step: Step) -> None:
        now, seconds = perf_counter(), self._seconds()
        for one in rounds:
            self.ticks.append(Tick(one, now - self._since, step.target_s, seconds - self._drafted_s))
            self.num_emitted += one.num_emitted
        self._since, self._drafted_s = now, seconds

    def release(self, *sequence_ids: int) -> None:
        pass

    def _seconds(self) -> float:
        return 0.0 if self.draft is None else self.draft.seconds
