"""What acceptance is estimated with: shares of depths, one number for each sequence, and calibrated confidences."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

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
READING_TRIAL = 8.0
"""The same where much has to be read first: hope is for what costs a round."""
HOPE, TABLE_HOPE = 0.4, 1.5
"""Standard deviations by which a forecast is better than the likeliest case, for a sequence and for a table."""
LARGEST_SHIFT = 7.0
"""Logits to both sides that a sequence's own number stays within."""
TREND_WEIGHT, TURN_VARIANCE = 0.3, 3.0
"""What the latest surprise counts for in that average, and what is added to the variance for the square of what the
average has beyond chance: a text that turns is followed within about ten tokens."""
SUREST = 0.995
"""No share is hoped to be above this."""
FIRST_RATE, RATE_FADING, LEAST_RATE = 0.2, 0.05, 0.01
"""Steps of a calibration: at first, how fast they shrink by the token, and at least (what a model is sure of changes
with what it writes)."""
SLOPE_RATE, LARGEST_SLOPE = 0.2, 3.0
"""Steps of its slope beside those of its offset, and its largest slope: the smallest is 0, a confidence that says
nothing."""
OTHER_VIEW, OTHER_VARIANCE = 0.5, 0.2
"""Share of a sequence's number that goes for drafts with another view of its text, and how unsure that is, at least."""


@dataclass
class Share:
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
        return min(mean + TABLE_HOPE * math.sqrt(mean * (1.0 - mean) / (self.total + PRIOR_WEIGHT)), SUREST)

    def note(self, happened: bool) -> None:
        if self.total > MEMORY:
            kept = MEMORY / self.total
            self.hits, self.total = self.hits * kept, self.total * kept
        self.hits += happened
        self.total += 1.0


@dataclass(frozen=True, slots=True)
class Means:
    """What a table says of one depth."""

    accepted: float
    hopeful: float
    going: float  # drafted, given that the depth before was
    going_well: float


@dataclass
class Table:
    """What is known of one source for one kind of request in one context, by depth. `accepted` begins behind the tokens
    that the source makes a guess at, and holds nothing but what was seen: the prior of a depth is what is known of the
    one before it, so that the first tokens of a good source promise that deeper ones are good."""

    accepted: list[Share] = field(default_factory=list)
    means: list[Means] = field(default_factory=list)  # of all of it, until more is learnt
    drafted: list[Share] = field(default_factory=list)  # a draft goes so far, once it came to the depth before
    going_well: list[Share] = field(default_factory=list)  # the same, where all before were accepted
    like: Table | None = None  # of the same source with another view of the text

    @property
    def prior(self) -> float:
        """Acceptance of the first token, before any was seen here: half way (in logits) to what it is with the other
        view."""
        if self.like is None or not self.like.accepted:
            return PRIOR
        return sigmoid(OTHER_VIEW * logit(self.like.accepted[0].after(PRIOR)) + (1.0 - OTHER_VIEW) * logit(PRIOR))

    @property
    def num_seen(self) -> float:
        """First tokens seen, with any view of a text."""
        return sum(table.accepted[0].total for table in (self, self.like) if table is not None and table.accepted)

    def upto(self, num_depths: int) -> None:
        """Have an entry for each depth below `num_depths`."""
        for _ in range(len(self.accepted), num_depths):
            self.accepted.append(Share(0.0, 0.0))
            self.drafted.append(Share(0.0, 0.0))
            self.going_well.append(Share(0.0, 0.0))

    def learn_means(self, depth: int) -> None:
        """Have the means of all depths up to this one."""
        self.upto(depth + 1)
        for place in range(len(self.means), depth + 1):
            before = self.means[-1] if place else Means(self.prior, self.prior, 1.0, 1.0)
            share = self.accepted[place]
            self.means.append(
                Means(
                    share.after(before.accepted),
                    share.hopeful(before.accepted),
                    self.drafted[place].after(before.going),
                    self.going_well[place].after(before.going_well),
                )
            )


@dataclass
class Shift:
    """By how much one sequence's tokens are likelier to be accepted than the table says, in logits: a Kalman filter,
    extended to a logistic observation (Fahrmeir 1992).

    `variance` is how unsure that is. It grows in rounds without a draft, so that the next one counts for more, and when
    several tokens in a row turn out otherwise than expected, so that a text which turns is followed at once.
    """

    value: float = 0.0
    variance: float = FIRST_VARIANCE
    trend: float = 0.0  # moving average of what was unexpected
    is_of_another_view: bool = False  # made of what another view of the text showed, and nothing else

    def note(self, was_accepted: bool, predicted: float) -> None:
        self.is_of_another_view = False
        unexpected = was_accepted - predicted
        self.trend += TREND_WEIGHT * (unexpected - self.trend)
        turn = max(abs(self.trend) - USUAL_TREND, 0.0)
        variance = min(self.variance + STEADY_VARIANCE + TURN_VARIANCE * turn * turn, LARGEST_VARIANCE)
        self.variance = variance / (1.0 + variance * predicted * (1.0 - predicted))
        moved = self.value + self.variance * unexpected
        self.value = max(-LARGEST_SHIFT, min(LARGEST_SHIFT, moved))

    def pass_by(self) -> None:
        """A round without a draft."""
        self.variance = min(self.variance + SILENT_VARIANCE, LARGEST_VARIANCE)

    def of_another_view(self) -> Shift:
        """What it says of drafts by the same model with another view of the text."""
        return Shift(OTHER_VIEW * self.value, max(self.variance, OTHER_VARIANCE), is_of_another_view=True)

    @property
    def hopeful(self) -> float:
        """The shift, if things are somewhat better than they look."""
        return self.value + HOPE * math.sqrt(self.variance)


@dataclass
class Calibration:
    """Acceptance as a function of a confidence, a draft model's or a source's own guess: a logistic curve over its
    logit, beginning with the identity (a token of confidence .9 is accepted nine times in ten): Platt scaling
    (1999), learnt token by token."""

    offset: float = 0.0
    slope: float = 1.0
    num: int = 0

    def note(self, confidence: float, shift: float, was_accepted: bool) -> None:
        rate = max(LEAST_RATE, FIRST_RATE / (1.0 + RATE_FADING * self.num))
        self.num += 1
        error = was_accepted - self.at(confidence, shift)
        self.offset += rate * error
        moved = self.slope + SLOPE_RATE * rate * error * logit(confidence)
        self.slope = min(max(moved, 0.0), LARGEST_SLOPE)

    def at(self, confidence: float, shift: float) -> float:
        return sigmoid(self.offset + self.slope * logit(confidence) + shift)


def sigmoid(x: float) -> float:
    """The probability of a logit."""
    return 1.0 / (1.0 + math.exp(-x)) if x > -40.0 else 0.0


def logit(p: float) -> float:
    """The logit of a probability, which is taken for .003 at least and .997 at most."""
    p = min(max(p, 0.003), 0.997)
    return math.log(p / (1.0 - p))


def shifted(p: float, shift: float) -> float:
    """A probability whose logit is so much larger."""
    p = min(max(p, 1e-4), 1.0 - 1e-4)
    return sigmoid(math.log(p / (1.0 - p)) + shift)
