"""One deliberate fault, and where in an engine it sits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from forerun.randomness import Noise
from forerun.sampling import Processing, SamplingParams
from forerun.verification import DEFAULT_RULES, Rules

NoiseFactory = Callable[[SamplingParams, int, int, int], Noise]


def _unchanged(part: Any) -> Any:
    return part


@dataclass(frozen=True, slots=True)
class Broken:
    """One fault: in the rules, in the noise (wraps an engine's `make_noise`), in the drafter (wraps a drafter) or in
    the processing of rows (takes the place of `Processing`).

    The parts that are sound are the real ones, so `Engine(target, broken.drafter(drafter), rules=broken.rules,
    make_noise=broken.noise(make_noise), make_processing=broken.processing)` is an engine with exactly this fault.
    """

    reason: str
    rules: Rules = field(default_factory=lambda: DEFAULT_RULES)
    noise: Callable[[NoiseFactory], NoiseFactory] = _unchanged
    drafter: Callable[[Any], Any] = _unchanged
    processing: Callable[..., Processing] = Processing
