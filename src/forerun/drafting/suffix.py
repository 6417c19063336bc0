"""Suffix drafting: what followed the last tokens where they occurred before, by a vote of those occurrences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from forerun.checks import whole
from forerun.drafting.base import SequenceView
from forerun.drafting.occurrences import Continuation, Occurrences, OwnTexts
from forerun.drafting.shared import Library, SharedTexts
from forerun.runtime.base import Rows
from forerun.types import Draft, Plan, Prospect, Verdict

SIZES = (1, 2, 3, 5, 8, 13, 21, 34)
"""Lengths of match that are told apart. All of 1 to 34 draft no better (docs/log.md)."""

VOTERS = 16
"""Latest occurrences that vote on each token."""
NEGLIGIBLE = 0.01
"""A draft ends where fewer than this share of such drafts would be accepted to the end."""


@dataclass(frozen=True, slots=True)
class _Found:
    """What can be drafted behind a text of `length` tokens, of at most `most` tokens."""

    length: int
    most: int
    tokens: list[int]
    expected: tuple[float, ...] = ()
    context: str = ""


class SuffixDrafter:
    """Drafts from the text itself (prompt and output), and from past outputs if `shared` says so.

    The match is the last n tokens for the largest n of 1, 2, 3, 5, 8, 13, 21, 34 whose last n tokens occurred before.
    Its latest 16 occurrences vote on each draft token in turn, equals going to the latest, and those that voted
    otherwise drop out: the most frequent branch of a suffix tree, as in SuffixDecoding (Oliaro et al., arXiv
    2411.04975) and SAM-Decoding (Hu et al., 2411.10666), with counts of the latest occurrences. One that runs into the
    end of the text goes on periodically. A longer match in shared texts takes the place of the text's own.

    Of c votes among v voters, i tokens behind a match of n, a token is expected to be accepted with probability
    (c - 4 / (4 + n + i)) / v (absolute discounting, Ney, Essen and Kneser 1994; the discount fits code, prose and JSON
    within 0.1, docs/log.md). A draft has up to `longest` tokens, and ends where the product of these falls under 1 %.

    A token costs eight table entries and a question a bounded number of look-ups, however long the text; 70 to 140
    bytes a token are kept. Without `shared` nothing passes from one sequence to another, and `release` forgets
    everything.
    """

    source = "suffix"
    needs: tuple[str, ...] = ()

    def __init__(self, longest: int = 64, shared: SharedTexts | None = None) -> None:
        whole("longest", longest, 1, None, "a whole number of draft tokens, at least 1")
        self.longest = longest
        self._texts = OwnTexts(SIZES)
        self._found: dict[int, _Found] = {}
        self._library = None if shared is None else Library(shared, SIZES)
        self._sharing: dict[int, SequenceView] = {}  # whose output may be kept when it ends

    def prospects(self, sequences: Sequence[SequenceView], longest: Sequence[int]) -> list[list[Prospect]]:
        answers = []
        for sequence, most in zip(sequences, longest, strict=True):
            found = self._find(sequence, most)
            num = len(found.tokens)
            prospect = Prospect(self.source, num, num_free=num, context=found.context, expected=found.expected)
            answers.append([prospect] if num else [])
        return answers

    def propose(self, sequences: Sequence[SequenceView], plans: Sequence[Plan]) -> list[Draft]:
        return [
            Draft(tuple(self._find(sequence, plan.shape).tokens[: plan.shape]), source=self.source)
            for sequence, plan in zip(sequences, plans, strict=True)
        ]

    def observe(self, sequences: Sequence[SequenceView], rows: Rows, verdicts: Sequence[Verdict | None]) -> None:
        pass

    def release(self, sequence_id: int) -> None:
        self._texts.forget(sequence_id)
        self._found.pop(sequence_id, None)
        ended = self._sharing.pop(sequence_id, None)
        if ended is not None and self._library is not None:
            self._library.add(ended)

    def _find(self, sequence: SequenceView, most: int) -> _Found:
        """What can be drafted now, of at least `most` tokens if there are as many."""
        most = min(most, self.longest)
        known = self._found.get(sequence.sequence_id)
        if known is not None and known.length == len(sequence.tokens) and known.most >= most:
            return known
        own = self._texts.read(sequence)
        found = self._look_up(sequence, most, own)
        if own is not None:  # else there is more to be read the next time
            self._found[sequence.sequence_id] = found
        return found

    def _look_up(self, sequence: SequenceView, most: int, own: Occurrences | None) -> _Found:
        length = len(sequence.tokens)
        shelf = None
        if self._library is not None:
            self._sharing[sequence.sequence_id] = sequence
            shelf = self._library.of(sequence)
        if most <= 0:
            return _Found(length, 0, [])
        best = Continuation(0, [], [], [])
        if own is not None:
            best = Continuation(*own.follow(most, VOTERS))
        if shelf is not None:
            other = Continuation(*shelf.follow_tail(sequence.tokens[-SIZES[-1] :], most, VOTERS))
            if other.size > best.size and other.tokens:
                best = other
        expected = _expected(best)
        num = len(expected)
        return _Found(length, most, best.tokens[:num], expected, _context(best) if num else "")


def _expected(found: Continuation) -> tuple[float, ...]:
    """The acceptance of each token given those before it, as far as the draft is worth anything."""
    share, answers = 1.0, []
    for i, (votes, voters) in enumerate(zip(found.votes, found.voters, strict=True)):
        expected = (votes - 4 / (4 + found.size + i)) / voters
        share *= expected
        if share < NEGLIGIBLE:
            break
        answers.append(expected)
    return tuple(answers)


def _context(found: Continuation) -> str:
    """Ten kinds of match: by its length, and by whether one occurrence, all of several or some vote for the first."""
    if found.size >= 8:
        return "8+"
    length = "3-5" if found.size >= 3 else str(found.size)
    agreement = "split" if found.votes[0] < found.voters[0] else "one" if found.voters[0] == 1 else "all"
    return f"{length} {agreement}"
