"""Texts that have ended, kept for those to come: only where it was asked for, and never across tenants."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from forerun.checks import whole
from forerun.drafting.base import SequenceView
from forerun.drafting.occurrences import Occurrences, make_occurrences

MOST_TOKENS = 1 << 24


@dataclass(frozen=True, slots=True)
class SharedTexts:
    """How much of past outputs a `SuffixDrafter` may draft from: of each tenant the latest `max_tokens`, of the latest
    `max_tenants` tenants, at about 140 bytes a token.

    Only outputs count (no prompts), only of requests that ended by themselves (not cancelled or failed ones), and only
    for requests of the same `SamplingParams.tenant` on the same drafter; requests without a tenant give and take
    nothing. Text is never affected, but time is: a draft that is accepted shows, in how fast an answer comes, that
    somebody of that tenant was given the same words before. So it is off unless asked for, and a tenant should be
    people who may read each other's answers.
    """

    max_tokens: int = 32_768
    max_tenants: int = 16

    def __post_init__(self) -> None:
        whole("max_tokens", self.max_tokens, 1, MOST_TOKENS, f"a whole number of tokens, 1 to {MOST_TOKENS}")
        whole("max_tenants", self.max_tenants, 1, None, "a whole number of at least 1")


class Library:
    """What `SharedTexts` allows to be kept, of each tenant: the oldest tokens make room, then the tenants that were
    quiet longest. Texts of different vocabularies never meet."""

    def __init__(self, limits: SharedTexts, sizes: Sequence[int]) -> None:
        self._limits, self._sizes = limits, tuple(sizes)
        self._shelves: OrderedDict[tuple[str, int], Occurrences] = OrderedDict()

    def __len__(self) -> int:
        return len(self._shelves)

    def of(self, sequence: SequenceView) -> Occurrences | None:
        """What a sequence may draft from."""
        tenant = sequence.params.tenant
        return None if tenant is None else self._shelves.get((tenant, sequence.vocabulary_size))

    def add(self, sequence: SequenceView) -> None:
        """Keep the output of a sequence that has ended, if it may be kept."""
        tenant = sequence.params.tenant
        output = sequence.tokens[sequence.prompt_length :]
        if tenant is None or not output or sequence.finish_reason not in ("stop", "length"):
            return
        key = tenant, sequence.vocabulary_size
        if key not in self._shelves:
            self._shelves[key] = make_occurrences(self._sizes, self._limits.max_tokens)
        self._shelves.move_to_end(key)
        self._shelves[key].append(output[-self._limits.max_tokens :])
        self._shelves[key].end_text()
        while len(self._shelves) > self._limits.max_tenants:
            self._shelves.popitem(last=False)
