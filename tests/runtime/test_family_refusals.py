"""Files of the families that are refused before any weight is read, by what is wrong with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tests.runtime.as_gguf import tensors_of, write_gguf
from tests.runtime.families import CASES, LONG
from tests.runtime.family_files import DIRECTORIES, FAMILIES, changed, refused
from tests.runtime.test_families import written
from tests.runtime.tiny import tiny

from forerun.errors import FileFormatError, ForerunError, UnsupportedModelError
from forerun.models.transformers_files import SINGLE
from forerun.runtime.native import check_native_model


@pytest.mark.usefixtures("no_weights")
@pytest.mark.parametrize("name", FAMILIES)
def test_gguf_files_that_do_not_fit_their_family(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    module = tiny(case.name, **case.changes)
    names = tensors_of(module, case.architecture)
    last = max(int(one.split(".")[1]) for one in names if one.startswith("blk."))

    def refuse(error: type[ForerunError], message: str, tensors: dict[str, Any], **metadata: Any) -> None:
        keys = case.metadata | {key.replace("__", "."): value for key, value in metadata.items()}
        path = write_gguf(tmp_path / "m.gguf", module, case.architecture, metadata=keys, tensors=tensors)
        refused(path, error, message)

    for one in sorted(names):
        if one.startswith(f"blk.{last}.") or not one.startswith("blk."):
            tied = one == "output.weight"  # without it the embedding is the head
            if not tied:
                refuse(FileFormatError, one.replace("token_embd.weight", "token embedding"), {one: None})
            if names[one].ndim == 1:
                refuse(FileFormatError, f"tensor {one} .*shape", {one: np.ones(5, np.float32)})
            elif one != "token_embd.weight":
                refuse(FileFormatError, f"tensor {one} .*shape", {one: names[one][:-1]})
    refuse(UnsupportedModelError, "tensor blk.0.mystery.weight", {"blk.0.mystery.weight": np.ones(4, np.float32)})
    refuse(UnsupportedModelError, "tensor attn_sinks.weight", {"attn_sinks.weight": np.ones(4, np.float32)})
    refuse(UnsupportedModelError, "clamp_kqv", {}, attention__clamp_kqv=8.0)
    refuse(UnsupportedModelError, "served: GGUF files of llama, mistral3", {}, expert_count=8)
    refuse(UnsupportedModelError, "dynamic", {}, rope__scaling__type="dynamic")
    refuse(FileFormatError, "head_count", {}, attention__head_count=0)


@pytest.mark.usefixtures("no_weights")
def test_keys_that_say_nothing_are_no_reason(tmp_path: Path) -> None:
    off = {"expert_used_count": 0, "use_parallel_residual": False, "attention.clamp_kqv": 0.0, "attention.causal": True}
    check_native_model(write_gguf(tmp_path / "m.gguf", tiny("llama"), "llama", metadata=off))


@pytest.mark.usefixtures("no_weights")
@pytest.mark.parametrize("name", DIRECTORIES)
def test_directories_that_do_not_fit_their_family(name: str, tmp_path: Path) -> None:
    module, path = written(CASES[name], "directory", tmp_path)
    check_native_model(path)
    last = f"model.layers.{module.config.num_hidden_layers - 1}."
    held = {one for one in load_file(path / SINGLE) if one.startswith(last) or "layers" not in one}
    for number, one in enumerate(sorted(held)):
        key = one.replace(".", "__")
        without = changed(path, tmp_path / f"w{number}", **{key: None})
        refused(without, FileFormatError, one)
        odd = changed(path, tmp_path / f"o{number}", **{key: torch.zeros(3, 5)})
        refused(odd, FileFormatError, f"tensor {one} .*shape")
    more = changed(path, tmp_path / "more", model__layers__0__mystery=torch.zeros(3))
    refused(more, UnsupportedModelError, "tensor model.layers.0.mystery .*no part of the model takes it")
    typed = changed(path, tmp_path / "typed", model__norm__weight=torch.ones(64, dtype=torch.float64))
    refused(typed, UnsupportedModelError, "stored as F64.*served: transformers directories.*F32, F16, BF16")


CONFIGS: list[tuple[str, dict[str, Any], type[ForerunError], str]] = [
    ("llama", {"model_type": "mixtral"}, UnsupportedModelError, "'mixtral'.*served: .*LlamaForCausalLM, Mistral"),
    ("llama", {"model_type": None}, UnsupportedModelError, "model type None"),
    ("llama", {"architectures": ["LlamaForSequenceClassification"]}, UnsupportedModelError, "SequenceClassification"),
    ("llama", {"quantization_config": {"quant_method": "awq"}}, UnsupportedModelError, "quantised already"),
    ("llama", {"attention_sink_size": 4}, UnsupportedModelError, "attention_sink_size"),
    ("llama", {"hidden_act": "relu"}, UnsupportedModelError, "hidden_act 'relu'"),
    ("llama", {"hidden_size": 65}, FileFormatError, "shape"),
    ("llama", {"hidden_size": "64"}, FileFormatError, "hidden_size"),
    ("llama", {"hidden_size": None}, FileFormatError, "hidden_size.*missing"),
    ("llama", {"num_hidden_layers": True}, FileFormatError, "num_hidden_layers"),
    ("llama", {"num_hidden_layers": 1 << 40}, FileFormatError, "num_hidden_layers"),
    ("llama", {"num_hidden_layers": 3}, FileFormatError, "lacks"),
    ("llama", {"num_key_value_heads": 3}, FileFormatError, "cannot share"),
    ("llama", {"rms_norm_eps": float("nan")}, FileFormatError, "rms_norm_eps"),
    ("llama", {"attention_bias": "yes"}, FileFormatError, "attention_bias"),
    ("llama", {"attention_bias": True}, FileFormatError, "q_proj.bias|k_proj.bias"),
    ("llama", {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, UnsupportedModelError, "'dynamic'"),
    ("llama", {"rope_parameters": {"rope_type": "linear"}}, FileFormatError, "factor"),
    (
        "llama",
        {"rope_parameters": {"rope_type": "linear", "factor": 2, "odd": 1}},
        UnsupportedModelError,
        "setting odd",
    ),
    ("llama", {"rope_parameters": {"rope_type": "llama3", "factor": 2}}, FileFormatError, "low_freq_factor"),
    ("llama", {"rope_parameters": [1]}, FileFormatError, "rope_parameters"),
    ("llama", {"partial_rotary_factor": 0.5}, UnsupportedModelError, "partial_rotary_factor"),
    ("mistral, windows", {"layer_types": ["full_attention"] * 2}, UnsupportedModelError, "layer_types"),
    ("mistral, windows", {"sliding_window": -4}, FileFormatError, "sliding_window"),
    ("gemma3", {"layer_types": ["full_attention"]}, FileFormatError, "layer_types"),
    ("gemma3", {"layer_types": ["chunked_attention"] * 7}, UnsupportedModelError, "chunked_attention"),
    ("gemma3", {"use_bidirectional_attention": True}, UnsupportedModelError, "use_bidirectional_attention"),
    ("gemma3", {"rope_parameters": {"rope_type": "default"}}, UnsupportedModelError, "rope_parameters"),
    ("gemma3", {"attn_logit_softcapping": 50.0}, UnsupportedModelError, "attn_logit_softcapping"),
    *(
        ("phi3, long", {"rope_parameters": LONG | {"short_factor": [odd] + [1.0] * 5}}, FileFormatError, "short_factor")
        for odd in (0.0, -1.0, 1e-60, 1e60, float("nan"), float("inf"), "1", True, None)
    ),
    ("phi3, long", {"original_max_position_embeddings": 0}, FileFormatError, "original_max_position_embeddings"),
    ("smollm3", {"no_rope_layers": [1]}, FileFormatError, "no_rope_layers"),
]


@pytest.mark.usefixtures("no_weights")
@pytest.mark.parametrize("name, config, error, message", CONFIGS)
def test_configurations_that_are_not_served(
    name: str, config: dict[str, Any], error: type[ForerunError], message: str, tmp_path: Path
) -> None:
    _, path = written(CASES[name], "directory", tmp_path)
    refused(changed(path, tmp_path / "changed", config), error, message)
