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
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from forerun.errors import FileFormatError, UnsupportedModelError
from forerun.models.gguf import GGUFFile

SLICE = 1 << 18
"""Elements decoded at a time: their temporaries stay in a core's cache."""


@dataclass(frozen=True, slots=True)
class Family:
    """How one GGUF architecture becomes a transformers model. `interleaved`: queries and keys are stored so."""

    model_type: str
    interleaved: bool = False
    qkv_bias: bool = False


FAMILIES = {
    "llama": Family("llama", interleaved=True),
    "qwen2": Family("qwen2", qkv_bias=True),
    "qwen3": Family("qwen3"),
}

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
_ROPE_FREQS = "rope_freqs.weight"


def ours(file: GGUFFile) -> bool:
    """Whether `file` is of a family of this table (a mixture of experts is not)."""
    return file.architecture in FAMILIES and not file.metadata.get(f"{file.architecture}.expert_count")


def config_of(file: GGUFFile) -> Any:
    """The transformers configuration that the metadata describes."""
    from transformers import AutoConfig

    arch = file.architecture
    family = FAMILIES[arch]
    if "token_embd.weight" not in file.tensors:
        raise FileFormatError(f"{file.path} has no token embedding", "token_embd.weight is missing")
    num_layers, blocks = _number(file, "block_count"), {n.split(".")[1] for n in file.tensors if n.startswith("blk.")}
    if len(blocks) != num_layers:
        raise FileFormatError(f"{file.path} contradicts itself", f"block_count is {num_layers}, blocks: {len(blocks)}")
    vocab_size, hidden_size = file.tensors["token_embd.weight"].shape
    num_heads = _number(file, "attention.head_count")
    head_size = _number(file, "attention.key_length", hidden_size // max(num_heads, 1))
    for key, what in (("attention.value_length", "values"), ("rope.dimension_count", "rotated part")):
        if _number(file, key, head_size) != head_size:
            raise _unsupported(file, f"{arch}.{key}", f"its {what} are not as wide as its keys ({head_size})")
    settings: dict[str, Any] = {
        "vocab_size": vocab_size,
        "hidden_size": _number(file, "embedding_length"),
        "intermediate_size": _number(file, "feed_forward_length"),
        "num_hidden_layers": num_layers,
        "num_attention_heads": num_heads,
        "num_key_value_heads": _number(file, "attention.head_count_kv", num_heads),
        "head_dim": head_size,
        "max_position_embeddings": _number(file, "context_length"),
        "rms_norm_eps": _real(file, "attention.layer_norm_rms_epsilon", 1e-6),
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "rope_parameters": _rope(file),
        "hidden_act": "silu",
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
    }
    if settings["hidden_size"] != hidden_size:
        raise FileFormatError(f"{file.path} contradicts itself", f"embedding_length is not {hidden_size}")
    if not family.qkv_bias:
        settings["attention_bias"] = "blk.0.attn_q.bias" in file.tensors
        if arch == "llama":
            settings["mlp_bias"] = "blk.0.ffn_gate.bias" in file.tensors
    if file.metadata.get(f"{arch}.attention.sliding_window"):
        raise _unsupported(file, f"{arch}.attention.sliding_window", "windows are not read for this family")
    return AutoConfig.for_model(family.model_type, **settings)


def _rope(file: GGUFFile) -> dict[str, Any]:
    """Rotary base and scaling; a kind that is not known is refused rather than ignored."""
    arch = file.architecture
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": _real(file, "rope.freq_base", 10000.0)}
    kind = file.metadata.get(f"{arch}.rope.scaling.type", "none")
    if kind in ("linear", "yarn"):
        rope |= {"rope_type": kind, "factor": _real(file, "rope.scaling.factor", 1.0)}
        if kind == "yarn":
            rope["original_max_position_embeddings"] = _number(file, "rope.scaling.original_context_length")
    elif kind != "none":
        raise _unsupported(file, f"{arch}.rope.scaling.type", f"the rotary scaling {kind!r} is not known")
    known = {"type", "factor", "original_context_length", "finetuned"}
    prefix = f"{arch}.rope.scaling."
    others = sorted(key for key in file.metadata if key.startswith(prefix) and key[len(prefix) :] not in known)
    if others or f"{arch}.rope.scale_linear" in file.metadata:
        raise _unsupported(file, others[0] if others else f"{arch}.rope.scale_linear", "it is not understood")
    return rope


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
        raise _unsupported(file, surplus[0], "no part of the model takes this tensor")
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
        elif name != _ROPE_FREQS:
            parts = name.split(".")
            if len(parts) != 4 or parts[0] != "blk" or parts[2] not in _LAYER:
                raise _unsupported(file, name, "this tensor is not known")
            yield name, f"model.layers.{parts[1]}.{_LAYER[parts[2]]}.{parts[3]}"


def _decode(file: GGUFFile, name: str, config: Any, dtype: torch.dtype) -> torch.Tensor:
    """One tensor in `dtype`, decoded slice by slice."""
    from gguf import GGMLQuantizationType
    from gguf.quants import dequantize

    info = file.tensors[name]
    raw = file.raw(name)
    kind = name.split(".")[2] if name.startswith("blk.") else ""
    if FAMILIES[file.architecture].interleaved and kind in ("attn_q", "attn_k"):
        heads = config.num_attention_heads if kind == "attn_q" else config.num_key_value_heads
        raw = _halves_apart(raw.reshape(info.shape[0], -1), heads)
    rows = raw.reshape(-1, raw.shape[-1]) if len(info.shape) > 1 else raw.reshape(1, -1)
    result = torch.empty((len(rows), info.shape[-1] if len(info.shape) > 1 else info.shape[0]), dtype=dtype)
    step = max(1, SLICE // result.shape[1])
    for start in range(0, len(rows), step):
        piece = np.ascontiguousarray(rows[start : start + step])
        try:
            values = dequantize(piece, GGMLQuantizationType[info.type_name])
        except NotImplementedError:
            remedy = "use a Q4_K_M, Q5_K_M, Q6_K, Q8_0, F16 or BF16 file of the same model"
            raise UnsupportedModelError(f"{info.type_name} cannot be decoded", f"tensor {name}", remedy) from None
        result[start : start + step] = torch.from_numpy(np.require(values, np.float32, "W"))
    return result.view(info.shape)


def _halves_apart(rows: np.ndarray, num_heads: int) -> np.ndarray:
    """Rows [heads * size, ...]: within each head 0, 1, 2, 3, ... becomes 0, 2, ..., 1, 3, ..."""
    if rows.shape[0] % (2 * num_heads):
        return rows  # the shape check reports it
    pairs = rows.reshape(num_heads, -1, 2, rows.shape[-1])
    apart: np.ndarray = pairs.swapaxes(1, 2).reshape(rows.shape)
    return apart


def _restore_rotary(model: Any, file: GGUFFile) -> None:
    """Buffers that are computed, not stored, were built on meta: compute them again, with the file's own factors."""
    rotary = type(model.model.rotary_emb)(config=model.config)
    if _ROPE_FREQS in file.tensors:
        factors = torch.from_numpy(file.dequantise(_ROPE_FREQS))
        if factors.shape != rotary.inv_freq.shape:
            raise FileFormatError(
                f"{file.path} has {len(factors)} rotary factors", f"{len(rotary.inv_freq)} are needed"
            )
        rotary.inv_freq = rotary.inv_freq / factors
        if hasattr(rotary, "original_inv_freq"):
            rotary.original_inv_freq = rotary.inv_freq.clone()
    model.model.rotary_emb = rotary


def _number(file: GGUFFile, key: str, default: int | None = None) -> int:
    """A whole number of the architecture's metadata; a list of equal ones counts as one."""
    name = f"{file.architecture}.{key}"
    value = file.metadata.get(name, default)
    if isinstance(value, (list, tuple, np.ndarray)):
        if len(set(value)) != 1:
            raise _unsupported(file, name, "it differs from layer to layer")
        value = value[0]
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
        raise FileFormatError(f"{file.path} has no valid {name}", f"found {value!r}")
    return int(value)


def _real(file: GGUFFile, key: str, default: float) -> float:
    name = f"{file.architecture}.{key}"
    value = file.metadata.get(name, default)
    if isinstance(value, bool) or not isinstance(value, (int, float, np.number)) or not value > 0:
        raise FileFormatError(f"{file.path} has no valid {name}", f"found {value!r}")
    return float(value)


def _unsupported(file: GGUFFile, key: str, why: str) -> UnsupportedModelError:
    return UnsupportedModelError(f"{key} of {file.path} is not served", why)
