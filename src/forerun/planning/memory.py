"""Memory that a target and its drafts need: weights, keys and values, and the rows of a pass; beside what there is."""

from __future__ import annotations

import math
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forerun.planning.shapes import Shape


@dataclass(frozen=True, slots=True)
class Need:
    """Bytes of one model: `rows` are the logits of one pass, 0 where the vocabulary is not known."""

    weights: float
    cache: float
    rows: float

    @property
    def total(self) -> float:
        """All of it."""
        return self.weights + self.cache + self.rows


def need(shape: Shape, sequences: int, context: int, rows: int) -> Need:
    """What a model keeps for `sequences` sequences of `context` tokens, and of a pass with `rows` rows for each."""
    return Need(
        shape.stored_bytes, shape.cache_bytes * context * sequences, (shape.row_bytes or 0.0) * rows * sequences
    )


def needs(target: Shape, drafts: list[Shape], sequences: int, context: int, k: int) -> dict[str, Need]:
    """By model: a target verifies k + 1 rows of every sequence, a draft model gives one row at a time."""
    found = {target.name: need(target, sequences, context, k + 1)}
    return found | {draft.name: need(draft, sequences, context, 1) for draft in drafts}


def num_cards(total_bytes: float, memory_gb: float) -> int:
    """Cards of so much memory that hold so many bytes."""
    return max(math.ceil(total_bytes / (memory_gb * 1e9)), 1)


def installed(device: str = "cpu") -> dict[str, Any]:
    """{"what", "total_gb", "free_gb"} of the memory that models on `device` live in; None where unknown."""
    torch = sys.modules.get("torch")
    if device.startswith("cuda") and torch is not None:
        free, total = torch.cuda.mem_get_info(device)
        return {"what": str(torch.cuda.get_device_name(device)), "total_gb": total / 1e9, "free_gb": free / 1e9}
    try:
        total_gb: float | None = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    except (AttributeError, ValueError, OSError):
        total_gb = None
    return {"what": "this machine", "total_gb": total_gb, "free_gb": _available_gb()}


def _available_gb() -> float | None:
    """What Linux would give to a program now."""
    try:
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024 / 1e9
    except (OSError, ValueError, IndexError):
        pass
    return None
