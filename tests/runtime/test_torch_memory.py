"""The cache after memory ran out in the middle of a change: nothing is lost, nothing is kept."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from forerun.runtime.torch.cache import Cache, LayerShape

SHAPES = (LayerShape(1, 4, 4), LayerShape(2, 4, 8))


@pytest.fixture
def cache() -> Cache:
    """Sequence 0 holds ten tokens of ones."""
    made = Cache(SHAPES, torch.float32, torch.device("cpu"), None)
    made.begin(0)
    made.reserve(0, 10)
    made.extend(0, 10)
    slab, slot = made.place(0)
    for tensor in (*slab.keys, *slab.values):
        tensor[slot, :, :10] = 1.0
    return made


def ones(cache: Cache) -> bool:
    slab, slot = cache.place(0)
    return cache.length(0) == 10 and all(bool((t[slot, :, :10] == 1).all()) for t in (*slab.keys, *slab.values))


def fail(monkeypatch: pytest.MonkeyPatch, name: str, call: int) -> None:
    """Let call number `call` of a tensor method run out of memory."""
    real, calls = getattr(torch.Tensor, name), [0]

    def method(self: torch.Tensor, *arguments: Any, **settings: Any) -> Any:
        calls[0] += 1
        if calls[0] == call:
            raise torch.OutOfMemoryError("no memory left")
        return real(self, *arguments, **settings)

    monkeypatch.setattr(torch.Tensor, name, method)


@pytest.mark.parametrize("length", [10, 100])
@pytest.mark.parametrize("call", [1, 2, 3, 4])
def test_a_slab_that_cannot_grow(cache: Cache, call: int, length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.begin(1)
    with monkeypatch.context() as patch:
        fail(patch, "new_zeros", call)
        with pytest.raises(torch.OutOfMemoryError):
            cache.reserve(1, length)
    slab, _ = cache.place(0)
    assert {tensor.shape[0] for tensor in (*slab.keys, *slab.values)} == {slab.num_slots}
    assert ones(cache)
    cache.reserve(1, length)
    cache.free(0)
    cache.free(1)
    assert cache.num_bytes == 0


@pytest.mark.parametrize("call", [1, 4, 5, 8])
def test_a_sequence_that_cannot_move(cache: Cache, call: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        fail(patch, "copy_", call)
        with pytest.raises(torch.OutOfMemoryError):
            cache.reserve(0, 100)
    assert ones(cache)
    cache.free(0)
    assert cache.num_bytes == 0
