"""GGUF files of the llama kind straight into a transformers model: our own small table, no float32 copy of the file.

transformers can read GGUF too, but builds a tokenizer nobody asked for, holds every tensor as float32, and does not
look at rotary scaling. Here each tensor is dequantised in slices and converted at once, so memory peaks near the
model's final size.

Rotary layout: llama.cpp stores the query and key projections of `llama` files with the two halves of each head
interleaved; transformers wants them one after the other. Rows are quantised one by one, so whole rows are moved
before anything is decoded.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from math import prod
from typing import Any

import numpy as np
import torch

from forerun.errors import FileFormatError, UnsupportedModelError
from forerun.models.decoder_model import DecoderModel, Rope, halves_apart, unsupported
from forerun.models.gguf import GGUFFile
from forerun.models.gguf_families import FAMILIES
from forerun.models.gguf_model import is_known, read_model
from forerun.models.gguf_rope import LONG_FACTORS, ROPE_FACTORS

READ = ("llama", "qwen2", "qwen3")
"""Architectures that are read here; others go through transformers."""
SLICE = 1 << 18
"""Elements decoded at a time: their temporaries stay in a core's cache."""


_SCALINGS = ("attn_factor", "yarn_log_multiplier", "yarn_beta_fast", "yarn_beta_slow")
_OUTER = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def is_read(file: GGUFFile) -> bool:
    """Whether `file` is of an architecture that is read here."""
    return file.architecture in READ and is_known(file)


def config_of(file: GGUFFile) -> Any:
    """The transformers configuration that the metadata describes."""
    from transformers import AutoConfig

    model, arch = read_model(file), file.architecture
    _refuse_what_is_not_read(file, model)
    settings: dict[str, Any] = {
        "vocab_size": model.num_embeddings,
        "hidden_size": model.hidden_size,
        "intermediate_size": model.intermediate_size,
        "num_hidden_layers": model.num_layers,
        "num_attention_heads": model.num_heads,
        "num_key_value_heads": model.num_kv_heads,
        "head_dim": model.head_size,
        "max_position_embeddings": model.context_length,
        "rms_norm_eps": model.epsilon,
        "tie_word_embeddings": model.is_tied,
        "rope_parameters": _rope(model.ropes[0]),
        "hidden_act": "silu",
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
    }
    if arch != "qwen2":
        settings["attention_bias"] = "blk.0.attn_q.bias" in file.tensors
        if arch == "llama":
            settings["mlp_bias"] = "blk.0.ffn_gate.bias" in file.tensors
    return AutoConfig.for_model(arch, **settings)


def _refuse_what_is_not_read(file: GGUFFile, model: DecoderModel) -> None:
    """What the native runtime serves in these architectures, and this reader has no words for."""
    rope, arch = model.ropes[0], file.architecture
    odd = [
        (f"{arch}.attention.sliding_window", any(model.layer_windows)),
        (f"{arch}.rope.dimension_count", rope.num_rotated != model.head_size),
        (LONG_FACTORS, rope.kind == "longrope"),
        ("blk.0.attn_qkv.weight", "attn_qkv" in model.names.parts),
        *((f"{arch}.rope.scaling.{key}", f"{arch}.rope.scaling.{key}" in file.metadata) for key in _SCALINGS),
    ]
    found = next((what for what, is_there in odd if is_there), None)
    if found is not None:
        raise unsupported(file, found, "not by the torch runtime's own reader", "use the native runtime")


def _rope(rope: Rope) -> dict[str, Any]:
    """Rotary base and scaling, as transformers names them."""
    settings: dict[str, Any] = {"rope_type": rope.kind, "rope_theta": rope.base}
    if rope.kind != "default":
        settings["factor"] = rope.factor
    if rope.kind == "yarn":
        settings["original_max_position_embeddings"] = rope.original_context_length
    return settings


