"""The protocol every target and draft model implements, and the handle for the rows a pass returns.

A model owns one disposable cache per sequence. The engine's tokens are the truth: rollback is `keep` to an absolute
length (idempotent), preemption is `free`, resuming is feeding what is missing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

import numpy as np
from array_api_compat import device, is_torch_array

from forerun.arrays import asarray_like, namespace, zeros_like
from forerun.errors import ContractError
from forerun.types import Array, Capabilities, CostCurve, Span


class Rows:
    """Logits of one pass, span after span, in the order the spans were given.

    `matrix` is [total_rows, width] float32 (float64 from exact test models): numpy on a CPU, a torch tensor on a
    GPU, where it stays. `counts[i]` is span i's number of rows. `head_ids` [width] int64, ascending, names the tokens
    that the columns stand for where a draft model's head was cut to chosen ones; None: column i is token i.
    """

    def __init__(self, matrix: Array, counts: Sequence[int], head_ids: np.ndarray | None = None) -> None:
        if matrix.shape[0] != sum(counts):
            raise ContractError(
                f"a pass returned {matrix.shape[0]} rows where {sum(counts)} were asked for",
                f"rows per span: {list(counts)}",
            )
        if head_ids is not None and len(head_ids) != matrix.shape[1]:
            raise ContractError(f"a pass returned rows of {matrix.shape[1]} columns for {len(head_ids)} head ids")
        self.matrix, self.head_ids = matrix, head_ids
        self.starts = np.concatenate([[0], np.cumsum(np.asarray(counts, dtype=np.int64))])
        self._best: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        self._ids: dict[int, Array] = {}  # head ids below a vocabulary size, where the rows are

    def index(self, span: int, row: int) -> int:
        """Position in `matrix` of row `row` of span `span`."""
        return int(self.starts[span]) + row

    def columns(self, index: int, vocabulary_size: int) -> tuple[Array, Array | None]:
        """Row `index` as it is held, for ids below `vocabulary_size`: (logits [width], their ids [width], None for
        0..width - 1)."""
        if self.head_ids is None:
            return self.matrix[index, :vocabulary_size], None
        row = self.matrix[index, : self._width(vocabulary_size)]
        if vocabulary_size not in self._ids:
            self._ids[vocabulary_size] = asarray_like(self.head_ids[: row.shape[0]], row, namespace(row).int64)
        return row, self._ids[vocabulary_size]

    def logits(self, index: int, vocabulary_size: int) -> Array:
        """Row `index` by token id, [vocabulary_size] at most; minus infinity where a cut head has no column."""
        row, ids = self.columns(index, vocabulary_size)
        if ids is None:
            return row
        full = zeros_like(row, vocabulary_size) - math.inf
        full[ids] = row
        return full

    def best(self, index: int, vocabulary_size: int) -> tuple[int, float]:
        """(argmax, largest logit) of row `index` over ids below `vocabulary_size`; ties go to the lowest id.

        All rows are reduced at once on first use: one kernel and one small copy on a GPU. A NaN anywhere in
        the row comes back as the largest logit.
        """
        if vocabulary_size not in self._best:
            real = self.matrix[:, : self._width(vocabulary_size)]
            if is_torch_array(real):
                values, places = real.max(dim=-1)
                found = places.cpu().numpy(), values.cpu().numpy()
            else:
                places = real.argmax(axis=-1)
                found = places, real[np.arange(len(real)), places]
            self._best[vocabulary_size] = found if self.head_ids is None else (self.head_ids[found[0]], found[1])
        ids, values = self._best[vocabulary_size]
        return int(ids[index]), float(values[index])

    def _width(self, vocabulary_size: int) -> int:
        """Columns that stand for ids below `vocabulary_size`."""
        if self.head_ids is None:
            return int(min(self.matrix.shape[1], vocabulary_size))
        return int(np.searchsorted(self.head_ids, vocabulary_size))

    def wait(self) -> None:
        """Return when the rows are there. A device works asynchronously: without this, the seconds of a pass would be
        charged to whoever reads its numbers first."""
        if self.matrix.shape[0]:
            float(self.matrix[-1, 0])

    @property
    def device(self) -> str:
        """Where the logits live."""
        return str(device(self.matrix))


@runtime_checkable
class Model(Protocol):
    """A target or a draft model. Implementations: `toy.ToyModel`, `torch.TorchModel`."""

    @property
    def capabilities(self) -> Capabilities:
        """Context length, row width and what the model can do."""
        ...

    def begin(self, sequence_id: int) -> None:
        """Announce a sequence (cached length 0). Feeding an unannounced sequence is a ContractError."""
        ...

    def forward(self, spans: Sequence[Span]) -> Rows:
        """Feed every span (ragged, each at its own position) and return the rows asked for.

        A span's `start` must equal its cached length, and each sequence appears at most once. No row may depend
        on another sequence.
        """
        ...

    def keep(self, sequence_id: int, length: int, path: tuple[int, ...] = ()) -> None:
        """Shorten the cache to its first `length` tokens plus the accepted `path` of a tree; lengthening is a
        ContractError."""
        ...

    def length(self, sequence_id: int) -> int:
        """Cached tokens. After `keep(n)` it is at most n: a recurrent model may fall back to a snapshot."""
        ...

    def fork(self, source: int, target: int, length: int) -> None:
        """Begin `target` with the first `length` cached tokens of `source`."""
        ...

    def free(self, sequence_id: int) -> None:
        """Drop the cache of a sequence; unknown ids are ignored."""
        ...

    def cost(self) -> CostCurve:
        """Measured milliseconds per pass for 1, 2, 4, ... rows; measured at first use, then kept."""
        ...


def check_spans(spans: Sequence[Span], lengths: Mapping[int, int], capabilities: Capabilities) -> None:
    """Refuse spans that break the protocol; every runtime calls it first, so that a bug upstream is loud."""
    if len({span.sequence_id for span in spans}) != len(spans):
        raise ContractError("a sequence appears twice in one pass")
    for span in spans:
        if span.sequence_id not in lengths:
            raise ContractError(f"sequence {span.sequence_id} was not begun")
        cached, num_tokens = lengths[span.sequence_id], len(span.tokens)
        if span.start != cached:
            raise ContractError(
                f"span starts at {span.start} but {cached} tokens are cached", f"sequence {span.sequence_id}"
            )
        if num_tokens == 0 or not 0 <= span.num_rows <= num_tokens:
            raise ContractError(
                f"{span.num_rows} rows were asked for of {num_tokens} tokens", f"sequence {span.sequence_id}"
            )
        context_length, num_inputs = capabilities.context_length, capabilities.num_inputs
        if context_length is not None and span.start + num_tokens > context_length:
            raise ContractError(
                f"{span.start + num_tokens} tokens do not fit a context of {context_length}",
                f"sequence {span.sequence_id}",
            )
        low, high = min(span.tokens), max(span.tokens)
        if low < 0 or high >= num_inputs:
            raise ContractError(
                f"token id {low if low < 0 else high} is outside 0..{num_inputs - 1}",
                f"sequence {span.sequence_id}",
            )
