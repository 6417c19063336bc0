"""Batched attention for an accelerator: one kernel per group of segments instead of one per segment.

Segments of one slab with few new rows each are padded to the longest of them; a long segment is a group of its own,
so that a prefill does not pad its neighbours. Padded queries repeat the segment's last row and are thrown away;
keys beyond a sequence's length are masked.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from forerun.runtime.torch.attention import Attention, Segment, attend_rows, sinks_of
from forerun.runtime.torch.cache import LayerShape

FEW_ROWS = 16
"""Segments up to this many rows share a group."""

KEY_STEP = 64
"""Key ranges are rounded up to a multiple of this, so that shapes repeat from pass to pass."""


class PaddedGroups(Attention):
    """Gathers each group's slots and attends to all of them at once. Same results as EachSegment, up to rounding."""

    def __init__(self, segments: Sequence[Segment], shapes: Sequence[LayerShape], device: torch.device) -> None:
        super().__init__(segments, shapes)
        short: dict[int, list[Segment]] = {}
        members: list[list[Segment]] = []
        for segment in segments:
            if segment.count > FEW_ROWS:
                members.append([segment])
            else:
                short.setdefault(id(segment.slab), []).append(segment)
        self._groups = [_Group(group, device) for group in (*members, *short.values())]

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
        result = query.new_zeros((query.shape[1], query.shape[0], shape.value_size))
        for group in self._groups:
            result[group.rows] = group.attend(layer, shape, query, key, value, scaling, softcap, sinks)
        return result


class _Group:
    """Segments of one slab, padded together: B segments, Q query rows each, S keys, n real rows."""

    def __init__(self, segments: Sequence[Segment], device: torch.device) -> None:
        self._slab = slab = segments[0].slab
        self._num_queries = max(segment.count for segment in segments)
        longest = max(segment.end for segment in segments)
        self._num_keys = min(slab.capacity, -(-longest // KEY_STEP) * KEY_STEP)
        slots = [segment.slot for segment in segments]
        every = slots == list(range(slab.num_slots))

        def padded(first: int, count: int) -> list[int]:
            return [first + min(q, count - 1) for q in range(self._num_queries)]

        real = [(b, q, s) for b, s in enumerate(segments) for q in range(s.count)]
        table = [
            [s.row + q for _, q, s in real],
            [b for b, _, _ in real],
            [q for _, q, _ in real],
            [s.slot for _, _, s in real],
            [s.start + q for _, q, s in real],
        ]
        self.rows, self._read, self._read_query, self._write, self._write_position = torch.tensor(table, device=device)
        self._gather = torch.tensor([padded(s.row, s.count) for s in segments], device=device)  # [B, Q]
        self._positions = torch.tensor([padded(s.start, s.count) for s in segments], device=device)  # [B, Q]
        self._slots = None if every else torch.tensor(slots, device=device)
        self._segments = segments if any(segment.tree is not None for segment in segments) else None
        self._masks: dict[tuple[int, int | None], torch.Tensor] = {}

    def attend(
        self,
        layer: int,
        shape: LayerShape,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scaling: float,
        softcap: float | None,
        sinks: torch.Tensor | None,
    ) -> torch.Tensor:
        """The group's real rows, [n, heads, value_size]."""
        keys, values = self._slab.keys[layer], self._slab.values[layer]
        keys[self._write, :, self._write_position] = key[:, self.rows].transpose(0, 1)
        values[self._write, :, self._write_position] = value[:, self.rows].transpose(0, 1)
        keys, values = keys[:, :, : self._num_keys], values[:, :, : self._num_keys]
        if self._slots is not None:
            keys, values = keys.index_select(0, self._slots), values.index_select(0, self._slots)
        heads, kv_heads = query.shape[0], shape.num_kv_heads
        batch, num_queries = self._gather.shape
        padded = query[:, self._gather].transpose(0, 1).reshape(batch, kv_heads, -1, query.shape[-1])
        mask = self._mask(heads // kv_heads, shape.window, query.dtype)
        out = attend_rows(padded, keys, values, mask, scaling, softcap, sinks_of(sinks, kv_heads, num_queries))
        return out.reshape(batch, heads, num_queries, -1)[self._read, :, self._read_query]

    def _mask(self, group: int, window: int | None, dtype: torch.dtype) -> torch.Tensor:
        """Additive [B, 1, group * Q, S]: 0 where the key's position is in sight of the query's."""
        found = self._masks.get((group, window))
        if found is None:
            hidden = self._hidden(window)
            mask = torch.zeros(hidden.shape, dtype=dtype, device=hidden.device).masked_fill_(hidden, -torch.inf)
            found = self._masks[group, window] = mask[:, None].repeat(1, 1, group, 1)
        return found

    def _hidden(self, window: int | None) -> torch.Tensor:
        """[B, Q, S] bool. Trees are laid out on the host, once for all layers of one window."""
        if self._segments is not None:
            each = [segment.hidden(0, self._num_keys, window) for segment in self._segments]
            padded = [one[[min(q, len(one) - 1) for q in range(self._num_queries)]] for one in each]
            return torch.stack(padded).to(self._positions.device)
        distance = self._positions[..., None] - torch.arange(self._num_keys, device=self._positions.device)
        return distance < 0 if window is None else (distance < 0) | (distance >= window)
