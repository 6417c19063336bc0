"""Whether every variant wrote what plain decoding wrote, and how close the call was where it did not.

Two passes with different numbers of rows may round differently, so a difference whose two candidates are nearly equal
in the target's own row is a floating-point tie. A wide gap would be a bug, and is worth printing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from forerun.bench.rounds import Prompts, Session
from forerun.runtime.base import Model
from forerun.types import Span

PROBING = -1_000_003
"""The sequence id under which the target is asked: no engine gives out negative ones."""


@dataclass(frozen=True, slots=True)
class Difference:
    """The first token at which a variant's text left plain decoding's.

    `position` counts generated tokens from 0. In the row the target computes for the common prefix in one pass,
    `top2_gap` is the distance of the two largest logits and `gap` that of plain decoding's token over the variant's
    (None if that is no token of the vocabulary: peers do not mask the padding rows of a head).
    """

    prompt: int
    position: int
    plain_token: int
    token: int
    gap: float | None
    top2_gap: float

    def to_dict(self) -> dict[str, Any]:
        """For the JSON document."""
        return asdict(self)


def first_difference(left: Sequence[int], right: Sequence[int]) -> int | None:
    """Index of the first token that differs; None if the shorter text begins the longer one."""
    return next((i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), None)


def row_after(target: Model, tokens: Sequence[int], vocabulary_size: int, chunk: int = 512) -> np.ndarray:
    """The target's logits after `tokens`, [vocabulary_size], read in pieces of `chunk` tokens."""
    target.begin(PROBING)
    try:
        for start in range(0, len(tokens), chunk):
            piece = list(tokens[start : start + chunk])
            is_last = start + chunk >= len(tokens)
            rows = target.forward([Span(PROBING, start, piece, int(is_last))])
        row = rows.matrix[0]
        return np.asarray(row.cpu() if hasattr(row, "cpu") else row, dtype=np.float64)[:vocabulary_size]
    finally:
        target.free(PROBING)


def find_differences(
    session: Session,
    workload: str,
    plain: str,
    names: Sequence[str],
    target: Model,
    prompts: Prompts,
    vocabulary_size: int,
) -> dict[str, list[Difference]]:
    """For each of the variants `names`, the first difference of every prompt whose text is not plain decoding's in
    some round. Plain decoding itself is compared with its own first round.
    """
    texts: dict[int, tuple[int, ...]] = {}
    for m in session.of(workload, plain):
        texts.setdefault(m.prompt, m.sample.tokens)
    found: dict[str, list[Difference]] = {name: [] for name in names}
    for name, differences in found.items():
        seen: set[int] = set()
        for m in session.of(workload, name):
            text = texts.get(m.prompt, ())
            position = first_difference(text, m.sample.tokens)
            if position is None or m.prompt in seen:
                continue
            seen.add(m.prompt)
            row = row_after(target, [*prompts[workload][m.prompt], *text[:position]], vocabulary_size)
            runner_up, top = np.partition(row, -2)[-2:]
            expected, token = text[position], m.sample.tokens[position]
            gap = float(row[expected] - row[token]) if token < len(row) else None
            differences.append(Difference(m.prompt, position, expected, token, gap, float(top - runner_up)))
    return found
