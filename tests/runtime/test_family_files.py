"""Files of the families: what may be left out and added, and what changes nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.runtime.as_gguf import keys_of, tensors_of, write_gguf
from tests.runtime.closeness import Closeness
from tests.runtime.families import CASES, YARN, YARN_KEYS
from tests.runtime.family_files import DIRECTORIES, FAMILIES, changed, refused
from tests.runtime.rows import rows_of, rows_of_transformers
from tests.runtime.test_families import FAITHFUL, TOKENS, tokens_of, written
from tests.runtime.tiny import COMMON, CONTEXT, randomised, tiny

from forerun.errors import UnsupportedModelError
from forerun.models.gguf import open_gguf
from forerun.models.gguf_model import read_model
from forerun.runtime.native import check_native_model, load_native_model


@pytest.mark.parametrize("source", ["gguf", "directory"])
@pytest.mark.parametrize("name", FAMILIES)
def test_a_head_left_out_is_the_embedding(name: str, source: str, tmp_path: Path) -> None:
    """Bit for bit what a file with an explicit copy of it gives."""
    if source == "directory" and name not in DIRECTORIES:
        pytest.skip("transformers has no causal model of it")
    case = CASES[name]
    module, left_out = written(case, source, tmp_path, tie_word_embeddings=True)
    embedding = module.get_input_embeddings().weight.detach()
    if source == "gguf":
        head = {"output.weight": embedding.numpy()}
        explicit = write_gguf(tmp_path / "e.gguf", module, case.architecture, metadata=case.metadata, tensors=head)
    else:
        explicit = changed(left_out, tmp_path / "e", lm_head__weight=embedding.clone())
    expected = rows_of_transformers(module, TOKENS)
    found = [rows_of(load_native_model(path), TOKENS) for path in (left_out, explicit)]
    np.testing.assert_array_equal(found[0], found[1])
    Closeness.of(found[0], expected).check(**FAITHFUL)


@pytest.mark.parametrize("name", ["gemma3, scaled", "phi3, short", "olmo2", "granite", "smollm3", "llama, yarn"])
def test_a_file_its_shards_and_a_directory_are_one_model(name: str, tmp_path: Path) -> None:
    """Bit for bit where their weights are: nothing else is rounded on the way."""
    case = CASES[name]
    module, folder = written(case, "directory", tmp_path)
    path = write_gguf(tmp_path / "m.gguf", module, case.architecture, metadata=case.metadata)
    (tmp_path / "shards").mkdir()
    common: dict[str, Any] = {"metadata": case.metadata, "tensors_per_shard": 9}
    write_gguf(tmp_path / "shards" / "m.gguf", module, case.architecture, **common)
    assert len(list((tmp_path / "shards").iterdir())) > 1
    tokens = tokens_of(case)
    expected = rows_of(load_native_model(path, **case.loading), tokens)
    for other in (folder, tmp_path / "shards"):
        np.testing.assert_array_equal(rows_of(load_native_model(other, **case.loading), tokens), expected)


@pytest.mark.parametrize("name", [name for name in FAMILIES if name not in ("gemma3", "olmo2")])
def test_rope_freqs_divide_the_frequencies(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    module = tiny(case.name, **case.changes)
    factors = np.linspace(1.0, 6.0, len(module.model.rotary_emb.inv_freq), dtype=np.float32)
    tensors = {"rope_freqs.weight": factors}
    path = write_gguf(tmp_path / "m.gguf", module, case.architecture, metadata=case.metadata, tensors=tensors)
    module.model.rotary_emb.inv_freq /= torch.from_numpy(factors)
    if hasattr(module.model.rotary_emb, "original_inv_freq"):
        module.model.rotary_emb.original_inv_freq /= torch.from_numpy(factors)
    Closeness.of(rows_of(load_native_model(path), TOKENS), rows_of_transformers(module, TOKENS)).check(**FAITHFUL)


def test_queries_keys_and_values_in_one_tensor(tmp_path: Path) -> None:
    """As llama.cpp may write any family; where rows change places, they do within their own part."""
    for name in ("llama, biased", "qwen2", "olmo2"):
        case = CASES[name]
        module = tiny(case.name, **case.changes)
        plain, tensors = tensors_of(module, case.architecture), dict[str, np.ndarray | None]()
        for layer in range(2):
            for suffix in ("weight", "bias"):
                names = [f"blk.{layer}.attn_{part}.{suffix}" for part in "qkv"]
                if names[0] in plain:
                    tensors[f"blk.{layer}.attn_qkv.{suffix}"] = np.concatenate([plain[one] for one in names])
                    tensors |= dict.fromkeys(names)
        path = write_gguf(tmp_path / "m.gguf", module, case.architecture, tensors=tensors)
        Closeness.of(rows_of(load_native_model(path), TOKENS), rows_of_transformers(module, TOKENS)).check(**FAITHFUL)


def test_what_converters_leave_out_is_what_llama_cpp_assumes(tmp_path: Path) -> None:
    module = tiny(
        "gemma2, soft caps and alternating windows", attn_logit_softcapping=50.0, final_logit_softcapping=30.0
    )
    left_out = {key: None for key in keys_of(module.config, "gemma2") if "softcapping" in key or "value_length" in key}
    path = write_gguf(tmp_path / "m.gguf", module, "gemma2", metadata=left_out)
    Closeness.of(rows_of(load_native_model(path), TOKENS), rows_of_transformers(module, TOKENS)).check(**FAITHFUL)
    yarn = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 10000.0, "original_max_position_embeddings": CONTEXT}
    module = tiny("llama", rope_parameters=yarn)
    keys = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0}
    path = write_gguf(tmp_path / "y.gguf", module, "llama", metadata=keys)
    Closeness.of(rows_of(load_native_model(path), TOKENS), rows_of_transformers(module, TOKENS)).check(**FAITHFUL)
    module = tiny("llama", rope_parameters={"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0})
    for keys in ({"rope.scaling.factor": 4.0}, {"rope.scale_linear": 4.0}):
        path = write_gguf(tmp_path / "l.gguf", module, "llama", metadata=keys)
        Closeness.of(rows_of(load_native_model(path), TOKENS), rows_of_transformers(module, TOKENS)).check(**FAITHFUL)


@pytest.mark.parametrize("name, num_layers", [("gemma2", 46), ("gemma3", 62)])
def test_the_largest_gemmas_scale_attention_by_the_width_of_the_model(
    name: str, num_layers: int, tmp_path: Path
) -> None:
    """No key says so: llama.cpp knows them by their layers. Others go by the size of a head."""
    case = CASES[name]
    for layers, scale in ((num_layers, 16**-0.5), (num_layers - 1, 32**-0.5)):
        module = tiny(case.name, **case.changes | {"num_hidden_layers": layers, "head_dim": 32, "layer_types": None})
        path = write_gguf(tmp_path / f"{layers}.gguf", module, case.architecture, metadata=case.metadata)
        with open_gguf(path) as file:
            assert read_model(file).attention_scale == scale


def test_granite_without_positions(tmp_path: Path) -> None:
    """finetuned = false, which other architectures' files say without meaning anything by it."""
    module = tiny("granite, scaled logits")
    path = write_gguf(tmp_path / "m.gguf", module, "granite", metadata={"rope.scaling.finetuned": False})
    module.model.rotary_emb.inv_freq *= 0
    Closeness.of(rows_of(load_native_model(path), TOKENS), rows_of_transformers(module, TOKENS)).check(**FAITHFUL)
    module = tiny("llama")
    path = write_gguf(tmp_path / "l.gguf", module, "llama", metadata={"rope.scaling.finetuned": False})
    Closeness.of(rows_of(load_native_model(path), TOKENS), rows_of_transformers(module, TOKENS)).check(**FAITHFUL)


