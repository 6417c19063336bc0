"""What the adaptive policy keeps: of sequences, of plans whose rounds are not over, and of what it expected."""

from __future__ import annotations

from dataclasses import dataclass, field

from forerun.control.acceptance import Key
from forerun.types import Plan, Prospect


@dataclass(slots=True)
class Known:
    """What the policy remembers of one sequence."""

    num_output: int = 0
    last_seen: int = 0
    used: set[str] = field(default_factory=set)  # sources that were drafted from


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
    `purpose` is "best", or "probe" where something was tried to learn of it."""

    milliseconds: float
    num_tokens: float
    plain_ms: float
    plain_tokens: int
    purpose: str = "best"
