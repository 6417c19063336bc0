"""One sequence's draft as it grows from a draft model's rows, level by level; a chain is a tree of single children."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from forerun.randomness import Drawn, Noise, best_children
from forerun.sampling import Distribution
from forerun.topology import chain, children, first_path, restricted
from forerun.types import Draft, Gate


class Growth:
    """Nodes of a topology that was fixed beforehand. Which of them come to exist depends on rows, and so on the prefix
    that leads to a node, never on the node's own token.

    `free` are the tokens of the first nodes, which another source gave; these follow each other. `open` are the nodes
    whose children are drawn next (-1: the committed text), all of one level.
    """

    def __init__(self, parents: Sequence[int], free: Sequence[int] = ()) -> None:
        self._parents = (*chain(len(free)), *parents[len(free) :])
        self._children = children(self._parents)
        self._free = tuple(free)
        self._drawn: dict[int, Drawn] = {}
        self._confidences: dict[int, float] = {}
        self.paths: dict[int, tuple[int, ...]] = {-1: ()}  # the nodes from the root to each, itself included
        self.prefixes: dict[int, tuple[int, ...]] = {-1: ()}  # their tokens
        for node in range(len(free)):
            self.paths[node], self.prefixes[node] = (*range(node + 1),), (*free[: node + 1],)
        self.open: list[int] = [len(free) - 1] if len(self._parents) > len(free) else []

    def fed(self) -> list[int]:
        """What a draft model needs to have been fed for the rows of the open nodes, which come last, in their order."""
        needed = {one: depth for node in self.open for depth, one in enumerate(self.paths[node])}
        return sorted(needed, key=lambda node: (needed[node], node))

    def shape_of(self, fed: Sequence[int]) -> tuple[list[int], tuple[int, ...]]:
        """(tokens, parents as indices into them) of these nodes."""
        return [self.prefixes[node][-1] for node in fed], restricted(self._parents, fed)

    def draw(self, node: int, q: Distribution, noise: Noise | None, wants_confidence: bool) -> None:
        """The children of an open node, from its row: with the round's noise, or the best ones without it. A row that
        cannot be used raises, and the node stays without children."""
        nodes = self._children[node + 1]
        confidence = q.confidence if wants_confidence else 0.0
        drawn = best_children(q, nodes) if noise is None else noise.draw_children(q, nodes, len(self.paths[node]))
        for child, one in zip(nodes, drawn, strict=False):  # of a row with too few tokens, the last do not exist
            self._drawn[child] = one
            self.paths[child] = (*self.paths[node], child)
            self.prefixes[child] = (*self.prefixes[node], one[0])
            if wants_confidence:
                self._confidences[child] = confidence

    def next_level(self, num_inputs: int, min_confidence: float, gate: Gate | None) -> None:
        """Open the nodes that were just drawn, if it goes on: those that are to have children and can be fed."""
        last = [child for node in self.open for child in self._children[node + 1] if child in self._drawn]
        self.open = [node for node in last if self._children[node + 1] and self._drawn[node][0] < num_inputs]
        if self.open and self._confidences:
            along = [self._confidences[node] for node in first_path(self._parents) if node in self._confidences]
            if prod(along) < min_confidence or (gate is not None and not gate(along)):
                self.open = []

    def draft(self, kind: str, source: str) -> Draft:
        """What has grown, its nodes in the order of the topology. Free tokens alone are a draft that was fixed
        beforehand; before sampled ones each has a row with all mass on it."""
        num_free = len(self._free)
        drawn = sorted(self._drawn)
        tokens, parents = self.shape_of([*range(num_free), *drawn])
        rows = None
        if kind == "sampled" and (drawn or not num_free):
            fixed = [Distribution.certain(token, self._drawn[drawn[0]][1]) for token in self._free]
            rows = (*fixed, *(self._drawn[node][1] for node in drawn))
        return Draft(
            tuple(tokens),
            "deterministic" if rows is None else "sampled",
            rows,
            None if parents == chain(len(parents)) else parents,
            source,
            tuple(self._confidences[node] for node in drawn) if self._confidences else (),
            num_free,
        )
