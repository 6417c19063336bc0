"""What speculation did for one request. Two tables of counts, from which every metric derives."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from forerun.types import Round


@dataclass
class Statistics:
    """Counts and seconds of one request. Times of a shared pass are split evenly among its sequences.

    A round is a pass that committed at least one token; a pass that only reads part of a prompt is none. Of a tree
    every node was proposed and those of one path were accepted; how deep a round went is counted apart.
    """

    rounds: Counter[tuple[int, int]] = field(default_factory=Counter)  # (proposed, accepted) -> rounds
    num_emitted: int = 0
    draft_s: float = 0.0
    target_s: float = 0.0
    verify_s: float = 0.0
    host_s: float = 0.0
    depths: Counter[tuple[int, int]] = field(default_factory=Counter)  # (depths examined, accepted) -> rounds

    def add(self, finished: Round) -> None:
        """Count one round."""
        self.rounds[finished.num_proposed, finished.num_accepted] += 1
        chains = min(finished.num_proposed, finished.num_accepted + 1)
        self.depths[len(finished.widths) or chains, finished.num_accepted] += 1
        self.num_emitted += finished.num_emitted

    @property
    def num_rounds(self) -> int:
        """Passes that committed tokens, those without a draft included."""
        return self.rounds.total()

    @property
    def num_proposed(self) -> int:
        """Draft tokens verified, every node of a tree (tokens past a stop or the budget are not counted)."""
        return sum(proposed * times for (proposed, _), times in self.rounds.items())

    @property
    def num_accepted(self) -> int:
        """Draft tokens committed."""
        return sum(accepted * times for (_, accepted), times in self.rounds.items())

    @property
    def tokens_per_pass(self) -> float | None:
        """Tokens committed per target pass (tau: the bonus or recovered token included)."""
        return self.num_emitted / self.num_rounds if self.num_rounds else None

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted / proposed draft tokens; None if nothing was drafted. Of a tree one path at most can be accepted: a
        better tree may well have the lower rate."""
        return self.num_accepted / self.num_proposed if self.num_proposed else None

    @property
    def histogram(self) -> list[int]:
        """histogram[a]: rounds in which exactly `a` draft tokens were accepted."""
        longest = max((accepted for _, accepted in self.rounds), default=-1)
        counts = [0] * (longest + 1)
        for (_, accepted), times in self.rounds.items():
            counts[accepted] += times
        return counts

    @property
    def acceptance_by_depth(self) -> list[float]:
        """[i]: share of rounds that accepted a draft token at depth i, of those that had one there behind what they
        accepted. Of a tree this is whether any of the children was."""
        deepest = max((examined for examined, _ in self.depths), default=0)
        shares = []
        for depth in range(1, deepest + 1):
            examined = sum(n for (reached, _), n in self.depths.items() if reached >= depth)
            accepted = sum(n for (_, a), n in self.depths.items() if a >= depth)
            shares.append(accepted / examined)
        return shares

    def to_dict(self) -> dict[str, Any]:
        """The `speculation` object of the JSON document."""
        return {
            "tokens_per_pass": self.tokens_per_pass,
            "acceptance_rate": self.acceptance_rate,
            "acceptance_by_depth": self.acceptance_by_depth,
            "histogram": self.histogram,
            "num_rounds": self.num_rounds,
            "draft_s": self.draft_s,
            "target_s": self.target_s,
            "verify_s": self.verify_s,
            "host_s": self.host_s,
        }
