"""From measured costs and outcomes to predicted speed: every k of every source, fitted to no measured speed.

A round's seconds are one pass of the target over k + 1 rows, the draft model's passes, and what the host adds: policy,
processing, drawing, verifying, streaming. The passes are timed alone, in turns with the generations. The host's part is
what is left of a round when its passes are taken away, in plain rounds and in rounds of the longest k; in between it
grows by the token. Rounds of k commit what `replay` says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from forerun.planning.arithmetic import break_even, textbook_from_acceptance, textbook_from_accepted, tokens_per_pass
from forerun.planning.replay import Rounds
from forerun.types import CostCurve


@dataclass(frozen=True, slots=True)
class Host:
    """Milliseconds of a round beside its models' passes: `plain_ms`, and `per_token_ms` for each draft token."""

    plain_ms: float
    per_token_ms: float = 0.0

    @classmethod
    def between(cls, plain_ms: float, longest_ms: float, longest: int) -> Host:
        """From what was left of plain rounds and of rounds with `longest` draft tokens; never less than nothing."""
        plain_ms = max(plain_ms, 0.0)
        return cls(plain_ms, max(longest_ms - plain_ms, 0.0) / longest if longest else 0.0)

    def at(self, k: int) -> float:
        """Milliseconds beside the passes of a round with k draft tokens."""
        return self.plain_ms + k * self.per_token_ms


@dataclass(frozen=True, slots=True)
class Costs:
    """One source's costs. `draft` holds passes that feed 1 and 2 tokens for one row; None: no model drafts."""

    target: CostCurve
    draft: CostCurve | None
    host: Host

    def round_ms(self, k: int, whole: float = 0.0) -> float:
        """Milliseconds of a round with k draft tokens, after a share `whole` of drafts that were accepted whole."""
        drafting = 0.0
        if self.draft is not None and k:
            drafting = k * self.draft.at(1) + whole * (self.draft.at(2) - self.draft.at(1))
        return self.target.at(k + 1) + drafting + self.host.at(k)

    @property
    def ratio(self) -> float:
        """c of the textbooks: a draft token's pass over the target's."""
        return 0.0 if self.draft is None else self.draft.at(1) / self.target.at(1)


@dataclass(frozen=True, slots=True)
class Prediction:
    """Rounds of at most k draft tokens. `drafting`: draft tokens proposed per round, over k. `by_depth`: speed-up from
    acceptance by depth multiplied up, instead of replayed; the textbooks' two take verifying for free."""

    k: int
    tokens_per_pass: float
    round_ms: float
    plain_ms: float
    drafting: float
    break_even: float | None
    by_depth: float
    textbook_accepted: float
    textbook_acceptance: float

    @property
    def tokens_per_s(self) -> float:
        """Predicted speed."""
        return 1e3 * self.tokens_per_pass / self.round_ms

    @property
    def speedup(self) -> float:
        """Predicted speed relative to plain decoding's prediction."""
        return self.tokens_per_pass * self.plain_ms / self.round_ms


def predict(
    costs: Costs, replayed: Mapping[int, Rounds], by_depth: Sequence[float], acceptance: float | None
) -> dict[int, Prediction]:
    """A prediction for every k of `replayed`."""
    found = {}
    for k, rounds in replayed.items():
        proposed, plain_ms = rounds.proposed, costs.round_ms(0)
        round_ms = sum(share * costs.round_ms(count, rounds.whole) for count, share in proposed.items())
        with_draft = 1.0 - proposed.get(0, 0.0)
        depth_tokens = 1.0 + with_draft * (tokens_per_pass(by_depth, k) - 1.0)
        found[k] = Prediction(
            k,
            tokens_per_pass=rounds.tokens,
            round_ms=round_ms,
            plain_ms=plain_ms,
            drafting=sum(share * count for count, share in proposed.items()) / k if k else 0.0,
            break_even=break_even(k, costs.round_ms(k, rounds.whole) / plain_ms) if k else None,
            by_depth=depth_tokens * plain_ms / round_ms,
            textbook_accepted=textbook_from_accepted(rounds.accepted, k, costs.ratio),
            textbook_acceptance=textbook_from_acceptance(acceptance or 0.0, k, costs.ratio),
        )
    return found