def test_longrope_is_chosen_by_the_context_that_is_served(tmp_path: Path) -> None:
    """Short factors where it is lowered to the original one, whatever the text's length; long ones beyond."""
    module, path = written(CASES["phi3, long"], "gguf", tmp_path)
    tokens = TOKENS[:32]  # transformers takes the short factors for so few
    short = rows_of(load_native_model(path, context_length=32), tokens)
    Closeness.of(short, rows_of_transformers(module, tokens)).check(**FAITHFUL)
    long = rows_of(load_native_model(path, context_length=33), tokens)
    Closeness.of(long, rows_of_transformers(module, TOKENS)[:32]).check(**FAITHFUL)
    assert np.abs(long - short).max() > 0.1


def test_mistral3_is_served_as_far_as_its_temperature_is_1(tmp_path: Path) -> None:
    module, plain = written(CASES["mistral3"], "gguf", tmp_path)
    keys = {"attention.temperature_scale": 0.1, "rope.scaling.original_context_length": 40}
    path = write_gguf(tmp_path / "t.gguf", module, "mistral3", metadata=CASES["mistral3"].metadata | keys)
    refused(path, UnsupportedModelError, "context of 96 tokens.*beyond 40 attention changes.*context_length=40")
    lowered = load_native_model(path, context_length=40)
    np.testing.assert_array_equal(rows_of(lowered, TOKENS[:40]), rows_of(load_native_model(plain), TOKENS[:40]))


