"""Who takes part in a cell: plain decoding, the adaptive policy fresh and experienced, and every fixed choice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from forerun.bench.summary import PLAIN
from forerun.control import AdaptiveLength, FixedLength, Policy
from forerun.drafting import COPIERS, Drafter, ModelDrafter, StackDrafter, SuffixDrafter
from forerun.runtime.base import Model

COLD, WARM = "adaptive cold", "adaptive warm"
ADAPTIVE = (COLD, WARM)
MODEL_K = (1, 2, 3, 5)
COPY_K = (4, 12)
"""Speculation lengths of fixed choices: each token of a draft model costs a pass, copied ones cost nothing."""

Parts = tuple[Drafter | None, Policy]
Make = Callable[[], Parts]
"""What drafts, and its policy."""


@dataclass(frozen=True, slots=True)
class Contender:
    """One way to write a block. `make` gives the drafter and the policy: the same ones for the whole cell, or new ones
    for every block (`is_fresh`), which then know nothing of the blocks before."""

    name: str
    make: Make
    is_fresh: bool = False

    @property
    def is_fixed(self) -> bool:
        """Whether it drafts the same way in every round."""
        return self.name != PLAIN and self.name not in ADAPTIVE


def adaptive_parts(target: Model, draft: Model | None, window: int | None = None, min_confidence: float = 0.0) -> Parts:
    """Suffix and the draft model, and the policy that chooses between them, all new. `window` and `min_confidence` as
    `ModelDrafter` has them."""
    policy = AdaptiveLength.of(target, draft)
    if draft is None:
        return SuffixDrafter(), policy
    return StackDrafter([SuffixDrafter(), ModelDrafter(draft, window, min_confidence, meter=policy.meter)]), policy


def unfixed(adaptive: Make) -> list[Contender]:
    """Plain decoding, and the adaptive policy without and with experience."""
    warm = adaptive()
    return [
        Contender(PLAIN, lambda: (None, FixedLength(0))),
        Contender(COLD, adaptive, is_fresh=True),
        Contender(WARM, lambda: warm),
    ]


def fixed(name: str, k: int, drafter: Drafter) -> Contender:
    """The same k in every round."""
    policy = FixedLength(k)
    return Contender(f"{name} k={k}", lambda: (drafter, policy))


def contenders(draft: Model | None, adaptive: Make, window: int | None = None) -> list[Contender]:
    """Everybody in a cell. `window` bounds what the draft model sees (see `ModelDrafter`)."""
    found = unfixed(adaptive)
    if draft is not None:
        own = ModelDrafter(draft, window)
        found += [fixed("model", k, own) for k in MODEL_K]
    for name in COPIERS:
        copies = COPIERS[name]()
        found += [fixed(name, k, copies) for k in COPY_K]
    return found
