"""Any served transformers model as a forerun Model: packed ragged passes over our own cache.

All spans of a pass become one row of tokens [1, N] with explicit positions, so linear layers see N rows and nothing
is padded. Attention (attention.py) is the only place where rows meet. Long spans are cut into several passes; since
passes keep the order of rows, the rows asked for are gathered by concatenation.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from forerun.errors import UnsupportedModelError
from forerun.runtime.base import Rows, check_spans
from forerun.runtime.cost import UNUSED, measure_cost
from forerun.runtime.limits import check_head_ids, chosen_context
from forerun.runtime.torch.attention import (
    ATTENTION,
    Attention,
    EachRow,
    EachSegment,
    Segment,
    attending,
)
from forerun.runtime.torch.cache import Cache, LayerShape
from forerun.runtime.torch.layer import fuse_layers
from forerun.runtime.torch.linear import pack_linears, plain_linear
from forerun.runtime.torch.padded import PaddedGroups
from forerun.runtime.torch.registry import PROBE, register
from forerun.runtime.torch.strict import STRICT_ROWS, check_strict, make_rowwise
from forerun.runtime.torch.support import check_config, context_length_of, probe, refused
from forerun.runtime.torch.tree import Tree
from forerun.runtime.trees import check_one_text, last_span
from forerun.types import Capabilities, CostCurve, Span

MAX_ROWS = 512
"""Rows of one pass: bounds the memory of activations and masks. Larger passes were not faster on a CPU."""


@dataclass(slots=True)
class _Pass:
    """One call of the model: its tokens [N], their positions, whose they are, and which rows' logits are wanted."""

    tokens: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    segments: list[Segment] = field(default_factory=list)
    wanted: list[int] = field(default_factory=list)


