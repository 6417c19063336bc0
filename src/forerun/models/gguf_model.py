"""What a GGUF file of the llama kind says of its model: family, sizes, rotary positions. Both runtimes read it here.

What is not understood exactly is refused, never ignored.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from forerun.errors import FileFormatError, UnsupportedModelError
from forerun.models.gguf import GGUFFile

EMBEDDING, HEAD, FINAL_NORM = "token_embd.weight", "output.weight", "output_norm.weight"
ROPE_FACTORS = "rope_freqs.weight"
"""Divisors of the rotary frequencies [head_size / 2], where the converter worked a scaling out (llama3)."""


@dataclass(frozen=True, slots=True)
class Family:
    """How the files of one GGUF architecture differ. `interleaved`: within each head of queries and keys, the two
    coordinates that are rotated together are neighbours (elsewhere they are half a head apart). `qkv_bias`: queries,
    keys and values have biases. `qk_norm`: each head of queries and keys is normalised."""

    interleaved: bool = False
    qkv_bias: bool = False
    qk_norm: bool = False


FAMILIES = {"llama": Family(interleaved=True), "qwen2": Family(qkv_bias=True), "qwen3": Family(qk_norm=True)}


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary positions: angle i of position p is p * base ** (-2 i / head_size), scaled as `kind` says."""

    base: float
    kind: Literal["default", "linear", "yarn"] = "default"
    factor: float = 1.0
    original_context_length: int | None = None


@dataclass(frozen=True, slots=True)
class GGUFModel:
    """A model as its file describes it. `num_embeddings`: rows of the embedding; `is_tied`: it is the head too."""

    family: Family
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    num_embeddings: int
    context_length: int
    epsilon: float
    is_tied: bool
    rope: Rope


def is_known(file: GGUFFile) -> bool:
    """Whether `file` is of a family of this table (a mixture of experts is not)."""
    return file.architecture in FAMILIES and not file.metadata.get(f"{file.architecture}.expert_count")


def read_model(file: GGUFFile) -> GGUFModel:
    """The model that the metadata of a known family describes; FileFormatError, UnsupportedModelError."""
    arch = file.architecture
    if EMBEDDING not in file.tensors:
        raise FileFormatError(f"{file.path} has no token embedding", f"{EMBEDDING} is missing")
    num_layers, blocks = _number(file, "block_count"), {n.split(".")[1] for n in file.tensors if n.startswith("blk.")}
    if len(blocks) != num_layers:
        raise FileFormatError(f"{file.path} contradicts itself", f"block_count is {num_layers}, blocks: {len(blocks)}")
    embedding = file.tensors[EMBEDDING].shape
    if len(embedding) != 2:
        raise FileFormatError(f"tensor {EMBEDDING} of {file.path} has shape {list(embedding)}", "it is no matrix")
    num_embeddings, width = embedding
    hidden_size = _number(file, "embedding_length")
    if hidden_size != width:
        raise FileFormatError(f"{file.path} contradicts itself", f"embedding_length is not {width}")
    num_heads = _number(file, "attention.head_count")
    head_size = _number(file, "attention.key_length", hidden_size // num_heads)
    for key, what in (("attention.value_length", "values"), ("rope.dimension_count", "rotated part")):
        if _number(file, key, head_size) != head_size:
            raise unsupported(file, f"{arch}.{key}", f"its {what} are not as wide as its keys ({head_size})")
    if head_size % 2:
        raise unsupported(file, f"{arch}.attention.key_length", f"{head_size} coordinates cannot be rotated in pairs")
    num_kv_heads = _number(file, "attention.head_count_kv", num_heads)
    if num_heads % num_kv_heads:
        fact = f"{num_heads} query heads cannot share {num_kv_heads} key and value heads"
        raise FileFormatError(f"{file.path} contradicts itself", fact)
    if file.metadata.get(f"{arch}.attention.sliding_window"):
        raise unsupported(file, f"{arch}.attention.sliding_window", "windows are not read for this family")
    return GGUFModel(
        family=FAMILIES[arch],
        num_layers=num_layers,
        hidden_size=hidden_size,
        intermediate_size=_number(file, "feed_forward_length"),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_size=head_size,
        num_embeddings=num_embeddings,
        context_length=_number(file, "context_length"),
        epsilon=_real(file, "attention.layer_norm_rms_epsilon", 1e-6),
        is_tied=HEAD not in file.tensors,
        rope=_rope(file),
    )


def halves_apart(num_heads: int, head_size: int) -> np.ndarray:
    """Where each row of the halves-apart order is stored [num_heads * head_size]: in each head 0, 2, ..., 1, 3, ..."""
    pairs = np.arange(num_heads * head_size, dtype=np.uint32).reshape(num_heads, head_size // 2, 2)
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(-1)


def unsupported(file: GGUFFile, what: str, why: str, remedy: str = "") -> UnsupportedModelError:
    """The one way something in a file is turned down."""
    return UnsupportedModelError(f"{what} of {file.path} is not served", why, remedy)


def _rope(file: GGUFFile) -> Rope:
    """Rotary base and scaling; a kind that is not known is refused rather than ignored."""
    arch = file.architecture
    base = _real(file, "rope.freq_base", 10000.0)
    prefix = f"{arch}.rope.scaling."
    known = {"type", "factor", "original_context_length", "finetuned"}
    others = sorted(key for key in file.metadata if key.startswith(prefix) and key[len(prefix) :] not in known)
    if others or f"{arch}.rope.scale_linear" in file.metadata:
        raise unsupported(file, others[0] if others else f"{arch}.rope.scale_linear", "it is not understood")
    kind = file.metadata.get(f"{prefix}type", "none")
    if kind == "none":
        return Rope(base)
    factor = _real(file, "rope.scaling.factor", 1.0)
    if kind == "linear":
        return Rope(base, "linear", factor)
    if kind == "yarn":
        if base <= 1:
            raise FileFormatError(f"{file.path} has no valid {arch}.rope.freq_base", f"found {base!r}, with yarn")
        return Rope(base, "yarn", factor, _number(file, "rope.scaling.original_context_length"))
    raise unsupported(file, f"{prefix}type", f"the rotary scaling {kind!r} is not known")


def _number(file: GGUFFile, key: str, default: int | None = None) -> int:
    """A whole number of the architecture's metadata; a list of equal ones counts as one."""
    name = f"{file.architecture}.{key}"
    value = file.metadata.get(name, default)
    if isinstance(value, (list, tuple, np.ndarray)):
        if len(set(value)) != 1:
            raise unsupported(file, name, "it differs from layer to layer")
        value = value[0]
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
        raise FileFormatError(f"{file.path} has no valid {name}", f"found {value!r}")
    return int(value)


def _real(file: GGUFFile, key: str, default: float) -> float:
    name = f"{file.architecture}.{key}"
    value = file.metadata.get(name, default)
    if isinstance(value, bool) or not isinstance(value, (int, float, np.number)) or not 0 < value < np.inf:
        raise FileFormatError(f"{file.path} has no valid {name}", f"found {value!r}")
    return float(value)
