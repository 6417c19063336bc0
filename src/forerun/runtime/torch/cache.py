"""Keys and values of every sequence: disposable, truncated by forgetting a length, never padded per batch.

Sequences live in slabs, one per capacity (a power of two), as one slot each. A sequence that outgrows its slab moves
to the next one, so memory stays within twice of what is cached, a batch of equal capacity is one tensor for a
padded kernel, and one sequence alone has a buffer of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch

from forerun.errors import ContractError
from forerun.runtime.trees import LastSpan, kept_places

SMALLEST_CAPACITY = 64
"""Tokens. A multiple of 16, so that every head's rows of an aligned slab begin on a 64-byte boundary."""


@dataclass(frozen=True, slots=True)
class LayerShape:
    """What one attention layer stores per token, and how far back it looks (`window` tokens, itself included)."""

    num_kv_heads: int
    key_size: int
    value_size: int
    window: int | None = None


class Slab:
    """Slots of one capacity: per layer keys [slots, kv_heads, capacity, key_size] and values alike.

    A slot holds zeros when it is taken: padded attention multiplies what lies beyond a sequence's length by a
    probability of 0, which must not meet a NaN that another sequence left behind.
    """

    def __init__(self, shapes: tuple[LayerShape, ...], capacity: int, dtype: torch.dtype, device: torch.device) -> None:
        self.capacity = capacity
        self._free: list[int] = []
        self.num_slots = 0
        self.keys = [_empty(s.num_kv_heads, capacity, s.key_size, dtype, device) for s in shapes]
        self.values = [_empty(s.num_kv_heads, capacity, s.value_size, dtype, device) for s in shapes]

    @property
    def num_used(self) -> int:
        """Slots that hold a sequence."""
        return self.num_slots - len(self._free)

    def take(self) -> int:
        """A slot of zeros; the slab doubles when none is free."""
        if not self._free:
            grown = max(1, 2 * self.num_slots)
            try:
                for tensors in (self.keys, self.values):
                    for layer, old in enumerate(tensors):
                        new = old.new_zeros((grown, *old.shape[1:]))
                        new[: self.num_slots].copy_(old)
                        tensors[layer] = new
            except BaseException:  # out of memory half-way: all layers keep one number of slots
                self.keys = [tensor[: self.num_slots] for tensor in self.keys]
                self.values = [tensor[: self.num_slots] for tensor in self.values]
                raise
            self._free = list(range(grown - 1, self.num_slots - 1, -1))
            self.num_slots = grown
        else:
            slot = self._free[-1]
            for tensor in (*self.keys, *self.values):
                tensor[slot].zero_()
        return self._free.pop()

    def give(self, slot: int) -> None:
        """The slot may be taken again."""
        self._free.append(slot)


