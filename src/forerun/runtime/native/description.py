"""What a GGUF file becomes in the native decoder, as data: sizes, rotary frequencies, and a place for every tensor."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from forerun.errors import FileFormatError
from forerun.models.gguf import GGUFFile
from forerun.models.gguf_model import (
    EMBEDDING,
    FAMILIES,
    FINAL_NORM,
    HEAD,
    ROPE_FACTORS,
    GGUFModel,
    Rope,
    halves_apart,
    is_known,
    read_model,
    unsupported,
)

SERVED_TYPES = (
    *("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"),
    *("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS", "MXFP4"),
)
"""Types that weights may be stored in: what csrc/weights/stored.cpp reads."""

SERVED = f"served: GGUF files of {', '.join(FAMILIES)} with weights in {', '.join(SERVED_TYPES)}"

_MATRICES = {
    "attn_q": "q", "attn_k": "k", "attn_v": "v", "attn_output": "o", "ffn_gate": "gate", "ffn_up": "up",
    "ffn_down": "down",
}  # fmt: skip
_NORMS = {"attn_norm": "attention_norm", "ffn_norm": "ffn_norm"}
_HEAD_NORMS = {"attn_q_norm": "q_norm", "attn_k_norm": "k_norm"}


@dataclass(frozen=True, slots=True)
class Placed:
    """A tensor's name in the decoder, its shape, and for rows that must change places the stored row of each."""

    name: str
    shape: tuple[int, ...]
    order: np.ndarray | None = None


@dataclass(frozen=True, slots=True)
class Description:
    """A file as the decoder takes it. `tensors`: file name -> its place; `rope_frequencies` [head_size / 2] radians a
    position, float64; `rope_scale` multiplies rotated queries and keys."""

    model: GGUFModel
    tensors: Mapping[str, Placed]
    rope_frequencies: np.ndarray
    rope_scale: float

    def fields(self, vocabulary_size: int, context_length: int) -> dict[str, Any]:
        """The decoder's own description, with `vocabulary_size` rows of the output head."""
        model = self.model
        return {
            "num_layers": model.num_layers,
            "hidden_size": model.hidden_size,
            "intermediate_size": model.intermediate_size,
            "num_heads": model.num_heads,
            "num_kv_heads": model.num_kv_heads,
            "head_size": model.head_size,
            "num_embeddings": model.num_embeddings,
            "vocabulary_size": vocabulary_size,
            "context_length": context_length,
            "epsilon": model.epsilon,
            "attention_scale": model.head_size**-0.5,
            "rope_scale": self.rope_scale,
            "rope_frequencies": self.rope_frequencies,
        }


