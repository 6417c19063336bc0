"""One sequence's draft as it grows from a draft model's rows, level by level; a chain is a tree of single children."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from forerun.randomness import Drawn, Noise
from forerun.sampling import Distribution
from forerun.topology import chain, children, first_path, restricted
from forerun.types import Draft, Gate


class Growth:
    """Nodes of a topology that was fixed beforehand. Which of them come to exist depends on rows, and so on the prefix
    that leads to a node, never on the node's own token.

    `open` are the nodes whose children are drawn next (-1: the committed text), all of one level.
    """

    def __init__(self, parents: Sequence[int]) -> None:
        self._parents = tuple(parents)
        self._children = children(parents)
        self._drawn: dict[int, Drawn] = {}
        self._confidences: dict[int, float] = {}
        self.paths: dict[int, tuple[int, ...]] = {-1: ()}  # the nodes from the root to each, itself included
        self.prefixes: dict[int, tuple[int, ...]] = {-1: ()}  # their tokens
        self.open: list[int] = [-1] if parents else []

    def fed(self) -> list[int]:
        """What a draft model needs to have been fed for the rows of the open nodes, which come last, in their order."""
        needed = {one: depth for node in self.open for depth, one in enumerate(self.paths[node])}
        return sorted(needed, key=lambda node: (needed[node], node))

    def shape_of(self, fed: Sequence[int]) -> tuple[list[int], tuple[int, ...]]:
        """(tokens, parents as indices into them) of these nodes."""
        return [self._drawn[node][0] for node in fed], restricted(self._parents, fed)

    def draw(self, node: int, q: Distribution, noise: Noise | None, wants_confidence: bool) -> None:
        """The children of an open node, from its row: with the round's noise, or the best ones without it. A row that
        cannot be used raises, and the node stays without children."""
        nodes = self._children[node + 1]
        confidence = q.confidence if wants_confidence else 0.0
        if noise is None:
            drawn: list[Drawn] = [(token, q) for token in q.best(len(nodes))]
        else:
            drawn = noise.draw_children(q, nodes, len(self.paths[node]))
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
        """What has grown, its nodes in the order of the topology."""
        nodes = sorted(self._drawn)
        tokens, parents = self.shape_of(nodes)
        is_sampled = kind == "sampled"
        return Draft(
            tuple(tokens),
            "sampled" if is_sampled else "deterministic",
            tuple(self._drawn[node][1] for node in nodes) if is_sampled else None,
            None if parents == chain(len(nodes)) else parents,
            source,
            tuple(self._confidences[node] for node in nodes) if self._confidences else (),
        )
