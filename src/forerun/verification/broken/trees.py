"""Broken trees: faults of the rules for several children, of how they are drawn, and of what is done with them then."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from forerun.randomness import Drawn, Noise, Purpose, without_replacement
from forerun.sampling import Distribution
from forerun.topology import children_of, depths_of, restricted
from forerun.types import Draft, Verdict
from forerun.verification import CHAIN_RULES, DEFAULT_RULES, Rule, recursive, traversal
from forerun.verification.broken.parts import Broken, NoiseFactory
from forerun.verification.broken.rules import Wrapped
from forerun.verification.chain import acceptance_ratio, draft_row, residual

# -- rules -------------------------------------------------------------------------------------------------------------


def _every_child_against_p(target_rows: Sequence[Distribution], draft: Draft, noise: Noise) -> Verdict:
    """Recursive rejection that takes a rejected child's q away only before it emits, not before the next child."""
    followers = children_of(draft)
    path: tuple[int, ...] = ()
    while True:
        row = path[-1] + 1 if path else 0
        p, emitted, taken = target_rows[row], target_rows[row], None
        for child in followers[row]:
            if noise.accept(min(1.0, acceptance_ratio(p, draft, child, draft.tokens[child])), child):
                taken = child
                break
            emitted = residual(emitted, draft_row(draft, child), 1.0).distribution
        if taken is None:
            return Verdict(path, noise.draw(emitted, len(path), Purpose.EMIT))
        path = (*path, taken)


def _all_by_q(rule: Rule) -> Rule:
    """Every child is judged by q itself: what the children before it took is neither left out nor made up for."""

    def judged(target_rows: Sequence[Distribution], draft: Draft, noise: Noise) -> Verdict:
        rows, parents = draft.rows or (), draft.parents or ()
        return rule(target_rows, replace(draft, rows=tuple(rows[parents.index(parent)] for parent in parents)), noise)

    return judged


@dataclass(frozen=True, slots=True)
class _AcceptsByDepth:
    """Noise that asks for a node's acceptance with the number of its depth."""

    inner: Noise
    depths: Sequence[int]

    @property
    def kind(self) -> Literal["sampled", "deterministic"]:
        return self.inner.kind

    def accept(self, probability: float, node: int) -> bool:
        return self.inner.accept(probability, self.depths[node])

    def draw(self, distribution: Distribution, node: int, purpose: Purpose) -> int:
        return self.inner.draw(distribution, node, purpose)

    def draw_children(self, distribution: Distribution, nodes: Sequence[int], depth: int) -> list[Drawn]:
        return self.inner.draw_children(distribution, nodes, depth)


def _accepts_by_depth(target_rows: Sequence[Distribution], draft: Draft, noise: Noise) -> Verdict:
    return traversal(target_rows, draft, _AcceptsByDepth(noise, depths_of(draft)))


# -- noise -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _OtherChildren:
    """Noise that draws several children in another way."""

    inner: Noise
    children: Callable[[Noise, Distribution, Sequence[int]], list[Drawn]]

    @property
    def kind(self) -> Literal["sampled", "deterministic"]:
        return self.inner.kind

    def accept(self, probability: float, node: int) -> bool:
        return self.inner.accept(probability, node)

    def draw(self, distribution: Distribution, node: int, purpose: Purpose) -> int:
        return self.inner.draw(distribution, node, purpose)

    def draw_children(self, distribution: Distribution, nodes: Sequence[int], depth: int) -> list[Drawn]:
        if self.kind == "deterministic":
            return self.inner.draw_children(distribution, nodes, depth)
        return self.children(self.inner, distribution, nodes)


def _with_children(
    children: Callable[[Noise, Distribution, Sequence[int]], list[Drawn]],
) -> Callable[[NoiseFactory], NoiseFactory]:
    return lambda factory: lambda *key: _OtherChildren(factory(*key), children)


