"""Caches that outlive their request, so that a later one with the same beginning starts from there."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from collections.abc import Sequence as Seq

from forerun.checks import whole
from forerun.drafting.caches import MIN_SHARED, common_length
from forerun.engine.sequence import Sequence
from forerun.runtime.base import Model


class KeptTexts:
    """The target's caches of texts that have ended: the latest used ones, at most `max_tokens` tokens of them.

    Texts are found by their first MIN_SHARED tokens. A new text starts from a fork of the one that shares most of its
    beginning, running ones included. What was cancelled or has failed is not kept. With `by_tenant` only texts of the
    same tenant are looked at: how fast an answer begins tells whether somebody else has asked for the same thing, which
    tenants may not want each other to know.
    """

    def __init__(self, target: Model, max_tokens: int, *, by_tenant: bool = False) -> None:
        whole("max_tokens", max_tokens, 0, None, "a whole number of tokens, 0 to keep none")
        self._target, self._max_tokens, self._by_tenant = target, max_tokens, by_tenant
        self._kept: OrderedDict[int, tuple[tuple[int, ...], str | None]] = OrderedDict()  # tokens in the cache, tenant
        self._by_start: dict[tuple[str | None, tuple[int, ...]], set[int]] = {}
        self.num_tokens = 0

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, sequence: Sequence) -> bool:
        """Take over the cache of a sequence that has ended; False where it is not worth keeping."""
        key = sequence.sequence_id
        if key in self._kept:
            return True  # asked again, after an interrupt
        if not sequence.is_begun or sequence.finish_reason not in ("stop", "length"):
            return False
        num_cached = min(self._target.length(key), len(sequence.tokens) - 1)
        tokens = tuple(sequence.tokens[:num_cached])
        if not MIN_SHARED <= num_cached <= self._max_tokens:
            return False
        tenant = self._tenant(sequence)
        twin, num_shared = self._nearest_kept(tokens, tenant)
        if twin is not None and num_shared == num_cached:
            self._kept.move_to_end(twin)  # it holds all of this one
            return False
        self._target.keep(key, num_cached)  # drafts that were fed behind the text
        if twin is not None and num_shared == len(self._kept[twin][0]):
            self._drop(twin)  # this one holds all of it
        self._kept[key] = tokens, tenant
        self._by_start.setdefault((tenant, tokens[:MIN_SHARED]), set()).add(key)
        self.num_tokens += num_cached
        self.shrink(self._max_tokens)
        return key in self._kept

    def nearest(self, sequence: Sequence, running: Iterable[Sequence]) -> tuple[int | None, int]:
        """(text whose cache a new sequence may be forked from, tokens they share); (None, 0) if none is worth it."""
        tokens, tenant = sequence.tokens[: sequence.num_keepable], self._tenant(sequence)
        if sequence.num_unscored or len(tokens) < MIN_SHARED:
            return None, 0
        best, most = self._nearest_kept(tokens, tenant)
        for other in running:
            if other.is_begun and other is not sequence and self._tenant(other) == tenant:
                num_cached = min(self._target.length(other.sequence_id), len(other.tokens) - 1)
                num_shared = common_length(other.tokens[:num_cached], tokens)
                if num_shared > most:
                    best, most = other.sequence_id, num_shared
        if most < MIN_SHARED:
            return None, 0
        if best is not None and best in self._kept:
            self._kept.move_to_end(best)
        return best, most

    def may_share(self, one: Sequence, other: Sequence) -> bool:
        """Whether one text may start from the other's cache."""
        return self._tenant(one) == self._tenant(other)

    def shrink(self, num_tokens: int) -> None:
        """Let go of those that were unused longest until at most so many tokens are kept."""
        while self.num_tokens > num_tokens:
            self._drop(next(iter(self._kept)))

    def _tenant(self, sequence: Sequence) -> str | None:
        return sequence.params.tenant if self._by_tenant else None

    def _nearest_kept(self, tokens: Seq[int], tenant: str | None) -> tuple[int | None, int]:
        best, most = None, 0
        for key in self._by_start.get((tenant, tuple(tokens[:MIN_SHARED])), ()):
            num_shared = common_length(self._kept[key][0], tokens)
            if num_shared > most:
                best, most = key, num_shared
        return best, most

    def _drop(self, key: int) -> None:
        tokens, tenant = self._kept.pop(key)
        start = tenant, tokens[:MIN_SHARED]
        self._by_start[start].discard(key)
        if not self._by_start[start]:
            del self._by_start[start]
        self.num_tokens -= len(tokens)
        self._target.free(key)
