"""What a model's files become in the native decoder, as data: sizes, rotary positions, and a place for every tensor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from forerun.errors import FileFormatError
from forerun.models.decoder_model import ANOTHER_FILE, DecoderModel, check_sizes, halves_apart, unsupported
from forerun.models.gguf import GGUFFile
from forerun.models.gguf_families import FAMILIES
from forerun.models.gguf_model import is_known, read_model
from forerun.models.gguf_rope import FACTORS
from forerun.models.transformers_files import TransformersFiles
from forerun.models.transformers_model import SERVED as SERVED_DIRECTORIES
from forerun.models.transformers_model import read_config
from forerun.runtime.native.rotary import rotary_frequencies

FLOAT_TYPES = ("F32", "F16", "BF16")
SERVED_TYPES = (
    *(*FLOAT_TYPES, "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"),
    *("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS", "MXFP4"),
)
"""Types that weights may be stored in: what csrc/weights/stored.cpp reads."""

SERVED = f"served: GGUF files of {', '.join(FAMILIES)} with weights in {', '.join(SERVED_TYPES)}"


@dataclass(frozen=True, slots=True)
class Placed:
    """A part of a stored tensor: its name in the decoder, its shape, and the stored row of each of its rows [shape[0]]
    uint32, unless they are the first ones in their order."""

    name: str
    shape: tuple[int, ...]
    order: np.ndarray | None = None

    @property
    def is_matrix(self) -> bool:
        """Whether it is no vector."""
        return len(self.shape) == 2


@dataclass(frozen=True, slots=True)
class Description:
    """Files as the decoder takes them. `tensors`: stored name -> the places of its parts, one after the other."""

    model: DecoderModel
    tensors: Mapping[str, tuple[Placed, ...]]

    def fields(self, vocabulary_size: int, context_length: int) -> dict[str, Any]:
        """The decoder's own description, with `vocabulary_size` rows of the output head."""
        model = self.model
        same = (
            "num_layers", "hidden_size", "intermediate_size", "num_heads", "num_kv_heads", "head_size",
            "num_embeddings", "epsilon", "attention_scale", "activation", "embedding_scale", "residual_scale",
            "logit_scale", "attention_softcap", "logit_softcap",
        )  # fmt: skip
        return {
            **{name: getattr(model, name) for name in same},
            "vocabulary_size": vocabulary_size,
            "context_length": context_length,
            "rotaries": [(rotary_frequencies(rope, context_length), rope.scale) for rope in model.ropes],
            "layer_rotaries": list(model.layer_ropes),
            "layer_windows": list(model.layer_windows),
        }


def describe(files: GGUFFile | TransformersFiles) -> Description:
    """Everything about a model but its weights. UnsupportedModelError names what is not served, FileFormatError what
    does not fit together."""
    if isinstance(files, TransformersFiles):
        model, ignored = read_config(files), frozenset[str]()
    else:
        if not is_known(files):
            raise unsupported(files, f"the architecture {files.architecture!r}", "not by the native runtime", SERVED)
        model, ignored = read_model(files), FACTORS
    check_sizes(files, model)
    tensors = _places(files, model, ignored)
    for name, parts in tensors.items():
        info = files.tensors[name]
        wanted = (sum(part.shape[0] for part in parts), *parts[0].shape[1:])
        if info.shape != wanted:
            fact = f"tensor {name} of {files.path} has shape {list(info.shape)}"
            raise FileFormatError(fact, f"its metadata says {list(wanted)}", ANOTHER_FILE)
        served = FLOAT_TYPES if isinstance(files, TransformersFiles) else SERVED_TYPES
        if info.type_name not in served:
            remedy = SERVED if served is SERVED_TYPES else f"{SERVED_DIRECTORIES}, in {', '.join(FLOAT_TYPES)}"
            raise unsupported(files, f"tensor {name}", f"it is stored as {info.type_name}", remedy)
    return Description(model, tensors)


def _places(
    files: GGUFFile | TransformersFiles, model: DecoderModel, ignored: frozenset[str]
) -> dict[str, tuple[Placed, ...]]:
    """The place of every tensor, in the files' order; a missing or surplus one is refused."""
    names, width = model.names, model.hidden_size
    wanted: dict[str, tuple[Placed, ...]] = {
        names.embedding: (Placed("embedding", (model.num_embeddings, width)),),
        names.norm: (Placed("norm", (width,)),),
    }
    if not model.is_tied:
        wanted[names.head] = (Placed("head", (model.num_embeddings, width)),)
    for layer in range(model.num_layers):
        wanted |= _layer(model, layer)
    missing = sorted(set(wanted) - set(files.tensors))
    if missing:
        fact = f"{files.path} lacks {len(missing)} tensors"
        raise FileFormatError(fact, f"the first is {missing[0]}", ANOTHER_FILE)
    surplus = sorted(set(files.tensors) - set(wanted) - ignored)
    if surplus:
        raise unsupported(files, f"tensor {surplus[0]}", "no part of the model takes it")
    return {name: wanted[name] for name in files.tensors if name in wanted}


def _layer(model: DecoderModel, layer: int) -> dict[str, tuple[Placed, ...]]:
    """The tensors of one layer."""
    shapes = dict(model.shapes())
    orders = {}
    if model.interleaved:
        for name, num_heads in (("q", model.num_heads), ("k", model.num_kv_heads)):
            orders[name] = orders[f"{name}_bias"] = halves_apart(num_heads, model.head_size)
    found: dict[str, tuple[Placed, ...]] = {}
    for part, names in model.names.parts.items():
        for suffix, ending in (("", ".weight"), ("_bias", ".bias")):
            start, places = 0, []
            for name in (f"{name}{suffix}" for name in names if f"{name}{suffix}" in shapes):
                count, order = shapes[name][0], orders.get(name)
                if start and order is None:
                    order = np.arange(count, dtype=np.uint32)
                order = None if order is None else (order + np.uint32(start)).astype(np.uint32)
                places.append(Placed(f"layers.{layer}.{name}", shapes[name], order))
                start += count
            if places:
                found[f"{model.names.layer.format(layer)}{part}{ending}"] = tuple(places)
    return found
