"""A draft model whose output head is cut to chosen tokens, whatever runs it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from forerun.arrays import asarray_like, namespace
from forerun.runtime.base import Model, Rows
from forerun.runtime.limits import check_head_ids
from forerun.runtime.wrapped import WrappedModel
from forerun.types import Array, Span


class CutHead(WrappedModel):
    """`model`, whose rows are minus infinity at every token but `head_ids`: as a draft, its q has no mass elsewhere.

    For runtimes that cannot cut: the whole head is still computed. One that cuts its own head saves reading its weights
    too, and returns the same rows. As a target it would be another model.
    """

    def __init__(self, model: Model, head_ids: Sequence[int] | np.ndarray) -> None:
        super().__init__(model)
        available = model.capabilities.vocabulary_size
        self.head_ids = check_head_ids(head_ids, available)
        self._kept = np.isin(np.arange(available), self.head_ids)
        self._mask: Array | None = None  # the same, where the rows are

    def forward(self, spans: Sequence[Span]) -> Rows:
        rows = self.model.forward(spans)
        xp = namespace(rows.matrix)
        if self._mask is None:
            self._mask = asarray_like(self._kept, rows.matrix, xp.bool)
        return Rows(xp.where(self._mask, rows.matrix, -math.inf), np.diff(rows.starts).tolist())
