"""Who takes part in a cell: plain decoding, the adaptive policy fresh and experienced, and every fixed choice."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from forerun import drafting
from forerun.bench.summary import PLAIN
from forerun.control import policy as policies
from forerun.control.policy import FixedLength, Policy
from forerun.drafting import Drafter, LookupDrafter, ModelDrafter
from forerun.runtime.base import Model

COLD, WARM = "adaptive cold", "adaptive warm"
ADAPTIVE = (COLD, WARM)
MODEL_K = (1, 2, 3, 4, 6, 8)
COPY_K = (4, 8, 16)
"""Speculation lengths of fixed choices: each token of a draft model costs a pass, copied ones cost nothing."""

Parts = tuple[Drafter | None, Policy]
MakeAdaptive = Callable[[Model, Model | None], Parts]
"""From a target and a draft model (None: there is none) to what drafts adaptively, and its policy, both new."""


@dataclass(frozen=True, slots=True)
class Contender:
    """One way to write a block. `make` gives the drafter and the policy: the same ones for the whole cell, or new ones
    for every block (`is_fresh`), which then know nothing of the blocks before."""

    name: str
    make: Callable[[], Parts]
    is_fresh: bool = False

    @property
    def is_fixed(self) -> bool:
        """Whether it drafts the same way in every round."""
        return self.name != PLAIN and self.name not in ADAPTIVE


class StandIn(FixedLength):
    """Takes the adaptive policy's place in a build that has none."""

    def __repr__(self) -> str:
        return f"StandIn({self.k})"


def copying(name: str) -> Drafter | None:
    """The drafter that copies earlier text, by name; None in a build that has none of this name."""
    if name == "lookup":
        return LookupDrafter()
    kind = getattr(drafting, "SuffixDrafter", None)
    return kind() if kind is not None else None


def make_adaptive(target: Model, draft: Model | None) -> Parts:
    """Every source at once, and the policy that chooses among them."""
    copies, own = copying("suffix") or LookupDrafter(), None if draft is None else ModelDrafter(draft)
    stack, adaptive = getattr(drafting, "StackDrafter", None), getattr(policies, "AdaptiveLength", None)
    sources = [source for source in (copies, own) if source is not None]
    drafter = stack(sources) if stack is not None and len(sources) > 1 else own or copies
    return drafter, adaptive() if adaptive is not None else StandIn(3)


def contenders(
    target: Model,
    draft: Model | None,
    adaptive: MakeAdaptive = make_adaptive,
    model_k: Sequence[int] = MODEL_K,
    copy_k: Sequence[int] = COPY_K,
) -> list[Contender]:
    """Plain decoding first, then the adaptive ones, then the fixed."""
    warm = adaptive(target, draft)
    found = [
        Contender(PLAIN, lambda: (None, FixedLength(0))),
        Contender(COLD, lambda: adaptive(target, draft), is_fresh=True),
        Contender(WARM, lambda: warm),
    ]
    if draft is not None:
        found += [_fixed("model", k, ModelDrafter(draft)) for k in model_k]
    for name in ("lookup", "suffix"):
        drafter = copying(name)
        if drafter is not None:
            found += [_fixed(name, k, drafter) for k in copy_k]
    return found


def _fixed(name: str, k: int, drafter: Drafter) -> Contender:
    policy = FixedLength(k)
    return Contender(f"{name} k={k}", lambda: (drafter, policy))
