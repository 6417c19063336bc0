"""What a draft model has cached of each text: derived from the texts, never the other way round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from forerun.runtime.base import Model
from forerun.types import Span

LONGEST_DRAFT = 64
"""Drafted tokens that a cache is looked through for, at its end. Longer drafts are taken for text until they are
brought back."""
MIN_SHARED = 16
"""Tokens that must be saved before a cache is forked from another text's."""


@dataclass(slots=True)
class _Cache:
    """Tokens `start`, `start + 1`, ... of a text, at positions 0, 1, ... of the draft model."""

    start: int = 0
    tenant: str | None = None
    tokens: list[int] = field(default_factory=list)  # drafted ones included, until they are brought back
    tree: Span | None = None  # what was fed behind them, where that is no text


class DraftCaches:
    """One cache for each text that is drafted for. Made of begin, forward, keep, fork and free alone, so that every
    runtime can be given a cache that begins in the middle of a text."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._caches: dict[int, _Cache] = {}

    def __contains__(self, key: int) -> bool:
        return key in self._caches

    def __len__(self) -> int:
        return len(self._caches)

    def extent(self, key: int) -> tuple[int, int]:
        """(place in the text where the cache begins, tokens it holds); of a text without a cache (0, 0)."""
        cache = self._caches.get(key)
        return (0, 0) if cache is None else (cache.start, len(cache.tokens))

    def num_valid(self, key: int, tokens: Sequence[int]) -> int:
        """How many of the cached tokens are the text's: what was drafted last, and did not become text, is none of it.
        (A draft is shorter than what is looked at.)"""
        cache = self._caches.get(key)
        if cache is None:
            return 0
        end = min(len(cache.tokens), len(tokens) - cache.start)
        first = max(end - LONGEST_DRAFT, 0)
        return first + common_length(cache.tokens[first:end], tokens, cache.start + first)

    def bring_back(
        self, key: int, tokens: Sequence[int], start: int, most: int | None, tenant: str | None = None
    ) -> None:
        """Make the cache hold what it can of the text from `start` on and nothing else: at most `most` tokens (None:
        any number), and never the last one, so that there is a row to draft from once the rest is fed. A new cache may
        be forked from another text's of the same tenant."""
        if key in self._caches and self._caches[key].start != start:
            self.free(key)
        if key not in self._caches:
            self._begin(key, tokens, start, most, tenant)
        cache = self._caches[key]
        num_kept = min(common_length(cache.tokens, tokens, cache.start), len(tokens) - 1 - cache.start)
        tree, cache.tree = cache.tree, None
        path: list[int] = []
        if tree is not None and num_kept == len(cache.tokens):
            path = _followed(tree, tokens[cache.start + num_kept : -1])
        self._model.keep(key, num_kept, tuple(path))
        del cache.tokens[num_kept:]
        cache.tokens += [] if tree is None else [tree.tokens[node] for node in path]
        del cache.tokens[self._model.length(key) :]

    def missing(self, key: int, tokens: Sequence[int], drafted: Sequence[int]) -> Span:
        """The span of what is not cached yet of a text and the draft after it; one row is wanted."""
        cache = self._caches[key]
        if cache.tree is not None:
            self._drop_tree(key, cache)
        place = cache.start + len(cache.tokens)
        rest = [*tokens[place:], *drafted[max(place - len(tokens), 0) :]]
        return Span(key, len(cache.tokens), rest, 1)

    def tree(
        self, key: int, tokens: Sequence[int], drafted: Sequence[int], parents: tuple[int, ...], num_rows: int
    ) -> Span:
        """The span of a tree behind a text that is cached. What was fed behind the text before is rolled back: a
        runtime takes a tree in one piece, so that each level is fed with those before it."""
        cache = self._caches[key]
        del cache.tokens[len(tokens) - cache.start :]
        self._drop_tree(key, cache)
        return Span(key, len(cache.tokens), drafted, num_rows, parents)

    def note_fed(self, spans: Sequence[Span]) -> None:
        """A pass has fed these."""
        for span in spans:
            cache = self._caches[span.sequence_id]
            if span.parents is None:
                cache.tokens.extend(span.tokens)
            else:
                cache.tree = span

    def nearest(
        self, tokens: Sequence[int], start: int, most: int | None, tenant: str | None = None
    ) -> tuple[int | None, int]:
        """(text of this tenant whose cache could be forked for this one, place up to which it would then be cached).
        The cache may begin before `start`, but not so early that more than `most` tokens would be needed."""
        found, end = None, start
        for key, cache in self._caches.items():
            is_allowed = cache.tenant == tenant and cache.start <= start
            if is_allowed and (most is None or len(tokens) - cache.start <= most):
                shared = cache.start + common_length(cache.tokens, tokens, cache.start)
                if shared > end:
                    found, end = key, shared
        return found, end

    def free(self, key: int) -> None:
        """Let go of a text; unknown ones are ignored."""
        if key in self._caches:
            self._model.free(key)
            del self._caches[key]

    def _drop_tree(self, key: int, cache: _Cache) -> None:
        cache.tree = None
        self._model.keep(key, len(cache.tokens))

    def _begin(self, key: int, tokens: Sequence[int], start: int, most: int | None, tenant: str | None) -> None:
        """A cache for a new text: forked from the one that shares most of it (choices of one prompt do)."""
        source, end = self.nearest(tokens, start, most, tenant)
        self._model.free(key)  # of a beginning that was interrupted
        if source is None or end - start < MIN_SHARED:
            self._model.begin(key)
            self._caches[key] = _Cache(start, tenant)
        else:
            first = self._caches[source].start
            self._model.fork(source, key, end - first)
            self._caches[key] = _Cache(first, tenant, list(tokens[first:end]))


def _followed(tree: Span, tokens: Sequence[int]) -> list[int]:
    """The nodes of a tree that are the next tokens of a text."""
    path: list[int] = []
    for token in tokens:
        before = path[-1] if path else -1
        following = (i for i, parent in enumerate(tree.parents or ()) if parent == before and tree.tokens[i] == token)
        node = next(following, None)
        if node is None:
            break
        path.append(node)
    return path


def common_length(one: Sequence[int], other: Sequence[int], start: int = 0) -> int:
    """How many tokens `one` and `other[start:]` have in common at the start, in halving steps: slices are compared far
    faster than a loop over tokens."""
    low, high = 0, min(len(one), len(other) - start)
    while low < high:
        middle = (low + high + 1) // 2
        if list(one[low:middle]) == list(other[start + low : start + middle]):
            low = middle
        else:
            high = middle - 1
    return low
