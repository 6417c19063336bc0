"""Sequences and their cache: any order of begin, feed, keep, fork and free; breaches, memory, and threads."""

from __future__ import annotations

import subprocess
import sys
import threading
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.native.decoders import build, feed, rows_of, text, tiny

from forerun import _native

MODEL = tiny(num_layers=2, num_heads=2, num_kv_heads=1, head_size=6, intermediate_size=32)
WIDTH = MODEL.vocabulary_size
PAGE_BYTES = 2 * 64 * (6 * 2 + 16 * 2 + 2 * 4)
TEXT = text(MODEL, 400)


@lru_cache(maxsize=4096)
def rows_from_scratch(tokens: tuple[int, ...]) -> np.ndarray:
    """The last row of `tokens`, from a decoder that never saw anything else."""
    return rows_of(build(MODEL), tokens, WIDTH)[-1]


class Sequences(RuleBasedStateMachine):
    """Every row must be the one that its text has from scratch; tokens are the model of the cache."""

    @initialize()
    def make(self) -> None:
        self.decoder, self.texts, self.next = build(MODEL), {}, 0

    def pick(self, data: st.DataObject) -> int:
        return data.draw(st.sampled_from(sorted(self.texts)))

    @precondition(lambda self: len(self.texts) < 4)
    @rule()
    def begin(self) -> None:
        self.next += 1
        self.decoder.begin(self.next)
        self.texts[self.next] = []

    @precondition(lambda self: self.texts)
    @rule(data=st.data(), sizes=st.lists(st.sampled_from([1, 2, 5, 63, 64, 70]), min_size=1, max_size=3))
    def forward(self, data: st.DataObject, sizes: list[int]) -> None:
        keys = data.draw(st.permutations(sorted(self.texts)))[: len(sizes)]
        feeds = []
        for key, size in zip(keys, sizes, strict=False):
            offset = data.draw(st.integers(0, 3))
            part = TEXT[len(self.texts[key]) + offset :][:size] or [1]
            feeds.append((key, part, 1, None))
            self.texts[key] = [*self.texts[key], *part]
        for (key, *_), rows in zip(feeds, feed(self.decoder, feeds, WIDTH), strict=True):
            np.testing.assert_array_equal(rows[0], rows_from_scratch(tuple(self.texts[key])))

    @precondition(lambda self: self.texts)
    @rule(data=st.data())
    def tree(self, data: st.DataObject) -> None:
        key = self.pick(data)
        size = data.draw(st.integers(1, 9))
        parents = [data.draw(st.integers(-1, i - 1)) for i in range(size)]
        (rows,) = feed(self.decoder, [(key, TEXT[:size], size, parents)], WIDTH)
        path, node = [], data.draw(st.integers(-1, size - 1))
        while node >= 0:
            path, node = [node, *path], parents[node]
        start = len(self.texts[key])
        self.decoder.keep(key, start, path)
        self.texts[key] = [*self.texts[key], *(TEXT[node] for node in path)]
        if path:
            np.testing.assert_array_equal(rows[path[-1]], rows_from_scratch(tuple(self.texts[key])))

    @precondition(lambda self: self.texts)
    @rule(data=st.data())
    def keep(self, data: st.DataObject) -> None:
        key = self.pick(data)
        length = data.draw(st.integers(0, len(self.texts[key])))
        self.decoder.keep(key, length)
        self.texts[key] = self.texts[key][:length]

    @precondition(lambda self: self.texts and len(self.texts) < 5)
    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        key = self.pick(data)
        self.next += 1
        length = data.draw(st.integers(0, len(self.texts[key])))
        self.decoder.fork(key, self.next, length)
        self.texts[self.next] = self.texts[key][:length]

    @precondition(lambda self: self.texts)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        key = self.pick(data)
        self.decoder.free(key)
        del self.texts[key]

    @invariant()
    def lengths_and_memory(self) -> None:
        if not hasattr(self, "texts"):
            return
        for key, tokens in self.texts.items():
            assert self.decoder.length(key) == len(tokens)
        pages = [-(-len(tokens) // 64) for tokens in self.texts.values()]
        assert max(pages, default=0) * PAGE_BYTES <= self.decoder.cache_bytes <= sum(pages) * PAGE_BYTES


TestSequences = Sequences.TestCase
TestSequences.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)


def test_forks_share_full_pages_and_memory_follows_use() -> None:
    decoder = build(MODEL)
    decoder.begin(0)
    feed(decoder, [(0, TEXT[:150], 0, None)], WIDTH)
    assert decoder.cache_bytes == 3 * PAGE_BYTES
    for key in range(1, 6):
        decoder.fork(0, key, 140)
    assert decoder.cache_bytes == 3 * PAGE_BYTES
    for key in range(1, 6):  # the page they write to becomes their own, but for the last that holds it
        feed(decoder, [(key, [key], 0, None)], WIDTH)
    assert decoder.cache_bytes == 8 * PAGE_BYTES
    decoder.free(0)
    assert decoder.cache_bytes == 7 * PAGE_BYTES
    decoder.keep(1, 128)
    assert decoder.cache_bytes == 6 * PAGE_BYTES
    for key in range(1, 6):
        decoder.free(key)
    assert decoder.cache_bytes == 0


def test_breaches_are_refused_and_change_nothing() -> None:
    decoder = build(MODEL)
    decoder.begin(0)
    decoder.begin(1)
    feed(decoder, [(0, TEXT[:70], 0, None)], WIDTH)

    def forward(*spans: tuple[int, int, list[int], int], parents: list[int] | None = None, width: int = WIDTH) -> None:
        ids, starts, tokens, rows = zip(*spans, strict=True)
        decoder.forward(
            np.array(ids),
            np.array(starts),
            np.array([token for part in tokens for token in part], np.int32),
            np.array([len(part) for part in tokens]),
            np.array(rows),
            None if parents is None else np.array(parents, np.int32),
            np.zeros((sum(rows), width), np.float32),
        )

    bad = {
        "was not begun": lambda: forward((9, 0, [1], 1)),
        "starts at 69 where 70": lambda: forward((0, 69, [1], 1)),
        "starts at 1 where 0": lambda: forward((1, 1, [1], 1)),
        "twice": lambda: forward((1, 0, [1], 1), (1, 0, [1], 1)),
        "no tokens": lambda: forward((1, 0, [], 0)),
        "2 rows were asked for": lambda: forward((1, 0, [1], 2)),
        "outside 0..39": lambda: forward((1, 0, [1, 40], 1)),
        "token id -1 ": lambda: forward((1, 0, [-1], 1)),
        "do not fit a context": lambda: forward((1, 0, [1] * 2049, 1)),
        "not before it": lambda: forward((1, 0, [1, 2], 1), parents=[-1, 1]),
        "parent -2": lambda: forward((1, 0, [1, 2], 1), parents=[-1, -2]),
        "one entry for each token": lambda: forward((1, 0, [1, 2], 1), parents=[-1]),
        "is needed": lambda: forward((1, 0, [1, 2], 1), width=WIDTH - 1),
        "cannot keep 71 of 70": lambda: decoder.keep(0, 71),
        "cannot keep -1": lambda: decoder.keep(0, -1),
        "begun twice": lambda: decoder.begin(0),
        "begun already": lambda: decoder.fork(0, 1, 3),
        "cannot keep 99": lambda: decoder.fork(0, 5, 99),
        "does not follow": lambda: decoder.keep(0, 60, [3]),
        "outside the last span": lambda: decoder.keep(0, 60, [70]),
    }
    for message, call in bad.items():
        with pytest.raises(ValueError, match=message):
            call()
        with pytest.raises(ValueError, match=message):  # beside a span that is fine
            forward((1, 0, [1, 2], 1), (0, 69, [1], 1)) if message.startswith("starts at 69") else call()
        assert (decoder.length(0), decoder.length(1)) == (70, 0)
        assert decoder.cache_bytes == 2 * PAGE_BYTES
    decoder.free(33)  # unknown ids are ignored
    (found,) = feed(decoder, [(0, [5], 1, None)], WIDTH)
    np.testing.assert_array_equal(found[0], rows_from_scratch((*TEXT[:70], 5)))


def test_a_tree_must_be_settled_before_more_is_fed() -> None:
    decoder = build(MODEL)
    decoder.begin(0)
    feed(decoder, [(0, [1, 2, 3], 0, [-1, 0, 0])], WIDTH)
    for call in (
        lambda: feed(decoder, [(0, [4], 0, None)], WIDTH),
        lambda: decoder.keep(0, 3),
        lambda: decoder.keep(0, 2, [2]),
        lambda: decoder.keep(0, 1, [2, 1]),
        lambda: decoder.fork(0, 1, 3),
    ):
        with pytest.raises(ValueError):
            call()
        assert decoder.length(0) == 3
    decoder.keep(0, 1, [2])
    with pytest.raises(ValueError, match="a span fed just before"):
        decoder.keep(0, 1, [1])
    assert decoder.length(0) == 2


def test_wrong_descriptions_and_weights_are_named() -> None:
    good = MODEL.description()
    for changes, message in (
        ({"num_layers": 0}, "num_layers"),
        ({"head_size": 5}, "even"),
        ({"num_kv_heads": 3}, "cannot share"),
        ({"rotaries": [(np.zeros(4), 1.0)]}, r"rotaries\[0\] has 4 frequencies"),
        ({"rotaries": [(np.full(3, np.nan), 1.0)]}, "usable"),
        ({"surprise": 1}, "unknown"),
        ({"epsilon": "small"}, "epsilon"),
    ):
        with pytest.raises(ValueError, match=message):
            _native.Decoder({**good, **changes})
    with pytest.raises(ValueError, match="lacks epsilon"):
        _native.Decoder({name: value for name, value in good.items() if name != "epsilon"})
    decoder, rows = _native.Decoder(good), np.zeros((4, 128), np.uint8)
    for name in ("layers.2.q", "layers.-1.q", "layers.0.z", "q", "layers..q", ""):
        with pytest.raises(ValueError, match="no matrix named"):
            decoder.set_matrix(name, "F32", rows, 32)
        with pytest.raises(ValueError, match="no vector named"):
            decoder.set_vector(name, np.zeros(3, np.float32))
    with pytest.raises(ValueError, match="127"):
        decoder.set_matrix("layers.0.q", "F32", rows[:, :127].copy(), 32)
    with pytest.raises(ValueError, match="no row 4"):
        decoder.set_matrix("layers.0.q", "F32", rows, 32, order=np.array([4], np.uint32))
    with pytest.raises(ValueError):
        decoder.set_matrix("layers.0.q", "Q9_9", rows, 32)
    with pytest.raises(ValueError, match="finish"):
        decoder.begin(0)
        feed(decoder, [(0, [1], 1, None)], WIDTH)
    with pytest.raises(ValueError, match="embedding is missing"):
        decoder.finish()
    for name, data in MODEL.raw.items():
        decoder.set_matrix(name, "F32", data, MODEL.matrices[name].shape[1])
    for name, vector in MODEL.vectors.items():
        decoder.set_vector(name, vector)
    decoder.set_matrix("layers.1.o", "F32", rows, 32)
    with pytest.raises(ValueError, match=r"layers.1.o is \[4, 32\] where \[32, 12\]"):
        decoder.finish()
    decoder.set_matrix("layers.1.o", "F32", MODEL.raw["layers.1.o"], 12)
    decoder.set_vector("layers.1.q_norm", np.zeros(5, np.float32))
    with pytest.raises(ValueError, match=r"layers.1.q_norm has 5 values where 6"):
        decoder.finish()
    decoder.set_vector("layers.1.q_norm", np.ones(6, np.float32))
    decoder.finish()
    with pytest.raises(ValueError, match="cannot be changed"):
        decoder.set_vector("norm", np.ones(32, np.float32))


@pytest.mark.skipif(sys.platform != "linux", reason="limits the address space")
def test_without_memory_everything_stays_as_it_was() -> None:
    code = """
import resource
import numpy as np
from tests.native.decoders import *
model = tiny(num_heads=8, num_kv_heads=8, head_size=128, context_length=100000)
decoder, width = build(model), model.vocabulary_size
decoder.begin(0), decoder.begin(1)
before = text(model, 100)
feed(decoder, [(0, before, 0, None), (1, before, 0, None)], width)
bytes_before = decoder.cache_bytes
size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (size + (50 << 20), resource.RLIM_INFINITY))
try:
    feed(decoder, [(1, before[:90], 0, None), (0, before * 200, 0, None)], width)
    raise SystemExit("it all fitted")
except MemoryError:
    pass
assert (decoder.length(0), decoder.length(1), decoder.cache_bytes) == (100, 100, bytes_before)
(found,) = feed(decoder, [(0, [1, 2, 3], 3, None)], width)
decoder.free(0), decoder.free(1)
assert decoder.cache_bytes == 0
np.testing.assert_array_equal(found, rows_of(decoder, [*before, 1, 2, 3], width)[-3:])
"""
    root = Path(__file__).parents[2]
    path = f"{Path(_native.__file__).parents[1]}:{root}"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=root, env={"PYTHONPATH": path}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_threads_may_share_a_decoder() -> None:
    decoder, failures = build(MODEL), []

    def use(key: int) -> None:
        try:
            for loop in range(8):
                tokens = TEXT[key : key + 60 + loop]
                decoder.begin(key)
                (rows,) = feed(decoder, [(key, tokens, 1, None)], WIDTH)
                np.testing.assert_array_equal(rows[0], rows_from_scratch(tuple(tokens)))
                decoder.free(key)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=use, args=(key,)) for key in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert decoder.cache_bytes == 0
