"""How likely draft tokens are to be accepted: by source, by depth, by sequence, and by how sure the draft model was.

A token counts as examined only where all before it were accepted, so what is learnt is the acceptance at each depth,
given that it was examined. Every source has a table of its own for each kind of request (greedy, seeded, sampled) and
for each context that it tells apart (a suffix match of 20 tokens is another thing than one of 2). All sequences teach
the table, slowly; each sequence has one number besides, by which its tokens are likelier to be accepted than those of
others (in logits, learnt by stochastic gradient: quickly, and for ever, so that a text which turns is followed).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from forerun.types import Gate, Prospect, Round

MAX_DEPTH = 64
PRIOR = 0.75
"""Acceptance before anything is known, where the source has no guess of its own: the 70 to 85 % of the literature."""
PRIOR_WEIGHT = 6.0
"""Observations that the prior counts for."""
MEMORY = 2000.0
"""Observations that a table remembers."""
FIRST_VARIANCE, LARGEST_VARIANCE = 0.5, 1.5
STEADY_VARIANCE, SILENT_VARIANCE = 0.0004, 0.004
"""Of a sequence's own number: at first, at most, and what is added by a token and by a round without a draft."""
USUAL_TREND = 0.4
"""A moving average of surprises that chance alone makes."""
TRIAL = 40.0
"""Tokens for which a source that makes no guesses of its own is given the benefit of the doubt, whatever else there
is."""
HOPE, TABLE_HOPE = 0.4, 1.5
"""Standard deviations by which a forecast is better than the likeliest case, for a sequence and for a table."""
LARGEST_SHIFT = 7.0
NEGLIGIBLE = 0.02
"""Probability below which a draft token is not worth thinking of."""


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


@dataclass
class _Share:
    """A probability, from weighted successes among weighted observations."""

    hits: float
    total: float

    @property
    def mean(self) -> float:
        return self.hits / self.total

    def after(self, prior: float) -> float:
        """The mean, where `prior` counts for PRIOR_WEIGHT more observations."""
        return (self.hits + PRIOR_WEIGHT * prior) / (self.total + PRIOR_WEIGHT)

    def hopeful(self, prior: float) -> float:
        """The same, if it is somewhat better than it looks."""
        mean = self.after(prior)
        return min(mean + TABLE_HOPE * math.sqrt(mean * (1.0 - mean) / (self.total + PRIOR_WEIGHT)), 0.995)

    def note(self, happened: bool) -> None:
        if self.total > MEMORY:
            kept = MEMORY / self.total
            self.hits, self.total = self.hits * kept, self.total * kept
        self.hits += happened
        self.total += 1.0


@dataclass(frozen=True, slots=True)
class _Means:
    """What a table says of one depth."""

    accepted: float
    hopeful: float
    going: float  # drafted, given that the depth before was
    going_well: float


@dataclass
class _Table:
    """What is known of one source for one kind of request in one context, by depth. `accepted` begins behind the tokens
    that the source makes a guess at, and holds nothing but what was seen: the prior of a depth is what is known of the
    one before it, so that the first tokens of a good source promise that deeper ones are good."""

    accepted: list[_Share] = field(default_factory=list)
    means: list[_Means] = field(default_factory=list)  # of all of it, until more is learnt
    drafted: list[_Share] = field(default_factory=list)  # a draft goes so far, once it came to the depth before
    going_well: list[_Share] = field(default_factory=list)  # the same, where all before were accepted

    def upto(self, num_depths: int) -> None:
        """Have an entry for each depth below `num_depths`."""
        for _ in range(len(self.accepted), num_depths):
            self.accepted.append(_Share(0.0, 0.0))
            self.drafted.append(_Share(0.0, 0.0))
            self.going_well.append(_Share(0.0, 0.0))

    def learn_means(self, depth: int) -> None:
        """Have the means of all depths up to this one."""
        self.upto(depth + 1)
        for place in range(len(self.means), depth + 1):
            before = self.means[-1] if place else _Means(PRIOR, PRIOR, 1.0, 1.0)
            share = self.accepted[place]
            self.means.append(
                _Means(
                    share.after(before.accepted),
                    share.hopeful(before.accepted),
                    self.drafted[place].after(before.going),
                    self.going_well[place].after(before.going_well),
                )
            )


@dataclass
class _Shift:
    """By how much one sequence's tokens are likelier to be accepted than the table says, in logits: a Kalman filter.

    `variance` is how unsure that is. It grows in rounds without a draft, so that the next one counts for more, and when
    several tokens in a row turn out otherwise than expected, so that a text which turns is followed at once.
    """

    value: float = 0.0
    variance: float = FIRST_VARIANCE
    trend: float = 0.0  # moving average of what was unexpected

    def note(self, was_accepted: bool, predicted: float) -> None:
        unexpected = was_accepted - predicted
        self.trend += 0.3 * (unexpected - self.trend)
        turn = max(abs(self.trend) - USUAL_TREND, 0.0)
        variance = min(self.variance + STEADY_VARIANCE + 3.0 * turn * turn, LARGEST_VARIANCE)
        self.variance = variance / (1.0 + variance * predicted * (1.0 - predicted))
        moved = self.value + self.variance * unexpected
        self.value = max(-LARGEST_SHIFT, min(LARGEST_SHIFT, moved))

    def pass_by(self) -> None:
        """A round without a draft."""
        self.variance = min(self.variance + SILENT_VARIANCE, LARGEST_VARIANCE)

    @property
    def hopeful(self) -> float:
        """The shift, if things are somewhat better than they look."""
        return self.value + HOPE * math.sqrt(self.variance)