def _with_replacement(noise: Noise, q: Distribution, nodes: Sequence[int]) -> list[Drawn]:
    """Each child from all of q, and reported as if the ones before it had been left out (unless it is one of them)."""
    found: list[Drawn] = []
    left: Distribution | None = q
    for node in nodes:
        token = noise.draw(q, node, Purpose.DRAFT)
        found.append((token, left if left is not None and left.prob(token) > 0.0 else q))
        left = left.without(token) if left is not None else None
    return found


def _with_one_key(noise: Noise, q: Distribution, nodes: Sequence[int]) -> list[Drawn]:
    return without_replacement(q, nodes, lambda left, _: noise.draw(left, nodes[0], Purpose.DRAFT))


# -- drafters ----------------------------------------------------------------------------------------------------------


class _Reranked(Wrapped):
    """Puts the likeliest of the children that were drawn first, as if they had been drawn in that order."""

    def propose(self, sequences: Sequence[Any], plans: Sequence[Any]) -> list[Draft]:
        return [self._reranked(draft) for draft in super().propose(sequences, plans)]

    @staticmethod
    def _reranked(draft: Draft) -> Draft:
        if draft.kind != "sampled" or draft.parents is None or not draft.rows:
            return draft
        order: list[int] = []
        rows: list[Distribution] = []
        level = [-1]
        followers = children_of(draft)
        while level:
            following: list[int] = []
            for node in level:
                nodes = followers[node + 1]
                left: Distribution | None = draft.rows[nodes[0]] if nodes else None
                whole = left
                for child in sorted(nodes, key=lambda one: -whole.prob(draft.tokens[one]) if whole else 0.0):
                    if left is not None:
                        order.append(child)
                        rows.append(left)
                        left = left.without(draft.tokens[child])
                following += [child for child in nodes if child in order]
            level = following
        tokens = tuple(draft.tokens[node] for node in order)
        return Draft(tokens, draft.kind, tuple(rows), restricted(draft.parents, order), draft.source)


class _SubtreeDropped(Wrapped):
    """Leaves out a node, and all behind it, where q found its token unlikely: what is dropped decides that it is."""

    def propose(self, sequences: Sequence[Any], plans: Sequence[Any]) -> list[Draft]:
        return [self._dropped(draft) for draft in super().propose(sequences, plans)]

    @staticmethod
    def _dropped(draft: Draft, smallest: float = 0.5) -> Draft:
        if draft.kind != "sampled" or draft.parents is None or not draft.rows:
            return draft
        kept = [-1]
        for node, (token, parent) in enumerate(zip(draft.tokens, draft.parents, strict=True)):
            if parent in kept and draft.rows[node].prob(token) >= smallest:
                kept.append(node)
        nodes = kept[1:]
        tokens, rows = tuple(draft.tokens[node] for node in nodes), tuple(draft.rows[node] for node in nodes)
        return Draft(tokens, draft.kind, rows, restricted(draft.parents, nodes), draft.source)


BROKEN_TREES: Mapping[str, Broken] = {
    "tree_residual_missing": Broken(
        "a rejected child's q is not taken from p before the next child is judged",
        {**CHAIN_RULES, "tree": _every_child_against_p},
    ),
    "tree_by_q": Broken(
        "later children are judged by q, not by what q leaves for them, normalised",
        {**CHAIN_RULES, "tree": _all_by_q(recursive)},
    ),
    "tree_traversal_by_q": Broken(
        "traversal judges later children by q, not by what q leaves for them, normalised",
        {**DEFAULT_RULES, "tree": _all_by_q(traversal)},
    ),
    "tree_accepts_by_depth": Broken(
        "traversal tests all nodes of one depth with one number", {**DEFAULT_RULES, "tree": _accepts_by_depth}
    ),
    "tree_with_replacement": Broken(
        "children are drawn with replacement and verified as if without", noise=_with_children(_with_replacement)
    ),
    "tree_one_key": Broken("the children of a node are drawn with one number", noise=_with_children(_with_one_key)),
    "tree_reranked": Broken("drawn children are put in another order", drafter=_Reranked),
    "tree_subtree_dropped": Broken("nodes are dropped for the token that was drawn", drafter=_SubtreeDropped),
}
"""Every such fault with its one-line reason."""
