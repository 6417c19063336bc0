"""What families differ in, feature by feature and all together, against a plain transformer in float64."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.native.decoders import BIASES, EVERYTHING, Tiny, build, feed, reference, rows_of, text, tiny
from tests.runtime.numpy_decoder import NumpyDecoder, NumpyMatrix

from forerun import _native

PRE, POST = ("attention_norm", "ffn_norm"), ("attention_post_norm", "ffn_post_norm")
SEVERAL = {"rotaries": ((8, 1.0), (4, 0.8), (1, 1.5)), "num_layers": 4}

FEATURES: dict[str, dict[str, Any]] = {
    "gelu": {"activation": "gelu_tanh"},
    "embedding scale": {"embedding_scale": 5.66},
    "residual scale": {"residual_scale": 0.22},
    "logit scale": {"logit_scale": 0.125},
    "logit softcap": {"logit_softcap": 3.0},
    "logit scale and softcap": {"logit_scale": 4.0, "logit_softcap": 3.0},
    "attention softcap": {"attention_softcap": 2.0},
    "post norms": {"norms": PRE + POST},
    "post norms alone": {"norms": POST},
    "one post norm": {"norms": (*PRE, "ffn_post_norm")},
    "post norms and residual scale": {"norms": PRE + POST, "residual_scale": 0.5, "biases": BIASES},
    "head norms": {"head_norms": True},
    "wide norms": {"wide_norms": True, "biases": ("q", "k", "v")},
    "wide norms of one KV head": {"wide_norms": True, "num_heads": 3, "num_kv_heads": 1},
    "partial rotary": {"rotaries": ((3, 1.0),)},
    "partial rotary, scaled": {"rotaries": ((5, 1.19),)},
    "no positions": {"rotaries": (), "layer_rotaries": (-1, -1)},
    "rotaries by layer": {**SEVERAL, "layer_rotaries": (2, 0, -1, 1)},
    "windows by layer": {"num_layers": 4, "layer_windows": (0, 7, 64, 100)},
}


def distance(found: np.ndarray, expected: np.ndarray) -> float:
    return float(np.sqrt(((found - expected) ** 2).mean()) / expected.std())


@pytest.mark.parametrize("feature", FEATURES)
def test_a_feature_is_a_transformers(feature: str) -> None:
    """And it is seen: without the feature, the logits are others, by far more than the error."""
    model = tiny(**FEATURES[feature])
    tokens, width = text(model, 130), model.vocabulary_size
    expected = reference(model, tokens)
    decoder = build(model)
    found = rows_of(decoder, tokens, width)
    assert distance(found, expected) < 1e-3
    np.testing.assert_array_equal(rows_of(decoder, tokens, width, [1, 2, 60, 3]), found)
    assert distance(reference(without(model), tokens), expected) > 0.02


def without(model: Tiny) -> Tiny:
    """The same weights in a plain llama."""
    fresh, norms = Tiny(), {f"layers.{i}.{name}": np.ones(32) for i in range(model.num_layers) for name in PRE}
    names = ("rotaries layer_rotaries layer_windows activation attention_softcap embedding_scale residual_scale "
             "logit_scale logit_softcap norms wide_norms head_norms")  # fmt: skip
    return replace(
        model,
        **{name: getattr(fresh, name) for name in names.split()},
        vectors=norms | {n: v for n, v in model.vectors.items() if not n.endswith(("post_norm", "q_norm", "k_norm"))},
    )


def as_numpy(model: Tiny) -> NumpyDecoder:
    decoder = NumpyDecoder(model.description())
    for name, data in model.raw.items():
        matrix = NumpyMatrix(model.stored, *model.matrices[name].shape)
        matrix.set_rows(0, data)
        decoder.set_matrix(name, matrix)
    for name, vector in model.vectors.items():
        decoder.set_vector(name, vector)
    decoder.finish()
    return decoder


@pytest.mark.parametrize("feature", FEATURES)
def test_both_references_agree(feature: str) -> None:
    """The one takes texts, the other spans and trees too; they share no code."""
    model = tiny(**FEATURES[feature])
    tokens, width = text(model, 90), model.vocabulary_size
    decoder: Any = as_numpy(model)
    np.testing.assert_allclose(rows_of(decoder, tokens, width, [40]), reference(model, tokens), rtol=1e-4, atol=1e-4)
    decoder.begin(1)
    feed(decoder, [(1, tokens, 0, None)], width)
    (rows,) = feed(decoder, [(1, [1, 2, 3, 4], 4, [-1, 0, 0, 2])], width)
    np.testing.assert_allclose(rows[3], reference(model, [*tokens, 1, 3, 4])[-1], rtol=1e-4, atol=1e-4)


@st.composite
def models(draw: st.DrawFn) -> Tiny:
    """Any mixture of features in which activations keep a transformer's size."""
    num_layers, num_kv_heads, half = draw(st.integers(1, 3)), draw(st.integers(1, 2)), draw(st.integers(1, 12))
    tables = draw(st.lists(st.tuples(st.integers(1, half), st.sampled_from([1.0, 0.9, 1.3])), max_size=3))
    caps = st.sampled_from([0.0, 1.0, 5.0, 50.0])
    some = st.sampled_from([1.0, 0.3, 2.5])
    width = draw(st.sampled_from(["none", "each", "all"]))
    return tiny(
        num_layers=num_layers,
        num_kv_heads=num_kv_heads,
        num_heads=num_kv_heads * draw(st.integers(1, 3)),
        head_size=2 * half,
        rotaries=tuple(tables),
        layer_rotaries=tuple(draw(st.integers(-1, len(tables) - 1)) for _ in range(num_layers)),
        layer_windows=tuple(
            draw(st.sampled_from([0, 1, 2, 15, 17, 63, 64, 65, 100, 255, 257, 1000])) for _ in range(num_layers)
        ),
        activation=draw(st.sampled_from(["silu", "gelu_tanh"])),
        attention_softcap=draw(caps),
        logit_softcap=draw(caps),
        embedding_scale=draw(some),
        residual_scale=draw(some),
        logit_scale=draw(some),
        norms=draw(st.sampled_from([PRE, POST, PRE + POST])),
        head_norms=width == "each",
        wide_norms=width == "all",
        biases=draw(st.sampled_from([(), ("q", "k", "v"), BIASES])),
        tied=draw(st.booleans()),
        seed=draw(st.integers(0, 1000)),
    )


