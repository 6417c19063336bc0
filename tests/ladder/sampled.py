"""Level 2: the law of a million short texts under the real random numbers, and of the round after the first.

The engine is replayed once for every path of decisions that a member of the population takes
(`tests/verification/population.py`), so a million texts cost about a second.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scipy.stats import chi2
from tests.ladder.cases import OTHER_POPULATIONS, SAMPLED, Case
from tests.ladder.cells import Cell, Found
from tests.verification.laws import Law, Text, total_variation
from tests.verification.population import (
    ALPHA,
    chi_square,
    detectable_variation,
    misfits,
    second_round_groups,
    texts_of,
)
from tests.verification.test_level2_law import populations

OVERHEAD = 150_000
"""What replaying the engine costs for every path, in sequences."""
SMALLEST_GROUP = 2_000
"""First rounds that fewer members share are too few to test."""


def cells(num_sequences: int) -> list[Cell]:
    cost = num_sequences + OVERHEAD
    return [
        Cell(2, f"{name}, {population}", lambda c=case, p=population: check(c, p, num_sequences), cost, "sequences")
        for name, case in SAMPLED.items()
        for population in ("neighbours", *OTHER_POPULATIONS.get(name, ()))
    ]


def successors(law: Law, text: Text) -> dict[Text, float]:
    """The law of the token after `text`, given that there is one, from the joint law."""
    masses: dict[Text, float] = {}
    for whole, probability in law.items():
        if len(whole) > len(text) and whole[: len(text)] == text:
            token = whole[len(text) : len(text) + 1]
            masses[token] = masses.get(token, 0.0) + probability
    total = sum(masses.values())
    return {token: mass / total for token, mass in masses.items()}


def check(case: Case, population: str, num_sequences: int) -> Found:
    """Whole texts against the joint law, then what follows every first round against its conditional law."""
    divided = case.divided(populations(num_sequences)[population])
    counts, expected = texts_of(divided), case.expected()
    num = sum(counts.values())
    failures = misfits(counts, expected)
    failures += [f"{num} texts of {num_sequences} sequences"] if num != num_sequences else []
    chi_squares, pooled = [chi_square(counts, expected)], (0.0, 0)
    # A prompt of several tokens is read in a round of its own, before the first draft.
    for (rounds, text), group in second_round_groups(divided, 1 if len(case.prompt) == 1 else 2).items():
        if sum(group.values()) >= SMALLEST_GROUP:
            law = successors(expected, text)
            failures += [f"after {text} by {rounds}: {line}" for line in misfits(group, law)]
            chi_squares.append(chi_square(group, law))
            pooled = pooled[0] + chi_squares[-1][0], pooled[1] + chi_squares[-1][1]
    p_values = [float(chi2.sf(statistic, freedom)) for statistic, freedom in [*chi_squares, pooled] if freedom]
    if pooled[1] and p_values[-1] < ALPHA:
        failures.append(f"second round, all groups: chi-square {pooled[0]:.1f} with {pooled[1]} degrees")
    return Found(failures, _figures(counts, expected, p_values))


def _figures(counts: Mapping[Any, int], expected: Law, p_values: list[float]) -> dict[str, Any]:
    num = sum(counts.values())
    shares = {text: n / num for text, n in counts.items()}
    return {
        "sequences": num,
        "comparisons": len(p_values),
        "p": min(p_values, default=1.0),
        "variation": (total_variation(shares, expected), detectable_variation(expected, num)),
    }
