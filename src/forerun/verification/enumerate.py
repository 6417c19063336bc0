"""Exact enumeration of every random decision, by replay: a proof on tiny vocabularies instead of a sample.

`outcomes` runs a deterministic function again and again, once for every combination of the choices it asks for, and
adds up the probability of each result. With `enumerating(chooser)` in the place of `make_noise`, the real engine is
that function: what comes out is the exact law of its text, to be compared with the target's (`toy.joint_law`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from forerun.errors import ContractError
from forerun.randomness import Drawn, GreedyNoise, Noise, Purpose, best_children, without_replacement
from forerun.sampling import Distribution, SamplingParams

Outcome = TypeVar("Outcome", bound=Hashable)
Options = tuple[tuple[int, float], ...]
"""The branches of one decision: (choice, probability), probability above 0."""


class Chooser:
    """The choices of one replay: decision number i takes branch `path[i]`, new decisions take their first branch.

    `decisions` collects the branches there were. A decision with one possible branch is taken without being recorded.
    """

    def __init__(self, path: Sequence[int] = (), known: Sequence[Options] = ()) -> None:
        self._path, self._known = path, known
        self._keys: set[Hashable] = set()
        self.decisions: list[Options] = []

    def claim(self, key: Hashable) -> None:
        """Refuse a key that was claimed before in this replay: the same random number would decide two things."""
        if key in self._keys:
            raise ContractError(f"randomness is reused: {key} was asked for twice", "a key may decide one thing only")
        self._keys.add(key)

    def choose(self, weights: Sequence[float]) -> int:
        """An index with probability proportional to its weight (finite, not negative, positive in total)."""
        total = math.fsum(weights)
        if not (0.0 < total < math.inf and min(weights) >= 0.0):
            raise ContractError(f"weights {list(weights)} are no distribution")
        return self._take(tuple((i, weight / total) for i, weight in enumerate(weights) if weight > 0.0))

    def happens(self, probability: float) -> bool:
        """True with this probability, as `U < probability` with U in [0, 1) is: never at 0, always from 1 on."""
        if math.isnan(probability):
            raise ContractError("a decision with probability NaN")
        if probability <= 0.0 or probability >= 1.0:
            return probability >= 1.0
        return self._take(((1, probability), (0, 1.0 - probability))) == 1

    def _take(self, options: Options) -> int:
        if len(options) == 1:
            return options[0][0]
        number = len(self.decisions)
        if number < len(self._known) and self._known[number] != options:
            raise ContractError(
                f"decision {number} changed between replays", "the function that is enumerated is not deterministic"
            )
        self.decisions.append(options)
        return options[self._path[number] if number < len(self._path) else 0][0]


def outcomes(run: Callable[[Chooser], Outcome], max_leaves: int = 1_000_000) -> dict[Outcome, float]:
    """The exact law of `run`'s result: one replay for each leaf of its tree of decisions, depth first.

    `run` must do the same thing whenever the chooser answers the same. Probabilities of equal results are added with
    `math.fsum`, so the total is 1 to a few units of the last place. More than `max_leaves` leaves are refused: the
    tree may not even be finite.
    """
    found: dict[Outcome, list[float]] = {}
    path: list[int] = []
    known: list[Options] = []
    for _ in range(max_leaves):
        chooser = Chooser(path, known)
        outcome = run(chooser)
        known = chooser.decisions
        path += [0] * (len(known) - len(path))
        if len(path) > len(known):
            raise ContractError("a replay made fewer decisions", "the function that is enumerated is not deterministic")
        branches = (options[branch][1] for options, branch in zip(known, path, strict=True))
        found.setdefault(outcome, []).append(math.prod(branches))
        while path and path[-1] == len(known[len(path) - 1]) - 1:
            path.pop()
        if not path:
            return {outcome: math.fsum(parts) for outcome, parts in found.items()}
        path[-1] += 1
        known = known[: len(path)]
    raise ContractError(f"more than {max_leaves} leaves", "the enumeration would not end", "use fewer tokens")


@dataclass(frozen=True, slots=True)
class EnumeratingNoise:
    """The randomness of one round, every decision of it a branch. No key may return during the whole run.

    kind "sampled": a draft token is a branch over q. kind "deterministic": it is q's argmax, so that the verifier
    meets a draft that is fixed before the target draws.
    """

    chooser: Chooser
    sequence: Hashable
    committed: int
    kind: Literal["sampled", "deterministic"] = "sampled"

    def accept(self, probability: float, node: int) -> bool:
        self.chooser.claim((self.sequence, self.committed, node, Purpose.ACCEPT))
        return self.chooser.happens(probability)

    def draw(self, distribution: Distribution, node: int, purpose: Purpose) -> int:
        self.chooser.claim((self.sequence, self.committed, node, purpose))
        if self.kind == "deterministic" and purpose is Purpose.DRAFT:
            return distribution.argmax
        weights: list[float] = distribution.probs.tolist()
        return self.chooser.choose(weights)

    def draw_children(self, distribution: Distribution, nodes: Sequence[int], depth: int) -> list[Drawn]:
        if self.kind == "deterministic":
            for node in nodes:
                self.chooser.claim((self.sequence, self.committed, node, Purpose.DRAFT))
            return best_children(distribution, nodes)
        return without_replacement(distribution, nodes, lambda left, node: self.draw(left, node, Purpose.DRAFT))


def enumerating(
    chooser: Chooser, kind: Literal["sampled", "deterministic"] = "sampled"
) -> Callable[[SamplingParams, int, int, int], Noise]:
    """An engine's `make_noise` that branches on every decision; greedy requests make none."""

    def make_noise(params: SamplingParams, seed: int, choice: int, committed: int) -> Noise:
        if params.is_greedy:
            return GreedyNoise()
        return EnumeratingNoise(chooser, (seed, choice), committed, kind)

    return make_noise
