"""Attention over the paged cache: its numbers, and trees, which must be chains' bits."""

from __future__ import annotations

import numpy as np
import pytest
from tests.native.decoders import Tiny, build, feed, reference, rows_of, text, tiny

from forerun import _native


def bare(**settings: object) -> Tiny:
    """One layer in which attention is all that happens: the logits are norm(embedding + attention)."""
    heads, head_size = settings.get("num_heads", 2), settings.get("head_size", 16)
    width = heads * head_size  # type: ignore[operator]
    model = tiny(num_layers=1, hidden_size=width, num_embeddings=60, vocabulary_size=width, **settings)
    for name, matrix in model.matrices.items():
        if name in ("head", "layers.0.o"):
            matrix[:] = np.eye(width)
        elif name == "embedding" or name.endswith((".gate", ".up", ".down")):
            matrix *= 0.1 if name == "embedding" else 0
    return model


def rms(x: np.ndarray) -> float:
    return float(np.sqrt((x * x).mean()))


def as_half(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float16).astype(np.float64)


CASES: dict[str, dict[str, object]] = {
    "plain": {"num_heads": 4, "num_kv_heads": 2, "head_size": 64},
    "qwen": {"num_heads": 6, "num_kv_heads": 1, "head_size": 128},
    "groups of 7": {"num_heads": 7, "num_kv_heads": 1, "head_size": 64},
    "no groups": {"num_heads": 2, "num_kv_heads": 2, "head_size": 80},
    "large": {"num_heads": 1, "num_kv_heads": 1, "head_size": 256},
    "smallest": {"num_heads": 13, "num_kv_heads": 1, "head_size": 2},
    "not by 16": {"num_heads": 3, "num_kv_heads": 1, "head_size": 50},
    "peaked": {"num_heads": 2, "num_kv_heads": 1, "head_size": 64, "scale": 6.0},
    "flat": {"num_heads": 2, "num_kv_heads": 1, "head_size": 64, "scale": 0.0},
    "biased": {"num_heads": 2, "num_kv_heads": 1, "head_size": 64, "biases": ("q", "k", "v")},
}


@pytest.mark.parametrize("case", CASES)
def test_it_loses_less_than_float16_would(case: str) -> None:
    """Every position of a text that crosses pages (64), chunks (256) and passes (256)."""
    model = bare(**CASES[case])
    tokens = text(model, 1100)
    found = rows_of(build(model), tokens, model.vocabulary_size)
    expected, half = reference(model, tokens), reference(model, tokens, as_half)
    error, allowed = rms(found - expected), rms(half - expected)
    assert error < max(allowed, 1e-4)
    assert np.abs(found - expected).max() < 0.02


def test_large_keys_in_a_few_channels() -> None:
    """As qwen2 has them: biases of hundreds beside numbers of one."""
    model = bare(num_heads=2, num_kv_heads=1, head_size=64, biases=("k",), scale=0.2)
    model.vectors["layers.0.k_bias"][[3, 40]] = [250.0, -400.0]
    tokens = text(model, 600)
    found = rows_of(build(model), tokens, model.vocabulary_size)
    expected, half = reference(model, tokens), reference(model, tokens, as_half)
    assert rms(found - expected) < rms(half - expected)


def test_sums_reach_their_bounds_and_not_beyond() -> None:
    """A query that is its own key makes the largest dot product there is, equal values under equal weights the largest
    sum: one step more would not fit 32 bits."""
    model = bare(num_heads=1, num_kv_heads=1, head_size=64)
    model.matrices["layers.0.k"][:] = model.matrices["layers.0.q"]
    tokens = text(model, 300)
    found = rows_of(build(model), tokens, model.vocabulary_size)
    assert rms(found - reference(model, tokens)) < 1e-3
    model = bare(num_heads=1, num_kv_heads=1, head_size=64, biases=("v",), scale=0.0)
    model.matrices["layers.0.v"][:] = 0
    model.vectors["layers.0.v_bias"][:] = -3.0
    found = rows_of(build(model), tokens, model.vocabulary_size)
    assert rms(found - reference(model, tokens)) < 1e-4


def test_values_beyond_float16_are_values() -> None:
    model = bare(num_heads=2, num_kv_heads=1, head_size=16)
    model.matrices["layers.0.v"][:] *= 1e6
    tokens = text(model, 100)
    found = rows_of(build(model), tokens, model.vocabulary_size)
    assert rms(found - reference(model, tokens)) < 1e-3


def test_scores_that_are_far_below_zero_are_still_told_apart() -> None:
    """Queries and keys of opposite sign in the dimension that turns slowest: every score is a large negative number."""
    model = bare(num_heads=2, num_kv_heads=1, head_size=64, biases=("q", "k"))
    model.vectors["layers.0.q_bias"][[31, 95]] = 60.0
    model.vectors["layers.0.k_bias"][31] = -60.0
    tokens = text(model, 200)
    found = rows_of(build(model), tokens, model.vocabulary_size)
    expected, half = reference(model, tokens), reference(model, tokens, as_half)
    assert rms(found - expected) < rms(half - expected)


