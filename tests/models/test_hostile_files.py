"""What fuzzing found (fuzz/, docs/log.md), and its kind: files whose numbers and words are chosen to hurt.

Each ends in an error of ours or in a working model, without a hang and without memory out of proportion to the file.
"""

from __future__ import annotations

import json
import struct
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.models.safetensors_tools import write_tensors
from tests.models.tiny_gguf import write_tiny_gguf

from forerun.errors import FileFormatError, ForerunError, ModelError, UnsupportedModelError
from forerun.models.gguf import open_gguf
from forerun.models.tokenizer import load_tokenizer
from forerun.runtime.native import check_native_model, load_native_model
from forerun.types import Span

CONFIG: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "vocab_size": 16,
    "num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 32, "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True, "rope_theta": 100.0,
}  # fmt: skip
ATTENTION, FEED_FORWARD = ("q_proj", "k_proj", "v_proj", "o_proj"), ("gate_proj", "up_proj", "down_proj")
MATRICES = (*(f"self_attn.{name}" for name in ATTENTION), *(f"mlp.{name}" for name in FEED_FORWARD))
SMALL: dict[str, Any] = {"num_tokens": 300, "layers": 1, "hidden": 32, "heads": 2}
MOST_BYTES = 16 << 20


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORERUN_HOME", str(tmp_path / "home"))


@pytest.fixture(autouse=True)
def cheap() -> Iterator[None]:
    """Nothing here may take long or much memory."""
    tracemalloc.start()
    before = time.process_time()
    yield
    peak, spent = tracemalloc.get_traced_memory()[1], time.process_time() - before
    tracemalloc.stop()
    assert peak < MOST_BYTES
    assert spent < 5


def directory(path: Path, **config: Any) -> Path:
    """A transformers directory of the llama kind; a Python value that JSON lacks is written as its text."""
    path.mkdir()
    generator = np.random.default_rng(0)
    names = {f"model.layers.0.{name}.weight": (32, 32) for name in MATRICES}
    names |= {f"model.layers.0.{name}.weight": (32,) for name in ("input_layernorm", "post_attention_layernorm")}
    names |= {"model.embed_tokens.weight": (16, 32), "model.norm.weight": (32,)}
    tensors = {name: generator.normal(size=shape).astype(np.float32) for name, shape in names.items()}
    write_tensors(path / "model.safetensors", tensors)
    (path / "config.json").write_text(json.dumps(CONFIG | config))
    return path


def test_the_directory_itself_works(tmp_path: Path) -> None:
    model = load_native_model(directory(tmp_path / "d"))
    model.begin(0)
    assert np.isfinite(np.array(model.forward([Span(0, 0, [1, 2, 3], 1)]).matrix)).all()


def rope(**values: Any) -> dict[str, Any]:
    return {"rope_scaling": values}


YARN: dict[str, Any] = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 16}


@pytest.mark.parametrize(
    "config",
    [
        {"num_hidden_layers": (1 << 31) - 1},
        {"num_hidden_layers": 1 << 20},
        {"num_attention_heads": 1 << 30, "num_key_value_heads": 1 << 30},
        {"head_dim": 1 << 30},
        {"intermediate_size": 1 << 30},
        {"vocab_size": (1 << 31) - 1},
        {"hidden_act": ["silu"]},
        {"hidden_act": {"a": 1}},
        {"rms_norm_eps": 10**400},
        {"rope_theta": 10**4000},
        {"partial_rotary_factor": 1e308},
        {"partial_rotary_factor": 10**400},
        {"model_type": ["llama"]},
        {"architectures": {"a": [1]}},
        {"layer_types": 5},
        {"rope_scaling": [1]},
        rope(rope_type=["linear"]),
        rope(rope_type={"a": 1}),
        rope(rope_type="linear", factor=10**400),
        rope(rope_type="longrope", short_factor=[10**400] * 8, long_factor=[1.0] * 8),
        rope(rope_type="llama3", factor=1e300, low_freq_factor=1e-300, high_freq_factor=5e-324),
    ],
    ids=lambda config: str(config)[:60],
)
def test_sizes_and_words_of_a_configuration_that_cannot_be(config: dict[str, Any], tmp_path: Path) -> None:
    path = directory(tmp_path / "d", **config)
    for use in (check_native_model, load_native_model):
        with pytest.raises(ModelError):
            use(path)