def _empty(heads: int, capacity: int, size: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    return torch.zeros((0, heads, capacity, size), dtype=dtype, device=device)


@dataclass(slots=True)
class _Place:
    """Where a sequence lives, how many of its tokens count, and which came last; no slab before its first token."""

    slab: Slab | None = None
    slot: int = 0
    length: int = 0
    last: LastSpan | None = None


class Cache:
    """Cached lengths and slots by sequence id. `length` alone decides what counts: rows beyond it are garbage."""

    def __init__(
        self,
        shapes: tuple[LayerShape, ...],
        dtype: torch.dtype,
        device: torch.device,
        context_length: int | None = None,
    ) -> None:
        self.shapes, self.dtype, self.device, self.context_length = shapes, dtype, device, context_length
        self._places: dict[int, _Place] = {}
        self._slabs: dict[int, Slab] = {}

    @property
    def lengths(self) -> Mapping[int, int]:
        """Cached tokens by sequence id: a snapshot."""
        return MappingProxyType({key: place.length for key, place in self._places.items()})

    @property
    def lasts(self) -> Mapping[int, LastSpan]:
        """What was fed last to each sequence, where nothing happened to it since: a snapshot."""
        return {key: place.last for key, place in self._places.items() if place.last is not None}

    @property
    def num_bytes(self) -> int:
        """Memory held, used or not."""
        slabs = self._slabs.values()
        return sum(t.numel() * t.element_size() for s in slabs for t in (*s.keys, *s.values))

    def begin(self, sequence_id: int) -> None:
        """Announce a sequence; it holds no memory yet."""
        if sequence_id in self._places:
            raise ContractError(f"sequence {sequence_id} was begun twice")
        self._places[sequence_id] = _Place()

    def place(self, sequence_id: int) -> tuple[Slab, int]:
        """(slab, slot) of a sequence that has room reserved."""
        place = self._known(sequence_id)
        if place.slab is None:
            raise ContractError(f"sequence {sequence_id} has no room reserved")
        return place.slab, place.slot

    def length(self, sequence_id: int) -> int:
        """Cached tokens."""
        return self._known(sequence_id).length

    def reserve(self, sequence_id: int, length: int) -> None:
        """Make room for `length` tokens; what is cached moves along."""
        place = self._known(sequence_id)
        if place.slab is not None and place.slab.capacity >= length:
            return
        capacity = self._capacity(length)
        slab = self._slabs.get(capacity) or Slab(self.shapes, capacity, self.dtype, self.device)
        slot = slab.take()
        self._slabs[capacity] = slab
        try:
            self._copy(place, slab, slot, place.length)
        except BaseException:
            self._leave(_Place(slab, slot))
            raise
        self._leave(place)
        place.slab, place.slot = slab, slot

    def keep(self, sequence_id: int, length: int, path: tuple[int, ...] = ()) -> None:
        """Keep the first `length` tokens and those of `path` (indices into the last span) behind them."""
        place = self._known(sequence_id)
        found = kept_places(place.last, place.length, length, path)
        if found != list(range(length, length + len(found))) and place.slab is not None:
            sources = torch.tensor(found, device=self.device)
            for tensor in (*place.slab.keys, *place.slab.values):
                tensor[place.slot, :, length : length + len(found)] = tensor[place.slot].index_select(1, sources)
        place.length, place.last = length + len(found), None

    def extend(self, sequence_id: int, length: int, last: LastSpan | None = None) -> None:
        """`length` tokens count now, `last` the latest of them; called when a whole pass has succeeded."""
        place = self._known(sequence_id)
        place.length, place.last = length, last

    def fork(self, source: int, target: int, length: int) -> None:
        """Begin `target` with a copy of the first `length` tokens of `source`."""
        origin = self._known(source)
        if not 0 <= length <= origin.length:
            raise ContractError(f"cannot fork {length} of {origin.length} cached tokens", f"sequence {source}")
        kept_places(origin.last, origin.length, length)
        self.begin(target)
        if length:
            self.reserve(target, length)
            place = self._places[target]
            slab = place.slab
            if slab is not None:
                self._copy(origin, slab, place.slot, length)
            place.length = length

    def free(self, sequence_id: int) -> None:
        """Forget a sequence; a slab nobody uses any more is released."""
        place = self._places.pop(sequence_id, None)
        if place is not None:
            self._leave(place)

    def _known(self, sequence_id: int) -> _Place:
        try:
            return self._places[sequence_id]
        except KeyError:
            raise ContractError(f"sequence {sequence_id} was not begun") from None

    def _capacity(self, length: int) -> int:
        """The power of two that holds `length`, but not more than the context needs."""
        capacity = max(SMALLEST_CAPACITY, 1 << (length - 1).bit_length())
        if self.context_length is not None and capacity > self.context_length >= length:
            capacity = -(-self.context_length // SMALLEST_CAPACITY) * SMALLEST_CAPACITY
        return capacity

    @staticmethod
    def _copy(place: _Place, slab: Slab, slot: int, length: int) -> None:
        if place.slab is None or not length:
            return
        old = (*place.slab.keys, *place.slab.values)
        for source, target in zip(old, (*slab.keys, *slab.values), strict=True):
            target[slot, :, :length].copy_(source[place.slot, :, :length])

    def _leave(self, place: _Place) -> None:
        slab = place.slab
        if slab is None:
            return
        slab.give(place.slot)
        if not slab.num_used:
            self._slabs.pop(slab.capacity, None)
