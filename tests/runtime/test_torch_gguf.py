"""GGUF files become the models they were written from, and what a file says that we do not know is refused."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.runtime.as_gguf import write_gguf
from tests.runtime.contract import feed
from tests.runtime.real import pulled
from tests.runtime.tiny import tiny

from forerun.errors import FileFormatError, ForerunError, UnknownModelError, UnsupportedModelError
from forerun.runtime.torch import TorchModel, check_torch_model, load_torch_model

TOKENS = [5, 66, 3, 3, 40, 21, 9, 8, 60, 1, 33, 12, 7, 20, 2, 11]


def rows_of(model: TorchModel) -> np.ndarray:
    model.begin(0)
    return feed(model, 0, TOKENS)


def rows_of_transformers(module: Any) -> np.ndarray:
    with torch.no_grad():
        return module(input_ids=torch.tensor([TOKENS]), use_cache=False).logits[0].float().numpy()


def load(path: Path, **settings: Any) -> TorchModel:
    return load_torch_model(path, kind="gguf", **{"dtype": "float32", "device": "cpu"} | settings)


SOURCES = [
    ("llama", "llama", {"rms_norm_eps": 1e-4}),
    ("llama, biased and tied", "llama", {"mlp_bias": False}),
    ("llama", "llama", {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}}),
    ("qwen2", "qwen2", {}),
    ("qwen2", "qwen2", {"tie_word_embeddings": True}),
    ("qwen3", "qwen3", {"head_dim": 32}),
]


@pytest.mark.parametrize("name, architecture, changes", SOURCES)
def test_same_rows_as_the_model_it_was_written_from(
    name: str, architecture: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    module = tiny(name, **changes)
    path = write_gguf(tmp_path / "m.gguf", module, architecture)
    np.testing.assert_allclose(rows_of(load(path)), rows_of_transformers(module), atol=1e-4)


@pytest.mark.parametrize("name, architecture", [("llama", "llama"), ("qwen2", "qwen2")])
@pytest.mark.parametrize("quantisation", ["Q8_0", "F16", "Q4_0"])
def test_same_rows_as_transformers_own_loader(name: str, architecture: str, quantisation: str, tmp_path: Path) -> None:
    changes = {"intermediate_size": 64}
    path = write_gguf(tmp_path / "m.gguf", tiny(name, **changes), architecture, quantisation)
    expected = rows_of_transformers(transformers_own(path))
    np.testing.assert_allclose(rows_of(load(path)), expected, atol=1e-4)


def transformers_own(path: Path) -> Any:
    from transformers import AutoModelForCausalLM

    with contextlib.redirect_stderr(io.StringIO()):
        return AutoModelForCausalLM.from_pretrained(
            path.parent, gguf_file=path.name, dtype=torch.float32, attn_implementation="eager"
        )


def test_rotary_scaling_is_honoured(tmp_path: Path) -> None:
    rope = {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}
    scaled = tiny("llama", rope_parameters=rope)
    metadata = {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}
    path = write_gguf(tmp_path / "m.gguf", scaled, "llama", metadata=metadata)
    np.testing.assert_allclose(rows_of(load(path)), rows_of_transformers(scaled), atol=1e-4)
    plain = write_gguf(tmp_path / "plain.gguf", scaled, "llama")
    assert np.abs(rows_of(load(plain)) - rows_of_transformers(scaled)).max() > 0.1


def test_rotary_factors_are_applied(tmp_path: Path) -> None:
    """llama3 scaling is stored as one divisor per frequency: transformers' rule and the stored numbers agree."""
    scaled = tiny("llama, llama3 rope")
    default = tiny("llama").model.rotary_emb.inv_freq
    factors = (default / scaled.model.rotary_emb.inv_freq).numpy()
    assert factors.max() > 2
    path = write_gguf(tmp_path / "m.gguf", scaled, "llama", tensors={"rope_freqs.weight": factors})
    np.testing.assert_allclose(rows_of(load(path)), rows_of_transformers(scaled), atol=1e-4)


def test_a_missing_head_is_the_embedding(tmp_path: Path) -> None:
    module = tiny("qwen2", tie_word_embeddings=True)
    embedding = module.get_input_embeddings().weight.detach().numpy()
    tied = write_gguf(tmp_path / "tied.gguf", module, "qwen2")
    copied = write_gguf(tmp_path / "copied.gguf", module, "qwen2", tensors={"output.weight": embedding})
    np.testing.assert_allclose(rows_of(load(tied)), rows_of(load(copied)), atol=1e-5)


