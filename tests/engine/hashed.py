"""Toy models whose rows depend on every token before them and on their order: a cache that holds another text, or a
forgotten rollback, changes what follows. And what such a model writes alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from forerun.engine import Engine
from forerun.engine import Sequence as EngineSequence
from forerun.runtime.base import Rows
from forerun.runtime.toy import ToyModel
from forerun.sampling import SamplingParams
from forerun.types import Span

SIZE, PRIME = 6, 997
TABLE = np.random.default_rng(1).normal(0.0, 1.5, (PRIME, SIZE))
NEAR = TABLE + np.random.default_rng(2).normal(0.0, 0.7, TABLE.shape)
"""Rows of a draft model that often agrees."""


class HashedModel(ToyModel):
    """Calls `watch` after each pass. A pass or a fork fails, its work done, when `num_until_failure` reaches 0."""

    def __init__(self, table: np.ndarray = TABLE, watch: Callable[[], None] = lambda: None) -> None:
        def logits_of(tokens: tuple[int, ...]) -> np.ndarray:
            key = 0
            for token in tokens:
                key = (31 * key + token + 1) % PRIME
            return table[key]

        super().__init__(logits_of, SIZE)
        self.watch, self.num_until_failure = watch, -1
        self.forked: list[tuple[int, int]] = []

    def forward(self, spans: Sequence[Span]) -> Rows:
        rows = super().forward(spans)
        self.watch()
        self._count()
        return rows

    def fork(self, source: int, target: int, length: int) -> None:
        super().fork(source, target, length)
        self.forked.append((source, target))
        self._count()

    @property
    def num_cached(self) -> int:
        """Tokens in all caches."""
        return sum(map(len, self._cached.values()))

    def __contains__(self, sequence_id: int) -> bool:
        return sequence_id in self._cached

    def _count(self) -> None:
        self.num_until_failure -= 1
        if self.num_until_failure == 0:
            raise MemoryError


def alone(prompt: Sequence[int], params: Mapping[str, Any], choice: int = 0) -> tuple[EngineSequence, list[int]]:
    """(the sequence, what was delivered) of plain decoding with nobody beside it."""
    engine = Engine(HashedModel())
    sequence = engine.add(prompt, SamplingParams(**params), choice=choice)
    delivered: list[int] = []
    while not engine.is_idle:
        delivered += [token for delta in engine.step() for token in delta.tokens]
    return sequence, delivered
