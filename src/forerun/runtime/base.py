"""The protocol every target and draft model implements, and the handle for the rows a pass returns.

A model owns one disposable cache per sequence. The engine's tokens are the truth: rollback is `keep` to an absolute
length (idempotent), preemption is `free`, resuming is feeding what is missing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

import numpy as np
from array_api_compat import device, is_torch_array

from forerun.errors import ContractError
from forerun.topology import depths, is_sound
from forerun.types import Array, Capabilities, CostCurve, Span


class Rows:
    """Logits of one pass, span after span, in the order the spans were given.

    `matrix` is [total_rows, width] float32 (float64 from exact test models): numpy on a CPU, a torch tensor on a
    GPU, where it stays. `counts[i]` is span i's number of rows.
    """

    def __init__(self, matrix: Array, counts: Sequence[int]) -> None:
        if matrix.shape[0] != sum(counts):
            raise ContractError(
                f"a pass returned {matrix.shape[0]} rows where {sum(counts)} were asked for",
                f"rows per span: {list(counts)}",
            )
        self.matrix = matrix
        self.starts = np.concatenate([[0], np.cumsum(np.asarray(counts, dtype=np.int64))])
        self._best: dict[int, tuple[np.ndarray, np.ndarray]] = {}

    def index(self, span: int, row: int) -> int:
        """Position in `matrix` of row `row` of span `span`."""
        return int(self.starts[span]) + row

    def best(self, index: int, vocabulary_size: int) -> tuple[int, float]:
        """(argmax, largest logit) of row `index` over ids below `vocabulary_size`; ties go to the lowest id.

        All rows are reduced at once on first use: one kernel and one small copy on a GPU. A NaN anywhere in
        the row comes back as the largest logit.
        """
        if vocabulary_size not in self._best:
            real = self.matrix[:, :vocabulary_size]
            if is_torch_array(real):
                values, ids = real.max(dim=-1)
                self._best[vocabulary_size] = (ids.cpu().numpy(), values.cpu().numpy())
            else:
                ids = real.argmax(axis=-1)
                self._best[vocabulary_size] = (ids, real[np.arange(len(real)), ids])
        ids, values = self._best[vocabulary_size]
        return int(ids[index]), float(values[index])

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
    """A target or a draft model. Implementations: `toy.ToyModel`, `native.NativeModel`, `torch.TorchModel`."""

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
        on another sequence, nor, where a span is a tree, on a token that is not on the row's own path; a token's
        position is the number of tokens before it on that path. After a tree nothing may be fed until one text is kept.
        """
        ...

    def keep(self, sequence_id: int, length: int, path: tuple[int, ...] = ()) -> None:
        """Shorten the cache to its first `length` tokens plus those of `path`, indices into the last span, each of
        which follows the one before it. Lengthening, and what is not one text, is a ContractError."""
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
        if span.parents is not None and not (capabilities.trees and is_sound(span.parents, num_tokens)):
            raise ContractError(
                f"{num_tokens} tokens cannot have the parents {list(span.parents)}"
                if capabilities.trees
                else "this model serves no tree drafts",
                f"sequence {span.sequence_id}",
            )
        context_length, num_inputs = capabilities.context_length, capabilities.num_inputs
        num_positions = span.start + (num_tokens if span.parents is None else max(depths(span.parents)))
        if context_length is not None and num_positions > context_length:
            raise ContractError(
                f"{num_positions} tokens do not fit a context of {context_length}",
                f"sequence {span.sequence_id}",
            )
        low, high = min(span.tokens), max(span.tokens)
        if low < 0 or high >= num_inputs:
            raise ContractError(
                f"token id {low if low < 0 else high} is outside 0..{num_inputs - 1}",
                f"sequence {span.sequence_id}",
            )