def fill(model: Any, file: GGUFFile, dtype: torch.dtype, advance: Callable[[int], None]) -> None:
    """Give a model built on the meta device its weights, on the CPU in `dtype`. `advance` hears of bytes read."""
    wanted = dict(model.named_parameters())
    names = dict(_names(file))
    if model.config.tie_word_embeddings:
        wanted.pop("lm_head.weight", None)
    missing = sorted(set(wanted) - set(names.values()))
    if missing:
        raise FileFormatError(f"{file.path} lacks {len(missing)} tensors", f"the first is {missing[0]}")
    surplus = sorted(name for name, target in names.items() if target not in wanted)
    if surplus:
        raise unsupported(file, surplus[0], "no part of the model takes this tensor")
    for name, target in names.items():
        if tuple(wanted[target].shape) != file.tensors[name].shape:
            raise FileFormatError(
                f"tensor {name} of {file.path} has shape {list(file.tensors[name].shape)}",
                f"its metadata says {list(wanted[target].shape)}",
            )

    def read(name: str) -> tuple[str, torch.Tensor]:
        tensor = _decode(file, name, model.config, dtype)
        return names[name], tensor

    with ThreadPoolExecutor(max(1, min(8, os.cpu_count() or 1))) as pool:
        for name, (target, tensor) in zip(names, pool.map(read, names), strict=True):
            parent, _, attribute = target.rpartition(".")
            setattr(model.get_submodule(parent), attribute, torch.nn.Parameter(tensor, requires_grad=False))
            advance(file.tensors[name].num_bytes)
    if model.config.tie_word_embeddings:
        model.lm_head.weight = model.model.embed_tokens.weight
    _restore_rotary(model, file)


def _names(file: GGUFFile) -> Iterator[tuple[str, str]]:
    """(GGUF name, transformers name) of every tensor but the rotary factors."""
    for name in file.tensors:
        if name in _OUTER:
            yield name, _OUTER[name]
        elif name != ROPE_FACTORS:
            parts = name.split(".")
            if len(parts) != 4 or parts[0] != "blk" or parts[2] not in _LAYER:
                raise unsupported(file, name, "this tensor is not known")
            yield name, f"model.layers.{parts[1]}.{_LAYER[parts[2]]}.{parts[3]}"


def _decode(file: GGUFFile, name: str, config: Any, dtype: torch.dtype) -> torch.Tensor:
    """One tensor in `dtype`, decoded slice by slice."""
    from gguf import GGMLQuantizationType
    from gguf.quants import dequantize

    info = file.tensors[name]
    kind = name.split(".")[2] if name.startswith("blk.") else ""
    num_rows, width = info.num_rows, info.row_bytes
    whole = None
    if FAMILIES[file.architecture].interleaved and kind in ("attn_q", "attn_k"):
        heads = config.num_attention_heads if kind == "attn_q" else config.num_key_value_heads
        raw = file.raw(name).reshape(info.shape[0], -1)
        whole = raw[halves_apart(heads, len(raw) // heads)].reshape(num_rows, width)
    result = torch.empty((num_rows, prod(info.shape) // num_rows), dtype=dtype)
    step = max(1, SLICE // result.shape[1])
    for start in range(0, num_rows, step):
        end = min(start + step, num_rows)
        piece = file.raw(name, start, end) if whole is None else whole[start:end]
        try:
            values = dequantize(piece.reshape(end - start, width), GGMLQuantizationType[info.type_name])
        except NotImplementedError:
            remedy = "use a Q4_K_M, Q5_K_M, Q6_K, Q8_0, F16 or BF16 file of the same model"
            raise UnsupportedModelError(f"{info.type_name} cannot be decoded", f"tensor {name}", remedy) from None
        result[start:end] = torch.from_numpy(np.require(values, np.float32, "W")).view(end - start, -1)
    return result.view(info.shape)


def _restore_rotary(model: Any, file: GGUFFile) -> None:
    """Buffers that are computed, not stored, were built on meta: compute them again, with the file's own factors."""
    rotary = type(model.model.rotary_emb)(config=model.config)
    if ROPE_FACTORS in file.tensors:
        factors = torch.from_numpy(file.dequantise(ROPE_FACTORS))
        if factors.shape != rotary.inv_freq.shape:
            raise FileFormatError(
                f"{file.path} has {len(factors)} rotary factors", f"{len(rotary.inv_freq)} are needed"
            )
        rotary.inv_freq = rotary.inv_freq / factors
        if hasattr(rotary, "original_inv_freq"):
            rotary.original_inv_freq = rotary.inv_freq.clone()
    model.model.rotary_emb = rotary
