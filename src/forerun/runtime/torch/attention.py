"""Attention of a packed ragged pass over our own cache, plugged into transformers' attention interface.

A pass is one row of tokens [1, N]: the new tokens of every sequence, one segment after another, with explicit
positions. Everything but attention is row by row, so only here must sequences be told apart: each segment's keys
and values go to its own slot, and its queries see that slot only. No mask over the whole pass exists.

The query heads that share a key/value head are extra query rows of it ([kv_heads, group * rows, size]), so keys are
neither repeated nor read twice.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from forerun.errors import ContractError
from forerun.runtime.torch.cache import LayerShape, Slab
from forerun.runtime.torch.tree import Tree

ATTENTION = "forerun"
"""Our name in transformers' attention registry. It has no entry in the mask registry, so models build no mask."""


@dataclass(frozen=True, slots=True)
class Segment:
    """New tokens of one sequence in a pass: rows `row` .. `row + count - 1`, cached at the places from `start` on. Each
    sees all places up to its own, which are their positions too, unless the tokens are part of a `tree`."""

    slab: Slab
    slot: int
    start: int
    count: int
    row: int
    tree: Tree | None = None

    @property
    def end(self) -> int:
        """Cached tokens once this segment is written."""
        return self.start + self.count

    def low(self, window: int | None) -> int:
        """The first place that any of its queries sees."""
        first = self.start if self.tree is None else self.tree.start
        return 0 if window is None else max(0, first - window + 1)

    def hidden(self, low: int, high: int, window: int | None) -> torch.Tensor:
        """[count, high - low] bool, on the CPU: which of the places `low` .. `high - 1` each query does not see."""
        if self.tree is not None:
            return self.tree.hidden(self.start, self.count, low, high, window)
        queries = torch.arange(self.start, self.end)[:, None]
        distance = queries - torch.arange(low, high)
        return distance < 0 if window is None else (distance < 0) | (distance >= window)


class Attention(ABC):
    """How the segments of one pass attend. Made for one pass and dropped with it, so what depends only on lengths
    (masks, index tensors) is built once and shared by all layers."""

    def __init__(self, segments: Sequence[Segment], shapes: Sequence[LayerShape]) -> None:
        self.segments, self.shapes = segments, shapes
        self.rotation: Any = None  # what layers made of the pass's rotary positions, to be made once

    @abstractmethod
    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scaling: float,
        softcap: float | None = None,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """query [heads, N, size], key and value [kv_heads, N, size] -> [N, heads, value_size]. Writes the new keys
        and values to the cache first. `softcap` and `sinks` [heads] are None or the layer's own."""


_CURRENT: ContextVar[Attention | None] = ContextVar("forerun_attention", default=None)


@contextlib.contextmanager
def attending(attention: Attention) -> Iterator[None]:
    """Models called inside attend through `attention`."""
    token = _CURRENT.set(attention)
    try:
        yield
    finally:
        _CURRENT.reset(token)


def current() -> Attention:
    """The pass that runs in this context."""
    attention = _CURRENT.get()
    if attention is None:
        raise ContractError("this model attends through forerun's cache", "it was called outside TorchModel.forward")
    return attention


