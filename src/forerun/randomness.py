"""Counter-based randomness: every number is a pure function of what it is for.

A key is (seed, choice index, committed length at the round's start, node, purpose). The committed length rises every
round, so no key returns, even for numbers that were drawn for rows later thrown away (block verification looks at all
of them: keyed by position alone, the next round would reuse them and the output would be biased).

Keys are absorbed word by word with the SplitMix64 finaliser (Steele, Lea, Flood, "Fast Splittable Pseudorandom Number
Generators", OOPSLA 2014; constants: Stafford's variant 13) and a row's noise is the SplitMix64 sequence of that key,
indexed by token id. The same bits come out of plain integers, numpy and torch.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Literal, Protocol

from forerun.arrays import asarray_like, namespace
from forerun.errors import ContractError
from forerun.types import Array

if TYPE_CHECKING:
    from forerun.sampling import Distribution, SamplingParams

MASK = (1 << 64) - 1
GAMMA = 0x9E3779B97F4A7C15
MULTIPLIER_1, MULTIPLIER_2 = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


PRUNE_ABOVE = 4096
"""Ids above which a Gumbel draw first finds out which of them can win at all."""


class Purpose(IntEnum):
    """What a number is for; independent streams, so that no draw is ever reused for another decision."""

    DRAFT = 1  # drawing a draft token from q
    ACCEPT = 2  # accepting or rejecting it
    EMIT = 3  # the recovered or bonus token of chain and block verification
    FOLLOW = 4  # the target's own draw in sample-and-follow
    GUMBEL = 5  # the shared noise of the seeded mode


def mix(word: int) -> int:
    """SplitMix64's finaliser: a bijection of 64-bit words."""
    word = ((word ^ (word >> 30)) * MULTIPLIER_1) & MASK
    word = ((word ^ (word >> 27)) * MULTIPLIER_2) & MASK
    return word ^ (word >> 31)


def derive_key(*words: int) -> int:
    """One 64-bit key from a fixed number of words, each absorbed by a bijection."""
    state = 0
    for word in words:
        state = mix(((state ^ (word & MASK)) + GAMMA) & MASK)
    return state


def uniform(key: int) -> float:
    """A uniform in [0, 1) with 53 random bits."""
    return (mix((key + GAMMA) & MASK) >> 11) * 2.0**-53


def _signed(word: int) -> int:
    return word - (1 << 64) if word >> 63 else word


def _shift_right(words: Array, count: int) -> Array:
    # int64 shifts are arithmetic in numpy and torch; masking the sign's copies makes them logical.
    return (words >> count) & ((1 << (64 - count)) - 1)


def gumbel(key: int, ids: Array) -> Array:
    """Standard Gumbel noise [n] float64 of token ids [n] int64: -log(-log(u))."""
    xp = namespace(ids)
    return -xp.log(-xp.log(_open_uniforms(key, ids)))


def gumbel_argmax(key: int, ids: Array, log_weights: Array) -> int:
    """The id [n] whose log weight [n] float64 plus Gumbel noise is largest; ties go to the first.

    Two logarithms for each of 152k ids are most of what a seeded draw costs, and few ids can win. Noise of at least
    b - w beats a sum b already reached from weight w: -log(u) <= exp(w - b), and since 1 - u <= -log(u), only ids with
    1 - u <= exp(w - b) are looked at. The 1 + 1e-3 covers the rounding of the exponential in float32.
    """
    xp = namespace(log_weights)
    if log_weights.shape[0] > PRUNE_ABOVE:
        u = _open_uniforms(key, ids)
        first = int(xp.argmax(log_weights))
        reached = float(log_weights[first]) - math.log(-math.log(float(u[first])))
        bound = xp.exp(xp.astype(log_weights - reached, xp.float32)) * (1.0 + 1e-3)
        places = xp.nonzero(xp.astype(1.0 - u, xp.float32) <= bound)[0]
        ids, log_weights = xp.take(ids, places), xp.take(log_weights, places)
    return int(ids[int(xp.argmax(log_weights + gumbel(key, ids)))])


def _open_uniforms(key: int, ids: Array) -> Array:
    """Uniforms in (0, 1) with 52 random bits [n] float64 of ids [n] int64; not 53, because u + half a step must stay
    below 1 in float64."""
    xp = namespace(ids)
    with _wrapping():
        words = (ids + 1) * _signed(GAMMA) + _signed(key)
        words = (words ^ _shift_right(words, 30)) * _signed(MULTIPLIER_1)
        words = (words ^ _shift_right(words, 27)) * _signed(MULTIPLIER_2)
        words = words ^ _shift_right(words, 31)
    return (xp.astype(_shift_right(words, 12), xp.float64) + 0.5) * 2.0**-52


def _wrapping() -> Any:
    import numpy as np

    return np.errstate(over="ignore")


def fresh_seed() -> int:
    """A 63-bit seed from the operating system, for requests that named none."""
    return int.from_bytes(os.urandom(8), "little") >> 1


