"""Traversal verification of trees, leaf to root: Weng et al. (arXiv 2505.12398).

The tree form of block verification; the default for sampled trees.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from forerun.randomness import Noise, Purpose
from forerun.sampling import Distribution
from forerun.topology import children_of
from forerun.types import Draft, Verdict
from forerun.verification.chain import acceptance_ratio, draft_row, residual
from forerun.verification.emit import UNUSABLE, emit


@dataclass(slots=True)
class _Visit:
    """A node on the way from the root: with what probability it is still to be accepted (`scale`), what of its target
    row is still to be emitted (`left`), and its children that were not looked at, the next one last."""

    node: int  # -1: the committed text
    scale: float
    left: Distribution
    waiting: list[int] = field(default_factory=list)


def traversal(target_rows: Sequence[Distribution], draft: Draft, noise: Noise) -> Verdict:
    """Depth first, children in the order they were drawn; a node is tested once all below it has failed.

    The root has a = 1 and R = p. Child t, drawn from D (q without the children before it, normalised: `draft.rows[t]`),
    is entered with a' = min(1, a R(t) / D(t)) and its own row as R'. If all of its subtree fails, its parent is left
    with r = max(a R - D, 0), s = sum r: a becomes s / (s + 1 - a) (1 where both vanish) and R becomes r / s. A node
    without children left is accepted if U[node] < a: the path to it is committed and the next token drawn from its R.

    For each topology that was fixed beforehand a node with probability a is accepted with probability a, whatever is
    below it, so the law is p's. On a chain these are the thresholds, residuals and numbers of `block`. Nodes behind
    a = 0 are not looked at: no text of the target leads there. A node whose row is unusable counts as a leaf.
    """
    children = children_of(draft)
    visits = [_Visit(-1, 1.0, target_rows[0], children[0][::-1])]
    while True:
        here = visits[-1]
        if here.waiting and here.scale > 0.0:
            child = here.waiting.pop()
            try:
                ratio = acceptance_ratio(here.left, draft, child, draft.tokens[child])
            except UNUSABLE:
                here.waiting.clear()
                continue
            scale = min(here.scale * ratio, 1.0)
            if scale > 0.0:
                visits.append(_Visit(child, scale, target_rows[child + 1], children[child + 1][::-1]))
            else:
                _take_away(here, draft_row(draft, child))
        elif here.node < 0 or noise.accept(here.scale, here.node):
            return emit(here.left, tuple(visit.node for visit in visits[1:]), noise, Purpose.EMIT)
        else:
            visits.pop()
            _take_away(visits[-1], draft_row(draft, here.node))


def _take_away(visit: _Visit, drawn_from: Distribution) -> None:
    """A child drawn from `drawn_from` failed with all below it."""
    behind = residual(visit.left, drawn_from, visit.scale)
    denominator = behind.mass + 1.0 - visit.scale
    visit.scale = behind.mass / denominator if denominator > 0.0 else 1.0
    visit.left = behind.distribution
