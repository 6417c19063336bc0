"""Who takes part in a cell: plain decoding, the adaptive policy fresh and experienced, and every fixed choice."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from forerun import drafting
from forerun.bench.summary import PLAIN
from forerun.control.policy import FixedLength, Policy
from forerun.drafting import Drafter, LookupDrafter, ModelDrafter
from forerun.errors import ParameterError
from forerun.runtime.base import Model

COLD, WARM = "adaptive cold", "adaptive warm"
ADAPTIVE = (COLD, WARM)
MODEL_K = (1, 2, 3, 4, 6, 8)
COPY_K = (4, 8, 16)
"""Speculation lengths of fixed choices: each token of a draft model costs a pass, copied ones cost nothing."""

COPIERS = ("lookup", "suffix")

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


class StandIn(FixedLength):
    """Takes the adaptive policy's place in a build that has none."""

    def __repr__(self) -> str:
        return f"StandIn({self.k})"


def has_copier(name: str) -> bool:
    """Whether this build has the drafter of COPIERS."""
    return name == "lookup" or hasattr(drafting, "SuffixDrafter")


def copier(name: str) -> Drafter:
    """A drafter that copies earlier text, by its name in COPIERS."""
    if not has_copier(name):
        raise ParameterError("drafters", f"this build has no drafter {name!r}", "take lookup")
    kind: Callable[[], Drafter] = LookupDrafter if name == "lookup" else getattr(drafting, "SuffixDrafter")  # noqa: B009
    return kind()


def adaptive_policy(target: Model, draft: Model | None = None) -> Policy:
    """A new adaptive policy for these models."""
    return StandIn(3)


def adaptive_parts(target: Model, draft: Model | None, window: int | None = None) -> Parts:
    """Every source at once, and the policy that chooses among them, all new."""
    copies = copier("suffix" if has_copier("suffix") else "lookup")
    if draft is None:
        return copies, adaptive_policy(target)
    own = ModelDrafter(draft, window)
    stack: Callable[[Sequence[Drafter]], Drafter] | None = getattr(drafting, "StackDrafter", None)
    return (own if stack is None else stack([copies, own])), adaptive_policy(target, draft)


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


def contenders(
    draft: Model | None,
    adaptive: Make,
    window: int | None = None,
    model_k: Sequence[int] = MODEL_K,
    copy_k: Sequence[int] = COPY_K,
) -> list[Contender]:
    """Everybody in a cell. `window` bounds what the draft model sees (see `ModelDrafter`)."""
    found = unfixed(adaptive)
    if draft is not None:
        own = ModelDrafter(draft, window)
        found += [fixed("model", k, own) for k in model_k]
    for name in COPIERS:
        if has_copier(name):
            copies = copier(name)
            found += [fixed(name, k, copies) for k in copy_k]
    return found
