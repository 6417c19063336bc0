"""Policies choose each sequence's draft source and speculation length for the next round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from forerun.checks import whole
from forerun.drafting.base import SequenceView
from forerun.types import Plan, Prospect, Round, Step


@dataclass(frozen=True, slots=True)
class Load:
    """How busy the engine is: sequences in this pass, and sequences waiting for a place. `num_tokens` is what the pass
    feeds the target whatever is drafted: one token of a sequence that decodes, more of one whose prompt is read."""

    num_running: int
    num_waiting: int
    num_tokens: int = 1


class Policy(Protocol):
    """Plans rounds and learns from them. A plan may depend on committed tokens and past rounds, never on the tokens
    that are about to be drafted."""

    def plan(
        self, sequences: Sequence[SequenceView], prospects: Sequence[Sequence[Prospect]], load: Load
    ) -> list[Plan]:
        """One plan per sequence; shape 0 is legal. `prospects[i]` are what could be drafted for sequence i."""
        ...

    def update(self, rounds: Sequence[Round], step: Step) -> None:
        """What came of the last plans, and what they took."""
        ...

    def release(self, *sequence_ids: int) -> None:
        """Forget sequences that have ended, after the last `update` about them; unknown ids are ignored."""
        ...


class FixedLength:
    """The same k every round; none while a prompt is being read, so that the first token never waits for a draft."""

    def __init__(self, k: int) -> None:
        whole("k", k, 0, None, "a whole number of at least 0")
        self.k = k

    def __repr__(self) -> str:
        return f"FixedLength({self.k})"

    def plan(
        self, sequences: Sequence[SequenceView], prospects: Sequence[Sequence[Prospect]], load: Load
    ) -> list[Plan]:
        return [Plan(self.k if sequence.num_missing == 1 else 0) for sequence in sequences]

    def update(self, rounds: Sequence[Round], step: Step) -> None:
        pass

    def release(self, *sequence_ids: int) -> None:
        pass
