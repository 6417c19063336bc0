"""The same tree every round."""

from __future__ import annotations

from collections.abc import Sequence

from forerun.checks import shown, whole
from forerun.control.policy import Load
from forerun.drafting.base import SequenceView
from forerun.errors import ParameterError
from forerun.topology import by_widths
from forerun.types import Plan, Prospect, Round, Step

MOST_NODES = 256
"""Every node is a row of the target's pass: more are a mistake."""


class FixedTree:
    """A tree whose nodes at depth d have `widths[d]` children each: (3, 2) drafts three tokens and two behind each of
    them. Where a source takes no trees, a chain of that depth. None while a prompt is being read."""

    def __init__(self, widths: Sequence[int]) -> None:
        for width in widths:
            whole("widths", width, 1, MOST_NODES, f"whole numbers of children, 1 to {MOST_NODES}")
        self.widths = tuple(widths)
        num_nodes, level = 0, 1
        for width in self.widths:
            level *= width
            num_nodes += level
            if num_nodes > MOST_NODES:
                raise ParameterError("widths", f"{shown(self.widths)} is a tree of more than {MOST_NODES} tokens")
        self.parents = by_widths(self.widths)

    def __repr__(self) -> str:
        return f"FixedTree({self.widths})"

    def plan(
        self, sequences: Sequence[SequenceView], prospects: Sequence[Sequence[Prospect]], load: Load
    ) -> list[Plan]:
        plan = Plan(len(self.parents), tree=self.parents)
        return [plan if sequence.num_missing == 1 else Plan() for sequence in sequences]

    def update(self, rounds: Sequence[Round], step: Step) -> None:
        pass

    def release(self, *sequence_ids: int) -> None:
        pass
