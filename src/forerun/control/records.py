"""What the adaptive policy keeps: of sequences, of plans whose rounds are not over, and of what it expected."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from forerun.control.acceptance import CUT, Key
from forerun.types import Plan, Prospect

VIEW = 128
"""Tokens of a long text that a draft model is shown first: it reads no more than is likely to matter, and all of the
text where that turns out to be too little (docs/control.md has what acceptance it costs)."""

FIRST_VIEW = 32
"""The same for a draft model that nothing is known of yet: it may be of no use at all, and finds that out with what it
reads by the way. The first answer has somewhat shorter drafts for it."""
FIRST_TOKENS = 4
"""Tokens that an answer begins with before a draft model reads a long text for it: an answer that copies its prompt
shows by then that it does, and has no use for the reading; very short answers are over."""
COPIED_WEIGHT = 4.0
"""Rounds for which a new sequence is expected to be left to the draft model."""
LEAST_SHARE = 0.3
"""What is left to it at least."""
MUCH_UNREAD = 8
"""Tokens that a draft model has fallen behind by when another source took several rounds, not one."""
LATEST_STAY = 0.1
"""What one stay counts for in the usual one."""
USUAL_STAY = 16.0
"""Drafts for which a draft model that was left and is taken up again is expected to stay, before any was seen."""


@dataclass(slots=True)
class Stays:
    """How many drafts a draft model makes, on average, from one time that it has fallen far behind to the next: they
    share what it has to read then. (That it is left for a round, and taken up again, says nothing of how long it would
    stay: were the average of such short stays what a token has to pay, it would be left ever sooner.)"""

    behind: float = USUAL_STAY

    def expected(self, num_unread: int) -> float:
        """Drafts that share the reading of so many tokens."""
        return self.behind if num_unread > MUCH_UNREAD else USUAL_STAY

    def note(self, known: Known, num_unread: int) -> None:
        """A draft model drafts for a sequence, behind by `num_unread` tokens (1 where it was not left)."""
        if num_unread > MUCH_UNREAD and known.num_drafts:
            self.behind += LATEST_STAY * (known.num_drafts - self.behind)
            known.num_drafts = 0
        known.num_drafts += 1


@dataclass(slots=True)
class Known:
    """What the policy remembers of one sequence."""

    num_output: int = 0
    used: set[tuple[str, bool]] = field(default_factory=set)  # (source, whether it saw a part alone) drafted from
    num_rounds: int = 0
    num_copied: int = 0  # rounds that a draft model would not have had, with nothing to read either
    num_drafts: int = 0  # by a draft model, since it was far behind

    @property
    def model_share(self) -> float:
        """The share of rounds that are left to a draft model: sources that cost nothing do not take them. Never
        below LEAST_SHARE: a draft model that no text is read for would never be known."""
        return max(1.0 - self.num_copied / (self.num_rounds + COPIED_WEIGHT), LEAST_SHARE)


@dataclass(frozen=True, slots=True)
class Offer:
    """One way to draft from a prospect: as its draft model stands, with the latest tokens of the text alone, or with
    all of it. `prospect` is as it would be then."""

    prospect: Prospect
    most_unread: int | None = None
    whole: bool = False

    @property
    def source(self) -> str:
        return self.prospect.source

    @property
    def num_unread(self) -> int:
        return self.prospect.num_unread

    @property
    def view(self) -> tuple[str, bool]:
        return self.prospect.source, self.prospect.num_cut > 0


def offers_of(
    prospects: Sequence[Prospect], num_tokens: int, num_output: int, is_known: Callable[[str], bool]
) -> list[Offer]:
    """All ways to draft from them for a text of `num_tokens`, of which `num_output` are the answer's. `is_known` tells
    of a source whether its draft model has been seen to draft."""
    found: list[Offer] = []
    for prospect in prospects:
        if prospect.num_unread > VIEW and num_output < FIRST_TOKENS and prospect.longest > prospect.num_free:
            continue
        if prospect.num_unread > 2 * FIRST_VIEW and not is_known(prospect.source):
            found.append(Offer(with_latest(prospect, FIRST_VIEW, num_tokens), most_unread=FIRST_VIEW))
            continue
        found.append(Offer(_seen(prospect, prospect.num_unread, prospect.num_cut)))
        if prospect.longest == prospect.num_free:
            continue
        if prospect.num_unread > 2 * VIEW:
            found.append(Offer(with_latest(prospect, VIEW, num_tokens), most_unread=VIEW))
        if prospect.num_cut:
            found.append(Offer(_seen(prospect, num_tokens - 1, 0), whole=True))
    return found


def with_latest(prospect: Prospect, most_unread: int, num_tokens: int) -> Prospect:
    """The prospect of a text of `num_tokens` where its draft model reads at most so many."""
    if prospect.num_unread <= most_unread:
        return _seen(prospect, prospect.num_unread, prospect.num_cut)
    return _seen(prospect, most_unread, num_tokens - 1 - most_unread)


def _seen(prospect: Prospect, num_unread: int, num_cut: int) -> Prospect:
    if num_cut == 0 and num_unread == prospect.num_unread and prospect.num_cut == 0:
        return prospect
    context = CUT + prospect.context if num_cut else prospect.context
    return replace(prospect, num_unread=num_unread, num_cut=num_cut, context=context)


@dataclass(frozen=True, slots=True)
class Pending:
    """A plan that was made, until its round is over."""

    key: Key
    prospect: Prospect
    plan: Plan
    num_planned: int  # depths that the draft was to have


@dataclass(frozen=True, slots=True)
class Prediction:
    """What the policy expected of a pass: milliseconds and tokens, and milliseconds and tokens without any draft.
    `purpose` is "best", "probe" where something was tried to learn of it, or "rest" where nothing was thought through:
    what was declined a moment ago is declined again (`looking.py`)."""

    milliseconds: float
    num_tokens: float
    plain_ms: float
    plain_tokens: int
    purpose: str = "best"