def test_what_changes_no_row_is_no_reason(tmp_path: Path) -> None:
    """What users' directories say besides, and the frequencies that old ones store."""
    module, path = written(CASES["llama"], "directory", tmp_path)
    more = {
        "use_cache": False,
        "_name_or_path": "x",
        "unsloth_version": "1",
        "auto_map": {},
        "is_odd": False,
        "z": None,
    }
    frequencies = {"model__layers__0__self_attn__rotary_emb__inv_freq": torch.ones(8)}
    path = changed(path, tmp_path / "m2", more, **frequencies)
    Closeness.of(rows_of(load_native_model(path), TOKENS), rows_of_transformers(module, TOKENS)).check(**FAITHFUL)


PUBLISHED: dict[str, dict[str, Any]] = {
    "llama": {"is_llama_config": True, "rope_interleaved": False, "transformers.js_config": {"dtype": "q4"}},
    "qwen2": {"max_window_layers": 28, "sliding_window": 131072, "use_sliding_window": False, "use_mrope": False},
    "gemma2": {"cache_implementation": "hybrid", "hidden_act": "gelu_pytorch_tanh", "sliding_window_size": 4096},
    "gemma3": {"_sliding_window_pattern": 6, "cache_implementation": "hybrid", "attn_logit_softcapping": None},
    "phi3": {
        "interpolate_factor": 1,
        "full_attn_mod": 1,
        "lm_head_bias": False,
        "mlp_bias": False,
        "auto_map": {"a": "b"},
    },
    "granite": {"rope_scaling": None, "attention_dropout": 0.1, "resid_pdrop": 0.0},
    "smollm3": {"max_window_layers": 28, "pretraining_tp": 2, "use_sliding_window": False},
}
"""Settings of published models that transformers does not look at."""


@pytest.mark.usefixtures("no_weights")
@pytest.mark.parametrize("name", PUBLISHED)
def test_settings_of_published_models(name: str, tmp_path: Path) -> None:
    _, path = written(CASES[name], "directory", tmp_path)
    check_native_model(changed(path, tmp_path / "more", PUBLISHED[name]))


def test_settings_in_the_words_of_transformers_4(tmp_path: Path) -> None:
    for name in ("llama, linear", "gemma3, scaled", "phi3, long", "smollm3"):
        case = CASES[name]
        module, path = written(case, "directory", tmp_path / name)
        config = json.loads((path / "config.json").read_text())
        rope = config.pop("rope_parameters")
        full = rope.get("full_attention", rope)
        config["rope_theta"] = full.pop("rope_theta")
        if name == "gemma3, scaled":
            config["rope_local_base_freq"] = rope["sliding_attention"]["rope_theta"]
            del config["layer_types"]
            config["sliding_window_pattern"] = 6
        if name == "phi3, long":
            config["partial_rotary_factor"] = full.pop("partial_rotary_factor")
            del full["original_max_position_embeddings"]
            full["type"] = "su"
        else:
            full["type"] = full["rope_type"]
        del full["rope_type"]
        config["rope_scaling"] = None if full["type"] == "default" else full
        (path / "config.json").write_text(json.dumps(config))
        found = rows_of(load_native_model(path), tokens_of(case))
        Closeness.of(found, rows_of_transformers(module, tokens_of(case))).check(**FAITHFUL)


def test_olmo_3_is_an_olmo2_with_windows(tmp_path: Path) -> None:
    """Layers with a window are not scaled; which have one, the file says or every fourth has none."""
    from transformers import AutoConfig, AutoModelForCausalLM

    kinds = ["sliding_attention"] * 3 + ["full_attention"]
    ropes = {"full_attention": YARN, "sliding_attention": {"rope_type": "default", "rope_theta": YARN["rope_theta"]}}
    settings = {"num_hidden_layers": 4, "sliding_window": 5, "layer_types": kinds, "rope_parameters": ropes}
    config = AutoConfig.for_model("olmo3", **COMMON | settings)
    module = randomised(AutoModelForCausalLM.from_config(config, attn_implementation="eager"))
    windows: dict[str, Any] = {"attention.sliding_window": 5, **YARN_KEYS}
    pattern = {"attention.sliding_window_pattern": [True, True, True, False]}
    for keys in (windows, windows | pattern):
        path = write_gguf(tmp_path / "m.gguf", module, "olmo2", metadata=keys)
        Closeness.of(rows_of(load_native_model(path), TOKENS), rows_of_transformers(module, TOKENS)).check(**FAITHFUL)
