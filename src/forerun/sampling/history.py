"""How often each token occurred: what penalties look at. Derived from a sequence's tokens, and disposable."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np


class History:
    """Counts of tokens, kept as parallel arrays so that a row's penalties cost one gather and one scatter.

    Only committed tokens change it. What a draft adds is put on top for one row at a time, in copies,
    so a rejected draft token was never counted.
    """

    def __init__(self) -> None:
        self._forget()

    def _forget(self) -> None:
        self._num_counted, self._is_sound = 0, True
        self._known: dict[tuple[int, ...], tuple[np.ndarray, np.ndarray]] = {}  # the last answer of `after`
        self._places: dict[int, int] = {}
        self._ids = np.zeros(64, dtype=np.int64)
        self._counts = np.zeros(64, dtype=np.int64)

    def follow(self, tokens: Sequence[int]) -> None:
        """Count the committed tokens that were not counted yet; all of them again after an interruption."""
        if not self._is_sound:
            self._forget()
        self._is_sound = False
        self.extend(tokens[self._num_counted :])
        self._num_counted, self._is_sound = len(tokens), True

    def extend(self, tokens: Iterable[int]) -> None:
        """Count tokens."""
        self._known.clear()
        for token in tokens:
            place = self._places.setdefault(token, len(self._places))
            if place == len(self._ids):
                self._ids = np.concatenate([self._ids, np.zeros_like(self._ids)])
                self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
            self._ids[place] = token
            self._counts[place] += 1

    def after(self, prefix: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """(distinct ids [n], their counts [n]) int64 once `prefix` has been added to what is committed."""
        key = tuple(prefix)
        if key not in self._known:
            self._known = {key: self._counted(key)}
        return self._known[key]

    def _counted(self, prefix: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
        num = len(self._places)
        if not prefix:
            return self._ids[:num], self._counts[:num]
        counts = self._counts[:num].copy()
        new: dict[int, int] = {}
        for token in prefix:
            place = self._places.get(token)
            if place is None:
                new[token] = new.get(token, 0) + 1
            else:
                counts[place] += 1
        ids = np.concatenate([self._ids[:num], np.array(list(new), dtype=np.int64)])
        return ids, np.concatenate([counts, np.array(list(new.values()), dtype=np.int64)])
