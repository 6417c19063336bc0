"""The protocol of a drafter, what it sees of a sequence, and the drafter that never drafts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from forerun.randomness import Noise
from forerun.runtime.base import Rows
from forerun.sampling import Distribution, SamplingParams
from forerun.types import Draft, FinishReason, Plan, Prospect, Verdict


class SequenceView(Protocol):
    """What drafters and policies may know of a sequence. Tokens are append-only and the only truth."""

    @property
    def sequence_id(self) -> int: ...

    @property
    def tokens(self) -> Sequence[int]:
        """Prompt and committed output; never changed, only appended to."""
        ...

    @property
    def prompt_length(self) -> int: ...

    @property
    def params(self) -> SamplingParams: ...

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why its text ended; None while it goes on."""
        ...

    @property
    def vocabulary_size(self) -> int:
        """Real vocabulary: ids at or above it are never proposed."""
        ...

    @property
    def num_missing(self) -> int:
        """Tokens the target has not cached yet: 1 while decoding, more while a prompt is being read."""
        ...

    @property
    def noise(self) -> Noise:
        """This round's randomness: draft with `noise.draw(q, node, Purpose.DRAFT)`; a draft's kind is `noise.kind`."""
        ...

    def distribution(self, rows: Rows, index: int, prefix: tuple[int, ...] = ()) -> Distribution:
        """q: row `index` of a draft model's pass under the request's own parameters, penalties, biases and masks
        included, where it follows the committed tokens and the draft tokens `prefix`. Ask for prefixes in order."""
        ...


class Drafter(Protocol):
    """Proposes draft tokens. Exactness never depends on it; speed does.

    A proposal may not depend on the target's randomness, and how far it goes may not depend on a token it drafted
    (cutting after looking at the drawn token biases the output).
    """

    @property
    def needs(self) -> tuple[str, ...]:
        """Names of the target's hidden features it wants with the rows; () for none."""
        ...

    def prospects(self, sequences: Sequence[SequenceView], longest: Sequence[int]) -> list[list[Prospect]]:
        """What could be drafted for each sequence, of at most `longest[i]` tokens; [] where nothing could. Costs next
        to nothing, runs no model and is a function of committed tokens alone. Policies choose among these."""
        ...

    def propose(self, sequences: Sequence[SequenceView], plans: Sequence[Plan]) -> list[Draft]:
        """One draft per sequence, of at most `plans[i].shape` tokens: fewer is fine, more is a ContractError."""
        ...

    def observe(self, sequences: Sequence[SequenceView], rows: Rows, verdicts: Sequence[Verdict | None]) -> None:
        """Called after verification, before the commit; all three in the order of the pass's spans, a verdict None
        where a sequence chose no token."""
        ...

    def release(self, sequence_id: int) -> None:
        """Forget everything about a sequence; unknown ids are ignored."""
        ...


class NoDrafter:
    """Never drafts: the engine then decodes plainly, in the same loop."""

    needs: tuple[str, ...] = ()

    def prospects(self, sequences: Sequence[SequenceView], longest: Sequence[int]) -> list[list[Prospect]]:
        return [[] for _ in sequences]

    def propose(self, sequences: Sequence[SequenceView], plans: Sequence[Plan]) -> list[Draft]:
        return [Draft() for _ in sequences]

    def observe(self, sequences: Sequence[SequenceView], rows: Rows, verdicts: Sequence[Verdict | None]) -> None:
        pass

    def release(self, sequence_id: int) -> None:
        pass
