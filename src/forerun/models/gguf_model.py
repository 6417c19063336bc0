"""What a GGUF file says of its model: family, sizes, rotary positions. Both runtimes read it here.

FAMILIES says how the files of each architecture are to be read; where a key is missing, what llama.cpp assumes is
assumed. A key of the architecture that is not in KEYS or the family's own is refused unless it is off.
"""

from __future__ import annotations

import numpy as np

from forerun.errors import FileFormatError
from forerun.models.decoder_model import ANOTHER_FILE, DecoderModel, Names, contradiction, is_off, unsupported
from forerun.models.gguf import GGUFFile
from forerun.models.gguf_families import (
    FAMILIES,
    FILE_MATRICES,
    FILE_VECTORS,
    KEYS,
    LOGIT_CAP,
    PATTERN,
    TEMPERATURE,
    TEMPERED_FROM,
    WINDOW,
    Family,
)
from forerun.models.gguf_rope import read_ropes
from forerun.models.gguf_values import number, real

EMBEDDING, HEAD, FINAL_NORM = "token_embd.weight", "output.weight", "output_norm.weight"


def is_known(file: GGUFFile) -> bool:
    """Whether `file` is of a family of this table (a mixture of experts is not)."""
    return file.architecture in FAMILIES and not file.metadata.get(f"{file.architecture}.expert_count")


