"""Several drafters as one: each is a source of its own, and a draft model may go on where another source ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Protocol, runtime_checkable

from forerun.drafting.base import Drafter, SequenceView
from forerun.errors import ContractError, ParameterError
from forerun.runtime.base import Rows
from forerun.types import Draft, Plan, Prospect, Verdict

EXTENDED_FROM = 0.3
"""A draft is extended behind the tokens that are accepted with at least this probability, by its source's estimate."""

PRIOR = (0.7, 1.0)
"""Acceptance of a source that has not drafted for a sequence yet, and how many examined tokens that counts for."""

MEMORY = 0.9
"""What a round's acceptance counts for in the next one."""


class Source(Drafter, Protocol):
    """A drafter whose prospects and drafts have this name."""

    @property
    def source(self) -> str: ...


@runtime_checkable
class Extender(Source, Protocol):
    """A source that can draft behind given tokens."""

    def extend(
        self, sequences: Sequence[SequenceView], plans: Sequence[Plan], free: Sequence[Sequence[int]]
    ) -> list[Draft]:
        """Whole drafts of `plans[i].shape` tokens that begin with `free[i]`."""
        ...


@dataclass(slots=True)
class _Record:
    """How a source did for a sequence: tokens accepted and examined, older ones counting less."""

    accepted: float = PRIOR[0] * PRIOR[1]
    examined: float = PRIOR[1]

    def add(self, num_accepted: int, num_examined: int) -> None:
        self.accepted = MEMORY * self.accepted + num_accepted
        self.examined = MEMORY * self.examined + num_examined


