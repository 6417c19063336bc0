"""The cache against a model of itself: whatever happens, a sequence's rows are the ones written for it."""

from __future__ import annotations

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from forerun.errors import ContractError
from forerun.runtime.torch.cache import SMALLEST_CAPACITY, Cache, LayerShape

SHAPES = (LayerShape(2, 3, 5), LayerShape(1, 4, 4, window=7))
CPU = torch.device("cpu")


def make(context_length: int | None = None) -> Cache:
    return Cache(SHAPES, torch.float32, CPU, context_length)


class CacheMachine(RuleBasedStateMachine):
    """Random use, mirrored by plain lists of numbers; every stored value names its writer."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = make()
        self.mirror: dict[int, list[float]] = {}
        self.next = 1.0

    @rule(key=st.integers(0, 4))
    def begin(self, key: int) -> None:
        if key in self.mirror:
            with pytest.raises(ContractError):
                self.cache.begin(key)
        else:
            self.cache.begin(key)
            self.mirror[key] = []

    @precondition(lambda self: self.mirror)
    @rule(data=st.data(), count=st.integers(1, 150))
    def write(self, data: st.DataObject, count: int) -> None:
        key = data.draw(st.sampled_from(sorted(self.mirror)))
        start = len(self.mirror[key])
        self.cache.reserve(key, start + count)
        slab, slot = self.cache.place(key)
        for offset in range(count):
            for tensor in (*slab.keys, *slab.values):
                tensor[slot, :, start + offset] = self.next
            self.mirror[key].append(self.next)
            self.next += 1
        self.cache.extend(key, start + count)

    @precondition(lambda self: self.mirror)
    @rule(data=st.data())
    def keep(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.mirror)))
        length = data.draw(st.integers(-1, len(self.mirror[key]) + 1))
        if 0 <= length <= len(self.mirror[key]):
            self.cache.keep(key, length)
            del self.mirror[key][length:]
        else:
            with pytest.raises(ContractError):
                self.cache.keep(key, length)

    @precondition(lambda self: self.mirror)
    @rule(data=st.data(), copy=st.integers(0, 4))
    def fork(self, data: st.DataObject, copy: int) -> None:
        source = data.draw(st.sampled_from(sorted(self.mirror)))
        length = data.draw(st.integers(0, len(self.mirror[source])))
        if copy in self.mirror:
            with pytest.raises(ContractError):
                self.cache.fork(source, copy, length)
        else:
            self.cache.fork(source, copy, length)
            self.mirror[copy] = self.mirror[source][:length]

    @rule(key=st.integers(0, 5))
    def free(self, key: int) -> None:
        self.cache.free(key)
        self.mirror.pop(key, None)

    @invariant()
    def holds_what_was_written(self) -> None:
        assert dict(self.cache.lengths) == {key: len(values) for key, values in self.mirror.items()}
        places = set()
        for key, values in self.mirror.items():
            if values:
                slab, slot = self.cache.place(key)
                places.add((id(slab), slot))
                expected = torch.tensor(values)
                for tensor in (*slab.keys, *slab.values):
                    assert (tensor[slot, :, : len(values)] == expected[None, :, None]).all()
        assert len(places) == sum(1 for values in self.mirror.values() if values)

    @invariant()
    def memory_follows_use(self) -> None:
        if not self.mirror:
            assert self.cache.num_bytes == 0


TestCacheMachine = CacheMachine.TestCase
TestCacheMachine.settings = settings(max_examples=25, stateful_step_count=20, deadline=None)


def test_memory_grows_in_steps_and_stays_near_what_is_cached() -> None:
    cache = make()
    cache.begin(0)
    seen = set()
    for length in range(1, 1500, 7):
        cache.reserve(0, length)
        cache.extend(0, length)
        assert length <= cache.place(0)[0].capacity <= max(SMALLEST_CAPACITY, 2 * length)
        seen.add(cache.num_bytes)
    assert len(seen) <= 6  # doublings, not one allocation a token
    cache.free(0)
    assert cache.num_bytes == 0


def test_the_last_step_stops_at_the_context() -> None:
    cache = make(context_length=1100)
    cache.begin(0)
    cache.reserve(0, 1100)
    assert cache.place(0)[0].capacity == 1152  # not 2048


def test_a_sequence_that_was_not_begun() -> None:
    cache = make()
    for call in (
        lambda: cache.length(3),
        lambda: cache.keep(3, 0),
        lambda: cache.reserve(3, 1),
        lambda: cache.fork(3, 4, 0),
        lambda: cache.place(3),
    ):
        with pytest.raises(ContractError, match="sequence 3 was not begun"):
            call()
    cache.begin(3)
    with pytest.raises(ContractError, match="no room"):
        cache.place(3)
    with pytest.raises(ContractError, match="cannot fork 1 of 0"):
        cache.fork(3, 4, 1)
    assert dict(cache.lengths) == {3: 0}
