"""Tools of the ladder's second level: a whole population of seeds through the real engine at once, and its statistics.

One sequence costs the engine's Python about 0.3 ms, a million of them minutes. But sequences that took the same
decisions so far are in the same state: so the engine is replayed once for every path of decisions that any member of
the population takes, and at each decision the members are divided by their own random numbers, computed for all of them
by a vectorised twin of `IndependentNoise` or `CoupledNoise`. `test_level2_law.py` shows that twin and original give the
same text, seed by seed; what is sampled here is therefore what the real sampler does with these seeds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
from scipy.stats import chi2
from tests.verification.laws import finish, policy_of, target_law

from forerun.engine import Engine
from forerun.errors import ContractError
from forerun.randomness import GAMMA, MULTIPLIER_1, MULTIPLIER_2, Drawn, Purpose, without_replacement
from forerun.sampling import Distribution, SamplingParams
from forerun.verification.enumerate import Chooser, outcomes

Words = np.ndarray[Any, np.dtype[np.uint64]]


# -- the vectorised twin of forerun.randomness -------------------------------------------------------------------------


def mix_words(words: Words) -> Words:
    words = (words ^ (words >> np.uint64(30))) * np.uint64(MULTIPLIER_1)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(MULTIPLIER_2)
    return words ^ (words >> np.uint64(31))


def derive_keys(*parts: Any) -> Words:
    """`derive_key` of broadcast arrays of words."""
    state = np.zeros(1, dtype=np.uint64)
    for part in parts:
        state = mix_words((state ^ np.asarray(part, dtype=np.uint64)) + np.uint64(GAMMA))
    return state


def uniforms(keys: Words) -> np.ndarray:
    return (mix_words(keys + np.uint64(GAMMA)) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def gumbels(keys: Words, ids: np.ndarray) -> np.ndarray:
    """[keys, ids]"""
    words = mix_words(keys[:, None] + (ids.astype(np.uint64) + np.uint64(1)) * np.uint64(GAMMA))
    u = ((words >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52
    return -np.log(-np.log(u))


# -- the population ----------------------------------------------------------------------------------------------------


class Population:
    """Members with a seed and a choice index each."""

    def __init__(self, seeds: Any, choices: Any = 0) -> None:
        self.seeds, self.choices = np.broadcast_arrays(np.asarray(seeds, np.uint64), np.asarray(choices, np.uint64))
        self._branches: dict[tuple[int, ...], list[tuple[int, np.ndarray]]] = {}

    def __len__(self) -> int:
        return len(self.seeds)

    def divide(self, run: Callable[[_Walk], Hashable]) -> dict[Any, np.ndarray]:
        """The members by what `run` makes of them; `run` is replayed once for each path of decisions."""
        found: dict[Hashable, list[np.ndarray]] = {}

        def replay(chooser: Chooser) -> Hashable:
            walk = _Walk(self, chooser)
            outcome = run(walk)
            found.setdefault(outcome, []).append(walk.members)
            return outcome

        self._branches.clear()
        outcomes(replay)
        return {outcome: np.concatenate(parts) for outcome, parts in found.items()}


class _Walk:
    """One replay: the members that took every decision of it so far."""

    def __init__(self, population: Population, chooser: Chooser) -> None:
        self.population, self.chooser, self.trace = population, chooser, list[int]()
        self.members: np.ndarray = np.arange(len(population))

    def decide(self, label: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> int:
        """Divide the members by `label(seeds, choices)` and go on with those of one label."""
        branches = self.population._branches.get(tuple(self.trace))
        if branches is None:
            labels = label(self.population.seeds[self.members], self.population.choices[self.members])
            branches = [(int(value), self.members[labels == value]) for value in np.unique(labels)]
            self.population._branches[tuple(self.trace)] = branches
        taken = self.chooser.choose([len(members) for _, members in branches])
        self.trace.append(taken)
        value, self.members = branches[taken]
        return value


class IndependentTwin:
    """`IndependentNoise` of all members."""

    kind: Literal["sampled"] = "sampled"

    def __init__(self, walk: _Walk, committed: int) -> None:
        self.walk, self.committed = walk, committed

    def _uniforms(self, seeds: Words, choices: Words, node: int, purpose: Purpose) -> np.ndarray:
        return uniforms(derive_keys(seeds, choices, self.committed, node, int(purpose)))

    def accept(self, probability: float, node: int) -> bool:
        return bool(self.walk.decide(lambda *who: self._uniforms(*who, node, Purpose.ACCEPT) < probability))

    def draw(self, distribution: Distribution, node: int, purpose: Purpose) -> int:
        sums = np.cumsum(distribution.probs)

        def label(seeds: Words, choices: Words) -> np.ndarray:
            return np.searchsorted(sums, sums[-1] * self._uniforms(seeds, choices, node, purpose), side="right")

        return self.walk.decide(label)

    def draw_children(self, distribution: Distribution, nodes: Sequence[int], depth: int) -> list[Drawn]:
        return without_replacement(distribution, nodes, lambda left, node: self.draw(left, node, Purpose.DRAFT))


class CoupledTwin:
    """`CoupledNoise` of all members."""

    kind: Literal["deterministic"] = "deterministic"

    def __init__(self, walk: _Walk, committed: int) -> None:
        self.walk, self.committed = walk, committed

    def accept(self, probability: float, node: int) -> bool:
        raise ContractError("a sampled draft reached a seeded request")

    def draw(self, distribution: Distribution, node: int, purpose: Purpose) -> int:
        ids, log_probs = distribution.log_weights

        def label(seeds: Words, choices: Words) -> np.ndarray:
            keys = derive_keys(seeds, choices, self.committed + node, 0, int(Purpose.GUMBEL))
            return ids[np.argmax(log_probs + gumbels(keys, ids), axis=1)]

        return self.walk.decide(label)

    def draw_children(self, distribution: Distribution, nodes: Sequence[int], depth: int) -> list[Drawn]:
        return without_replacement(distribution, nodes, lambda left, _: self.draw(left, depth, Purpose.DRAFT))


TWINS: Mapping[str, Any] = {"independent": IndependentTwin, "coupled": CoupledTwin}


class Diary:
    """A policy that notes how many tokens each round accepted and emitted."""

    def __init__(self, k: int | tuple[int, ...]) -> None:
        self.plan = policy_of(k).plan
        self.rounds: list[tuple[int, int]] = []

    def update(self, rounds: Any, step: Any) -> None:
        self.rounds += [(done.num_accepted, done.num_emitted) for done in rounds]

    def release(self, *sequence_ids: int) -> None:
        pass


def sample(
    population: Population,
    target: Any,
    make_drafter: Callable[[], Any],
    k: int | tuple[int, ...],
    prompt: Any,
    twin: str,
    *,
    wrap_noise: Callable[[Any], Any] = lambda factory: factory,
    params: Mapping[str, Any],
    **settings: Any,
) -> dict[Any, np.ndarray]:
    """{(text, rounds): members}: what the real engine writes for every member, and round by round how.

    `target` makes the target model; rounds are (accepted, emitted) pairs.
    """

    def run(walk: _Walk) -> Any:
        policy = Diary(k)
        factory = wrap_noise(lambda params, seed, choice, committed: TWINS[twin](walk, committed))
        engine = Engine(target(), make_drafter(), policy, make_noise=factory, **settings)
        sequence = engine.add(prompt, SamplingParams(**params))
        finish(engine)
        return tuple(sequence.tokens[len(prompt) :]), tuple(policy.rounds)

    return population.divide(run)


def texts_of(sampled: Mapping[Any, np.ndarray]) -> dict[Any, int]:
    """How often each text was written."""
    counts: dict[Any, int] = {}
    for (text, _), members in sampled.items():
        counts[text] = counts.get(text, 0) + len(members)
    return counts


# -- statistics --------------------------------------------------------------------------------------------------------

ALPHA = 1e-8
"""False alarm rate of one comparison. Seeds are fixed: what passes once passes always."""


def variation_limit(expected: Mapping[Any, float], num: int) -> float:
    """The total variation from `expected` that `num` samples of it exceed with probability below ALPHA.

    E[TV] <= 1/2 sum sqrt(p (1 - p) / num) (Jensen), and one sample moves TV by at most 1 / num, so that
    P(TV >= E[TV] + t) <= exp(-2 num t^2) (McDiarmid). Both are exact bounds, not asymptotics.
    """
    mean = 0.5 * math.fsum(math.sqrt(p * (1 - p) / num) for p in expected.values())
    return mean + math.sqrt(math.log(1 / ALPHA) / (2 * num))


def detectable_variation(expected: Mapping[Any, float], num: int) -> float:
    """The total variation of a wrong law that is caught with at least 99 % (Hoeffding on its worst event)."""
    return variation_limit(expected, num) + math.sqrt(math.log(100) / (2 * num))


def misfits(counts: Mapping[Any, int], expected: Mapping[Any, float]) -> list[str]:
    """Why `counts` do not look like samples of `expected`: impossible outcomes, total variation, chi-square."""
    num = sum(counts.values())
    found = [
        f"{outcome} is impossible and came {n} times" for outcome, n in counts.items() if not expected.get(outcome)
    ]
    variation = 0.5 * math.fsum(abs(counts.get(o, 0) / num - expected.get(o, 0.0)) for o in {*counts, *expected})
    if variation > variation_limit(expected, num):
        found.append(f"total variation {variation:.5f} exceeds {variation_limit(expected, num):.5f}")
    statistic, freedom = chi_square(counts, expected)
    if freedom and statistic > chi2.isf(ALPHA, freedom):
        found.append(f"chi-square {statistic:.1f} with {freedom} degrees exceeds {chi2.isf(ALPHA, freedom):.1f}")
    return found


def second_round_groups(divided: Mapping[Any, np.ndarray], num_rounds: int) -> dict[Any, dict[Any, int]]:
    """{(first rounds, their tokens): {next token: times}}."""
    groups: dict[Any, dict[Any, int]] = {}
    for (text, rounds), members in divided.items():
        done = sum(emitted for _, emitted in rounds[:num_rounds])
        if done < len(text):
            group = groups.setdefault((rounds[:num_rounds], text[:done]), {})
            group[text[done : done + 1]] = group.get(text[done : done + 1], 0) + len(members)
    return groups


def second_round_misfits(divided: Any, prompt: Any, params: Mapping[str, Any], target: Any) -> list[str]:
    """Why the token after the first drafted round does not follow the target's row, whatever that round did.

    A prompt of several tokens is read in a round of its own, before the first draft.
    """
    found, statistic, freedom = list[str](), 0.0, 0
    for (rounds, text), counts in second_round_groups(divided, 1 if len(prompt) == 1 else 2).items():
        if sum(counts.values()) >= 2_000:
            expected = target_law(target, [*prompt, *text], 1, **params)
            found += [f"after {text} by {rounds}: {line}" for line in misfits(counts, expected)]
            own, degrees = chi_square(counts, expected)
            statistic, freedom = statistic + own, freedom + degrees
    if freedom and statistic > chi2.isf(ALPHA, freedom):
        found.append(f"second round, all groups: chi-square {statistic:.1f} with {freedom} degrees")
    return found


def chi_square(counts: Mapping[Any, int], expected: Mapping[Any, float], smallest: float = 25.0) -> tuple[float, int]:
    """(statistic, degrees of freedom); cells that expect fewer than `smallest` are pooled, so that the tail holds."""
    num = sum(counts.values())
    cells = [(counts.get(outcome, 0), p * num) for outcome, p in expected.items() if p * num >= smallest]
    rest = (num - sum(c for c, _ in cells), num - math.fsum(e for _, e in cells))
    cells += [rest] if rest[1] >= smallest else []
    return math.fsum((count - mean) ** 2 / mean for count, mean in cells), max(len(cells) - 1, 0)