def read_model(file: GGUFFile) -> DecoderModel:
    """The model that the metadata of a known family describes; FileFormatError, UnsupportedModelError."""
    arch = file.architecture
    family = FAMILIES[arch]
    _refuse_unknown(file, family)
    num_layers = number(file, "block_count")
    num_embeddings, hidden_size = _embedding(file, num_layers)
    num_heads = number(file, "attention.head_count")
    head_size = number(file, "attention.key_length", hidden_size // num_heads)
    if number(file, "attention.value_length", head_size) != head_size:
        raise unsupported(
            file, f"{arch}.attention.value_length", f"its values are not as wide as its keys ({head_size})"
        )
    num_rotated = number(file, "rope.dimension_count", head_size)
    if num_rotated % 2:
        key = "attention.key_length" if num_rotated == head_size else "rope.dimension_count"
        raise unsupported(file, f"{arch}.{key}", f"{num_rotated} coordinates cannot be rotated in pairs")
    if num_rotated > head_size or (family.interleaved and num_rotated < head_size):
        raise unsupported(
            file, f"{arch}.rope.dimension_count", f"its rotated part is not as wide as its keys ({head_size})"
        )
    num_kv_heads = number(file, "attention.head_count_kv", num_heads)
    if num_heads % num_kv_heads:
        fact = f"{num_heads} query heads cannot share {num_kv_heads} key and value heads"
        raise contradiction(file, fact)
    windows = _windows(file, family, num_layers)
    ropes, layer_ropes = read_ropes(file, family, num_rotated, windows)
    embedding_scale = float(np.sqrt(hidden_size)) if family.scales_embedding else real(file, "embedding_scale", 1.0)
    by_width = num_layers == family.scale_by_width
    attention_scale = real(
        file, "attention.scale", (max(hidden_size // num_heads, 1) if by_width else head_size) ** -0.5
    )
    cap, logit_cap = family.softcaps
    tempered = not is_off(file.metadata.get(f"{arch}.{TEMPERATURE}"))
    return DecoderModel(
        family=arch,
        names=_names(file, family),
        num_layers=num_layers,
        hidden_size=hidden_size,
        intermediate_size=number(file, "feed_forward_length"),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_size=head_size,
        num_embeddings=num_embeddings,
        context_length=number(file, "context_length"),
        epsilon=real(file, "attention.layer_norm_rms_epsilon", 1e-6),
        is_tied=HEAD not in file.tensors,
        ropes=ropes,
        layer_ropes=layer_ropes,
        layer_windows=windows,
        attention_scale=attention_scale,
        biases=family.biases | _biases(file),
        norms=family.norms,
        head_norms=family.head_norms,
        interleaved=family.interleaved,
        activation=family.activation,
        embedding_scale=embedding_scale,
        residual_scale=real(file, "residual_scale", 1.0),
        logit_scale=1.0 / real(file, "logit_scale", 1.0),
        attention_softcap=real(file, "attn_logit_softcapping", cap, may_be_off=True),
        logit_softcap=real(file, LOGIT_CAP, logit_cap, may_be_off=True),
        longest_exact=number(file, TEMPERED_FROM, ropes[0].original_context_length) if tempered else 0,
        beyond=f"attention changes its temperature with the position ({arch}.{TEMPERATURE})" if tempered else "",
    )


def _refuse_unknown(file: GGUFFile, family: Family) -> None:
    """Refuse keys of the architecture that might mean something."""
    arch = file.architecture
    for key in file.metadata:
        if not key.startswith(f"{arch}."):
            continue  # without a look at the value, which may be the vocabulary
        name, value = key[len(arch) + 1 :], file.metadata[key]
        if name == "attention.causal":
            if value is not True:
                raise unsupported(file, key, "tokens that see what follows them are not")
        elif name not in KEYS and name not in family.keys and not is_off(value):
            raise unsupported(file, key, "it is not understood for this architecture")


def _embedding(file: GGUFFile, num_layers: int) -> tuple[int, int]:
    """(rows, width) of the embedding, after a look at the number of blocks."""
    if EMBEDDING not in file.tensors:
        raise FileFormatError(f"{file.path} has no token embedding", f"{EMBEDDING} is missing", ANOTHER_FILE)
    blocks = {name.split(".")[1] for name in file.tensors if name.startswith("blk.")}
    if len(blocks) != num_layers:
        raise contradiction(file, f"block_count is {num_layers}, blocks: {len(blocks)}")
    shape = file.tensors[EMBEDDING].shape
    if len(shape) != 2:
        raise FileFormatError(
            f"tensor {EMBEDDING} of {file.path} has shape {list(shape)}", "it is no matrix", ANOTHER_FILE
        )
    if number(file, "embedding_length") != shape[1]:
        raise contradiction(file, f"embedding_length is not {shape[1]}")
    return shape


def _names(file: GGUFFile, family: Family) -> Names:
    """Queries, keys and values may be one tensor in any family."""
    parts = {**FILE_MATRICES, **FILE_VECTORS}
    if "blk.0.attn_qkv.weight" in file.tensors:
        parts = {"attn_qkv": ("q", "k", "v")} | {k: v for k, v in parts.items() if v[0] not in ("q", "k", "v")}
    if family.fused_ffn:
        parts = {"ffn_up": ("gate", "up")} | {k: v for k, v in parts.items() if v[0] not in ("gate", "up")}
    return Names(EMBEDDING, HEAD, FINAL_NORM, "blk.{}.", parts)


def _biases(file: GGUFFile) -> frozenset[str]:
    """Which matrices have a bias, by the first layer's."""
    stored = {**FILE_MATRICES, "attn_qkv": ("q", "k", "v")}
    return frozenset(name for part, names in stored.items() if f"blk.0.{part}.bias" in file.tensors for name in names)


def _windows(file: GGUFFile, family: Family, num_layers: int) -> tuple[int, ...]:
    """How many tokens the tokens of each layer see, 0 for all."""
    window = file.metadata.get(f"{file.architecture}.{WINDOW}", family.window)
    if family.windows == "none" or is_off(window):
        return (0,) * num_layers
    window = number(file, WINDOW, family.window)
    if family.windows == "all":
        return (window,) * num_layers
    pattern = file.metadata.get(f"{file.architecture}.{PATTERN}", family.period)
    if isinstance(pattern, list):
        if len(pattern) != num_layers or not all(isinstance(is_local, (bool, int)) for is_local in pattern):
            fact = f"{file.path} has no valid {file.architecture}.{PATTERN}"
            raise FileFormatError(fact, f"a truth value is needed for each of {num_layers} layers", ANOTHER_FILE)
        return tuple(window if is_local else 0 for is_local in pattern)
    period = number(file, PATTERN, family.period)
    return tuple(window if layer % period < period - 1 else 0 for layer in range(num_layers))
