"""What cannot be served exactly is refused before weights are read; what is served is understood layer by layer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.runtime.tiny import COMMON, MODELS, WINDOW, tiny
from transformers import AttentionInterface

from forerun.errors import UnsupportedModelError
from forerun.runtime.torch import TorchModel, check_torch_model
from forerun.runtime.torch.cache import LayerShape
from forerun.runtime.torch.load import _hollow
from forerun.runtime.torch.registry import register
from forerun.runtime.torch.support import PROBE, check_config, context_length_of, probe, recording_attention

RECURRENT = "layers of type|recurrent state|attention interface"  # which comes first depends on transformers' version
REFUSED = {
    **dict.fromkeys(("mamba", "mamba2", "falcon_mamba", "jamba", "bamba", "zamba2", "nemotron_h"), RECURRENT),
    **dict.fromkeys(("qwen3_next", "recurrent_gemma", "minimax", "rwkv", "deepseek_v32"), RECURRENT),
    "llama4_text": "chunked_attention",
    **dict.fromkeys(("bart", "whisper", "t5"), "encoder"),
    **dict.fromkeys(("gemma3", "llama4", "mllama", "qwen2_vl"), "wrappers for images"),
    **dict.fromkeys(("bloom", "falcon", "mpt", "gpt_neo"), "attention interface"),
    "clip": "no causal language model class|wrappers",
}


def config_of(model_type: str, **changes: Any) -> Any:
    from transformers import CONFIG_MAPPING, AutoConfig

    if model_type not in CONFIG_MAPPING:
        pytest.skip(f"this transformers has no {model_type}")
    return AutoConfig.for_model(model_type, **changes)


def probed(config: Any) -> tuple[LayerShape, ...]:
    try:
        return probe(_hollow(check_config(config), config))
    except RuntimeError as error:  # early 5.x: rotary positions ask for an autocast that meta does not have
        pytest.skip(f"this transformers cannot run on meta: {error}")


@pytest.mark.parametrize("model_type", REFUSED)
def test_refused_by_configuration(model_type: str) -> None:
    with pytest.raises(UnsupportedModelError, match=REFUSED[model_type]) as caught:
        check_config(config_of(model_type))
    assert "served: decoder-only text models" in str(caught.value)


@pytest.mark.parametrize("model_type", ["bert", "roberta", "electra"])
def test_models_that_look_ahead_are_refused_by_their_mask(model_type: str) -> None:
    config = config_of(model_type, num_hidden_layers=2)
    with pytest.raises(UnsupportedModelError, match="mask of layer 0 is neither causal nor a sliding window"):
        probed(config)


def test_a_layer_that_attends_twice_is_refused() -> None:
    config = config_of("diffllama", **COMMON)
    with pytest.raises(UnsupportedModelError, match=r"attends twice|attention interface"):
        probed(config)


def test_dynamic_rotary_scaling_is_refused() -> None:
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    with pytest.raises(UnsupportedModelError, match="dynamic rotary"):
        check_config(config_of("llama", rope_parameters=rope))


def test_longrope_is_served_up_to_its_original_context() -> None:
    rope = {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "short_factor": [1.0] * 8,
        "long_factor": [4.0] * 8,
        "original_max_position_embeddings": 32,
    }
    settings = COMMON | {"rope_parameters": rope, "original_max_position_embeddings": 32}
    config = config_of("phi3", **settings)
    check_config(config)
    assert context_length_of(config) == 32
    assert context_length_of(config_of("phi3", **COMMON)) == COMMON["max_position_embeddings"]


@pytest.mark.parametrize("refused", ["mamba", "gemma3", "bart"])
def test_refused_before_weights_are_read(refused: str, tmp_path: Path) -> None:
    """There are no weights here to read."""
    config_of(refused).save_pretrained(tmp_path)
    with pytest.raises(UnsupportedModelError, match="cannot be served"):
        check_torch_model(tmp_path, kind="transformers")


def test_unknown_model_types_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"model_type": "mystery"}))
    with pytest.raises(UnsupportedModelError, match=r"mystery.*no such model"):
        check_torch_model(tmp_path, kind="transformers")
    file.write_text(json.dumps({"model_type": "mystery", "auto_map": {"AutoConfig": "own.Own"}}))
    with pytest.raises(UnsupportedModelError, match="its own code, which is not run"):
        check_torch_model(tmp_path, kind="transformers")


WINDOWS = {
    "llama": [None, None],
    "mistral, windows": [WINDOW, WINDOW],
    "qwen2, windows above a layer": [None, WINDOW],
    "gemma2, soft caps and alternating windows": [WINDOW, None],
    "gemma3": [WINDOW, None],
    "gpt_oss, sinks and experts": [WINDOW, None],
}


@pytest.mark.parametrize("name", WINDOWS)
def test_the_probe_finds_each_layers_window(name: str) -> None:
    config = tiny(name).config
    shapes = probed(config)
    assert shapes == tuple(LayerShape(2, 16, 16, window) for window in WINDOWS[name])


@pytest.mark.parametrize("name", MODELS)
def test_the_probe_needs_no_numbers(name: str) -> None:
    """On the meta device, so before weights are read, and with the same findings as on the real model."""
    module = tiny(name)
    shapes = probed(module.config)
    assert shapes == TorchModel.from_transformers(module).cache.shapes


@pytest.mark.parametrize(
    "change, message",
    [
        ({"position_bias": torch.zeros(1)}, "position_bias"),
        ({"indices": torch.zeros(1)}, "indices"),
        ({"is_causal": False}, "not causal"),
        ({"s_aux": torch.zeros(3)}, "sinks of shape"),
    ],
)
def test_arguments_that_change_the_result_are_never_ignored(
    change: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def extended(*arguments: Any, **settings: Any) -> Any:
        return recording_attention(*arguments, **settings | change)

    register()
    monkeypatch.setitem(AttentionInterface._global_mapping, PROBE, extended)
    module = tiny("llama")
    with pytest.raises(UnsupportedModelError, match=message):
        TorchModel.from_transformers(module)


def test_a_model_whose_rows_meet_outside_attention_is_refused() -> None:
    """Something the probe cannot see: a layer that adds the row before. Two sequences would see each other."""
    module = tiny("llama")

    def leak(_: Any, __: Any, out: torch.Tensor) -> torch.Tensor:
        return out + out.roll(1, dims=1)

    module.model.norm.register_forward_hook(leak)
    with pytest.raises(UnsupportedModelError, match="rows depend on other sequences"):
        TorchModel.from_transformers(module)


def test_another_kind_of_head_is_refused() -> None:
    from transformers import LlamaForSequenceClassification

    module = LlamaForSequenceClassification(tiny("llama").config)
    with pytest.raises(UnsupportedModelError, match="not their causal language model"):
        TorchModel.from_transformers(module)
