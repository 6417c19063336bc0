"""How likely draft tokens are to be accepted: by source, by depth, by sequence, and by how sure the draft model was.

A token counts as examined only where all before it were accepted, so what is learnt is the acceptance at each depth,
given that it was examined. Every source has a table of its own for each kind of request (greedy, seeded, sampled) and
for each context that it tells apart (a suffix match of 20 tokens is another thing than one of 2). All sequences teach
the table, slowly; each sequence has one number besides, by which its tokens are likelier to be accepted than those of
others (in logits, by a Kalman filter: quickly, and for ever, so that a text which turns is followed). What these are
estimated with is in `estimates.py`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from forerun.control.estimates import (
    PRIOR_WEIGHT,
    READING_TRIAL,
    TRIAL,
    Calibration,
    Share,
    Shift,
    Table,
    logit,
    shifted,
    sigmoid,
)
from forerun.types import Gate, Prospect, Round

NEGLIGIBLE = 0.02
"""Probability below which a draft token is not worth thinking of."""
FEW_UNREAD = 32
"""Unread tokens that a draft model reads by the way, in the first pass of a draft."""
CUT = "cut "
"""What contexts begin with where a draft model has seen the latest part of a text alone."""
Key = tuple[str, str]
"""(source, kind of request)."""
_NONE, _IDENTITY = Shift(), Calibration()
"""What is known of a sequence, and of confidences, before anything was seen. Never changed."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """What a draft from a prospect would do. `value[i]` is the probability that token i is drafted and accepted with
    all before it (the tokens that depth i adds to a round, on average), `drafted[i]` that it is drafted at all, and
    `accepted[i]` that it is accepted, given that it is examined; `hopeful[i]` is the last, if things are somewhat
    better than they look."""

    value: tuple[float, ...]
    drafted: tuple[float, ...]
    accepted: tuple[float, ...]
    hopeful: tuple[float, ...]


class Acceptance:
    """Everything learnt about acceptance. Sequences are known by their ids, and forgotten by `forget`."""

    def __init__(self) -> None:
        self._tables: dict[tuple[Key, str], Table] = {}
        self._shifts: dict[tuple[int, Key, bool], Shift] = {}  # the last: of drafts by a model that sees a part alone
        self._siblings: dict[Key, list[Share]] = {}
        self._num_examined: dict[str, int] = {}  # of a draft model's tokens, with all its kinds of requests
        self._sureness: dict[tuple[int, Key], Shift] = {}  # of a sequence, against the calibration
        # Of a source's own guesses in a context, and of a draft model's confidences (context None).
        self._calibrations: dict[tuple[Key, str | None], Calibration] = {}

    def forecast(
        self,
        sequence_id: int,
        key: Key,
        prospect: Prospect,
        num_tokens: int,
        least: float = NEGLIGIBLE,
        *,
        hopeful: bool = False,
    ) -> Forecast:
        """What drafting up to `num_tokens` tokens from `prospect` would do, as far as all tokens are accepted with a
        probability of at least `least`; `hopeful`: if the first one did somewhat better than it is known to, which is
        taken for granted of a source on trial."""
        table = self._table(key, prospect)
        means = table.means
        guess = self._calibrations.get((key, prospect.context), _IDENTITY)
        num_guessed = len(prospect.expected)
        shift = self._shift(sequence_id, key, prospect)
        odds = math.exp(shift.value)
        # A new source is on trial, though not with each view of a text in turn.
        trial = TRIAL if prospect.num_unread <= FEW_UNREAD else READING_TRIAL
        hopeful = hopeful or (table.num_seen < trial and not num_guessed and not shift.is_of_another_view)
        factor = math.exp(shift.hopeful) if hopeful else odds
        value, drafted, given_examined, at_best = [], [], [], []
        reached = going = all_so_far = 1.0
        for depth in range(num_tokens):
            if depth >= len(means):
                table.learn_means(depth)
            if depth < num_guessed:
                accepted = best = guess.at(prospect.expected[depth], 0.0)
            else:
                mean = means[depth - num_guessed]
                best = mean.hopeful
                accepted = best if hopeful and not depth else mean.accepted
            # The logit of `accepted` plus the shift, without a logarithm.
            accepted = accepted * factor / (accepted * factor + 1.0 - accepted)
            factor = odds
            all_so_far *= accepted
            if all_so_far < least:
                break
            reached *= means[depth].going_well * accepted
            going *= means[depth].going
            value.append(reached)
            drafted.append(going)
            given_examined.append(accepted)
            at_best.append(best * odds / (best * odds + 1.0 - best))
        return Forecast(tuple(value), tuple(drafted), tuple(given_examined), tuple(at_best))

    def is_known(self, source: str) -> bool:
        """Whether the draft model of a source has shown on some tokens what it can do."""
        return self._num_examined.get(_model_of(source), 0) >= READING_TRIAL

    def pass_by(self, sequence_id: int, key: Key) -> None:
        """A round in which nothing was drafted for a sequence from a source that could have been."""
        for shift in (
            self._shifts.get((sequence_id, key, False)),
            self._shifts.get((sequence_id, key, True)),
            self._sureness.get((sequence_id, key)),
        ):
            if shift is not None:
                shift.pass_by()

    def is_calibrated(self, key: Key) -> bool:
        """Whether a source has told how sure it was of its tokens, and how that turned out."""
        return self._calibrations.get((key, None), _IDENTITY).num > 0

    def siblings(self, key: Key) -> list[float]:
        """[r]: how likely child number r + 1 of a node is to be accepted, where those before it were not."""
        return [share.mean for share in self._siblings.get(key) or _siblings()]

    def gate(self, sequence_id: int, key: Key, prospect: Prospect, least: Sequence[float]) -> Gate:
        """A gate that lets a draft go on after token i (from 0) while the probability that all tokens so far will be
        accepted is at least `least[i]`: beyond them, never. It is shown the confidences of the tokens that a draft
        model drew, which follow the prospect's free ones."""
        calibration = self._calibrations.get((key, None), _IDENTITY)
        shift = self._sureness.get((sequence_id, key), _NONE).value
        offset, slope = calibration.offset + shift, calibration.slope
        num_free = prospect.num_free
        before = self.forecast(sequence_id, key, prospect, num_free).value if num_free else ()
        reached = before[-1] if before else 1.0
        num_seen = 0

        def goes_on(confidences: Sequence[float]) -> bool:
            nonlocal reached, num_seen
            for confidence in confidences[num_seen:]:
                reached *= sigmoid(offset + slope * logit(confidence))
            num_seen = len(confidences)
            place = num_free + num_seen
            return place <= len(least) and reached >= least[place - 1]

        return goes_on

    def observe(self, key: Key, prospect: Prospect, num_planned: int, is_open: bool, done: Round) -> None:
        """One finished round of a draft that was to have `num_planned` tokens. `is_open`: it may have been ended early
        by a gate, or because its source had no more, and not by the end of the text."""
        table = self._table(key, prospect)
        num_examined = len(done.widths)
        table.upto(max(num_planned, num_examined))
        for known in (table, table.like):
            if known is not None:
                known.means.clear()
        guess = self._calibrations.setdefault((key, prospect.context), Calibration())
        num_guessed = len(prospect.expected)
        shift = self._shifts.setdefault(
            (done.sequence_id, key, prospect.num_cut > 0), self._shift(done.sequence_id, key, prospect)
        )
        prior = table.prior
        if num_examined > done.num_free:
            name = _model_of(key[0])
            self._num_examined[name] = self._num_examined.get(name, 0) + num_examined - done.num_free
        for depth in range(num_examined):
            was_accepted = _was_first(done, depth)
            if depth < num_guessed:
                shift.note(was_accepted, guess.at(prospect.expected[depth], shift.value))
                guess.note(prospect.expected[depth], 0.0, was_accepted)
            else:
                entry = table.accepted[depth - num_guessed]
                prior = entry.after(prior)
                shift.note(was_accepted, shifted(prior, shift.value))
                entry.note(was_accepted)
        if is_open and done.depth:  # nothing at all is drafted for reasons that have to do with the cache
            for depth in range(min(done.depth + 1, num_planned)):
                was_drafted = depth < done.depth
                table.drafted[depth].note(was_drafted)
                if depth <= done.num_accepted and (depth == 0 or _was_first(done, depth - 1)):
                    table.going_well[depth].note(was_drafted)
        for rank, share in enumerate(self._siblings.setdefault(key, _siblings()), start=1):
            for depth, width in enumerate(done.widths):
                accepted = done.ranks[depth] if depth < len(done.ranks) else width
                if rank <= accepted and rank < width:
                    share.note(accepted == rank)
        self._calibrate(key, done, prospect.num_free)

    def _calibrate(self, key: Key, done: Round, num_free: int) -> None:
        if not done.confidences:
            return
        calibration = self._calibrations.setdefault((key, None), Calibration())
        sureness = self._sureness.setdefault((done.sequence_id, key), Shift())
        num_examined = len(done.widths)
        for depth, confidence in enumerate(done.confidences[: max(num_examined - num_free, 0)], start=num_free):
            was_accepted = _was_first(done, depth)
            sureness.note(was_accepted, calibration.at(confidence, sureness.value))
            calibration.note(confidence, sureness.value, was_accepted)

    def forget(self, *sequence_ids: int) -> None:
        """Drop what is known of these sequences; what they taught the tables stays. Looks through all that is known
        once, however many they are."""
        ended = frozenset(sequence_ids)
        for shifted_by in [known for known in self._shifts if known[0] in ended]:
            del self._shifts[shifted_by]
        for sure in [known for known in self._sureness if known[0] in ended]:
            del self._sureness[sure]

    def _shift(self, sequence_id: int, key: Key, prospect: Prospect) -> Shift:
        """A sequence's own number. Of a draft model that has not drafted with this view of the text, half of what it
        showed with the other: texts that are hard for one are often hard for both, and sometimes because of it."""
        is_cut = prospect.num_cut > 0
        found = self._shifts.get((sequence_id, key, is_cut))
        if found is None:
            other = self._shifts.get((sequence_id, key, not is_cut))
            found = Shift() if other is None else other.of_another_view()
        return found

    def _table(self, key: Key, prospect: Prospect) -> Table:
        found = self._tables.get((key, prospect.context))
        if found is None:
            context = prospect.context.removeprefix(CUT)
            whole, cut = Table(), Table()
            whole.like, cut.like = cut, whole
            self._tables[key, context], self._tables[key, CUT + context] = whole, cut
            found = whole if prospect.context == context else cut
        return found


def _siblings() -> list[Share]:
    """Second, third and fourth children, before anything is known of them: the likelihood of a draft model's second
    choice where its first was wrong, and so on (papers quote .3 to .5 for the second)."""
    return [Share(mean * PRIOR_WEIGHT, PRIOR_WEIGHT) for mean in (0.35, 0.2, 0.12)]


def _model_of(source: str) -> str:
    """Who drafts the tokens that are not free ("model" of "suffix+model")."""
    return source.rpartition("+")[2]


def _was_first(done: Round, depth: int) -> bool:
    """Whether the first child at a depth was accepted."""
    return depth < len(done.ranks) and done.ranks[depth] == 0
