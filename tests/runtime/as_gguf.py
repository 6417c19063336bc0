"""Writes a tiny transformers model as a GGUF file, the way llama.cpp's converter lays it out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
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
OUTER = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}


def tensors_of(model: Any, architecture: str) -> dict[str, np.ndarray]:
    """GGUF tensors of a llama-like model; `llama` files interleave the halves of each rotated head."""
    config, found = model.config, {}
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        values = tensor.float().numpy()
        if name in OUTER:
            found[OUTER[name]] = values
            continue
        _, _, layer, rest = name.split(".", 3)
        part, suffix = rest.rsplit(".", 1)
        if architecture == "llama" and part in ("self_attn.q_proj", "self_attn.k_proj"):
            heads = config.num_attention_heads if part == "self_attn.q_proj" else config.num_key_value_heads
            halves = values.reshape(heads, 2, -1, *values.shape[1:])
            values = np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(values.shape)
        found[f"blk.{layer}.{LAYER[part]}.{suffix}"] = values
    return found


def write_gguf(
    path: Path,
    model: Any,
    architecture: str,
    quantisation: str = "F32",
    metadata: dict[str, Any] | None = None,
    tensors: dict[str, np.ndarray | None] | None = None,
    types: dict[str, str] | None = None,
) -> Path:
    """Write `model` to `path`, matrices in `quantisation`, or tensor by tensor as `types` (file name -> type) says.
    `metadata` adds or, with None, drops keys of the architecture; `tensors` likewise."""
    config = model.config
    keys: dict[str, Any] = {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "rope.freq_base": config.rope_parameters["rope_theta"],
        "vocab_size": config.vocab_size,
    }
    if architecture != "qwen2":
        keys["attention.key_length"] = config.head_dim
    keys |= metadata or {}
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in keys.items():
        name = f"{architecture}.{key}"
        if isinstance(value, bool) or value is None:
            continue
        if isinstance(value, int):
            writer.add_uint32(name, value)
        elif isinstance(value, float):
            writer.add_float32(name, value)
        elif isinstance(value, list):
            writer.add_array(name, value)
        else:
            writer.add_string(name, value)
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