@dataclass
class _Calibration:
    """Acceptance as a function of a confidence, a draft model's or a source's own guess: a logistic curve over its
    logit, beginning with the identity (a token of confidence .9 is accepted nine times in ten)."""

    offset: float = 0.0
    slope: float = 1.0
    num: int = 0

    def note(self, confidence: float, shift: float, was_accepted: bool) -> None:
        rate = max(0.01, 0.2 / (1.0 + 0.05 * self.num))
        self.num += 1
        error = was_accepted - self.at(confidence, shift)
        self.offset += rate * error
        self.slope = min(max(self.slope + 0.2 * rate * error * _logit(confidence), 0.0), 3.0)

    def at(self, confidence: float, shift: float) -> float:
        return _sigmoid(self.offset + self.slope * _logit(confidence) + shift)


Key = tuple[str, str]
"""(source, kind of request)."""


class Acceptance:
    """Everything learnt about acceptance. Sequences are known by their ids, and forgotten by `forget`."""

    def __init__(self) -> None:
        self._tables: dict[tuple[Key, str], _Table] = {}
        self._shifts: dict[tuple[int, Key], _Shift] = {}
        self._siblings: dict[Key, list[_Share]] = {}
        self._sureness: dict[tuple[int, Key], _Shift] = {}  # of a sequence, against the calibration
        # Of a source's own guesses in a context, and of a draft model's confidences (context None).
        self._calibrations: dict[tuple[Key, str | None], _Calibration] = {}

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
        probability of at least `least`; `hopeful`: if the first one did somewhat better than it is known to."""
        table = self._table(key, prospect)
        means = table.means
        guess = self._calibrations.get((key, prospect.context), _IDENTITY)
        num_guessed = len(prospect.expected)
        shift = self._shifts.get((sequence_id, key), _NONE)
        odds = math.exp(shift.value)
        if not num_guessed:
            table.learn_means(0)
            hopeful = hopeful or table.accepted[0].total < TRIAL
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

    def pass_by(self, sequence_id: int, key: Key) -> None:
        """A round in which nothing was drafted for a sequence from a source that could have been."""
        for known in (self._shifts, self._sureness):
            shift = known.get((sequence_id, key))
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
                reached *= _sigmoid(offset + slope * _logit(confidence))
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
        table.means.clear()
        guess = self._calibrations.setdefault((key, prospect.context), _Calibration())
        num_guessed = len(prospect.expected)
        shift = self._shifts.setdefault((done.sequence_id, key), _Shift())
        prior = PRIOR
        for depth in range(num_examined):
            was_accepted = _was_first(done, depth)
            if depth < num_guessed:
                shift.note(was_accepted, guess.at(prospect.expected[depth], shift.value))
                guess.note(prospect.expected[depth], 0.0, was_accepted)
            else:
                entry = table.accepted[depth - num_guessed]
                prior = entry.after(prior)
                shift.note(was_accepted, _shifted(prior, shift.value))
                entry.note(was_accepted)
        if is_open:
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
        calibration = self._calibrations.setdefault((key, None), _Calibration())
        sureness = self._sureness.setdefault((done.sequence_id, key), _Shift())
        num_examined = len(done.widths)
        for depth, confidence in enumerate(done.confidences[: max(num_examined - num_free, 0)], start=num_free):
            was_accepted = _was_first(done, depth)
            sureness.note(was_accepted, calibration.at(confidence, sureness.value))
            calibration.note(confidence, sureness.value, was_accepted)

    def forget(self, sequence_id: int) -> None:
        """Drop what is known of one sequence; what it taught the tables stays."""
        for known in (self._shifts, self._sureness):
            for key in [key for key in known if key[0] == sequence_id]:
                del known[key]

    def by_depth(self, source: str) -> list[float]:
        """Acceptance at each depth that was examined, over all sequences, kinds and contexts of a source that makes no
        guesses itself."""
        hits: list[float] = []
        totals: list[float] = []
        for ((name, _), _), table in self._tables.items():
            for depth, share in enumerate(table.accepted if name == source else ()):
                if depth == len(hits):
                    hits.append(0.0)
                    totals.append(0.0)
                hits[depth] += share.hits
                totals[depth] += share.total
        return [hit / total for hit, total in zip(hits, totals, strict=True) if total]

    def _table(self, key: Key, prospect: Prospect) -> _Table:
        found = self._tables.get((key, prospect.context))
        if found is None:
            found = self._tables[key, prospect.context] = _Table()
        return found


_NONE = _Shift()


def _siblings() -> list[_Share]:
    """Second, third and fourth children, before anything is known of them: the likelihood of a draft model's second
    choice where its first was wrong, and so on (papers quote .3 to .5 for the second)."""
    return [_Share(mean * PRIOR_WEIGHT, PRIOR_WEIGHT) for mean in (0.35, 0.2, 0.12)]


def _was_first(done: Round, depth: int) -> bool:
    """Whether the first child at a depth was accepted."""
    return depth < len(done.ranks) and done.ranks[depth] == 0


_IDENTITY = _Calibration()


def _sigmoid(x: float) -> float:
    return 1.0 / (1.0 + math.exp(-x)) if x > -40.0 else 0.0


def _logit(p: float) -> float:
    p = min(max(p, 0.003), 0.997)
    return math.log(p / (1.0 - p))


def _shifted(p: float, shift: float) -> float:
    p = min(max(p, 1e-4), 1.0 - 1e-4)
    return _sigmoid(math.log(p / (1.0 - p)) + shift)