@settings(max_examples=60, deadline=None)
@given(models(), st.integers(2, 330), st.data())
def test_all_together(model: Tiny, size: int, data: st.DataObject) -> None:
    """Against the definition; and the same bits in parts, beside a neighbour, in a fork, and in a tree."""
    tokens, width, decoder = text(model, size), model.vocabulary_size, build(model)
    found = rows_of(decoder, tokens, width)
    assert distance(found, reference(model, tokens)) < 2e-3
    sizes = data.draw(st.lists(st.sampled_from([1, 3, 63, 64, 65, 200]), max_size=6))
    np.testing.assert_array_equal(rows_of(decoder, tokens, width, sizes), found)
    start = data.draw(st.integers(0, size - 1))
    decoder.begin(1)
    if start:
        feed(decoder, [(1, tokens[:start], 0, None)], width)
    decoder.fork(1, 2, start)
    rest, neighbour = tokens[start:], text(model, 20, seed=3)
    # A tree: what follows is one branch of it, and the other branch stands between its tokens.
    parents, nodes, mixed = [], [], []
    for i, token in enumerate(rest):
        if i < len(neighbour) and data.draw(st.booleans()):
            mixed.append(neighbour[i])
            parents.append(nodes[-1] if nodes else -1)
        parents.append(nodes[-1] if nodes else -1)
        nodes.append(len(mixed))
        mixed.append(token)
    decoder.begin(3)
    in_tree, in_fork, beside = feed(
        decoder, [(1, mixed, len(mixed), parents), (2, rest, 1, None), (3, neighbour, 20, None)], width
    )
    np.testing.assert_array_equal(in_tree[nodes], found[start:])
    np.testing.assert_array_equal(in_fork[0], found[-1])
    np.testing.assert_array_equal(beside, rows_of(decoder, neighbour, width))


# -- softcaps ---------------------------------------------------------------------------------------------------------


def test_a_cap_that_nothing_reaches_changes_little() -> None:
    tokens = text(tiny(), 100)
    expected = rows_of(build(tiny()), tokens, 40)
    for name in ("attention_softcap", "logit_softcap"):
        found = rows_of(build(tiny(**{name: 1e5})), tokens, 40)
        assert distance(found, expected) < 5e-5
        assert (found != expected).any()


@pytest.mark.parametrize("cap", [1e-3, 1.0, 50.0])
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e5])
def test_scores_of_every_size_are_capped(cap: float, scale: float) -> None:
    model = tiny(attention_softcap=cap, scale=scale)
    tokens = text(model, 100)
    found = rows_of(build(model), tokens, 40)
    # Capped scores of either sign differ by twice the cap, so that softmax weighs rounding by as much.
    assert distance(found, reference(model, tokens)) < 1e-3 * max(1.0, cap)


def test_scores_beyond_float_are_the_cap() -> None:
    model = tiny(attention_softcap=2.0, num_layers=1, scale=1e30)
    model.matrices["layers.0.q"][:] *= 1e10
    found = rows_of(build(model), tokens := text(model, 100), 40)
    assert np.isfinite(found).all()
    # Every score is one cap or the other: where rounding gives one the other sign, a row is off.
    assert np.median(np.abs(found - reference(model, tokens)).max(-1)) < 2e-3
    assert distance(found, reference(model, tokens)) < 1e-2


def test_logits_stay_within_their_cap() -> None:
    model = tiny(logit_softcap=0.75, logit_scale=100.0)
    found = rows_of(build(model), tokens := text(model, 100), 40)
    assert np.abs(found).max() == np.float32(0.75)
    assert distance(found, reference(model, tokens)) < 1e-2  # logits near 0 are 133 times as steep


