"""The shape of a model: all that a datasheet prediction and a memory estimate need of it, and how one is typed.

    70b@16                70 billion parameters of 16 bits each
    0.5b@4.5              half a billion of 4.5 bits (4-bit weights with their scales)
    8b                    16 bits
    70b@16:80x8x128       80 layers of 8 key and value heads of 128 numbers: what its cache holds

Without the last part the cache is estimated from models of today (`estimated_cache_bytes`). Names of models work too:
their shape is read from headers and the registry, never from weights.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

from forerun.errors import ForerunError, InputError, UnknownModelError, UnsupportedModelError

if TYPE_CHECKING:
    from forerun.models.decoder_model import DecoderModel

UNITS = {"k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}
CACHE_BITS = 16
"""Bits of a number in the cache of keys and values: the native runtime's, and what other engines take by default."""
_SHAPE = re.compile(
    r"(?P<number>\d+(?:\.\d+)?|\.\d+)(?:e(?P<power>\d{1,2})|(?P<unit>[kmbt]))"
    r"(?:@(?P<bits>\d+(?:\.\d+)?))?(?::(?P<layers>\d+)x(?P<heads>\d+)x(?P<size>\d+))?",
    re.ASCII | re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Shape:
    """`parameters` that a pass multiplies by, `weight_bytes` that it reads, `stored_bytes` that have to be kept,
    `cache_bytes` of keys and values per token of context; `row_bytes` of one row of logits, None if unknown."""

    name: str
    parameters: float
    weight_bytes: float
    stored_bytes: float
    cache_bytes: float
    is_cache_estimated: bool = False
    row_bytes: float | None = None

    @property
    def bits(self) -> float:
        """Bits of a weight, on average."""
        return 8.0 * self.weight_bytes / self.parameters


def parse_shape(text: str) -> Shape | None:
    """The shape that `text` spells, None if it spells none and is a name; InputError for a shape that cannot be."""
    match = _SHAPE.fullmatch(text.strip())
    if match is None:
        return None
    scale = UNITS[match["unit"].lower()] if match["unit"] else 10.0 ** int(match["power"])
    parameters, bits = float(match["number"]) * scale, float(match["bits"] or 16)
    if not 1e3 <= parameters <= 1e16 or not 0.5 <= bits <= 64:
        remedy = "a thousand parameters or more of 0.5 to 64 bits, for example 70b@16"
        raise InputError(f"{text!r} is no model", "", remedy)
    num_bytes = parameters * bits / 8.0
    cache = estimated_cache_bytes(parameters)
    if match["layers"]:
        cache = 2.0 * prod(int(match[part]) for part in ("layers", "heads", "size")) * CACHE_BITS / 8.0
        if cache == 0:
            raise InputError(f"{text!r} has no cache", "", "give LAYERSxHEADSxSIZE, for example 70b@16:80x8x128")
    return Shape(text.strip(), parameters, num_bytes, num_bytes, cache, not match["layers"])


def estimated_cache_bytes(parameters: float) -> float:
    """Bytes of keys and values per token in 16 bits, by the power law through Llama 3 8B (32 layers of 8 heads of 128
    numbers) and 70B (80 such layers)."""
    return 131_072.0 * float((parameters / 8.03e9) ** 0.4215)


def shape_of_files(name: str, path: Path, kind: str) -> Shape | None:
    """The shape of a model on this machine, from its header; None for one that no reader describes."""
    from forerun.models.gguf import GGUFFile, open_gguf
    from forerun.models.gguf_model import is_known, read_model
    from forerun.models.transformers_files import TransformersFiles
    from forerun.models.transformers_model import read_config

    try:
        files: GGUFFile | TransformersFiles = open_gguf(path) if kind == "gguf" else TransformersFiles(path)
        with files:
            if kind == "gguf":
                model = read_model(files) if is_known(files) else None  # type: ignore[arg-type]
            else:
                model = read_config(files)  # type: ignore[arg-type]
            if model is None:
                return None
            sizes = [(key, prod(info.shape), info.num_bytes) for key, info in files.tensors.items()]
    except (ForerunError, OSError):  # what serves it says why, where that matters
        return None
    return _shape(name, model, sizes)


def _shape(name: str, model: DecoderModel, sizes: list[tuple[str, int, int]]) -> Shape:
    """An embedding that is no head is kept, and of its rows a pass reads one a token."""
    unread = [one for one in sizes if one[0] == model.names.embedding and not model.is_tied]
    kept = sum(size for _, _, size in sizes)
    read = kept - sum(size for _, _, size in unread)
    parameters = sum(number for _, number, _ in sizes) - sum(number for _, number, _ in unread)
    cache = 2.0 * model.num_layers * model.num_kv_heads * model.head_size * CACHE_BITS / 8.0
    return Shape(name, float(parameters), float(read), float(kept), cache, False, 4.0 * model.num_embeddings)


def find_shape(text: str) -> Shape:
    """The shape that is typed, or that of a model by name: nothing is fetched and no weight is read."""
    from forerun.models.local import local
    from forerun.models.registry import installed

    typed = parse_shape(text)
    if typed is not None:
        return typed
    known = installed()
    if text in known:
        entry = known[text]
        found = shape_of_files(text, entry.path, "gguf") if entry.cached else None
        if found is not None:
            return found
        size, count = float(entry.size), float(entry.parameters)
        return Shape(text, count, size, size, estimated_cache_bytes(count), True)
    files = local(text)
    if files is None:
        remedy = "give its shape, for example 70b@16, or pull it first"
        if "/" in text:
            raise InputError(f"{text} is not on this machine", "a datasheet prediction fetches nothing", remedy)
        raise UnknownModelError(f"no model is called {text!r}", f"known names: {', '.join(known.by_name)}", remedy)
    found = shape_of_files(text, files.path, files.kind)
    if found is None:
        raise UnsupportedModelError(f"the shape of {text} cannot be read", "", "give it: for example 70b@16")
    return found
