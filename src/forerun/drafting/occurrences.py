"""Where the last tokens of a text occurred before, and what followed: the index behind suffix and lookup drafts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from forerun.drafting.base import SequenceView

READ_AT_ONCE = 4096
"""Tokens indexed in one round at most: about a millisecond, so that nobody's stream waits for the index of a long
prompt. Prompts are read in pieces, and their index is ahead of them; one that was read for another request has its
index made over the rounds that follow, without drafts until then."""

MOST_LOOKED_AT = 256
"""Places that one question looks at, at most."""
BREAK = -1
"""What stands between two texts: no token id."""

Answer = tuple[int, list[int], list[int], list[int]]
"""The fields of a `Continuation`, as both indexes give them."""


class Continuation(NamedTuple):
    """What followed the longest match, of `size` tokens (0: there is none). `votes[i]` of the `voters[i]` occurrences
    that agree with `tokens` up to i go on with token i."""

    size: int
    tokens: list[int]
    votes: list[int]
    voters: list[int]


class Occurrences(Protocol):
    """Every place of a text by the tokens before it, for a few sizes; `window` latest tokens count, 0 for all.

    A token costs one entry for each size. What follows the last tokens is voted on by the latest occurrences of the
    longest of the sizes that occurred, ties going to the latest; one question looks at 256 places at most.
    """

    def reserve(self, num_tokens: int) -> None:
        """Room for so many tokens."""
        ...

    def append(self, tokens: Sequence[int]) -> None:
        """The text goes on."""
        ...

    def end_text(self) -> None:
        """The text ends here and another begins: nothing matches or continues across."""
        ...

    def follow(self, most: int, most_voters: int) -> Answer:
        """What follows the text's own last tokens. An occurrence that runs into the end goes on periodically."""
        ...

    def follow_tail(self, tail: Sequence[int], most: int, most_voters: int) -> Answer:
        """What follows the last tokens of a text that is elsewhere."""
        ...

    @property
    def num_tokens(self) -> int:
        """Tokens within the window."""
        ...

    @property
    def num_entries(self) -> int:
        """Entries made so far: the work of `append`."""
        ...

    @property
    def num_looked_at(self) -> int:
        """Places looked at so far: the work of `follow`."""
        ...


class PlainOccurrences:
    """The same in plain Python, for installations without the extension, and what its tests compare it with. About ten
    times slower."""

    def __init__(self, sizes: Sequence[int], window: int = 0) -> None:
        self._sizes, self._window = tuple(sizes), window
        self._tokens: list[int] = []
        self._places: dict[tuple[int, ...], list[int]] = {}
        self.num_entries = self.num_looked_at = 0

    @property
    def num_tokens(self) -> int:
        return len(self._tokens) - self._oldest

    @property
    def _oldest(self) -> int:
        return max(len(self._tokens) - self._window, 0) if self._window else 0

    def reserve(self, num_tokens: int) -> None:
        pass

    def append(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            place = len(self._tokens)
            for size in self._sizes:
                if size <= place:
                    self._places.setdefault(tuple(self._tokens[place - size :]), []).append(place)
                    self.num_entries += 1
            self._tokens.append(token)
        if self._window and len(self._tokens) > 2 * self._window:
            kept, num_entries = self._tokens[-self._window :], self.num_entries
            self._tokens, self._places = [], {}
            self.append(kept)
            self.num_entries = num_entries

    def end_text(self) -> None:
        self.append([BREAK])

    def follow(self, most: int, most_voters: int) -> Answer:
        tail = self._tokens[max(len(self._tokens) - self._sizes[-1], self._oldest) :]
        return self._vote(tail, most, most_voters, True)

    def follow_tail(self, tail: Sequence[int], most: int, most_voters: int) -> Answer:
        return self._vote(tail, most, most_voters, False)

    def _vote(self, tail: Sequence[int], most: int, most_voters: int, is_own: bool) -> Answer:
        for size in reversed(self._sizes):
            if size > len(tail):
                continue
            all_places = self._places.get(tuple(tail[len(tail) - size :]), [])[-min(most_voters, MOST_LOOKED_AT) :]
            places = [place for place in reversed(all_places) if place >= self._oldest + size]
            self.num_looked_at += len(all_places)
            if places:
                return (size, *self._count(places, most, is_own))
        return 0, [], [], []

    def _count(self, places: list[int], most: int, is_own: bool) -> tuple[list[int], list[int], list[int]]:
        tokens, votes, voters = [], [], []
        for i in range(most):
            nexts = [self._after(place, i, is_own) for place in places]
            counts = {token: nexts.count(token) for token in nexts if token != BREAK}
            if not counts:
                break
            best = max(counts, key=counts.__getitem__)  # of equals the first: the latest occurrence's
            tokens.append(best)
            votes.append(counts[best])
            voters.append(len(places))
            places = [place for place, token in zip(places, nexts, strict=True) if token == best]
        return tokens, votes, voters

    def _after(self, place: int, i: int, is_own: bool) -> int:
        length = len(self._tokens)
        if place + i >= length and not is_own:
            return BREAK
        return self._tokens[place + i % (length - place)]


def make_occurrences(sizes: Sequence[int], window: int = 0) -> Occurrences:
    """An empty index: compiled (csrc/drafting/) where the extension is built."""
    try:
        from forerun._native import Occurrences as Native
    except ImportError:
        return PlainOccurrences(sizes, window)
    return Native(sizes, window)


class OwnTexts:
    """An index of each sequence's own text, derived from its tokens and read a piece at a time."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self._sizes = tuple(sizes)
        self._indexes: dict[int, tuple[Occurrences, list[int]]] = {}  # the index, and [tokens read]

    def __contains__(self, sequence_id: int) -> bool:
        return sequence_id in self._indexes

    def __len__(self) -> int:
        return len(self._indexes)

    def read(self, sequence: SequenceView) -> Occurrences | None:
        """Take in what is new of a text; its index, None while there is more to be read."""
        tokens = sequence.tokens
        if sequence.sequence_id not in self._indexes:
            made = make_occurrences(self._sizes)
            made.reserve(len(tokens) * 5 // 4)  # what is written behind it seldom needs a larger index
            self._indexes[sequence.sequence_id] = made, [0]
        index, num_read = self._indexes[sequence.sequence_id]
        new = tokens[num_read[0] : num_read[0] + READ_AT_ONCE]
        if new:
            num_read[0] += len(new)
            index.append(new)
        return index if num_read[0] == len(tokens) else None

    def forget(self, sequence_id: int) -> None:
        """Unknown ids are ignored."""
        self._indexes.pop(sequence_id, None)