class StackDrafter:
    """Offers the prospects of all `sources`, and for each that can extend (a draft model) those of the others extended
    by it: "suffix+model" begins with the suffix's tokens as far as they are accepted with probability 0.3, by the
    suffix's own estimate, and each token behind them costs the draft model a pass.

    A plan names the source; each is asked once for a batch, and one that no plan names does nothing. Where a plan names
    none, the source with most expected accepted tokens drafts (the first of equals): by its own estimates if it has
    some, else by its acceptance in this sequence's past rounds, older ones counting less. The choice looks at committed
    tokens and past rounds alone. Nothing of it outlives the sequence.

    Extended drafts are deterministic where the noise is; sampled ones have rows of q with all mass on one token for the
    first part. ParameterError unless every source has a name of its own.
    """

    def __init__(self, sources: Sequence[Source]) -> None:
        names = [getattr(source, "source", "") for source in sources]
        unfit = [name for name in names if not name or "+" in name or names.count(name) > 1]
        if unfit or not names:
            raise ParameterError(
                "sources", f"the names {names} do not tell them apart", "give one drafter or more, of different kinds"
            )
        self.sources = dict(zip(names, sources, strict=True))
        self.needs = tuple(dict.fromkeys(need for source in sources for need in source.needs))
        self._extenders = {name: source for name, source in self.sources.items() if isinstance(source, Extender)}
        self._records: dict[int, dict[str, _Record]] = {}
        self._drafted: dict[int, tuple[str, int]] = {}  # what was drafted in this round: source, tokens

    def prospects(self, sequences: Sequence[SequenceView], longest: Sequence[int]) -> list[list[Prospect]]:
        of_sources = [source.prospects(sequences, longest) for source in self.sources.values()]
        found = []
        for lists in zip(*of_sources, strict=True):
            alone = [prospect for one in lists for prospect in one]
            extending = [prospect for prospect in alone if prospect.source in self._extenders]
            found.append([*alone, *(both for by in extending for one in alone if (both := _extended(one, by)))])
        return found

    def propose(self, sequences: Sequence[SequenceView], plans: Sequence[Plan]) -> list[Draft]:
        names = self._chosen(sequences, plans)
        parts = [name.split("+") for name in names]
        drafts = [Draft() for _ in sequences]
        for name, source in self.sources.items():
            if name not in self._extenders:
                asked = [i for i, part in enumerate(parts) if part[0] == name]
                theirs = [sequences[i] for i in asked]
                first = self._first_parts(source, theirs, [plans[i] for i in asked], [len(parts[i]) > 1 for i in asked])
                for i, draft in zip(asked, source.propose(theirs, first) if asked else (), strict=True):
                    drafts[i] = draft
        for name, extender in self._extenders.items():
            asked = [i for i, part in enumerate(parts) if part[-1] == name]
            if asked:
                free = [drafts[i].tokens for i in asked]
                made = extender.extend([sequences[i] for i in asked], [plans[i] for i in asked], free)
                for i, draft in zip(asked, made, strict=True):
                    drafts[i] = replace(draft, source=names[i])
        for sequence, name, draft in zip(sequences, names, drafts, strict=True):
            self._drafted[sequence.sequence_id] = name, len(draft.tokens)
        return drafts

    def observe(self, sequences: Sequence[SequenceView], rows: Rows, verdicts: Sequence[Verdict | None]) -> None:
        for sequence, verdict in zip(sequences, verdicts, strict=True):
            name, num_drafted = self._drafted.pop(sequence.sequence_id, ("", 0))
            if verdict is not None and num_drafted:
                num_accepted = min(verdict.num_accepted, num_drafted)
                self._record(sequence, name).add(num_accepted, num_accepted + (num_accepted < num_drafted))
        for source in self.sources.values():
            source.observe(sequences, rows, verdicts)

    def release(self, sequence_id: int) -> None:
        self._records.pop(sequence_id, None)
        self._drafted.pop(sequence_id, None)
        for source in self.sources.values():
            source.release(sequence_id)

    def _first_parts(
        self, source: Source, sequences: Sequence[SequenceView], plans: Sequence[Plan], are_extended: Sequence[bool]
    ) -> list[Plan]:
        """The plans of what is to come from this source itself, where some of its drafts are extended."""
        if not any(are_extended):
            return list(plans)
        prospects = source.prospects(sequences, [plan.shape for plan in plans])
        return [
            replace(plan, shape=min(plan.shape, max(map(_num_kept, one), default=0)), tree=None)
            if is_extended
            else plan
            for plan, one, is_extended in zip(plans, prospects, are_extended, strict=True)
        ]

    def _chosen(self, sequences: Sequence[SequenceView], plans: Sequence[Plan]) -> list[str]:
        """The source of each draft; "" where there is none. ContractError for one that is unknown."""
        open_plans = [i for i, plan in enumerate(plans) if plan.source is None]
        shapes = [plans[i].shape for i in open_plans]
        offered = self.prospects([sequences[i] for i in open_plans], shapes) if open_plans else []
        names = [plan.source or "" for plan in plans]
        for i, prospects in zip(open_plans, offered, strict=True):
            names[i] = self._best(sequences[i], [one for one in prospects if one.source in self.sources])
        for name in names:
            if name and not self._is_source(name):
                raise ContractError(f"the policy chose {name!r} where the sources are {list(self.sources)}")
        return names

    def _is_source(self, name: str) -> bool:
        first, plus, by = name.partition("+")
        return name in self.sources or bool(
            plus and first in self.sources and first not in self._extenders and by in self._extenders
        )

    def _best(self, sequence: SequenceView, prospects: Sequence[Prospect]) -> str:
        """The source that most accepted tokens are expected of; "" where nothing could be drafted."""
        return max(prospects, key=lambda one: self._num_expected(sequence, one), default=Prospect("", 0)).source

    def _num_expected(self, sequence: SequenceView, prospect: Prospect) -> float:
        """Accepted tokens to be expected of a prospect."""
        if prospect.expected:
            return sum(_shares(prospect.expected))
        record = self._record(sequence, prospect.source)
        return sum(_shares([record.accepted / record.examined] * prospect.longest))

    def _record(self, sequence: SequenceView, name: str) -> _Record:
        return self._records.setdefault(sequence.sequence_id, {}).setdefault(name, _Record())


def _shares(acceptance: Sequence[float]) -> list[float]:
    """How often each token is accepted together with all those before it."""
    return list(accumulate(acceptance, lambda all_before, one: all_before * one))


def _num_kept(prospect: Prospect) -> int:
    """Tokens of a prospect behind which another source may go on."""
    return sum(share >= EXTENDED_FROM for share in _shares(prospect.expected))


def _extended(first: Prospect, by: Prospect) -> Prospect | None:
    """A prospect that costs nothing, extended by one that begins where it ends; None where there is nothing to gain."""
    num_free = _num_kept(first)
    if not 0 < num_free < by.longest:
        return None
    return Prospect(
        f"{first.source}+{by.source}",
        by.longest,
        num_free=num_free,
        num_unread=by.num_unread,
        num_cut=by.num_cut,
        context=first.context,
        expected=first.expected[:num_free],
    )