def describe(file: GGUFFile) -> Description:
    """Everything about `file` but its weights; what is not served or does not fit together is refused here."""
    if not is_known(file):
        raise unsupported(file, f"the architecture {file.architecture!r}", "not by the native runtime", SERVED)
    model = read_model(file)
    tensors = _places(file, model)
    for name, place in tensors.items():
        info = file.tensors[name]
        if info.shape != place.shape:
            raise FileFormatError(
                f"tensor {name} of {file.path} has shape {list(info.shape)}",
                f"its metadata says {list(place.shape)}",
            )
        if info.type_name not in SERVED_TYPES:
            raise unsupported(file, f"tensor {name}", f"it is stored as {info.type_name}", SERVED)
    factors = None
    if ROPE_FACTORS in file.tensors:
        factors = file.dequantise(ROPE_FACTORS).astype(np.float64)
        if factors.shape != (model.head_size // 2,):
            raise FileFormatError(
                f"{file.path} has {factors.size} rotary factors", f"{model.head_size // 2} are needed"
            )
    frequencies, scale = rotary_frequencies(model.rope, model.head_size, factors)
    return Description(model, tensors, frequencies, scale)


def rotary_frequencies(rope: Rope, head_size: int, factors: np.ndarray | None = None) -> tuple[np.ndarray, float]:
    """(radians a position [head_size / 2] float64, what rotated queries and keys are multiplied by), by the formulas of
    transformers: linear divides, yarn (arXiv 2309.00071, section 3.2 to 3.4) blends by wavelength; `factors` divide."""
    frequencies = rope.base ** (-np.arange(0, head_size, 2) / head_size)
    scale = 1.0
    if rope.kind == "linear":
        frequencies = frequencies / rope.factor
    elif rope.kind == "yarn":
        kept = 1.0 - _yarn_ramp(rope, head_size)
        frequencies = frequencies * (kept + (1.0 - kept) / rope.factor)
        scale = 1.0 + 0.1 * math.log(max(rope.factor, 1.0))
    return (frequencies if factors is None else frequencies / factors), scale


def _yarn_ramp(rope: Rope, head_size: int) -> np.ndarray:
    """How far each frequency is interpolated, 0 to 1 [head_size / 2]: not at all where it turns 32 times and more
    within the original context, wholly where it turns once or less."""

    def place(turns: float) -> float:
        length = rope.original_context_length or 1
        return head_size * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(rope.base))

    low, high = max(math.floor(place(32.0)), 0), min(math.ceil(place(1.0)), head_size - 1)
    ramp = (np.arange(head_size // 2) - low) / (high - low if high != low else 1e-3)
    clipped: np.ndarray = ramp.clip(0.0, 1.0)
    return clipped


def _places(file: GGUFFile, model: GGUFModel) -> dict[str, Placed]:
    """The place of every tensor of the file, in the file's order; a missing or surplus one is refused."""
    wanted = {
        EMBEDDING: Placed("embedding", (model.num_embeddings, model.hidden_size)),
        FINAL_NORM: Placed("norm", (model.hidden_size,)),
    }
    if not model.is_tied:
        wanted[HEAD] = Placed("head", (model.num_embeddings, model.hidden_size))
    biased = {part for part in _MATRICES if f"blk.0.{part}.bias" in file.tensors}
    if model.family.qkv_bias:
        biased |= {"attn_q", "attn_k", "attn_v"}
    for layer in range(model.num_layers):
        wanted |= _layer(model, layer, biased)
    missing = sorted(set(wanted) - set(file.tensors))
    if missing:
        raise FileFormatError(f"{file.path} lacks {len(missing)} tensors", f"the first is {missing[0]}")
    surplus = sorted(set(file.tensors) - set(wanted) - {ROPE_FACTORS})
    if surplus:
        raise unsupported(file, surplus[0], "no part of the model takes this tensor")
    return {name: wanted[name] for name in file.tensors if name in wanted}


def _layer(model: GGUFModel, layer: int, biased: set[str]) -> dict[str, Placed]:
    hidden, inner = model.hidden_size, model.intermediate_size
    queries, values = model.num_heads * model.head_size, model.num_kv_heads * model.head_size
    shapes = {
        "attn_q": (queries, hidden), "attn_k": (values, hidden), "attn_v": (values, hidden),
        "attn_output": (hidden, queries), "ffn_gate": (inner, hidden), "ffn_up": (inner, hidden),
        "ffn_down": (hidden, inner),
    }  # fmt: skip
    orders: dict[str, np.ndarray] = {}
    if model.family.interleaved:
        orders["attn_q"] = halves_apart(model.num_heads, model.head_size)
        orders["attn_k"] = halves_apart(model.num_kv_heads, model.head_size)
    places: dict[str, Placed] = {}
    for part, name in _MATRICES.items():
        order = orders.get(part)
        places[f"blk.{layer}.{part}.weight"] = Placed(f"layers.{layer}.{name}", shapes[part], order)
        if part in biased:
            places[f"blk.{layer}.{part}.bias"] = Placed(f"layers.{layer}.{name}_bias", shapes[part][:1], order)
    norms = {part: (name, hidden) for part, name in _NORMS.items()}
    if model.family.qk_norm:
        norms |= {part: (name, model.head_size) for part, name in _HEAD_NORMS.items()}
    for part, (name, size) in norms.items():
        places[f"blk.{layer}.{part}.weight"] = Placed(f"layers.{layer}.{name}", (size,))
    return places