# -- broken numbers ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_broken_numbers_stay_visible(value: float) -> None:
    model = tiny(**EVERYTHING | {"layer_windows": (5, 0)})
    model.raw["embedding"].view(np.float32)[7] = value
    clean = [token for token in text(model, 200) if token != 7]
    decoder = build(model)
    expected = rows_of(decoder, clean, 40)
    assert np.isfinite(expected).all()
    found = rows_of(decoder, [*clean[:90], 7, *clean[90:]], 40)
    np.testing.assert_array_equal(found[:90], expected[:90])
    assert np.isnan(found[90:]).all()


@pytest.mark.parametrize("name", ["q", "k", "v", "o", "gate", "up", "down"])
def test_broken_weights_stay_visible(name: str) -> None:
    model = tiny(**EVERYTHING)
    model.raw[f"layers.1.{name}"].view(np.float32)[3, 5] = np.nan
    assert np.isnan(rows_of(build(model), [1, 2, 3], model.vocabulary_size)).any(axis=1).all()


# -- what does not fit ------------------------------------------------------------------------------------------------

WRONG: list[tuple[dict[str, Any], str]] = [
    ({"layer_rotaries": [0]}, "layer_rotaries has 1 values where 2 layers need one each"),
    ({"layer_rotaries": [0, 1]}, r"layer_rotaries\[1\] is 1: it must be -1 \(none\) or name one of 1 rotaries"),
    ({"layer_rotaries": [-2, 0]}, r"layer_rotaries\[0\] is -2"),
    ({"rotaries": []}, r"layer_rotaries\[0\] is 0: it must be -1 \(none\) or name one of 0"),
    ({"layer_rotaries": "00"}, "layer_rotaries has the wrong type"),
    ({"rotaries": [(np.zeros(9), 1.0)]}, r"rotaries\[0\] has 9 frequencies where heads of 16 take 1 to 8"),
    ({"rotaries": [(np.ones(8), 1.0), (np.zeros(0), 1.0)]}, r"rotaries\[1\] has 0 frequencies"),
    ({"rotaries": [(np.ones(8), np.inf)]}, r"scale of rotaries\[0\] is not a finite number"),
    ({"rotaries": [(np.ones(8), np.nan)]}, r"scale of rotaries\[0\]"),
    ({"rotaries": [(np.full(4, 1e9), 1.0)]}, r"a rotary frequency of rotaries\[0\] is not a usable number"),
    ({"rotaries": [np.ones(8)]}, "rotaries has the wrong type"),
    ({"layer_windows": [0, 0, 0]}, "layer_windows has 3 values where 2"),
    ({"layer_windows": [0, -1]}, r"layer_windows\[1\] is -1: it must be 0 \(none\) or a number of tokens"),
    ({"layer_windows": None}, "layer_windows has the wrong type"),
    ({"activation": "relu"}, "activation is 'relu': it must be silu or gelu_tanh"),
    ({"activation": 1}, "activation has the wrong type"),
    ({"attention_softcap": -1.0}, "attention_softcap is -1.0+: it must be 0"),
    ({"attention_softcap": np.nan}, "attention_softcap"),
    ({"logit_softcap": np.inf}, "logit_softcap"),
    ({"logit_softcap": 1e31}, "logit_softcap"),
    ({"epsilon": np.nan}, "epsilon"),
    ({"rope_scale": 1.0}, "unknown"),
    *(({f"{name}_scale": value}, f"{name}_scale is .*: it must be a finite number")
      for name in ("attention", "embedding", "residual", "logit") for value in (np.nan, np.inf, -np.inf)),
]  # fmt: skip


@pytest.mark.parametrize("changes, message", WRONG, ids=lambda value: None if isinstance(value, str) else str(value))
def test_wrong_descriptions_are_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _native.Decoder({**tiny().description(), **changes})


@pytest.mark.parametrize("name", list(tiny().description()))
def test_a_missing_field_is_named(name: str) -> None:
    fields = tiny().description()
    del fields[name]
    with pytest.raises(ValueError, match=f"lacks {name}"):
        _native.Decoder(fields)


@pytest.mark.parametrize("name", PRE + POST)
def test_norms_of_some_layers_alone_are_refused(name: str) -> None:
    for lost, named in (("layers.0.", "layers.0."), ("layers.1.", "layers.1.")):
        model = tiny(norms=PRE + POST)
        del model.vectors[lost + name]
        with pytest.raises(ValueError, match=f"vector {named}{name} is missing"):
            build(model)
    model = tiny(norms=PRE + POST)
    model.vectors[f"layers.1.{name}"] = np.ones(31, np.float32)
    with pytest.raises(ValueError, match=f"layers.1.{name} has 31 values where 32"):
        build(model)


def test_head_norms_are_of_one_head_or_of_all() -> None:
    for name, size in (("q_norm", 32), ("q_norm", 48), ("k_norm", 64), ("k_norm", 17)):  # 4 and 2 heads of 16
        model = tiny(wide_norms=True)
        model.vectors[f"layers.1.{name}"] = np.ones(size, np.float32)
        with pytest.raises(ValueError, match=f"layers.1.{name} has {size} values where 16"):
            build(model)