@pytest.mark.parametrize(
    "config",
    [
        rope(**YARN, beta_fast=1e308, beta_slow=1.0),
        rope(**YARN, beta_fast=32.0, beta_slow=5e-324),
        rope(**YARN, beta_fast=5e-324, beta_slow=1e308),
        rope(rope_type="yarn", factor=1e300, original_max_position_embeddings=1),
        rope(rope_type="linear", factor=5e-324),
        {"rope_theta": 1e-300},
        {"rope_theta": 1e300},
        {"rms_norm_eps": 1e308},
    ],
    ids=lambda config: str(config)[:60],
)
def test_numbers_at_the_edge_of_what_a_float_holds(config: dict[str, Any], tmp_path: Path) -> None:
    """Refused or served: whatever the rows then hold."""
    path = directory(tmp_path / "d", **config)
    try:
        model = load_native_model(path)
    except ModelError:
        return
    model.begin(0)
    assert np.array(model.forward([Span(0, 0, [1, 2, 3], 2)]).matrix).shape == (2, 16)


@pytest.mark.parametrize("name", ["x" * 5000, "a/b", "\ud800", "..", "a\0b", ""])
def test_shards_whose_names_no_file_can_have(name: str, tmp_path: Path) -> None:
    path = directory(tmp_path / "d")
    (path / "model.safetensors").rename(path / "a.safetensors")
    index = {"weight_map": {"model.norm.weight": name, "model.embed_tokens.weight": "a.safetensors"}}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(FileFormatError):
        check_native_model(path)


@pytest.mark.parametrize("file", ["config.json", "model.safetensors"])
@pytest.mark.parametrize(
    "text", [b"[" * 200_000, b'{"a":' * 100_000, b"9" * 100_000, b'{"a": 1e999}', b"\xff", b"{}", b"null"]
)
def test_json_that_no_writer_writes(file: str, text: bytes, tmp_path: Path) -> None:
    path = directory(tmp_path / "d")
    length = len(text).to_bytes(8, "little") if file == "model.safetensors" else b""
    (path / file).write_bytes(length + text)
    with pytest.raises(ModelError):
        check_native_model(path)


# -- GGUF --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "values",
    [
        {"attention.head_count": 1 << 31, "attention.head_count_kv": 1 << 31, "attention.key_length": 64},
        {"attention.key_length": 1 << 31, "attention.value_length": 1 << 31, "rope.dimension_count": 1 << 31},
        {"block_count": (1 << 32) - 1},
        {"attention.head_count": 1 << 20},
        {"feed_forward_length": (1 << 32) - 1},
        {"rope.scaling.type": [1, 2]},
        {"attention.head_count": [2, 3]},
        {"rope.freq_base": float("inf")},
        {"rope.freq_base": 1e-38},
        {"context_length": 0},
    ],
    ids=str,
)
@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
def test_sizes_of_a_gguf_that_cannot_be(architecture: str, values: dict[str, Any], tmp_path: Path) -> None:
    kind = {"kind": "llama", "num_tokens": 400} if architecture == "llama" else {}
    metadata = {f"{architecture}.{key}": value for key, value in values.items()}
    path = write_tiny_gguf(tmp_path / "m.gguf", architecture=architecture, metadata=metadata, **(SMALL | kind))
    for use in (check_native_model, load_native_model):
        with pytest.raises(ModelError):
            use(path)


def edited(path: Path, change: Callable[[bytes], bytes]) -> Path:
    path.write_bytes(change(path.read_bytes()))
    return path


def test_a_text_as_long_as_the_file_is_not_read(tmp_path: Path) -> None:
    """A sparse file of 200 MB, one key of which says that it is a text of nearly all of it."""
    path = tmp_path / "m.gguf"
    head = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1) + b"a" + struct.pack("<IQ", 8, 190_000_000)
    with path.open("wb") as file:
        file.write(head)
        file.truncate(200_000_000)
    with pytest.raises(FileFormatError, match="text of 190,000,000 bytes"):
        open_gguf(path)


def test_more_tensors_than_any_model_has(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 70_000, 0) + bytes(70_000 * 32))
    with pytest.raises(FileFormatError, match="70,000 tensors"):
        open_gguf(path)


def test_rotary_factors_as_large_as_a_matrix_are_not_decoded(tmp_path: Path) -> None:
    path = write_tiny_gguf(
        tmp_path / "m.gguf", kind="llama", architecture="llama", num_tokens=400, layers=1, tied=False
    )
    edited(
        path,
        lambda data: data.replace(b"\x0d" + bytes(7) + b"output.weight", b"\x11" + bytes(7) + b"rope_freqs.weight"),
    )
    with pytest.raises(ForerunError):
        check_native_model(path)


@pytest.mark.parametrize("text", ["{{ " + "(" * 3000, "{% if 1 %}" * 3000, "{{ x" + ".a" * 30_000 + " }}"])
def test_templates_too_deep_to_compile(text: str, tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "m.gguf", metadata={"tokenizer.chat_template": text}, **SMALL)
    tokenizer = load_tokenizer(path)
    with pytest.raises((UnsupportedModelError, FileFormatError, ForerunError)):
        tokenizer.encode_chat([{"role": "user", "content": "a"}])
