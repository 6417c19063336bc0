"""Topologies of draft trees: `parents[i]` is the node that node i follows, -1 for the committed text, parents first.

The order of nodes with one parent is the order in which they were drawn, or ranked.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from forerun.types import Draft


def is_sound(parents: Sequence[int], num_nodes: int) -> bool:
    """Whether these are the parents of `num_nodes` nodes."""
    return len(parents) == num_nodes and all(-1 <= parent < node for node, parent in enumerate(parents))


def chain(num_nodes: int) -> tuple[int, ...]:
    """Each node follows the one before it."""
    return tuple(range(-1, num_nodes - 1))


def depths(parents: Sequence[int]) -> list[int]:
    """Each node's depth; 1 for those that follow the committed text."""
    found: list[int] = []
    for parent in parents:
        found.append(1 if parent < 0 else found[parent] + 1)
    return found


def children(parents: Sequence[int]) -> list[list[int]]:
    """The nodes that follow the committed text (first), and each node (node i's at i + 1)."""
    found: list[list[int]] = [[] for _ in range(len(parents) + 1)]
    for node, parent in enumerate(parents):
        found[parent + 1].append(node)
    return found


def depths_of(draft: Draft) -> list[int]:
    """`depths` of a draft, chain or tree."""
    return depths(chain(len(draft.tokens)) if draft.parents is None else draft.parents)


def children_of(draft: Draft) -> list[list[int]]:
    """`children` of a draft, chain or tree."""
    return children(chain(len(draft.tokens)) if draft.parents is None else draft.parents)


def first_path(parents: Sequence[int]) -> list[int]:
    """The first node that follows the committed text, the first that follows that one, and so on."""
    found: list[int] = []
    for node, parent in enumerate(parents):
        if parent == (found[-1] if found else -1):
            found.append(node)
    return found


def comb(parents: Sequence[int]) -> list[int]:
    """The nodes that a drafter can have which feeds nothing but first children."""
    path = {-1, *first_path(parents)}
    return [node for node, parent in enumerate(parents) if parent in path]


def restricted(parents: Sequence[int], nodes: Sequence[int]) -> tuple[int, ...]:
    """The parents of `nodes` among themselves: each comes behind its own."""
    places = {-1: -1} | {node: place for place, node in enumerate(nodes)}
    return tuple(places[parents[node]] for node in nodes)


def up_to(parents: Sequence[int], depth: int) -> tuple[int, ...]:
    """The part of a tree that is no deeper."""
    return restricted(parents, [node for node, own in enumerate(depths(parents)) if own <= depth])


def by_widths(widths: Sequence[int]) -> tuple[int, ...]:
    """Every node at depth d has widths[d] children, level by level: (3, 2) has three nodes and six behind them."""
    found: list[int] = []
    level = [-1]
    for width in widths:
        first = len(found)
        found += [parent for parent in level for _ in range(width)]
        level = list(range(first, len(found)))
    return tuple(found)


def comb_by_widths(widths: Sequence[int]) -> tuple[int, ...]:
    """The first node at each depth has widths[d] children, and the others none: (2, 3) has two nodes and three behind
    the first of them."""
    found: list[int] = []
    first = -1
    for width in widths:
        found += [first] * width
        first = len(found) - width
    return tuple(found)
