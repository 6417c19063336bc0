"""forerun._native.Decoder again, in numpy and float64, as slow and plain as it can be written.

The reference of the C++ decoder: same interface, weights as the `gguf` package decodes them, no quantised activations.
It also stands in for it where the Python around the decoder is tested, so that neither hides the faults of the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType
from gguf.quants import dequantize

from forerun.runtime.trees import LastSpan, kept_places


class NumpyMatrix:
    """In place of _native.PackedMatrix."""

    def __init__(self, stored: str, num_outputs: int, num_inputs: int, rounding: str = "none") -> None:
        self.stored, self.num_outputs = stored, num_outputs
        self.weights = np.full((num_outputs, num_inputs), np.nan)

    def set_rows(self, first: int, data: np.ndarray, order: np.ndarray | None = None) -> None:
        values = dequantize(data, GGMLQuantizationType[self.stored]).astype(np.float64)
        values = values if order is None else values[order]
        assert first % 16 == 0
        assert len(values) % 16 == 0 or first + len(values) == self.num_outputs
        self.weights[first : first + len(values)] = values


class NumpyDecoder:
    def __init__(self, description: dict[str, Any]) -> None:
        self.about = description
        self.weights: dict[str, np.ndarray] = {}
        self.caches: dict[int, list[list[np.ndarray]]] = {}  # [layer][token] -> keys and values [2, kv_heads, size]
        self.lasts: dict[int, LastSpan] = {}  # what a sequence was fed last, until it is cut

    def set_matrix(self, name: str, matrix: NumpyMatrix) -> None:
        assert name not in self.weights
        self.weights[name] = matrix.weights

    def set_vector(self, name: str, values: np.ndarray) -> None:
        assert values.dtype == np.float32
        assert name not in self.weights
        self.weights[name] = values.astype(np.float64)

    def finish(self) -> None:
        assert not any(np.isnan(values).any() for values in self.weights.values())
        self.weights.setdefault("head", self.weights["embedding"][: self.about["vocabulary_size"]])
        assert len(self.weights["head"]) == self.about["vocabulary_size"]

    def begin(self, id: int) -> None:
        assert id not in self.caches
        self.caches[id] = [[] for _ in range(self.about["num_layers"])]

    def free(self, id: int) -> None:
        self.caches.pop(id, None)
        self.lasts.pop(id, None)

    def length(self, id: int) -> int:
        return len(self.caches[id][0])

    def keep(self, id: int, length: int, path: Sequence[int] = ()) -> None:
        places = kept_places(self.lasts.get(id), self.length(id), length, tuple(path))
        self.lasts.pop(id, None)
        for layer in self.caches[id]:
            layer[:] = layer[:length] + [layer[place] for place in places]

    def fork(self, source: int, target: int, length: int) -> None:
        kept_places(self.lasts.get(source), self.length(source), length)
        self.begin(target)
        self.caches[target] = [layer[:length] for layer in self.caches[source]]

    def forward(
        self,
        ids: np.ndarray,
        starts: np.ndarray,
        tokens: np.ndarray,
        counts: np.ndarray,
        num_rows: np.ndarray,
        parents: np.ndarray | None,
        out: np.ndarray,
    ) -> None:
        if any(id in self.lasts and self.lasts[id].is_tree for id in ids.tolist()):
            raise ValueError("the last span was a tree")
        at = row = 0
        for id, start, count, wanted in zip(
            ids.tolist(), starts.tolist(), counts.tolist(), num_rows.tolist(), strict=True
        ):
            own = np.arange(-1, count - 1) if parents is None else parents[at : at + count]
            hidden = self._span(id, start, tokens[at : at + count], own)
            hidden = self._norm(hidden[count - wanted :], "norm")
            logits = hidden @ self.weights["head"].T * self.about["logit_scale"]
            out[row : row + wanted] = self._capped(logits, self.about["logit_softcap"])
            at, row = at + count, row + wanted
        assert (at, row) == (len(tokens), len(out))

    weight_bytes = property(lambda self: sum(values.nbytes for values in self.weights.values()))
    cache_bytes = property(lambda self: sum(len(layer) for cache in self.caches.values() for layer in cache))

    def _span(self, id: int, start: int, tokens: np.ndarray, parents: np.ndarray) -> np.ndarray:
        """The hidden rows [tokens, hidden_size] of a span, whose keys and values go to the cache."""
        assert start == self.length(id)
        self.lasts[id] = LastSpan(start, tuple(parents.tolist()))
        count = len(tokens)
        seen = np.zeros((count, start + count), dtype=bool)
        positions = np.zeros(start + count, dtype=np.int64)
        positions[:start] = np.arange(start)
        for i, parent in enumerate(parents):
            seen[i] = seen[parent] if parent >= 0 else np.arange(start + count) < start
            seen[i, start + i] = True
            positions[start + i] = seen[i].sum() - 1
        x = self.weights["embedding"][tokens] * self.about["embedding_scale"]
        for i in range(self.about["num_layers"]):
            at, window = f"layers.{i}.", self.about["layer_windows"][i]
            in_window = seen
            if window:
                in_window = seen & (positions > positions[start:, None] - window)
            h = self._norm(x, f"{at}attention_norm")
            y = self._attention(i, h, positions[start:], in_window, self.caches[id][i])
            x = x + self._norm(y, f"{at}attention_post_norm") * self.about["residual_scale"]
            h = self._norm(x, f"{at}ffn_norm")
            y = self._linear(self._activated(self._linear(h, f"{at}gate")) * self._linear(h, f"{at}up"), f"{at}down")
            x = x + self._norm(y, f"{at}ffn_post_norm") * self.about["residual_scale"]
        return x

    def _attention(
        self, layer: int, h: np.ndarray, positions: np.ndarray, seen: np.ndarray, cache: list[np.ndarray]
    ) -> np.ndarray:
        prefix = f"layers.{layer}."
        heads, kv_heads, size = (self.about[name] for name in ("num_heads", "num_kv_heads", "head_size"))
        q = self._head_norm(self._linear(h, f"{prefix}q"), f"{prefix}q_norm", heads, size)
        k = self._head_norm(self._linear(h, f"{prefix}k"), f"{prefix}k_norm", kv_heads, size)
        v = self._linear(h, f"{prefix}v").reshape(-1, kv_heads, size)
        table = self.about["layer_rotaries"][layer]
        if table >= 0:
            q, k = self._rotate(q, positions, table), self._rotate(k, positions, table)
        cache.extend(np.stack([k, v], axis=1))
        keys, values = np.stack(cache, axis=1)
        group = heads // kv_heads
        keys, values = keys.repeat(group, axis=1), values.repeat(group, axis=1)
        scores = np.einsum("qhd,khd->hqk", q, keys) * self.about["attention_scale"]
        scores = self._capped(scores, self.about["attention_softcap"])
        scores = np.where(seen, scores, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = np.einsum("hqk,khd->qhd", weights / weights.sum(-1, keepdims=True), values)
        return self._linear(mixed.reshape(len(h), -1), f"{prefix}o")

    def _rotate(self, x: np.ndarray, positions: np.ndarray, table: int) -> np.ndarray:
        """The first 2n coordinates of each head, halves n apart; the others stay."""
        frequencies, scale = self.about["rotaries"][table]
        angles = positions[:, None] * np.asarray(frequencies, dtype=np.float64)
        cos, sin = np.cos(angles)[:, None] * scale, np.sin(angles)[:, None] * scale
        n = len(frequencies)
        first, second, rest = x[..., :n], x[..., n : 2 * n], x[..., 2 * n :]
        return np.concatenate([first * cos - second * sin, second * cos + first * sin, rest], axis=-1)

    def _head_norm(self, x: np.ndarray, name: str, heads: int, size: int) -> np.ndarray:
        """[tokens, heads, size]: normalised head by head, or all heads as one, as the weight's width says."""
        if name in self.weights and len(self.weights[name]) > size:
            x = self._norm(x, name)
            return x.reshape(-1, heads, size)
        return self._norm(x.reshape(-1, heads, size), name)

    def _capped(self, x: np.ndarray, cap: float) -> np.ndarray:
        return cap * np.tanh(x / cap) if cap else x

    def _activated(self, x: np.ndarray) -> np.ndarray:
        if self.about["activation"] == "gelu_tanh":
            return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
        assert self.about["activation"] == "silu"
        return x / (1 + np.exp(-x))

    def _norm(self, x: np.ndarray, name: str) -> np.ndarray:
        if name not in self.weights:
            return x
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + self.about["epsilon"]) * self.weights[name]

    def _linear(self, x: np.ndarray, name: str) -> np.ndarray:
        out = x @ self.weights[name].T
        return out + self.weights[f"{name}_bias"] if f"{name}_bias" in self.weights else out
