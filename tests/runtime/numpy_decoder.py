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


class NumpyMatrix:
    """In place of _native.PackedMatrix."""

    def __init__(self, stored: str, num_outputs: int, num_inputs: int, requantise: bool = False) -> None:
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
        self.starts: dict[int, int] = {}

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
        self.starts[id] = 0

    def free(self, id: int) -> None:
        self.caches.pop(id, None)
        self.starts.pop(id, None)

    def length(self, id: int) -> int:
        return len(self.caches[id][0])

    def keep(self, id: int, length: int, path: Sequence[int] = ()) -> None:
        for layer in self.caches[id]:
            layer[:] = layer[:length] + [layer[self.starts[id] + node] for node in path]

    def fork(self, source: int, target: int, length: int) -> None:
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
        at = row = 0
        for id, start, count, wanted in zip(
            ids.tolist(), starts.tolist(), counts.tolist(), num_rows.tolist(), strict=True
        ):
            own = np.arange(-1, count - 1) if parents is None else parents[at : at + count]
            hidden = self._span(id, start, tokens[at : at + count], own)
            hidden = self._norm(hidden[count - wanted :], "norm")
            out[row : row + wanted] = hidden @ self.weights["head"].T
            at, row = at + count, row + wanted
        assert (at, row) == (len(tokens), len(out))

    weight_bytes = property(lambda self: sum(values.nbytes for values in self.weights.values()))
    cache_bytes = property(lambda self: sum(len(layer) for cache in self.caches.values() for layer in cache))

    def _span(self, id: int, start: int, tokens: np.ndarray, parents: np.ndarray) -> np.ndarray:
        """The hidden rows [tokens, hidden_size] of a span, whose keys and values go to the cache."""
        assert start == self.length(id)
        self.starts[id] = start
        count = len(tokens)
        seen = np.zeros((count, start + count), dtype=bool)
        depths = np.zeros(count)
        for i, parent in enumerate(parents):
            seen[i] = seen[parent] if parent >= 0 else np.arange(start + count) < start
            seen[i, start + i] = True
            depths[i] = 0 if parent < 0 else depths[parent] + 1
        angles = (start + depths)[:, None] * np.asarray(self.about["rope_frequencies"], dtype=np.float64)
        x = self.weights["embedding"][tokens]
        for i in range(self.about["num_layers"]):
            x = x + self._attention(
                f"layers.{i}.", self._norm(x, f"layers.{i}.attention_norm"), angles, seen, self.caches[id][i]
            )
            h = self._norm(x, f"layers.{i}.ffn_norm")
            gate, up = self._linear(h, f"layers.{i}.gate"), self._linear(h, f"layers.{i}.up")
            x = x + self._linear(gate / (1 + np.exp(-gate)) * up, f"layers.{i}.down")
        return x

    def _attention(
        self, prefix: str, h: np.ndarray, angles: np.ndarray, seen: np.ndarray, cache: list[np.ndarray]
    ) -> np.ndarray:
        heads, kv_heads, size = (self.about[name] for name in ("num_heads", "num_kv_heads", "head_size"))
        q = self._linear(h, f"{prefix}q").reshape(-1, heads, size)
        k = self._linear(h, f"{prefix}k").reshape(-1, kv_heads, size)
        v = self._linear(h, f"{prefix}v").reshape(-1, kv_heads, size)
        if f"{prefix}q_norm" in self.weights:
            q, k = self._norm(q, f"{prefix}q_norm"), self._norm(k, f"{prefix}k_norm")
        q, k = self._rotate(q, angles), self._rotate(k, angles)
        cache.extend(np.stack([k, v], axis=1))
        keys, values = np.stack(cache, axis=1)
        group = heads // kv_heads
        keys, values = keys.repeat(group, axis=1), values.repeat(group, axis=1)
        scores = np.einsum("qhd,khd->hqk", q, keys) * self.about["attention_scale"]
        scores = np.where(seen, scores, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = np.einsum("hqk,khd->qhd", weights / weights.sum(-1, keepdims=True), values)
        return self._linear(mixed.reshape(len(h), -1), f"{prefix}o")

    def _rotate(self, x: np.ndarray, angles: np.ndarray) -> np.ndarray:
        cos, sin = (
            np.cos(angles)[:, None] * self.about["rope_scale"],
            np.sin(angles)[:, None] * self.about["rope_scale"],
        )
        first, second = np.split(x, 2, axis=-1)
        return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)

    def _norm(self, x: np.ndarray, name: str) -> np.ndarray:
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + self.about["epsilon"]) * self.weights[name]

    def _linear(self, x: np.ndarray, name: str) -> np.ndarray:
        out = x @ self.weights[name].T
        return out + self.weights[f"{name}_bias"] if f"{name}_bias" in self.weights else out