class Noise(Protocol):
    """The randomness of one round of one sequence. `kind` is what a draft drawn with it is to the verifier."""

    @property
    def kind(self) -> Literal["sampled", "deterministic"]: ...

    def accept(self, probability: float, node: int) -> bool:
        """True with this probability (strictly `U < probability`, so 0 never is)."""
        ...

    def draw(self, distribution: Distribution, node: int, purpose: Purpose) -> int:
        """A token id drawn from the distribution of row `node` (0: the row after the last committed token). The
        target's own draws are keyed by how many draft tokens come before them, draft tokens by their node."""
        ...

    def draw_children(self, distribution: Distribution, nodes: Sequence[int], depth: int) -> list[Drawn]:
        """Distinct draft tokens for `nodes`, the children of one node, from its row, which follows `depth` draft
        tokens; fewer where the row has fewer tokens. The first is `draw`'s."""
        ...


Drawn = tuple[int, "Distribution"]
"""A draft token and what it was drawn from: of several children, q without the ones before it."""


def without_replacement(
    distribution: Distribution, nodes: Sequence[int], draw: Callable[[Distribution, int], int]
) -> list[Drawn]:
    """A token for each of `nodes`, drawn with `draw(distribution, node)` from what those before it left."""
    found: list[Drawn] = []
    left: Distribution | None = distribution
    for node in nodes:
        left = left.without(found[-1][0]) if left is not None and found else left
        if left is None:
            break
        found.append((draw(left, node), left))
    return found


def best_children(distribution: Distribution, nodes: Sequence[int]) -> list[Drawn]:
    """The likeliest token for the first of `nodes`, the next for the second: no randomness."""
    return [(token, distribution) for token in distribution.best(len(nodes))]


@dataclass(frozen=True, slots=True)
class GreedyNoise:
    """Temperature 0: the argmax; consumes no randomness."""

    kind: Literal["sampled", "deterministic"] = "deterministic"

    def accept(self, probability: float, node: int) -> bool:
        raise ContractError("a sampled draft reached a greedy request", "temperature 0 consumes no randomness")

    def draw(self, distribution: Distribution, node: int, purpose: Purpose) -> int:
        return distribution.argmax

    def draw_children(self, distribution: Distribution, nodes: Sequence[int], depth: int) -> list[Drawn]:
        return best_children(distribution, nodes)


@dataclass(frozen=True, slots=True)
class IndependentNoise:
    """Free sampling: every decision has its own uniform."""

    seed: int
    choice: int
    committed: int
    kind: Literal["sampled", "deterministic"] = "sampled"

    def uniform(self, node: int, purpose: Purpose) -> float:
        return uniform(derive_key(self.seed, self.choice, self.committed, node, purpose))

    def accept(self, probability: float, node: int) -> bool:
        return self.uniform(node, Purpose.ACCEPT) < probability

    def draw(self, distribution: Distribution, node: int, purpose: Purpose) -> int:
        return distribution.draw(self.uniform(node, purpose))

    def draw_children(self, distribution: Distribution, nodes: Sequence[int], depth: int) -> list[Drawn]:
        return without_replacement(distribution, nodes, lambda left, node: self.draw(left, node, Purpose.DRAFT))


@dataclass(frozen=True, slots=True)
class CoupledNoise:
    """Seeded mode: argmax(log probability + Gumbel noise of (seed, choice, position, token id)).

    Draft and target share the noise, so the text is a function of prompt, seed and parameters alone, whatever was
    drafted (Daliri et al., arXiv 2408.07978). The law of the argmax is the distribution itself (Gumbel-max).
    """

    seed: int
    choice: int
    committed: int
    kind: Literal["sampled", "deterministic"] = "deterministic"

    def accept(self, probability: float, node: int) -> bool:
        raise ContractError("a sampled draft reached a seeded request", "seeded drafts share the target's noise")

    def draw(self, distribution: Distribution, node: int, purpose: Purpose) -> int:
        # The position alone, not the round or the purpose: that is what makes draft and target agree.
        key = derive_key(self.seed, self.choice, self.committed + node, 0, Purpose.GUMBEL)
        return distribution.race(key)

    def draw_children(self, distribution: Distribution, nodes: Sequence[int], depth: int) -> list[Drawn]:
        # All with the noise of their position: the tokens with the largest sums, of which the target may take any.
        return without_replacement(distribution, nodes, lambda left, _: self.draw(left, depth, Purpose.DRAFT))


def inverse_cdf(probs: Array, u: float) -> int:
    """The token id at which the running sum of `probs` [vocab] (any positive total) first exceeds u * total.

    A token of probability 0 leaves the sum unchanged, so it is never first. If rounding lifts u * total to the
    total itself, the last token with mass is taken.
    """
    xp = namespace(probs)
    sums = xp.cumulative_sum(probs)
    total = sums[-1]
    target = asarray_like([float(total) * u], probs, probs.dtype)
    token = int(xp.searchsorted(sums, target, side="right")[0])
    if token >= probs.shape[0]:
        token = int(xp.searchsorted(sums, sums[-1:], side="left")[0])
    return token


def make_noise(params: SamplingParams, seed: int, choice: int, committed: int) -> Noise:
    """The noise of a round: greedy at temperature 0, coupled when the request named a seed, else independent."""
    if params.is_greedy:
        return GreedyNoise()
    if params.seed is not None:
        return CoupledNoise(seed, choice, committed)
    return IndependentNoise(seed, choice, committed)
