"""A draft model whose output head is cut to chosen tokens, whatever runs it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from forerun.errors import ParameterError
from forerun.runtime.base import Model, Rows
from forerun.types import Capabilities, CostCurve, Span


def check_head_ids(head_ids: Sequence[int] | np.ndarray, available: int) -> np.ndarray:
    """Head ids as [n] int64, ascending. Refused with a ParameterError: none, an id twice, or one that is not below
    `available`, the model's own number of head rows."""
    ids = np.sort(np.asarray(head_ids, dtype=np.int64))
    if ids.ndim != 1 or len(ids) == 0:
        raise ParameterError("head_ids", "the head would have no row left", "name at least one token id")
    if ids[0] < 0 or ids[-1] >= available:
        wrong = ids[0] if ids[0] < 0 else ids[-1]
        raise ParameterError("head_ids", f"{wrong} is none of the head's rows, 0..{available - 1}")
    if (ids[1:] == ids[:-1]).any():
        raise ParameterError("head_ids", f"{ids[1:][ids[1:] == ids[:-1]][0]} is named twice")
    return ids


class CutHead:
    """`model`, of whose rows only the columns of `head_ids` are kept: q then has no mass on other tokens, and there is
    less to process in every row. All tokens can still be fed.

    For draft models only: as a target it would be another model. The columns are computed and dropped here; a runtime
    that cuts its own head saves reading its weights too, and returns the same `Rows`.
    """

    def __init__(self, model: Model, head_ids: Sequence[int] | np.ndarray) -> None:
        whole = model.capabilities
        self.model = model
        self.head_ids = check_head_ids(head_ids, whole.vocabulary_size)
        self.capabilities: Capabilities = replace(
            whole, vocabulary_size=len(self.head_ids), num_embeddings=whole.num_inputs
        )

    def begin(self, sequence_id: int) -> None:
        self.model.begin(sequence_id)

    def forward(self, spans: Sequence[Span]) -> Rows:
        rows = self.model.forward(spans)
        return Rows(rows.matrix[:, self.head_ids], np.diff(rows.starts).tolist(), self.head_ids)

    def keep(self, sequence_id: int, length: int, path: tuple[int, ...] = ()) -> None:
        self.model.keep(sequence_id, length, path)

    def length(self, sequence_id: int) -> int:
        return self.model.length(sequence_id)

    def fork(self, source: int, target: int, length: int) -> None:
        self.model.fork(source, target, length)

    def free(self, sequence_id: int) -> None:
        self.model.free(sequence_id)

    def cost(self) -> CostCurve:
        return self.model.cost()
