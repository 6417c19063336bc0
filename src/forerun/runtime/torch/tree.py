"""What the tokens of a tree see: the text before it, their ancestors and themselves."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from forerun.topology import depths


class Tree:
    """A span that is a tree, cached at the places from `start` on. Made once a pass, for all layers and pieces of it.

    `positions[i]` is what token i's position is: the number of tokens before it on its path.
    """

    def __init__(self, start: int, parents: Sequence[int]) -> None:
        self.start = start
        self.positions = [start + depth - 1 for depth in depths(parents)]
        self._paths: list[list[int]] = []  # each token's ancestors and itself, as places
        for node, parent in enumerate(parents):
            self._paths.append([*(self._paths[parent] if parent >= 0 else ()), start + node])

    def hidden(self, first: int, count: int, low: int, high: int, window: int | None) -> torch.Tensor:
        """[count, high - low] bool: which of the places `low` .. `high - 1` the tokens at the places from `first` on do
        not see."""
        hidden = torch.ones((count, high - low), dtype=torch.bool)
        for row in range(count):
            node = first - self.start + row
            nearest = 0 if window is None else max(0, self.positions[node] - window + 1)
            hidden[row, max(nearest - low, 0) : max(self.start - low, 0)] = False
            for place in self._paths[node]:
                if self.positions[place - self.start] >= nearest:
                    hidden[row, place - low] = False
        return hidden

    def as_text(self, place: int, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, int]:
        """The keys and values [kv_heads, capacity, size] that the token at `place` sees, at the places where they would
        lie if its path were a text, and where that ends. Of the same shape and strides, so that a kernel does the same.
        """
        path = self._paths[place - self.start]
        end = self.start + len(path)
        if path[-1] == end - 1:  # it is a text
            return keys, values, end
        made = []
        for cached in (keys, values):
            own = torch.empty_like(cached)
            own[:, : self.start] = cached[:, : self.start]
            own[:, self.start : end] = cached[:, path]
            made.append(own)
        return made[0], made[1], end
