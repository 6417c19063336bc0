"""Draft models that are of no use, at the price of a real one: every pass of the given model is made, and its rows are
replaced."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from forerun.arrays import asarray_like, namespace
from forerun.bench.cells.definitions import DraftKind
from forerun.runtime.base import Model, Rows
from forerun.runtime.wrapped import WrappedModel
from forerun.types import Span

NUM_NOISE = 61
"""Rows of noise that there are, one for each token id modulo this."""
NOISE_DEVIATION = 1.0
"""Standard deviation of logits of noise: what a head of random weights gives behind a normalised state."""


class AdversarialDraft(WrappedModel):
    """A model whose rows tell nothing of the text: "noise" has rows of normal logits, as random weights give them, a
    fixed one for each token fed; "liar" has the model's own rows, moved by half the vocabulary, so that it is as sure
    as the model is, and wrong. Everything else is the model's."""

    def __init__(self, model: Model, kind: DraftKind) -> None:
        super().__init__(model)
        size = model.capabilities.vocabulary_size
        random = np.random.default_rng(0)
        noise = random.normal(0.0, NOISE_DEVIATION, (NUM_NOISE, size)).astype(np.float32)
        self._noise = noise if kind == "noise" else None

    def forward(self, spans: Sequence[Span]) -> Rows:
        """The model's pass, and other rows."""
        rows = self.model.forward(spans)
        matrix = rows.matrix
        if not matrix.shape[0]:
            return rows
        rows.wait()  # the pass is paid for, also where nobody looks at its rows
        if self._noise is None:
            other = namespace(matrix).roll(matrix, matrix.shape[1] // 2, axis=1)
        else:
            fed = [token for span in spans for token in list(span.tokens)[len(span.tokens) - span.num_rows :]]
            other = asarray_like(self._noise[[token % NUM_NOISE for token in fed]], matrix, matrix.dtype)
        return Rows(other, np.diff(rows.starts).tolist())
