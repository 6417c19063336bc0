"""What a decoder refuses before anything is changed: arrays and weights that do not fit, texts beyond the context."""

from __future__ import annotations

import numpy as np
import pytest
from tests.native.decoders import BIASES, build, feed, rows_of, text, tiny

from forerun import _native


def test_a_context_is_filled_to_its_end() -> None:
    model = tiny(context_length=70)
    decoder, tokens = build(model), text(model, 70)
    expected = rows_of(build(tiny()), tokens, 40)
    np.testing.assert_array_equal(rows_of(decoder, tokens, 40, [69]), expected)
    decoder.begin(0)
    feed(decoder, [(0, tokens, 0, None)], 40)
    with pytest.raises(ValueError, match="71 tokens do not fit a context of 70"):
        feed(decoder, [(0, [1], 1, None)], 40)
    assert decoder.length(0) == 70


def test_a_tree_fits_where_its_longest_branch_does() -> None:
    model = tiny(context_length=70)
    decoder, tokens = build(model), text(model, 68)
    decoder.begin(0)
    feed(decoder, [(0, tokens, 0, None)], 40)
    (rows,) = feed(decoder, [(0, [1, 2, 3, 4], 4, [-1, -1, 0, 1])], 40)
    np.testing.assert_array_equal(rows[3], rows_of(build(tiny()), [*tokens, 2, 4], 40)[-1])
    decoder.keep(0, 68, [1])
    with pytest.raises(ValueError, match="71 tokens do not fit"):
        feed(decoder, [(0, [5, 6], 1, [-1, 0])], 40)


def test_a_tied_head_may_be_cut_and_not_widened() -> None:
    whole, cut = (build(tiny(tied=True, num_embeddings=64, vocabulary_size=size)) for size in (64, 16))
    assert whole.weight_bytes - cut.weight_bytes == 48 * 32 * 4
    with pytest.raises(ValueError, match="tied to 40 embeddings cannot have 41 outputs"):
        build(tiny(tied=True, vocabulary_size=41))


@pytest.mark.parametrize(
    "name", [*(f"{name}_bias" for name in BIASES), "q_norm", "k_norm", "attention_norm", "ffn_norm"]
)
def test_vectors_of_another_size_are_named(name: str) -> None:
    model = tiny(biases=BIASES, head_norms=True)
    full = f"layers.1.{name}"
    model.vectors[full] = model.vectors[full][:-1].copy()
    with pytest.raises(ValueError, match=f"vector {full} has {model.vectors[full].size} values"):
        build(model)


@pytest.mark.parametrize("name", ["embedding", "head", *(f"layers.1.{name}" for name in BIASES)])
def test_matrices_of_another_size_are_named(name: str) -> None:
    model = tiny()
    model.raw[name] = model.raw[name][:-1].copy()
    with pytest.raises(ValueError, match=rf"matrix {name} is \[{len(model.raw[name])}, "):
        build(model)
    del model.raw[name]
    if name != "head":  # without one, embeddings are tied
        with pytest.raises(ValueError, match=f"matrix {name} is missing"):
            build(model)


@pytest.mark.parametrize("value", [1e7, -1e7, np.inf])
def test_angles_that_cannot_be_reduced_are_refused(value: float) -> None:
    """A frequency is usable if its angle at the last position is below 2^30."""
    frequencies = np.ones(8)
    frequencies[5] = value
    with pytest.raises(ValueError, match="rotary frequency"):
        _native.Decoder({**tiny().description(), "rotaries": [(frequencies, 1.0)]})


def test_arrays_that_do_not_fit_each_other() -> None:
    decoder = build(tiny())
    decoder.begin(0)

    def forward(**changes: np.ndarray) -> None:
        arrays = {
            "ids": np.zeros(1, np.int64), "starts": np.zeros(1, np.int64), "tokens": np.array([1, 2], np.int32),
            "counts": np.array([2]), "num_rows": np.array([1]), "parents": None, "out": np.zeros((1, 40), np.float32),
        } | changes  # fmt: skip
        decoder.forward(**arrays)

    for name in ("ids", "starts", "counts", "num_rows"):
        with pytest.raises(ValueError, match="one entry for each span"):
            forward(**{name: np.zeros(2, np.int64)})
    for counts, message in (([1], "fewer tokens"), ([3], "more tokens"), ([-1], "less than none")):
        with pytest.raises(ValueError, match=message):
            forward(counts=np.array(counts), num_rows=np.zeros(1, np.int64), out=np.zeros((0, 40), np.float32))
    for num_rows in (3, -1):
        with pytest.raises(ValueError, match=f"{num_rows} rows were asked for"):
            forward(num_rows=np.array([num_rows]))
    with pytest.raises(ValueError, match=r"out is \[2, 40\] where \[1, 40\]"):
        forward(out=np.zeros((2, 40), np.float32))
    with pytest.raises(TypeError):  # it would be written to a copy
        forward(out=np.zeros((1, 80), np.float32)[:, ::2])
    assert decoder.length(0) == 0
    forward()
    assert decoder.length(0) == 2


def test_stored_rows_that_do_not_fit() -> None:
    decoder, rows = _native.Decoder(tiny().description()), np.zeros((4, 128), np.uint8)
    for order, message in (([], "no outputs"), ([4], "no row 4"), ([0, 2**32 - 1], "no row 4294967295")):
        with pytest.raises(ValueError, match=message):
            decoder.set_matrix("head", "F32", rows, 32, np.array(order, np.uint32))
    with pytest.raises(ValueError, match="no outputs"):
        decoder.set_matrix("head", "F32", rows[:0], 32)
    for num_inputs in (0, -1):
        with pytest.raises(ValueError, match=f"{num_inputs} inputs"):
            decoder.set_matrix("head", "F32", rows, num_inputs)
