"""The twelve cells: what is written, how hot, how many at once, behind how much context, and with what draft."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from forerun.checks import listed, some_of

DraftKind = Literal["given", "noise", "liar"]
"""The draft model: as given; one that knows nothing (rows of noise, as random weights give them); one that is sure of
the wrong tokens. The last two cost what the given one costs (see `adversary.py`)."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One place where adaptive drafting must not lose. `sequences` are submitted together; `context` is how many tokens
    each prompt has (more where the task alone is longer)."""

    name: str
    workload: str
    temperature: float
    sequences: int
    context: int
    draft: DraftKind = "given"

    @property
    def num_tokens(self) -> int:
        """Tokens that each sequence writes in one block, unless told otherwise: a few seconds' worth."""
        return 96 if self.sequences <= 4 else 64

    def to_dict(self) -> dict[str, Any]:
        """Its definition, for the document."""
        return asdict(self)


CELLS: dict[str, Cell] = {
    cell.name: cell
    for cell in (
        Cell("humaneval", "humaneval", 0.0, 1, 512),
        Cell("humaneval-16", "humaneval", 0.3, 16, 512),
        Cell("chat", "chat", 0.7, 1, 512),
        Cell("chat-8", "chat", 1.0, 8, 512),
        Cell("edit-long", "edit", 0.0, 1, 2048),
        Cell("json", "json", 0.0, 1, 512),
        Cell("json-4-long", "json", 0.7, 4, 2048),
        Cell("summarise-long", "summarise", 0.0, 1, 2048),
        Cell("creative", "creative", 1.2, 1, 512),
        Cell("random", "random", 1.0, 2, 512),
        Cell("adversarial", "humaneval", 0.0, 1, 512, "noise"),
        Cell("adversarial-sure", "chat", 0.7, 1, 512, "liar"),
    )
}


def choose_cells(text: str) -> tuple[Cell, ...]:
    """The cells of a list of names, or all."""
    if listed(text) == ("all",):
        return tuple(CELLS.values())
    return tuple(CELLS[name] for name in some_of("cells", text, CELLS, "all, or "))


def task_sets(num_tasks: int, sequences: int, num_sets: int) -> Sequence[Sequence[int]]:
    """Which tasks are submitted together: at most `num_sets` sets of `sequences` indices, spread over all tasks, and no
    more sets than have a task of their own."""
    most = max(1, min(num_sets, -(-num_tasks // sequences)))
    total = most * sequences
    return [[(at * sequences + i) * num_tasks // total % num_tasks for i in range(sequences)] for at in range(most)]
