"""A native decoder as a forerun Model: spans become arrays, its errors become ours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from forerun.errors import ContractError, ModelError
from forerun.runtime.base import Rows, check_spans
from forerun.runtime.cost import measure_cost
from forerun.types import Capabilities, CostCurve, Span

if TYPE_CHECKING:
    from forerun._native import Decoder


class NativeModel:
    """Implements `forerun.runtime.base.Model`, trees included. Build it with `load_native_model`.

    A row's logits do not depend, bit for bit, on what else was fed with it, on how its text was cut into passes, or on
    the number of threads: what `strict` asks of other runtimes always holds here.
    """

    def __init__(self, decoder: Decoder, capabilities: Capabilities, head_ids: np.ndarray | None = None) -> None:
        self._decoder, self.capabilities, self._head_ids = decoder, capabilities, head_ids
        self._begun: set[int] = set()
        self._cost: CostCurve | None = None

    def begin(self, sequence_id: int) -> None:
        """Announce a sequence."""
        if sequence_id in self._begun:
            raise ContractError(f"sequence {sequence_id} was begun twice")
        self._decoder.begin(sequence_id)
        self._begun.add(sequence_id)

    def forward(self, spans: Sequence[Span]) -> Rows:
        """Feed every span and return the rows asked for, float32. Lengths change only when all of it succeeded."""
        lengths = {
            span.sequence_id: self._decoder.length(span.sequence_id)
            for span in spans
            if span.sequence_id in self._begun
        }
        check_spans(spans, lengths, self.capabilities)
        counts = [span.num_rows for span in spans]
        num_computed = self.capabilities.vocabulary_size if self._head_ids is None else len(self._head_ids)
        out = np.empty((sum(counts), num_computed), dtype=np.float32)
        if spans:
            try:
                self._decoder.forward(
                    np.array([span.sequence_id for span in spans], dtype=np.int64),
                    np.array([span.start for span in spans], dtype=np.int64),
                    np.array([token for span in spans for token in span.tokens], dtype=np.int32),
                    np.array([len(span.tokens) for span in spans], dtype=np.int64),
                    np.array(counts, dtype=np.int64),
                    _parents(spans),
                    out,
                )
            except ValueError as error:
                raise ContractError("a span does not fit what is cached", str(error)) from error
            except RuntimeError as error:  # kept weights that were cut while they were mapped (kept_weights.py)
                raise ModelError("the model's weights are gone", str(error), "load the model again") from error
        return Rows(out if self._head_ids is None else self._scattered(out, self._head_ids), counts)

    def keep(self, sequence_id: int, length: int, path: tuple[int, ...] = ()) -> None:
        """Shorten the cache to `length` tokens, and the accepted `path` (indices into the last span) of a tree."""
        cached = self.length(sequence_id)
        if length + len(path) > cached or length < 0:
            raise ContractError(f"cannot keep {length} of {cached} cached tokens", f"path {path}")
        try:
            self._decoder.keep(sequence_id, length, list(path))
        except ValueError as error:
            raise ContractError(f"cannot keep {length} of {cached} cached tokens", str(error)) from error

    def length(self, sequence_id: int) -> int:
        """Cached tokens."""
        if sequence_id not in self._begun:
            raise ContractError(f"sequence {sequence_id} was not begun")
        return self._decoder.length(sequence_id)

    def fork(self, source: int, target: int, length: int) -> None:
        """Begin `target` with the first `length` cached tokens of `source`; full pages are shared."""
        if target in self._begun:
            raise ContractError(f"sequence {target} was begun twice")
        if not 0 <= length <= self.length(source):
            raise ContractError(f"cannot fork {length} of {self.length(source)} cached tokens")
        try:
            self._decoder.fork(source, target, length)
        except ValueError as error:
            raise ContractError(f"cannot fork {length} cached tokens of sequence {source}", str(error)) from error
        self._begun.add(target)

    def free(self, sequence_id: int) -> None:
        """Drop a sequence's cache; unknown ids are ignored."""
        # Also of one that is not noted: between the decoder's beginning and the note an interrupt may come.
        self._decoder.free(sequence_id)
        self._begun.discard(sequence_id)

    def cost(self) -> CostCurve:
        """Measured milliseconds per pass; measured at first use."""
        if self._cost is None:
            self._cost = measure_cost(self)
        return self._cost

    @property
    def weight_bytes(self) -> int:
        """Bytes of weights that one pass reads."""
        return self._decoder.weight_bytes

    @property
    def cache_bytes(self) -> int:
        """Bytes of keys and values in use."""
        return self._decoder.cache_bytes

    def _scattered(self, computed: np.ndarray, head_ids: np.ndarray) -> np.ndarray:
        """Rows [rows, vocabulary_size] with -inf at every id that the head was cut off."""
        matrix = np.full((len(computed), self.capabilities.vocabulary_size), -np.inf, dtype=np.float32)
        matrix[:, head_ids] = computed
        return matrix


def _parents(spans: Sequence[Span]) -> np.ndarray | None:
    """Each token's parent as an index into its span [tokens] int32, -1 for the text before the span; None where all
    spans are chains."""
    if all(span.parents is None for span in spans):
        return None
    chains = (range(-1, len(span.tokens) - 1) if span.parents is None else span.parents for span in spans)
    return np.array([parent for parents in chains for parent in parents], dtype=np.int32)
