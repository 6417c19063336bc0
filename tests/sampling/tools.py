"""What the tests of the sampling package share: rows to try, a text walked round by round, processors that remember."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

from forerun.runtime.base import Rows
from forerun.sampling import Distribution, Processing, SamplingParams

INF = math.inf
SIZE = 8
LIBRARIES: dict[str, Callable[[Any], Any]] = {"numpy": np.asarray, "torch": torch.as_tensor}


def rows_of(matrix: Any) -> Rows:
    """A pass with these rows, all of one span."""
    return Rows(matrix, [int(matrix.shape[0])])


def adjusted(row: Distribution) -> np.ndarray:
    """The logits before the temperature, in the row's own precision."""
    assert row._rows is not None
    return np.asarray(row._logits(row._rows)[0])


def random_rows(num: int, size: int, dtype: Any = np.float32, seed: int = 0) -> np.ndarray:
    """[num, size]: spread 1 to 6, with repeated values, zeros and minus infinities strewn in; one value is finite."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(num, size)) * rng.uniform(1, 6, (num, 1))
    rows = np.where(rng.random((num, size)) < 0.2, np.round(rows), rows)
    rows = np.where(rng.random((num, size)) < 0.1, -INF, rows)
    rows[:, rng.integers(size)] = 1.0
    return rows.astype(dtype)


def rows(size: int, num: int = 1) -> st.SearchStrategy[np.ndarray]:
    """[num, size] float32: ties, both signs, both zeros, minus infinities; every row has a finite value."""
    special = st.sampled_from([-INF, -7.25, -1.0, -0.0, 0.0, 0.5, 1.0, 1.0, 3.5])
    value = special | st.floats(-8, 8, width=32)
    row = st.lists(value, min_size=size, max_size=size).filter(lambda values: max(values) > -INF)
    return st.lists(row, min_size=num, max_size=num).map(lambda values: np.array(values, dtype=np.float32))


def texts(size: int, min_size: int = 0, max_size: int = 5) -> st.SearchStrategy[list[int]]:
    """Token ids below `size`, few enough to repeat."""
    return st.lists(st.integers(0, size - 1), min_size=min_size, max_size=max_size)


class Parity:
    """A constraint with a state: the token that would make the running sum divisible by three is illegal. Rolling back
    by another number than was taken is noticed."""

    def __init__(self, size: int = SIZE) -> None:
        self.size, self.taken = size, list[int]()

    def advance(self, token: int) -> bool:
        legal = bool(self.mask()[token])
        if legal:
            self.taken.append(token)
        return legal

    def rollback(self, num_tokens: int) -> None:
        assert 0 < num_tokens <= len(self.taken)
        del self.taken[-num_tokens:]

    def mask(self) -> np.ndarray:
        return (sum(self.taken) + len(self.taken) + np.arange(self.size)) % 3 != 0

    @property
    def is_finished(self) -> bool:
        return False


class Remembering:
    """A stateful processor: it counts its calls and holds it against a token that it was the favourite last time.
    `seen` are the texts it was called with."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, ...]] = []
        self.favourite = 0

    def __call__(self, tokens: list[int], logits: Any) -> Any:
        favourite = int(logits.argmax())
        logits[self.favourite] -= 0.75
        logits[len(self.seen) % int(logits.shape[0])] += 1.25
        self.seen.append(tuple(tokens))
        self.favourite = favourite
        return logits


def by_length(tokens: list[int], logits: Any) -> Any:
    """A stateless processor that looks at the whole text."""
    logits[(len(tokens) + sum(tokens)) % int(logits.shape[0])] += 1.5
    return logits * 0.5


class Walk:
    """One text and its `Processing`, fed round by round as the engine does it."""

    def __init__(self, prompt: Sequence[int], size: int = SIZE, constraints: Sequence[Any] = (), **params: Any) -> None:
        self.tokens = list(prompt)
        stop_ids = params.pop("stop_ids", ())
        self.params = SamplingParams(**params)
        self.processing = Processing(self.params, size, self.tokens, stop_ids=stop_ids, constraints=constraints)

    def round(self, matrix: Any, draft: Sequence[int], look: str = "probs", source: str = "target") -> list[Any]:
        """The rows of a round: `matrix[i]` follows the committed tokens and `draft[:i]`."""
        self.processing.begin_round()
        rows = rows_of(matrix)
        found = [
            self.processing.distribution(rows, i, tuple(draft[:i]), source)
            for i in range(min(len(draft) + 1, len(matrix)))
        ]
        for row in found:
            getattr(row, look)
        return found

    def plain(self, matrix: Any, tokens: Sequence[int]) -> Distribution:
        """The row after `tokens` more tokens, each committed in a round of its own: `matrix[i]` follows i of them."""
        for i, token in enumerate(tokens):
            self.round(matrix[i : i + 1], ())
            self.tokens.append(token)
        return self.round(matrix[len(tokens) : len(tokens) + 1], ())[0]
