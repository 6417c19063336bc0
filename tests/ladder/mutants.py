"""Level 5: every broken part is caught by the enumeration of level 1 or the statistics of level 2, and no sound one is.

Where each must be caught is data of the tests that do the same: KILLS of test_level5_mutants.py ("exact x", "sampled
x") and of test_level5_features.py ("features x"). One fault bends no law, only the log probabilities reported.
"""

from __future__ import annotations

from typing import Any

import tests.verification.test_level5_features as features
from tests.ladder.cells import Cell, Found
from tests.verification.laws import TOLERANCE, Law, total_variation, violations
from tests.verification.test_level5_mutants import KILLS, NUM, SCENARIOS, SOUND, faults

from forerun.verification.broken import BROKEN, Broken

REUSED = "randomness is reused"
"""What the enumerator says when one number decides two things: that alone convicts."""
REPORTED = "reported log probabilities"
PLACES: dict[str, list[str]] = {
    name: [*KILLS.get(name, ()), *(f"features {place}" for place in features.KILLS.get(name, ()))] for name in BROKEN
} | {"processed_as_raw": [REPORTED]}
EVERYWHERE = sorted({place for places in PLACES.values() for place in places})


def cells() -> list[Cell]:
    mutants = [
        Cell(5, name, lambda n=name, p=places: kill(n, p), _cost(places), "sequences")
        for name, places in PLACES.items()
    ]
    return mutants + [
        Cell(5, f"sound {name}", lambda p=part: spare(p, EVERYWHERE), _cost(EVERYWHERE), "sequences")
        for name, part in SOUND.items()
    ]


def _cost(places: list[str]) -> float:
    return NUM * (1 + sum(5 if place.startswith("features") else 1 for place in places))


def kill(name: str, places: list[str]) -> Found:
    """Every place that lists the mutant must catch it; its strength is the largest total variation of its laws."""
    part = BROKEN[name]
    seen = {place: catch(part, place) for place in places}
    missed = [f"{name} ({part.reason}) is not caught by {place}" for place, caught in seen.items() if caught is None]
    if not places:
        missed = [f"{name} is set to be caught nowhere: add it to the KILLS of a level-5 test"]
    caught = {place: one for place, one in seen.items() if one is not None}
    strengths = [variation for variation, _ in caught.values() if variation > TOLERANCE]
    figures: dict[str, Any] = {"killed": (int(not missed), 1)}
    if strengths:
        figures["weakest"] = max(strengths), name
    return Found(missed, figures, "; ".join(f"{place}: {told}" for place, (_, told) in caught.items()))


def catch(part: Broken, place: str) -> tuple[float, str] | None:
    """(total variation of the part's law or 0, what convicts it), None where nothing does."""
    level, _, name = place.partition(" ")
    if place == REPORTED:
        off = max(abs(got - right) for got, right in features.reported(part))
        return (0.0, f"off by up to {off:.2g}") if off > 1e-9 else None
    if level == "features":
        scenario = features.SCENARIOS[name]
        law, expected = scenario.law(part), scenario.expected
        return _of_law(law, expected, violations(law, expected))
    found = faults(part, place)
    if level == "sampled" or not found:
        return (0.0, found[0]) if found else None
    if REUSED in found[0]:
        return 0.0, REUSED
    return _of_law(SCENARIOS[name].exact_law(part), SCENARIOS[name].expected, found)


def _of_law(law: Law, expected: Law, found: list[str]) -> tuple[float, str] | None:
    variation = total_variation(law, expected)
    return (variation, f"total variation {variation:.2g}" if variation > TOLERANCE else found[0]) if found else None


def spare(part: Broken, places: list[str]) -> Found:
    """A place that condemns sound parts proves nothing about broken ones."""
    condemned = [f"{place}: {caught[1]}" for place in places if (caught := catch(part, place)) is not None]
    return Found(condemned, {"sound": (len(places) - len(condemned), len(places))})
