"""Writes a tiny transformers model as a GGUF file, the way llama.cpp's converter lays it out."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from tests.models.tiny_gguf import add_value, tokenizer_metadata
from tests.runtime.stored import store

LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
AROUND = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
FUSED = {"self_attn.qkv_proj": "attn_qkv", "mlp.gate_up_proj": "ffn_up"}
INTERLEAVED = ("llama", "mistral3", "granite", "smollm3")
OUTER = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}


def tensors_of(model: Any, architecture: str) -> dict[str, np.ndarray]:
    """GGUF tensors of a decoder; some architectures interleave the halves of each rotated head, and gemma's norms are
    stored with their 1."""
    config, found = model.config, {}
    parts = LAYER | FUSED | (AROUND if "gemma" in architecture or architecture == "olmo2" else {})
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        values = tensor.float().numpy()
        if "gemma" in architecture and name.endswith("norm.weight"):
            values = values + np.float32(1)
        if name in OUTER:
            found[OUTER[name]] = values
            continue
        _, _, layer, rest = name.split(".", 3)
        part, suffix = rest.rsplit(".", 1)
        if architecture in INTERLEAVED and part in ("self_attn.q_proj", "self_attn.k_proj"):
            heads = config.num_attention_heads if part == "self_attn.q_proj" else config.num_key_value_heads
            halves = values.reshape(heads, 2, -1, *values.shape[1:])
            values = np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(values.shape)
        found[f"blk.{layer}.{parts[part]}.{suffix}"] = values
    rope = getattr(config, "rope_parameters", None) or {}
    for kind in ("long", "short"):
        if f"{kind}_factor" in rope:
            found[f"rope_factors_{kind}.weight"] = np.array(rope[f"{kind}_factor"], dtype=np.float32)
    return found


def keys_of(config: Any, architecture: str) -> dict[str, Any]:
    """What llama.cpp's converter says of a model, without the architecture's name."""
    rope = config.rope_parameters
    full = rope.get("full_attention", rope)
    head_size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    keys: dict[str, Any] = {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "rope.freq_base": full["rope_theta"],
        "vocab_size": config.vocab_size,
    }
    if architecture not in ("qwen2", "phi3", "olmo2"):
        keys["attention.key_length"] = head_size
    if architecture in ("gemma2", "gemma3", "olmo2"):
        keys["attention.value_length"] = head_size
    if architecture == "gemma2":
        keys |= {
            "attention.sliding_window": getattr(config, "sliding_window", None),
            "attn_logit_softcapping": getattr(config, "attn_logit_softcapping", None),
            "final_logit_softcapping": getattr(config, "final_logit_softcapping", None),
        }
    if architecture == "gemma3":
        keys |= {
            "attention.sliding_window": config.sliding_window,
            "rope.freq_base_swa": rope["sliding_attention"]["rope_theta"],
        }
        if full["rope_type"] == "linear":
            keys |= {"rope.scaling.type": "linear", "rope.scaling.factor": full["factor"]}
    if architecture == "phi3":
        keys |= {
            "rope.dimension_count": int(head_size * full.get("partial_rotary_factor", 1.0)),
            "rope.scaling.original_context_length": config.original_max_position_embeddings,
            "attention.sliding_window": config.sliding_window or 0,
        }
        ratio = config.max_position_embeddings / config.original_max_position_embeddings
        if full["rope_type"] == "longrope":
            grown = math.log(ratio) / math.log(config.original_max_position_embeddings)
            keys["rope.scaling.attn_factor"] = math.sqrt(1 + grown) if ratio > 1 else 1.0
    if architecture == "granite":
        keys |= {
            "attention.scale": config.attention_multiplier,
            "embedding_scale": config.embedding_multiplier,
            "residual_scale": config.residual_multiplier,
            "logit_scale": config.logits_scaling,
        }
    if architecture in INTERLEAVED:
        keys["rope.dimension_count"] = head_size
    return keys


def write_gguf(
    path: Path,
    model: Any,
    architecture: str,
    quantisation: str = "F32",
    metadata: dict[str, Any] | None = None,
    tensors: dict[str, np.ndarray | None] | None = None,
    types: dict[str, str] | None = None,
    with_tokenizer: bool = False,
    tensors_per_shard: int = 0,
) -> Path:
    """Write `model` to `path`, matrices in `quantisation`, or tensor by tensor as `types` (file name -> type) says.
    `metadata` adds or, with None, drops keys of the architecture; `tensors` likewise. `with_tokenizer` adds the
    byte-level one of tiny_gguf.py, for the model's vocabulary; `tensors_per_shard` splits the file."""
    keys = keys_of(model.config, architecture) | (metadata or {})
    writer = gguf.GGUFWriter(path, architecture, split_max_tensors=tensors_per_shard)
    for key, value in keys.items():
        add_value(writer, f"{architecture}.{key}", value)
    for name, value in tokenizer_metadata("gpt2", model.config.vocab_size).items() if with_tokenizer else ():
        add_value(writer, name, value)
    for name, values in (tensors_of(model, architecture) | (tensors or {})).items():
        if values is None:
            continue
        type_name = (types or {}).get(name, quantisation) if values.ndim > 1 else "F32"
        if type_name == "F32":
            writer.add_tensor(name, np.ascontiguousarray(values, dtype=np.float32))
        else:
            writer.add_tensor(name, store(values, type_name), raw_dtype=gguf.GGMLQuantizationType[type_name])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