class TorchModel:
    """Implements `forerun.runtime.base.Model`. Build it with `load_torch_model` or `from_transformers`.

    With `strict`, every pass has exactly `STRICT_ROWS` rows and every query row attends alone, so a row's logits do
    not depend, bit for bit, on what else was fed with it.
    """

    def __init__(
        self,
        module: Any,
        shapes: tuple[LayerShape, ...],
        *,
        context_length: int | None,
        strict: bool,
        head_ids: np.ndarray | None = None,
    ) -> None:
        weight = module.get_input_embeddings().weight
        self._module, self._shapes, self._strict = module, shapes, strict
        self._head_ids = None if head_ids is None else torch.as_tensor(head_ids, device=weight.device)
        self.device, self.dtype = weight.device, weight.dtype
        self.capabilities = Capabilities(
            context_length=context_length,
            vocabulary_size=module.get_output_embeddings().out_features if head_ids is None else weight.shape[0],
            num_embeddings=weight.shape[0],
            trees=True,
            device=str(self.device),
        )
        self.cache = Cache(shapes, self.dtype, self.device, context_length)
        self._cost: CostCurve | None = None

    @classmethod
    def from_transformers(
        cls,
        module: Any,
        *,
        strict: bool = False,
        context_length: int | None = None,
        head_ids: Sequence[int] | np.ndarray | None = None,
        optimise: bool = True,
    ) -> TorchModel:
        """Take over a transformers model that holds its weights: it is changed in place and must not be used directly
        any more. `head_ids` computes only these rows of the output head, for a cheap draft: the rest of a row is minus
        infinity. `optimise` repacks linear layers and fuses known decoder layers.

        Raises UnsupportedModelError for layers that cannot be served, ParameterError for a limit that does not fit.
        """
        register()
        config = module.config
        if not isinstance(module, check_config(config)):
            raise refused(config, f"{type(module).__name__} is not their causal language model")
        limit = chosen_context(context_length_of(config), context_length)
        module.eval().requires_grad_(False)
        config._attn_implementation = PROBE
        shapes = probe(module)
        return cls.assemble(module, shapes, strict=strict, context_length=limit, head_ids=head_ids, optimise=optimise)

    @classmethod
    def assemble(
        cls,
        module: Any,
        shapes: tuple[LayerShape, ...],
        *,
        strict: bool,
        context_length: int | None,
        head_ids: Sequence[int] | np.ndarray | None,
        optimise: bool = True,
    ) -> TorchModel:
        """`from_transformers` for a model that was probed already."""
        config = module.config
        config._attn_implementation = ATTENTION
        if strict:
            check_strict(config)
        kept = _prepare_head(module, head_ids)
        if optimise:
            fuse_layers(module, shapes)
            pack_linears(module)
        if strict:
            make_rowwise(module)
        model = cls(module, shapes, context_length=context_length, strict=strict, head_ids=kept)
        _check_rows(model, strict)
        return model

    def begin(self, sequence_id: int) -> None:
        """Announce a sequence."""
        self.cache.begin(sequence_id)

    def keep(self, sequence_id: int, length: int, path: tuple[int, ...] = ()) -> None:
        """Shorten the cache to `length` tokens, and those of `path` (indices into the last span)."""
        self.cache.keep(sequence_id, length, path)

    def length(self, sequence_id: int) -> int:
        """Cached tokens."""
        return self.cache.length(sequence_id)

    def fork(self, source: int, target: int, length: int) -> None:
        """Begin `target` with the first `length` cached tokens of `source`."""
        self.cache.fork(source, target, length)

    def free(self, sequence_id: int) -> None:
        """Drop a sequence's cache."""
        self.cache.free(sequence_id)

    def cost(self) -> CostCurve:
        """Measured milliseconds per pass; measured at first use."""
        if self._cost is None:
            self._cost = measure_cost(self)
        return self._cost

    def forward(self, spans: Sequence[Span]) -> Rows:
        """Feed every span and return the rows asked for, as float32. Lengths change only when all of it succeeded."""
        check_spans(spans, self.cache.lengths, self.capabilities)
        check_one_text(spans, self.cache.lasts)
        for span in spans:
            self.cache.reserve(span.sequence_id, span.start + len(span.tokens))
        counts = [span.num_rows for span in spans]
        shape = (sum(counts), self.capabilities.vocabulary_size)
        matrix = torch.empty(shape, dtype=torch.float32, device=self.device)
        if self._head_ids is not None:
            matrix.fill_(-math.inf)
        done = 0
        with torch.inference_mode():
            for one in self._passes(spans):
                self._run(one, matrix[done : done + len(one.wanted)])
                done += len(one.wanted)
        for span in spans:
            self.cache.extend(span.sequence_id, span.start + len(span.tokens), last_span(span))
        return Rows(matrix.numpy() if self.device.type == "cpu" else matrix, counts)

    def _passes(self, spans: Sequence[Span]) -> Iterator[_Pass]:
        """Cut the spans, in order, into passes of at most so many rows."""
        limit = STRICT_ROWS if self._strict else MAX_ROWS
        one = _Pass()
        for span in spans:
            slab, slot = self.cache.place(span.sequence_id)
            tree = None if span.parents is None else Tree(span.start, span.parents)
            positions = range(span.start, span.start + len(span.tokens)) if tree is None else tree.positions
            first_wanted = len(span.tokens) - span.num_rows
            at = 0
            while at < len(span.tokens):
                if len(one.tokens) == limit:
                    yield one
                    one = _Pass()
                row = len(one.tokens)
                count = min(limit - row, len(span.tokens) - at)
                one.segments.append(Segment(slab, slot, span.start + at, count, row, tree))
                one.tokens.extend(span.tokens[at : at + count])
                one.positions.extend(positions[at : at + count])
                one.wanted.extend(row + i - at for i in range(max(at, first_wanted), at + count))
                at += count
        if one.tokens:
            yield one

    def _run(self, one: _Pass, logits: torch.Tensor) -> None:
        """One call of the model; the wanted rows' logits go to `logits` [wanted, vocab]."""
        tokens, positions, wanted = one.tokens, one.positions, one.wanted
        if self._strict:
            padding = STRICT_ROWS - len(tokens)
            tokens, positions = tokens + [0] * padding, positions + [0] * padding
            wanted = wanted + [0] * (STRICT_ROWS - len(wanted)) if wanted else wanted
        inputs = torch.tensor([tokens, positions], device=self.device)
        arguments = {"input_ids": inputs[:1], "position_ids": inputs[1:], "use_cache": False}
        with attending(self._attention(one.segments)):
            if not wanted:
                self._module.base_model(**arguments)
                return
            keep = torch.tensor(wanted, device=self.device)
            out = self._module(**arguments, logits_to_keep=keep).logits
        computed = out[0, : len(one.wanted)]
        if self._head_ids is None:
            logits.copy_(computed)
        else:
            logits[:, self._head_ids] = computed.float()

    def _attention(self, segments: list[Segment]) -> Attention:
        if self._strict:
            return EachRow(segments, self._shapes)
        if self.device.type == "cpu":
            return EachSegment(segments, self._shapes)
        return PaddedGroups(segments, self._shapes, self.device)


