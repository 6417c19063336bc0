"""Tiny random decoders, and the plain float64 transformer they are compared with."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from forerun import _native

BIASES = ("q", "k", "v", "o", "gate", "up", "down")


@dataclass(frozen=True)
class Tiny:
    """A decoder's description, and its weights as the file would decode them."""

    num_layers: int = 2
    hidden_size: int = 32
    intermediate_size: int = 64
    num_heads: int = 4
    num_kv_heads: int = 2
    head_size: int = 16
    num_embeddings: int = 40
    vocabulary_size: int = 40
    context_length: int = 2048
    epsilon: float = 1e-5
    biases: tuple[str, ...] = ()
    head_norms: bool = False
    tied: bool = False
    scale: float = 1.0
    rotaries: tuple[tuple[int, float], ...] | None = None
    """(frequencies, scale) of each table; None: one that turns whole heads."""
    layer_rotaries: tuple[int, ...] = ()
    layer_windows: tuple[int, ...] = ()
    activation: str = "silu"
    attention_softcap: float = 0.0
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    logit_scale: float = 1.0
    logit_softcap: float = 0.0
    norms: tuple[str, ...] = ("attention_norm", "ffn_norm")
    wide_norms: bool = False
    stored: str = "F32"
    seed: int = 0
    matrices: dict[str, np.ndarray] = field(default_factory=dict)
    vectors: dict[str, np.ndarray] = field(default_factory=dict)
    raw: dict[str, np.ndarray] = field(default_factory=dict)

    @property
    def tables(self) -> list[tuple[np.ndarray, float]]:
        tables = ((self.head_size // 2, 1.0),) if self.rotaries is None else self.rotaries
        return [((10.0 ** (4 - i)) ** -(np.arange(n) / n), scale) for i, (n, scale) in enumerate(tables)]

    @property
    def windows(self) -> list[int]:
        return list(self.layer_windows) or [0] * self.num_layers

    @property
    def rotary_of(self) -> list[int]:
        return list(self.layer_rotaries) or [0] * self.num_layers

    def description(self) -> dict[str, object]:
        sizes = ("num_layers hidden_size intermediate_size num_heads num_kv_heads head_size num_embeddings "
                 "vocabulary_size context_length epsilon activation attention_softcap embedding_scale "
                 "residual_scale logit_scale logit_softcap")  # fmt: skip
        return {
            **{name: getattr(self, name) for name in sizes.split()},
            "attention_scale": self.head_size**-0.5 * self.scale,
            "rotaries": self.tables,
            "layer_rotaries": self.rotary_of,
            "layer_windows": self.windows,
        }


def tiny(**settings: object) -> Tiny:
    """A decoder with random weights; `settings` are fields of Tiny."""
    shape = Tiny(**settings)  # type: ignore[arg-type]
    generator = np.random.default_rng(shape.seed)
    queries, keys = shape.num_heads * shape.head_size, shape.num_kv_heads * shape.head_size
    hidden, inner = shape.hidden_size, shape.intermediate_size
    sizes = {"embedding": (shape.num_embeddings, hidden)}
    if not shape.tied:
        sizes["head"] = (shape.vocabulary_size, hidden)
    vectors = {"norm": 1 + 0.2 * generator.standard_normal(hidden)}
    for i in range(shape.num_layers):
        at = f"layers.{i}."
        sizes |= {at + "q": (queries, hidden), at + "k": (keys, hidden), at + "v": (keys, hidden)}
        sizes |= {at + "o": (hidden, queries), at + "down": (hidden, inner)}
        sizes |= {at + "gate": (inner, hidden), at + "up": (inner, hidden)}
        vectors |= {at + name: 1 + 0.2 * generator.standard_normal(hidden) for name in shape.norms}
        for name in shape.biases:
            vectors[at + name + "_bias"] = 0.5 * generator.standard_normal(sizes[at + name][0])
        if shape.head_norms or shape.wide_norms:
            widths = (queries, keys) if shape.wide_norms else (shape.head_size,) * 2
            for n, width in zip(("q_norm", "k_norm"), widths, strict=True):
                vectors[at + n] = 1 + 0.2 * generator.standard_normal(width)
    matrices, raw = {}, {}
    for name, (outputs, inputs) in sizes.items():
        values = generator.standard_normal((outputs, inputs)).astype(np.float32)
        values *= np.float32(1.0 if name == "embedding" else 2.0 / np.sqrt(inputs))
        raw[name], matrices[name] = store(values, shape.stored, generator)
    return replace(
        shape, matrices=matrices, raw=raw, vectors={name: v.astype(np.float32) for name, v in vectors.items()}
    )


def store(values: np.ndarray, stored: str, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """`values` as a file stores them, and what that decodes to."""
    if stored == "F32":
        return values.view(np.uint8), values
    import gguf

    kind = gguf.GGMLQuantizationType[stored]
    if stored == "Q4_K":  # gguf decodes it but does not write it: random codes under scales that give like values
        block = np.zeros((values.shape[0], values.shape[1] // 256, 144), np.uint8)
        block[...] = generator.integers(0, 256, block.shape)
        block[..., :4] = np.array([0.0007, 0.005], np.float16).view(np.uint8)
        raw = block.reshape(values.shape[0], -1)
    else:
        raw = gguf.quants.quantize(values, kind)
    return np.ascontiguousarray(raw).view(np.uint8), gguf.quants.dequantize(raw, kind).astype(np.float32)


def build(model: Tiny) -> _native.Decoder:
    decoder = _native.Decoder(model.description())
    for name, data in model.raw.items():
        decoder.set_matrix(name, model.stored, data, model.matrices[name].shape[1])
    for name, vector in model.vectors.items():
        decoder.set_vector(name, vector)
    decoder.finish()
    return decoder


Feed = tuple[int, Sequence[int], int, "Sequence[int] | None"]
"""(sequence id, tokens, rows wanted, parents)."""


def feed(decoder: _native.Decoder, feeds: Sequence[Feed], width: int) -> list[np.ndarray]:
    """One pass; the rows of each feed."""
    counts = [len(tokens) for _, tokens, _, _ in feeds]
    parents = None
    if any(given is not None for *_, given in feeds):
        lists = [range(-1, n - 1) if given is None else given for n, (*_, given) in zip(counts, feeds, strict=True)]
        parents = np.array([parent for given in lists for parent in given], np.int32)
    num_rows = [rows for _, _, rows, _ in feeds]
    out = np.full((sum(num_rows), width), 12345.0, np.float32)
    decoder.forward(
        np.array([key for key, *_ in feeds], np.int64),
        np.array([decoder.length(key) for key, *_ in feeds], np.int64),
        np.array([token for _, tokens, _, _ in feeds for token in tokens], np.int32),
        np.array(counts, np.int64),
        np.array(num_rows, np.int64),
        parents,
        out,
    )
    return np.split(out, np.cumsum(num_rows)[:-1])


def rows_of(decoder: _native.Decoder, tokens: Sequence[int], width: int, sizes: Sequence[int] = ()) -> np.ndarray:
    """All rows of `tokens`, fed to a fresh sequence in parts of `sizes` (the rest at once)."""
    key, at, found = 987654, 0, []
    decoder.begin(key)
    for size in [*sizes, len(tokens)]:
        part = tokens[at : at + size]
        if part:
            found += feed(decoder, [(key, part, len(part), None)], width)
            at += size
    decoder.free(key)
    return np.concatenate(found)


def reference(model: Tiny, tokens: Sequence[int], cached: Callable[[np.ndarray], np.ndarray] = np.array) -> np.ndarray:
    """Logits [len(tokens), vocabulary_size] in float64, straight from the definition. Keys and values go through
    `cached`."""

    def norm(x: np.ndarray, name: str) -> np.ndarray:
        weight = model.vectors.get(name)
        return x if weight is None else x / np.sqrt((x * x).mean(-1, keepdims=True) + model.epsilon) * weight

    def product(name: str, x: np.ndarray) -> np.ndarray:
        y = x @ model.matrices[name].astype(np.float64).T
        return y + model.vectors[name + "_bias"] if name + "_bias" in model.vectors else y

    def heads(x: np.ndarray, count: int, norm_name: str = "") -> np.ndarray:
        if model.wide_norms:
            return norm(x, norm_name).reshape(len(tokens), count, model.head_size).transpose(1, 0, 2)
        return norm(x.reshape(len(tokens), count, model.head_size).transpose(1, 0, 2), norm_name)

    def turn(x: np.ndarray, table: int) -> np.ndarray:
        if table < 0:
            return x
        frequencies, scale = model.tables[table]
        turned = np.arange(len(tokens))[:, None] * frequencies
        n = len(frequencies)
        pairs = (x[..., :n] + 1j * x[..., n : 2 * n]) * np.exp(1j * turned) * scale
        return np.concatenate([pairs.real, pairs.imag, x[..., 2 * n :]], -1)

    def capped(x: np.ndarray, cap: float) -> np.ndarray:
        return cap * np.tanh(x / cap) if cap else x

    x = model.matrices["embedding"][list(tokens)] * np.float64(model.embedding_scale)
    behind = np.subtract.outer(np.arange(len(tokens)), np.arange(len(tokens)))
    for i in range(model.num_layers):
        at = f"layers.{i}."
        y = norm(x, at + "attention_norm")
        q = heads(product(at + "q", y), model.num_heads, at + "q_norm")
        k = heads(product(at + "k", y), model.num_kv_heads, at + "k_norm")
        v = heads(product(at + "v", y), model.num_kv_heads)
        group = model.num_heads // model.num_kv_heads
        q, k = turn(q, model.rotary_of[i]), turn(k, model.rotary_of[i])
        k, v = cached(k).repeat(group, 0), cached(v).repeat(group, 0)
        scores = capped(q @ k.transpose(0, 2, 1) * (model.head_size**-0.5 * model.scale), model.attention_softcap)
        scores[:, (behind < 0) | (behind >= (model.windows[i] or len(tokens)))] = -np.inf
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        y = product(at + "o", (weights @ v).transpose(1, 0, 2).reshape(len(tokens), -1))
        x = x + norm(y, at + "attention_post_norm") * model.residual_scale
        y = norm(x, at + "ffn_norm")
        y = product(at + "down", activate(model.activation, product(at + "gate", y)) * product(at + "up", y))
        x = x + norm(y, at + "ffn_post_norm") * model.residual_scale
    x = norm(x, "norm")
    head = model.matrices["embedding" if model.tied else "head"][: model.vocabulary_size]
    return capped(x @ head.astype(np.float64).T * model.logit_scale, model.logit_softcap)


def activate(activation: str, x: np.ndarray) -> np.ndarray:
    if activation == "gelu_tanh":
        return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    return x / (1 + np.exp(-x))


def text(model: Tiny, num_tokens: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(1000 + seed).integers(0, model.num_embeddings, num_tokens).tolist()


EVERYTHING: dict[str, object] = {
    "attention_softcap": 3.0, "logit_softcap": 4.0, "logit_scale": 0.5, "embedding_scale": 2.0, "residual_scale": 0.7,
    "norms": ("attention_norm", "ffn_norm", "attention_post_norm", "ffn_post_norm"), "wide_norms": True,
    "activation": "gelu_tanh", "rotaries": ((3, 1.0),), "layer_windows": (5, 70), "layer_rotaries": (0, -1),
}  # fmt: skip
"""Every feature at once."""


def fingerprint(stored: str = "F32", **settings: object) -> str:
    """A digest of logits from every kind of pass, to be compared between threads and instruction sets."""
    shape = {"hidden_size": 256, "intermediate_size": 256, "num_heads": 4, "head_size": 24, "biases": ("q", "k")}
    model = tiny(stored=stored, seed=3, **{**shape, **settings})
    decoder, width, digest = build(model), model.vocabulary_size, hashlib.sha256()
    tokens = text(model, 150)
    decoder.begin(0)
    decoder.begin(1)
    for rows in feed(decoder, [(0, tokens, 3, None), (1, tokens[:70], 70, None)], width):
        digest.update(rows.tobytes())
    decoder.fork(0, 2, 100)
    for rows in feed(decoder, [(2, [1, 2, 3, 4], 4, (-1, 0, 0, 1)), (1, [5], 1, None), (0, [7, 8], 2, None)], width):
        digest.update(rows.tobytes())
    decoder.keep(2, 101, (2,))
    digest.update(feed(decoder, [(2, [9], 1, None)], width)[0].tobytes())
    return digest.hexdigest()