@pytest.mark.parametrize("factor", [0.0, 1e-38, 1e-41])
def test_zeros_are_zeros_and_so_is_dust(factor: float) -> None:
    for name in ("q", "k", "v"):
        model = bare(num_heads=2, num_kv_heads=1, head_size=16)
        model.matrices[f"layers.0.{name}"][:] *= factor
        tokens = text(model, 300)
        found = rows_of(build(model), tokens, model.vocabulary_size)
        assert rms(found - reference(model, tokens)) < 1e-3


# -- trees ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model() -> Tiny:
    return tiny(num_heads=6, head_size=20, biases=("k",))


@pytest.fixture(scope="module")
def decoder(model: Tiny) -> _native.Decoder:
    return build(model)


def random_parents(generator: np.random.Generator, size: int, shape: str) -> list[int]:
    if shape == "bushy":
        return [int(generator.integers(-1, i)) for i in range(size)]
    if shape == "two chains":
        return [i - 2 if i > 1 else -1 for i in range(size)]
    if shape == "trunk":  # what is missing of the text, then a tree behind its last token
        trunk = size // 2
        return [i - 1 if i < trunk else int(generator.integers(trunk - 1, i)) for i in range(size)]
    return [i - 1 if generator.random() < 0.8 else int(generator.integers(-1, i)) for i in range(size)]


def path_to(parents: list[int], node: int) -> list[int]:
    path = []
    while node >= 0:
        path.append(node)
        node = parents[node]
    return path[::-1]


@pytest.mark.parametrize("shape", ["bushy", "two chains", "trunk", "mixed"])
@pytest.mark.parametrize(
    "start, size", [(0, 1), (0, 12), (1, 40), (61, 9), (60, 70), (250, 20), (255, 3), (500, 40), (190, 300), (900, 64)]
)
def test_a_tree_has_the_bits_of_its_chains(
    model: Tiny, decoder: _native.Decoder, shape: str, start: int, size: int
) -> None:
    generator, width = np.random.default_rng(size + start), model.vocabulary_size
    before, tokens = text(model, start), text(model, size, seed=1)
    parents = random_parents(generator, size, shape)
    decoder.begin(1)
    decoder.begin(2)
    if before:
        feed(decoder, [(1, before, 0, None)], width)
    neighbour = text(model, 30, seed=2)
    found, beside = feed(decoder, [(1, tokens, size, parents), (2, neighbour, 30, None)], width)
    np.testing.assert_array_equal(beside, rows_of(decoder, neighbour, width))
    leaves = [i for i in range(size) if i not in parents]
    for leaf in [*generator.choice(leaves, min(6, len(leaves)), replace=False).tolist(), size - 1]:
        path = path_to(parents, leaf)
        chain = [*before, *(tokens[node] for node in path)]
        expected = rows_of(decoder, [*chain, 5, 6], width)
        np.testing.assert_array_equal(found[path], expected[start : start + len(path)])
    decoder.keep(1, start, path)  # and what is kept of it is the chain's too
    assert decoder.length(1) == len(chain)
    (after,) = feed(decoder, [(1, [5, 6], 2, None)], width)
    np.testing.assert_array_equal(after, expected[-2:])
    decoder.keep(1, len(chain))
    (again,) = feed(decoder, [(1, [5, 6], 2, [-1, 0])], width)
    np.testing.assert_array_equal(again, after)
    decoder.free(1)
    decoder.free(2)


def test_a_part_of_a_path_may_be_kept(model: Tiny, decoder: _native.Decoder) -> None:
    """The missing tokens, then a tree: `length` covers the trunk, the path starts behind it."""
    width, before = model.vocabulary_size, text(model, 62)
    tokens, parents = [1, 2, 3, 4, 5, 6], [-1, 0, 1, 1, 2, 3]
    expected = rows_of(decoder, [*before, 1, 2, 4, 6, 9], width)
    for length, path in ((64, [3, 5]), (63, [1, 3, 5]), (62, [0, 1, 3, 5])):
        decoder.begin(1)
        feed(decoder, [(1, before, 0, None)], width)
        feed(decoder, [(1, tokens, 0, parents)], width)
        decoder.keep(1, length, path)
        assert decoder.length(1) == 66
        np.testing.assert_array_equal(feed(decoder, [(1, [9], 1, None)], width)[0], expected[-1:])
        decoder.free(1)


def test_keeping_a_path_leaves_a_fork_alone(model: Tiny, decoder: _native.Decoder) -> None:
    width, before = model.vocabulary_size, text(model, 100)
    decoder.begin(1)
    feed(decoder, [(1, before, 0, None)], width)
    feed(decoder, [(1, [1, 2, 3], 0, [-1, -1, 1])], width)
    decoder.fork(1, 2, 100)
    decoder.fork(1, 3, 101)  # up to the trunk's end: token 1
    decoder.keep(1, 100, [1, 2])
    for key, kept in ((1, [2, 3]), (2, []), (3, [1])):
        expected = rows_of(decoder, [*before, *kept, 7], width)[-1:]
        np.testing.assert_array_equal(feed(decoder, [(key, [7], 1, None)], width)[0], expected)
        decoder.free(key)
