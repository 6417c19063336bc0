"""The decoder against a plain transformer in float64, and its rows bit for bit against themselves."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.native.decoders import BIASES, EVERYTHING, Tiny, build, feed, fingerprint, reference, rows_of, text, tiny

from forerun import _native

WIDE = {"hidden_size": 256, "intermediate_size": 256}

SHAPES: dict[str, dict[str, object]] = {
    "llama": {},
    "qwen2": {"biases": ("q", "k", "v"), "num_heads": 6, "tied": True},
    "qwen3": {"head_norms": True, "head_size": 32, "num_heads": 3, "num_kv_heads": 1},
    "all biases": {"biases": BIASES, "num_layers": 1},
    "no groups": {"num_heads": 3, "num_kv_heads": 3, "head_size": 22},
    "odd sizes": {"hidden_size": 27, "intermediate_size": 45, "head_size": 10, "num_embeddings": 39},
    "cut head": {"tied": True, "num_embeddings": 50, "vocabulary_size": 21},
    "own cut head": {"num_embeddings": 50, "vocabulary_size": 21},
}

# Relative to the logits' spread: float formats leave attention's 16 bits; the others round activations to 8 bits, about
# half a percent in each of a layer's products, which random weights double from layer to layer.
BOUNDS = {"F32": 1e-3, "F16": 1e-3, "BF16": 1e-3, "Q8_0": 7e-2, "Q4_0": 7e-2, "Q4_1": 7e-2, "Q5_0": 7e-2, "Q4_K": 7e-2}


def distance(found: np.ndarray, expected: np.ndarray) -> float:
    return float(np.sqrt(((found - expected) ** 2).mean()) / expected.std())


@pytest.mark.parametrize("shape", SHAPES)
def test_logits_are_a_transformers(shape: str) -> None:
    model = tiny(**SHAPES[shape])
    tokens = text(model, 100)
    found = rows_of(build(model), tokens, model.vocabulary_size)
    assert distance(found, reference(model, tokens)) < 1e-3


@pytest.mark.parametrize("stored", BOUNDS)
def test_every_format(stored: str) -> None:
    model = tiny(stored=stored, **WIDE, head_size=64, biases=("q", "k", "v"))
    tokens = text(model, 70)
    found = rows_of(build(model), tokens, model.vocabulary_size)
    assert distance(found, reference(model, tokens)) < BOUNDS[stored]


def test_a_wrong_layer_would_be_seen() -> None:
    """The bounds above are far below what a missing bias or a swapped matrix does."""
    model = tiny(biases=("k",))
    tokens = text(model, 100)
    found = rows_of(build(model), tokens, model.vocabulary_size)
    model.vectors["layers.0.k_bias"][:] *= 0.9
    assert distance(found, reference(model, tokens)) > 3e-3


@pytest.fixture(scope="module", params=["F32", "Q4_K"])
def model(request: pytest.FixtureRequest) -> Tiny:
    sizes = {"num_heads": 8, "head_size": 32} if request.param == "Q4_K" else {"num_heads": 6, "head_size": 24}
    return tiny(stored=request.param, **WIDE, **sizes, biases=("q", "k", "v"))


@pytest.fixture(scope="module")
def decoder(model: Tiny) -> _native.Decoder:
    return build(model)


def test_rows_do_not_depend_on_how_many_share_a_pass(model: Tiny, decoder: _native.Decoder) -> None:
    tokens, width = text(model, 100), model.vocabulary_size
    expected = rows_of(decoder, tokens, width, [1] * 99)
    for start in (0, 47, 60):
        for count in range(1, 33):
            decoder.begin(1)
            if start:
                feed(decoder, [(1, tokens[:start], 0, None)], width)
            (found,) = feed(decoder, [(1, tokens[start : start + count], count, None)], width)
            np.testing.assert_array_equal(found, expected[start : start + count])
            decoder.free(1)


@pytest.mark.parametrize("size", [1, 7, 64, 100, 255, 256, 257])
def test_rows_do_not_depend_on_how_the_prompt_was_cut(model: Tiny, decoder: _native.Decoder, size: int) -> None:
    tokens, width = text(model, 530), model.vocabulary_size
    expected = rows_of(decoder, tokens, width)
    np.testing.assert_array_equal(rows_of(decoder, tokens, width, [size] * (530 // size)), expected)


def test_rows_do_not_depend_on_neighbours(model: Tiny, decoder: _native.Decoder) -> None:
    """Random ragged passes in random order: each sequence gets the rows that it gets alone."""
    generator, width = np.random.default_rng(5), model.vocabulary_size
    texts = [text(model, int(n), seed=i) for i, n in enumerate(generator.integers(1, 300, 9))]
    expected = [rows_of(decoder, tokens, width) for tokens in texts]
    fed = [0] * len(texts)
    for key in range(len(texts)):
        decoder.begin(key)
    while any(done < len(tokens) for done, tokens in zip(fed, texts, strict=True)):
        feeds = []
        for key in generator.permutation(len(texts)):
            part = texts[key][fed[key] : fed[key] + int(generator.choice([0, 1, 5, 90]))]
            if part:
                feeds.append((int(key), part, int(generator.integers(0, len(part) + 1)), None))
        for (key, part, num_rows, _), rows in zip(feeds, feed(decoder, feeds, width) if feeds else [], strict=True):
            fed[key] += len(part)
            np.testing.assert_array_equal(rows, expected[key][fed[key] - num_rows : fed[key]])
    for key in range(len(texts)):
        decoder.free(key)


@pytest.mark.parametrize("settings", [{"FORERUN_THREADS": "1"}, {"FORERUN_THREADS": "5"}, {"FORERUN_ISA": "portable"}])
@pytest.mark.parametrize("stored, features", [("F32", {}), ("Q8_0", {}), ("F32", EVERYTHING)])
def test_bits_do_not_depend_on_threads_or_instruction_set(
    settings: dict[str, str], stored: str, features: dict[str, object]
) -> None:
    root = Path(__file__).parents[2]
    code = f"from tests.native.decoders import fingerprint; print(fingerprint({stored!r}, **{features!r}))"
    path = os.pathsep.join([str(Path(_native.__file__).parents[1]), str(root)])
    environment = {**os.environ, **settings, "PYTHONPATH": path}
    done = subprocess.run([sys.executable, "-c", code], cwd=root, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == fingerprint(stored, **features)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_broken_numbers_stay_visible_and_where_they_belong(value: float) -> None:
    model, width = tiny(), 40
    model.raw["embedding"].view(np.float32)[7] = value
    decoder = build(model)
    clean = [token for token in text(model, 200) if token != 7]
    expected = rows_of(decoder, clean, width)
    assert np.isfinite(expected).all()
    for at in (0, 3, 70):
        decoder.begin(0)
        decoder.begin(1)
        broken = [*clean[:at], 7, *clean[at : at + 90]]
        found, neighbour = feed(decoder, [(0, broken, len(broken), None), (1, clean, len(clean), None)], width)
        np.testing.assert_array_equal(found[:at], expected[:at])
        assert np.isnan(found[at:]).all()
        np.testing.assert_array_equal(neighbour, expected)
        decoder.keep(0, at)  # what is cut off leaves nothing behind, neither for the sequence nor for its pages
        (found,) = feed(decoder, [(0, clean[at:], len(clean) - at, None)], width)
        np.testing.assert_array_equal(found, expected[at:])
        decoder.free(0)
        decoder.free(1)
    np.testing.assert_array_equal(rows_of(decoder, clean, width), expected)


@pytest.mark.parametrize("name", ["q", "k", "v", "o", "gate", "up", "down"])
def test_broken_weights_stay_visible(name: str) -> None:
    model = tiny()
    model.raw[f"layers.1.{name}"].view(np.float32)[3, 5] = np.nan
    assert np.isnan(rows_of(build(model), [1, 2, 3], model.vocabulary_size)).any(axis=1).all()


def test_weights_are_counted_and_may_be_dropped() -> None:
    model = tiny()
    decoder = build(model)
    floats = sum(m.size for name, m in model.matrices.items() if name != "embedding")
    assert 4 * floats <= decoder.weight_bytes < 1.2 * 4 * floats + 4096
    for name in model.raw:
        model.raw[name][:] = 0
    assert rows_of(decoder, [1, 2, 3], model.vocabulary_size).any()


def test_order_names_the_stored_row_of_each_output() -> None:
    model = tiny(tied=False)
    decoder, shuffled = build(model), _native.Decoder(model.description())
    order = np.random.default_rng(0).permutation(model.vocabulary_size).astype(np.uint32)
    for name, data in model.raw.items():
        chosen = order if name == "head" else None
        shuffled.set_matrix(name, "F32", data, model.matrices[name].shape[1], order=chosen)
    for name, vector in model.vectors.items():
        shuffled.set_vector(name, vector)
    shuffled.finish()
    tokens = text(model, 9)
    np.testing.assert_array_equal(rows_of(shuffled, tokens, 40), rows_of(decoder, tokens, 40)[:, order])