def interface(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """transformers' attention function: query [1, heads, N, size] -> [1, N, heads, size].

    The layer's window comes from the probe (support.py), which has also refused every argument not named here
    that would change the result.
    """
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    out = current().attend(module.layer_idx, query[0], key[0], value[0], scale, softcap, s_aux)
    return out.unsqueeze(0).contiguous(), None


def attend_rows(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    scaling: float,
    softcap: float | None,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """softmax(softcap(query key^T scaling) + mask) value, with `sinks` as one more logit that has no value.

    query [B, kv_heads, R, size], key and value [B, kv_heads, S, size], mask additive [B or 1, 1, R, S], sinks
    [kv_heads, R, 1] -> [B, kv_heads, R, value_size]. Scores are float32 where they are formed here.
    """
    if softcap is None and sinks is None:
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scaling)
    scores = torch.matmul(query, key.transpose(-1, -2)).float() * scaling
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    if mask is not None:
        scores = scores + mask
    if sinks is not None:
        scores = torch.cat([scores, sinks.float().expand(*scores.shape[:-1], 1)], dim=-1)
    probs = torch.softmax(scores, dim=-1)
    if sinks is not None:
        probs = probs[..., :-1]
    return torch.matmul(probs.to(value.dtype), value)


def sinks_of(sinks: torch.Tensor | None, num_kv_heads: int, rows: int) -> torch.Tensor | None:
    """[heads] -> [kv_heads, group * rows, 1], in the order of the query rows of a group."""
    if sinks is None:
        return None
    return sinks.reshape(num_kv_heads, -1, 1).expand(-1, -1, rows).reshape(num_kv_heads, -1, 1)


class EachSegment(Attention):
    """One kernel call per segment, over exactly the keys it may see: no padding, no gathering. For a CPU."""

    def __init__(self, segments: Sequence[Segment], shapes: Sequence[LayerShape]) -> None:
        super().__init__(segments, shapes)
        self._masks: dict[tuple[int, int, int | None], torch.Tensor] = {}

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scaling: float,
        softcap: float | None = None,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        shape = self.shapes[layer]
        heads, kv_heads = query.shape[0], shape.num_kv_heads
        outs = []
        for index, segment in enumerate(self.segments):
            count, end, rows = segment.count, segment.end, slice(segment.row, segment.row + segment.count)
            keys, values = segment.slab.keys[layer][segment.slot], segment.slab.values[layer][segment.slot]
            keys[:, segment.start : end] = key[:, rows]
            values[:, segment.start : end] = value[:, rows]
            low = segment.low(shape.window)
            out = attend_rows(
                query[:, rows].reshape(1, kv_heads, -1, query.shape[-1]),
                keys[None, :, low:end],
                values[None, :, low:end],
                self._mask(index, low, heads // kv_heads, shape.window, query.dtype),
                scaling,
                softcap,
                sinks_of(sinks, kv_heads, count),
            )
            outs.append(out.view(heads, count, shape.value_size).transpose(0, 1))
        return outs[0] if len(outs) == 1 else torch.cat(outs)

    def _mask(self, index: int, low: int, group: int, window: int | None, dtype: torch.dtype) -> torch.Tensor | None:
        """Additive [1, 1, group * count, end - low]: 0 where a query sees a place. None where all is seen."""
        if self.segments[index].count == 1 and self.segments[index].tree is None:
            return None
        found = self._masks.get((index, group, window))
        if found is None:
            segment = self.segments[index]
            hidden = segment.hidden(low, segment.end, window)
            mask = torch.zeros(hidden.shape, dtype=dtype).masked_fill_(hidden, -torch.inf)
            found = self._masks[index, group, window] = mask.repeat(group, 1)[None, None]
        return found


class EachRow(Attention):
    """One kernel call per query row, whose shape depends on that row's own position and nothing else.

    Used where every row's bits must not depend on how many rows share its pass. Rows outside every segment are
    padding: they get zeros and touch no cache.
    """

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scaling: float,
        softcap: float | None = None,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        shape = self.shapes[layer]
        heads, kv_heads = query.shape[0], shape.num_kv_heads
        extra = sinks_of(sinks, kv_heads, 1)
        result = query.new_zeros((query.shape[1], heads, shape.value_size))
        for segment in self.segments:
            rows = slice(segment.row, segment.row + segment.count)
            keys, values = segment.slab.keys[layer][segment.slot], segment.slab.values[layer][segment.slot]
            keys[:, segment.start : segment.end] = key[:, rows]
            values[:, segment.start : segment.end] = value[:, rows]
            for row in range(segment.row, segment.row + segment.count):
                place = segment.start + row - segment.row
                own_keys, own_values, end = keys, values, place + 1
                if segment.tree is not None:
                    own_keys, own_values, end = segment.tree.as_text(place, keys, values)
                low = 0 if shape.window is None else max(0, end - shape.window)
                # A copy: a view's alignment would depend on the row, and a kernel's rounding may depend on that.
                one = query[:, row].clone(memory_format=torch.contiguous_format).view(1, kv_heads, -1, query.shape[-1])
                seen = own_keys[None, :, low:end], own_values[None, :, low:end]
                result[row] = attend_rows(one, *seen, None, scaling, softcap, extra).view(heads, shape.value_size)
        return result
