"""A block and its place among the others of a cell."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from forerun.bench.cells.batches import Block, block_of


@dataclass(frozen=True, slots=True)
class Entry:
    """One block and its place: which set of prompts, which turn of which run, and the bandwidth before and after it.
    `at` is when it ended, in seconds since the cell began."""

    contender: str
    prompts: int
    turn: int
    probes_gb_s: tuple[float, float]
    at: float
    block: Block
    run: str = ""

    def to_dict(self) -> dict[str, Any]:
        """As a JSON object."""
        return {
            "contender": self.contender, "prompts": self.prompts, "turn": self.turn,
            "probes_gb_s": [float(f"{reading:.5g}") for reading in self.probes_gb_s], "at": round(self.at, 2),
            "block": self.block.to_dict(),
        }  # fmt: skip


def entry_of(found: dict[str, Any], run: str = "") -> Entry:
    """The entry that `Entry.to_dict` wrote."""
    before, after = found["probes_gb_s"]
    return Entry(
        str(found["contender"]), int(found["prompts"]), int(found["turn"]), (float(before), float(after)),
        float(found["at"]), block_of(found["block"]), run,
    )  # fmt: skip