def _prepare_head(module: Any, head_ids: Sequence[int] | np.ndarray | None) -> np.ndarray | None:
    """Keep the rows of the output head that are named, and say which: ascending ids [n]."""
    head = module.get_output_embeddings()
    if type(head) is not torch.nn.Linear:
        raise refused(module.config, "their output head is not a plain linear layer")
    if head_ids is None:
        return None
    ids = check_head_ids(head_ids, head.out_features)
    places = torch.as_tensor(ids, device=head.weight.device)
    bias = None if head.bias is None else head.bias[places]
    module.set_output_embeddings(plain_linear(head.weight[places], bias))
    return ids


def _check_rows(model: TorchModel, strict: bool) -> None:
    """Two sequences fed together and alone must give the same rows: a model whose rows meet outside attention is
    refused here, and so is a strict model on a machine whose kernels do not keep the promise.

    Also the first use of every kernel, so that nobody's first token pays for it.
    """
    size, limit = model.capabilities.num_inputs, model.capabilities.context_length
    if limit is not None and limit < 5:
        return
    texts = [[(7 * i + 3) % size for i in range(5)], [(11 * i + 5) % size for i in range(3)]]
    ids = (UNUSED, UNUSED - 1)

    def feed(pieces: Sequence[Sequence[tuple[int, int, int]]]) -> list[torch.Tensor]:
        rows: list[list[torch.Tensor]] = [[], []]
        for key in ids:
            model.begin(key)
        try:
            for spans in pieces:
                out = model.forward([Span(ids[i], a, texts[i][a:b], b - a) for i, a, b in spans])
                matrix = torch.as_tensor(out.matrix)
                matrix = matrix if model._head_ids is None else matrix[:, model._head_ids]
                for place, (i, a, b) in enumerate(spans):
                    first = out.index(place, 0)
                    rows[i].append(matrix[first : first + b - a])
        finally:
            for key in ids:
                model.free(key)
        return [torch.cat(parts) for parts in rows]

    together = feed([[(0, 0, 5), (1, 0, 3)]])
    apart = feed([[(1, 0, 2)], [(0, 0, 1)], [(1, 2, 3), (0, 1, 5)]])
    for one, other in zip(together, apart, strict=True):
        if torch.isnan(one).any() or torch.isnan(other).any():
            continue  # the engine reports such rows, per request
        if strict and not torch.equal(one, other):
            raise UnsupportedModelError(
                "strict cannot be promised for this model on this machine",
                "a row's bits depend on the rows beside it",
                "leave out strict, or try dtype='float32'",
            )
        tolerance = 1e-2 if model.dtype is torch.float32 else 0.3
        if (one - other).abs().max() > tolerance * one.std().clamp(min=1e-6):
            raise UnsupportedModelError(
                "this model's rows depend on other sequences in the pass",
                "something besides attention mixes positions",
            )
