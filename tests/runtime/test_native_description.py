"""The Python side of the native runtime over the numpy decoder: every family, bias, scaling and order as transformers
has it, to float32's rounding; so what the C++ decoder adds is its own arithmetic alone."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from tests.runtime import as_gguf
from tests.runtime.as_gguf import write_gguf
from tests.runtime.contract import check_model_contract, feed
from tests.runtime.numpy_decoder import NumpyDecoder, NumpyMatrix
from tests.runtime.rows import rows_of, rows_of_transformers
from tests.runtime.stored import TYPES, rounded
from tests.runtime.tiny import CONTEXT, VOCABULARY, tiny

from forerun import _native
from forerun.errors import FileFormatError, ForerunError, ParameterError, UnsupportedModelError
from forerun.models.gguf import open_gguf
from forerun.runtime.native import check_native_model, load_native_model
from forerun.runtime.native.description import SERVED_TYPES, describe
from forerun.types import Span

TOKENS = [5, 66, 3, 3, 40, 21, 9, 8, 60, 1, 33, 12, 7, 20, 2, 11]
YARN = {"rope_type": "yarn", "rope_theta": 500.0, "factor": 4.0, "original_max_position_embeddings": 24}
YARN_KEYS = {
    "rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 24,
}  # fmt: skip
ORIGINAL, ORIGINAL_KEY = "original_max_position_embeddings", "rope.scaling.original_context_length"
LINEAR = {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}
LINEAR_KEYS = {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}


@pytest.fixture(autouse=True)
def in_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_native, "Decoder", NumpyDecoder, raising=False)
    monkeypatch.setattr(_native, "PackedMatrix", NumpyMatrix, raising=False)


SOURCES = [
    ("llama", "llama", {"rms_norm_eps": 1e-4}, {}),
    ("llama, biased and tied", "llama", {}, {}),
    ("llama", "llama", {"num_key_value_heads": 1}, {}),
    (
        "llama",
        "llama",
        {"num_key_value_heads": 4, "rope_parameters": {"rope_type": "default", "rope_theta": 500.0}},
        {},
    ),
    ("llama", "llama", {"rope_parameters": LINEAR}, LINEAR_KEYS),
    ("llama", "llama", {"rope_parameters": YARN}, YARN_KEYS),
    # The ramp's end is beyond the last frequency; its two ends are one.
    ("llama", "llama", {"rope_parameters": YARN | {"rope_theta": 2.0, ORIGINAL: 60}}, YARN_KEYS | {ORIGINAL_KEY: 60}),
    ("llama", "llama", {"rope_parameters": YARN | {ORIGINAL: 6}}, YARN_KEYS | {ORIGINAL_KEY: 6}),
    ("llama", "llama", {"rope_parameters": YARN | {"factor": 0.5}}, YARN_KEYS | {"rope.scaling.factor": 0.5}),
    ("qwen2", "qwen2", {}, {}),
    ("qwen2", "qwen2", {"tie_word_embeddings": True, "rope_parameters": YARN}, YARN_KEYS),
    ("qwen3", "qwen3", {"head_dim": 32}, {}),
]


@pytest.mark.parametrize("name, architecture, changes, metadata", SOURCES)
def test_same_rows_as_the_model_it_was_written_from(
    name: str, architecture: str, changes: dict[str, Any], metadata: dict[str, Any], tmp_path: Path
) -> None:
    module = tiny(name, **changes)
    path = write_gguf(tmp_path / "m.gguf", module, architecture, metadata=metadata)
    tokens = [(11 * i + 3) % VOCABULARY for i in range(CONTEXT)]
    np.testing.assert_allclose(
        rows_of(load_native_model(path), tokens), rows_of_transformers(module, tokens), atol=1e-4
    )


def test_rotary_factors_are_applied(tmp_path: Path) -> None:
    """llama3 scaling is stored as one divisor per frequency."""
    scaled = tiny("llama, llama3 rope")
    factors = (tiny("llama").model.rotary_emb.inv_freq / scaled.model.rotary_emb.inv_freq).numpy()
    assert factors.max() > 2
    path = write_gguf(tmp_path / "m.gguf", scaled, "llama", tensors={"rope_freqs.weight": factors})
    np.testing.assert_allclose(
        rows_of(load_native_model(path), TOKENS), rows_of_transformers(scaled, TOKENS), atol=1e-4
    )


@pytest.mark.parametrize("quantisation", TYPES)
def test_stored_rows_are_reordered_whole(quantisation: str, tmp_path: Path) -> None:
    """A llama's queries and keys change places row by row, in whatever they are stored."""
    module = tiny("llama", hidden_size=256, intermediate_size=256, num_attention_heads=8)
    path = write_gguf(tmp_path / "m.gguf", module, "llama", quantisation)
    expected = rows_of_transformers(rounded(module, lambda name: quantisation), TOKENS)
    np.testing.assert_allclose(rows_of(load_native_model(path), TOKENS), expected, atol=1e-4)