def test_dtype_auto_and_memory_of_a_gguf(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", tiny("llama"), "llama")
    model = load(path, dtype="auto")
    assert model.dtype in (torch.bfloat16, torch.float32)
    assert np.abs(rows_of(model) - rows_of(load(path))).max() < 0.2


@pytest.mark.parametrize(
    "metadata, tensors, error, message",
    [
        ({"rope.scaling.type": "longrope"}, {}, UnsupportedModelError, "longrope"),
        ({"rope.scaling.type": "yarn", "rope.scaling.factor": -2.0}, {}, FileFormatError, "scaling.factor"),
        ({"rope.scaling.attn_factor": 2.0}, {}, UnsupportedModelError, "attn_factor"),
        ({"attention.sliding_window": 5}, {}, UnsupportedModelError, "sliding_window"),
        ({"rope.dimension_count": 8}, {}, UnsupportedModelError, "dimension_count"),
        ({"attention.head_count_kv": [2, 1]}, {}, UnsupportedModelError, "head_count_kv"),
        ({"block_count": None}, {}, FileFormatError, "block_count"),
        ({"block_count": 0}, {}, FileFormatError, "block_count"),
        ({"block_count": 3}, {}, FileFormatError, "block_count is 3"),
        ({"block_count": 1 << 31}, {}, FileFormatError, "block_count"),
        ({"block_count": 1}, {}, FileFormatError, "block_count is 1"),
        ({"embedding_length": 32}, {}, FileFormatError, "embedding_length"),
        ({"feed_forward_length": 40}, {}, FileFormatError, "shape"),
        ({"rope.freq_base": -1.0}, {}, FileFormatError, "freq_base"),
        ({}, {"blk.0.attn_q.weight": None}, FileFormatError, "q_proj"),
        ({}, {"token_embd.weight": None}, FileFormatError, "token_embd"),
        ({}, {"blk.0.attn_sinks.weight": np.ones(4, np.float32)}, UnsupportedModelError, "attn_sinks"),
        ({}, {"mystery.weight": np.ones(4, np.float32)}, UnsupportedModelError, "mystery"),
        ({}, {"blk.0.attn_q.bias": np.ones(64, np.float32)}, FileFormatError, "bias"),
        ({}, {"rope_freqs.weight": np.ones(5, np.float32)}, FileFormatError, "5 rotary factors"),
    ],
)
def test_what_is_not_understood_is_refused(
    metadata: dict[str, Any], tensors: dict[str, Any], error: type[Exception], message: str, tmp_path: Path
) -> None:
    path = write_gguf(tmp_path / "m.gguf", tiny("llama"), "llama", metadata=metadata, tensors=tensors)
    with pytest.raises(error, match=message):
        load(path)


def test_other_architectures(tmp_path: Path) -> None:
    """Read by transformers where it can, else refused with the list, before any weight is read."""
    path = write_gguf(tmp_path / "m.gguf", tiny("llama"), "mystery")
    with pytest.raises(
        UnsupportedModelError, match=r"mystery.*served: llama, qwen2, qwen3; through transformers: .*gemma2"
    ):
        check_torch_model(path, kind="gguf")
    path = write_gguf(tmp_path / "s.gguf", tiny("llama"), "gemma2", metadata={"rope.scaling.type": "linear"})
    with pytest.raises(UnsupportedModelError, match="rotary"):
        check_torch_model(path, kind="gguf")


def test_truncated_foreign_and_absent_files(tmp_path: Path) -> None:
    whole = write_gguf(tmp_path / "m.gguf", tiny("llama"), "llama").read_bytes()
    cut = tmp_path / "cut.gguf"
    for length in (0, 3, 20, 400, len(whole) // 2, len(whole) - 64):
        cut.write_bytes(whole[:length])
        with pytest.raises(FileFormatError):
            load(cut)
    cut.write_bytes(b"PK\x03\x04 something else")
    with pytest.raises(FileFormatError):
        load(cut)
    with pytest.raises(UnknownModelError):
        load(tmp_path / "absent.gguf")


@pytest.mark.parametrize("seed", range(20))
def test_damaged_headers_never_crash(seed: int, tmp_path: Path) -> None:
    data = bytearray(write_gguf(tmp_path / "m.gguf", tiny("llama"), "llama").read_bytes())
    generator = np.random.default_rng(seed)
    for _ in range(4):
        data[generator.integers(4, 1500)] = generator.integers(0, 256)
    path = tmp_path / "damaged.gguf"
    path.write_bytes(data)
    with contextlib.suppress(ForerunError):
        load(path)


REAL = ["smollm2-135m", "qwen2.5-coder-0.5b"]


@pytest.mark.slow
@pytest.mark.thorough("qwen2.5-coder-0.5b")
@pytest.mark.parametrize("name", REAL)
def test_real_files_agree_with_transformers(name: str) -> None:
    path = pulled(name)
    found = rows_of(load(path))
    expected = rows_of_transformers(transformers_own(path))
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-3)
    assert (found.argmax(-1) == expected.argmax(-1)).all()
