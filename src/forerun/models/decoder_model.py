"""A decoder-only transformer as data: all that differs from family to family, whatever file it was read from.

gguf_model.py reads it from a GGUF file, transformers_model.py from a directory's config.json; the runtimes take it from
here, so that a family is a row in a reader's table and never a branch in a runtime.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from forerun.errors import FileFormatError, UnsupportedModelError

MATRICES = ("q", "k", "v", "o", "gate", "up", "down")
"""A layer's matrices, by the decoder's names."""
NORMS_BEFORE = ("attention_norm", "ffn_norm")
NORMS_AFTER = ("attention_post_norm", "ffn_post_norm")
"""A layer's norms: of what attention and feed-forward read, and of what they add."""

ANOTHER_FILE = "fetch it again, or take another file of the same model"
"""What to do about a file that cannot be right."""

HeadNorms = Literal["none", "each head", "all heads"]
Activation = Literal["silu", "gelu_tanh"]
RopeKind = Literal["default", "linear", "yarn", "llama3", "longrope"]


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary positions of the first `num_rotated` coordinates of a head: angle i of position p is p * base ** (-2 i /
    num_rotated), scaled as `kind` says. `scale` multiplies rotated queries and keys. `factors` [num_rotated / 2] divide
    the frequencies (llama3, where a converter worked it out); with longrope `short_factors` or `long_factors` do."""

    base: float
    num_rotated: int
    kind: RopeKind = "default"
    factor: float = 1.0
    original_context_length: int = 1
    scale: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    low_factor: float = 1.0
    high_factor: float = 4.0
    factors: tuple[float, ...] | None = None
    short_factors: tuple[float, ...] = ()
    long_factors: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Names:
    """What a file calls a decoder's parts. `layer`: the beginning of a layer's names, with {} for its number. `parts`:
    the file's name of a part -> those parts of the decoder whose rows it holds, one after the other."""

    embedding: str
    head: str
    norm: str
    layer: str
    parts: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class DecoderModel:
    """A model as its files describe it.

    `num_embeddings`: rows of the embedding; `is_tied`: it is the head too. `biases`: the matrices that have one.
    `norms`: of each layer, by the decoder's names; `norm_offset` is added to all norms' stored weights. `interleaved`:
    in each head of stored queries and keys, coordinates that are rotated together are neighbours (elsewhere half of the
    rotated part apart). `layer_ropes`: which of `ropes` each layer takes, -1 for none. `layer_windows`: tokens that a
    token sees, itself included, 0 for all. Softcaps are 0 where there are none. `longest_exact`: the context beyond
    which the model would do what is not served, 0 if there is no such context, and `beyond` what that is.
    """

    family: str
    names: Names
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
    ropes: tuple[Rope, ...]
    layer_ropes: tuple[int, ...]
    layer_windows: tuple[int, ...]
    attention_scale: float
    biases: frozenset[str] = frozenset()
    norms: tuple[str, ...] = NORMS_BEFORE
    head_norms: HeadNorms = "none"
    norm_offset: float = 0.0
    interleaved: bool = False
    activation: Activation = "silu"
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    logit_scale: float = 1.0
    attention_softcap: float = 0.0
    logit_softcap: float = 0.0
    longest_exact: int = 0
    beyond: str = ""

    def shapes(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """(name of the decoder's, shape) of everything in a layer."""
        queries, keys = self.num_heads * self.head_size, self.num_kv_heads * self.head_size
        outputs = {"q": queries, "k": keys, "v": keys, "gate": self.intermediate_size, "up": self.intermediate_size}
        inputs = {"o": queries, "down": self.intermediate_size}
        for name in MATRICES:
            shape = (outputs.get(name, self.hidden_size), inputs.get(name, self.hidden_size))
            yield name, shape
            if name in self.biases:
                yield f"{name}_bias", shape[:1]
        for name in self.norms:
            yield name, (self.hidden_size,)
        if self.head_norms != "none":
            is_one = self.head_norms == "each head"
            yield "q_norm", (self.head_size if is_one else queries,)
            yield "k_norm", (self.head_size if is_one else keys,)


def check_layers(where: Any, num_layers: int) -> None:
    """FileFormatError for more layers than there are tensors: before anything is made for each of them."""
    if num_layers > len(where.tensors):
        fact = f"it says that it has {num_layers:,} layers, and has {len(where.tensors):,} tensors"
        raise contradiction(where, fact)


def check_sizes(where: Any, model: DecoderModel) -> None:
    """FileFormatError for a size that no tensor of the files has: before anything is made of that size."""
    largest = max((max(info.shape, default=1) for info in where.tensors.values()), default=0)
    for name, shape in model.shapes():
        if max(shape) > largest:
            fact = f"{name} is {' x '.join(map(str, shape))} by its metadata, and no tensor is longer than {largest:,}"
            raise contradiction(where, fact)


def halves_apart(num_heads: int, head_size: int) -> np.ndarray:
    """Where each row of the halves-apart order is stored [num_heads * head_size]: in each head 0, 2, ..., 1, 3, ..."""
    pairs = np.arange(num_heads * head_size, dtype=np.uint32).reshape(num_heads, head_size // 2, 2)
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(-1)


def yarn_scale(factor: float, numerator: float = 1.0, denominator: float = 0.0) -> float:
    """What YaRN multiplies rotated queries and keys by (arXiv 2309.00071, section 3.4; the two weights are the mscale
    and mscale_all_dim of DeepSeek's)."""
    grown = float(np.log(max(factor, 1.0)))
    return (0.1 * numerator * grown + 1.0) / (0.1 * denominator * grown + 1.0)


def is_off(value: Any) -> bool:
    """Whether a setting that is not understood says nothing: absent, false, zero or empty."""
    return value is None or (isinstance(value, (bool, int, float, str, list, tuple, dict)) and not value)


def contradiction(where: Any, fact: str) -> FileFormatError:
    """The error for files that say two things at once; `where` has a `path`."""
    return FileFormatError(f"{where.path} contradicts itself", fact, ANOTHER_FILE)


def unsupported(where: Any, what: str, why: str, remedy: str = "") -> UnsupportedModelError:
    """The one way something in a model is turned down; `where` has a `path`."""
    remedy = remedy or "take another file of the same model, or another model"
    return UnsupportedModelError(f"{what} of {where.path} is not served", why, remedy)