def test_contract(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", tiny("qwen2"), "qwen2")
    check_model_contract(lambda: load_native_model(path))


@pytest.mark.parametrize("is_tied", [True, False])
def test_a_cut_head_computes_the_same_rows_narrower(is_tied: bool, tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", tiny("qwen2", tie_word_embeddings=is_tied), "qwen2")
    whole = rows_of(load_native_model(path), TOKENS)
    first = load_native_model(path, num_head_rows=9)
    assert (first.capabilities.vocabulary_size, first.capabilities.num_inputs) == (9, VOCABULARY)
    np.testing.assert_allclose(rows_of(first, TOKENS), whole[:, :9], rtol=1e-6)
    chosen = load_native_model(path, head_ids=[60, 2, 5, 5])
    assert chosen.capabilities.vocabulary_size == VOCABULARY
    found = rows_of(chosen, TOKENS)
    np.testing.assert_allclose(found[:, [2, 5, 60]], whole[:, [2, 5, 60]], rtol=1e-6)
    assert (np.delete(found, [2, 5, 60], axis=1) == -np.inf).all()


def test_a_tree_computes_what_its_branches_would(tmp_path: Path) -> None:
    model = load_native_model(write_gguf(tmp_path / "m.gguf", tiny("llama"), "llama"))
    prompt, tree, parents = [4, 8, 15], [16, 23, 42, 9, 11], (-1, 0, 0, 1, 2)
    assert model.capabilities.trees
    model.begin(1)
    feed(model, 1, prompt)
    rows = model.forward([Span(1, 3, tree, 5, parents)]).matrix
    for key, branch in enumerate([[0, 1, 3], [0, 2, 4]], 2):
        model.begin(key)
        feed(model, key, prompt)
        alone = feed(model, key, [tree[node] for node in branch])
        np.testing.assert_allclose(rows[branch], alone, atol=1e-5)
    model.keep(1, 3, (0, 2))
    assert model.length(1) == 5
    np.testing.assert_allclose(feed(model, 1, [11]), alone[2:], atol=1e-5)
    for bad in [(-1, 0), (0, 0, 0, 0, 0), (-1, 2, 0, 0, 0), (-2, 0, 0, 0, 0)]:
        with pytest.raises(ForerunError, match="parents"):
            model.forward([Span(1, 6, tree, 5, bad)])


@pytest.mark.parametrize(
    "metadata, tensors, error, message",
    [
        ({"rope.scaling.type": "longrope"}, {}, UnsupportedModelError, "longrope"),
        ({"attention.sliding_window_pattern": 5}, {}, UnsupportedModelError, "sliding_window_pattern"),
        ({"attention.clamp_kqv": 8.0}, {}, UnsupportedModelError, "clamp_kqv.*not understood"),
        ({"attention.causal": False}, {}, UnsupportedModelError, "causal"),
        ({"rope.dimension_count": 8}, {}, UnsupportedModelError, "dimension_count"),
        ({"attention.value_length": 8}, {}, UnsupportedModelError, "value_length"),
        ({"expert_count": 4}, {}, UnsupportedModelError, "served: GGUF files of llama, mistral3, qwen2"),
        ({"attention.head_count_kv": 3}, {}, FileFormatError, "contradicts itself"),
        ({"attention.key_length": 15}, {}, UnsupportedModelError, "dimension_count"),
        ({"feed_forward_length": 40}, {}, FileFormatError, "shape"),
        ({}, {"blk.0.attn_q.weight": None}, FileFormatError, "blk.0.attn_q.weight"),
        ({}, {"output_norm.weight": None}, FileFormatError, "output_norm"),
        ({}, {"token_embd.weight": np.ones(64, np.float32)}, FileFormatError, "no matrix"),
        ({}, {"mystery.weight": np.ones(4, np.float32)}, UnsupportedModelError, "mystery"),
        ({}, {"blk.0.attn_q.bias": np.ones(64, np.float32)}, FileFormatError, "blk.1.attn_q.bias"),
        ({}, {"rope_freqs.weight": np.ones(5, np.float32)}, FileFormatError, "5 rotary factors"),
    ],
)
def test_what_is_not_understood_is_refused_before_weights_are_read(
    metadata: dict[str, Any],
    tensors: dict[str, Any],
    error: type[Exception],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def never(*args: object, **settings: object) -> None:
        raise AssertionError("weights were read")

    monkeypatch.setattr(NumpyMatrix, "set_rows", never)
    path = write_gguf(tmp_path / "m.gguf", tiny("llama"), "llama", metadata=metadata, tensors=tensors)
    for refused in (check_native_model, load_native_model):
        with pytest.raises(error, match=message):
            refused(path)


def test_a_family_that_has_biases_must_have_them_all(tmp_path: Path) -> None:
    for parts in ("q", "qkv"):
        without = {f"blk.{layer}.attn_{part}.bias": None for layer in range(2) for part in parts}
        path = write_gguf(tmp_path / "m.gguf", tiny("qwen2"), "qwen2", tensors=without)
        with pytest.raises(FileFormatError, match=rf"lacks {len(without)} tensors.*blk.0.attn_{min(parts)}.bias"):
            check_native_model(path)


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"context_length": CONTEXT + 1}, "context_length"),
        ({"context_length": 0}, "context_length"),
        ({"num_head_rows": 0}, "num_head_rows"),
        ({"num_head_rows": VOCABULARY + 1}, "num_head_rows"),
        ({"head_ids": []}, "head_ids"),
        ({"head_ids": [VOCABULARY]}, "head_ids"),
        ({"head_ids": [-1]}, "head_ids"),
        ({"head_ids": [1], "num_head_rows": 1}, "head_ids"),
    ],
)
def test_limits_that_cannot_be_are_refused(settings: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", tiny("llama"), "llama")
    with pytest.raises(ParameterError, match=message):
        check_native_model(path, **settings)
    check_native_model(path, context_length=CONTEXT, num_head_rows=VOCABULARY)
    assert load_native_model(path, context_length=20).capabilities.context_length == 20


def test_architectures_outside_the_list(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "g.gguf", tiny("llama"), "starcoder2")
    with pytest.raises(UnsupportedModelError, match=r"architecture 'starcoder2'.*served: GGUF files of llama"):
        check_native_model(path)


REFUSED = sorted({kind.name for kind in GGMLQuantizationType} - set(SERVED_TYPES))


@pytest.mark.parametrize("type_name", REFUSED)
def test_types_outside_the_list_are_refused_by_name(
    type_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever else GGUF knows, before any weight is read."""

    def empty(values: np.ndarray, name: str) -> np.ndarray:
        inputs, num_bytes = GGML_QUANT_SIZES[GGMLQuantizationType[name]]
        return np.zeros((len(values), values.shape[1] // inputs * num_bytes), np.uint8)

    monkeypatch.setattr(as_gguf, "store", empty)
    module = tiny("llama", intermediate_size=256)
    path = write_gguf(tmp_path / "m.gguf", module, "llama", types={"blk.1.ffn_down.weight": type_name})
    served = rf"served: GGUF files of llama.*{', '.join(SERVED_TYPES)}"
    with pytest.raises(UnsupportedModelError, match=rf"blk\.1\.ffn_down\.weight.*as {type_name}\. {served}"):
        check_native_model(path)


def test_the_list_is_the_one_that_the_kernels_have() -> None:
    with pytest.raises(ValueError, match=f"it reads {', '.join(SERVED_TYPES)}$"):
        _native.decode("?", np.zeros((1, 1), np.uint8), 1)


@pytest.mark.parametrize("name", ["output_norm.weight", "blk.0.attn_norm.weight"])
def test_norms_too_are_refused_in_types_outside_the_list(name: str, tmp_path: Path) -> None:
    with open_gguf(write_gguf(tmp_path / "m.gguf", tiny("llama"), "llama")) as file:
        file.tensors = {**file.tensors, name: dataclasses.replace(file.tensors[name], type_name="IQ3_S")}
        with pytest.raises(UnsupportedModelError, match=rf"{name}.*stored as IQ3_S\. served"):
            describe(file)


def test_progress_counts_every_byte(tmp_path: Path) -> None:
    from forerun.models.progress import SilentProgress

    class Counting(SilentProgress):
        total = done = ended = 0

        def start(self, total_bytes: int, label: str) -> None:
            self.total, self.label = total_bytes, label

        def advance(self, num_bytes: int) -> None:
            self.done += num_bytes

        def finish(self) -> None:
            self.ended += 1

    path = write_gguf(tmp_path / "m.gguf", tiny("llama"), "llama")
    heard = Counting()
    load_native_model(path, progress=heard)
    with open_gguf(path) as file:
        assert heard.total == heard.done == sum(tensor.num_bytes for tensor in file.tensors.values())
    assert (heard.label, heard.ended) == ("loading m.gguf", 1)
