"""Level 1: the exact law of committed text, for every rule, drafter and parameter set, two rounds deep."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from tests.ladder.cases import SETS, WAYS, Case, ParameterSet, Way
from tests.ladder.cells import Cell, Found
from tests.verification.laws import Law, violations

TABLES = ("dense", "zeros", "disjoint")
NUM_SHOWN = 3
"""Violations of one law that are named; the rest is counted."""


def cells() -> list[Cell]:
    return [
        Cell(1, f"{_label(way, rule)}, {name}, {set_name}", lambda w=way, r=rule, g=given: check(w, r, g), cost, "laws")
        for name, way in WAYS.items()
        for rule in way.rules
        for set_name, given in SETS.items()
        for cost in [_cost(way, given)]
    ]


def _label(way: Way, rule: str) -> str:
    """The rule that judges: fixed drafts are followed."""
    return rule if len(way.rules) > 1 else "follow"


def _cost(way: Way, given: ParameterSet) -> float:
    """Trees of sampled drafts are wide, those of fixed drafts have one leaf for each text, greedy ones one leaf."""
    num = sum(size in given.sizes for size, _, _ in way.shapes) * len(TABLES)
    return num * (0.01 if given.params.get("temperature") == 0 else 0.5 if len(way.rules) > 1 else 0.1)


def tables(name: str, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Weights of (target, draft), [size, size] each, fixed by name and size."""
    rng = np.random.default_rng([size, len(name)])
    if name == "dense":
        target, draft = rng.integers(1, 9, (2, size, size))
        return target, draft
    target, draft = rng.integers(0, 5, (2, size, size))
    if name == "disjoint":  # no token of a row has mass in both, except in the last row
        target[:-1, size // 2 :], draft[:-1, : size // 2] = 0, 0
    target[target.sum(-1) == 0, 0] = 1
    draft[draft.sum(-1) == 0, size - 1] = 1
    return target, draft


def cases(way: Way, rule: str, given: ParameterSet) -> Iterator[tuple[str, Case]]:
    """Every shape and table of one cell. A prompt of several tokens is read in a round of its own: one token more."""
    for size, k, num_tokens in way.shapes:
        for name in TABLES if size in given.sizes else ():
            target, draft = tables(name, size)
            yield (
                f"{name} table of {size} tokens, k={k}",
                Case(
                    given, lambda draft=draft: way.make(draft), rule, target, k, num_tokens + (len(way.prompt) > 1),
                    way.prompt, way.kind,
                ),
            )  # fmt: skip


def deviation(law: Law, expected: Law) -> float:
    """The largest difference of a text's probability."""
    return max(abs(law.get(text, 0.0) - expected.get(text, 0.0)) for text in {*law, *expected})


def check(way: Way, rule: str, given: ParameterSet) -> Found:
    failures, deviations = list[str](), list[float]()
    for name, case in cases(way, rule, given):
        law, expected = case.exact_law(), case.expected()
        found = violations(law, expected)
        failures += [f"{name}: {line}" for line in found[:NUM_SHOWN]]
        failures += [f"{name}: {len(found) - NUM_SHOWN} more violations"] if len(found) > NUM_SHOWN else []
        deviations.append(deviation(law, expected))
    return Found(failures, {"laws": len(deviations), "deviation": max(deviations)})
