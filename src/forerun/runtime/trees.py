"""Spans that are trees: which of their tokens a cache may keep.

For runtimes written in Python; the native one has its own, with the same promises.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from forerun.errors import ContractError
from forerun.topology import chain
from forerun.types import Span


@dataclass(frozen=True, slots=True)
class LastSpan:
    """What a sequence was fed last: tokens at the places `start`, `start + 1`, ... of its cache, each of which follows
    its parent (an index into the span; -1: the text before it)."""

    start: int
    parents: tuple[int, ...]

    @property
    def trunk(self) -> int:
        """Tokens at its beginning that follow one another: cached up to there is one text."""
        return next((i for i, parent in enumerate(self.parents) if parent != i - 1), len(self.parents))

    @property
    def is_tree(self) -> bool:
        return self.trunk < len(self.parents)


def last_span(span: Span) -> LastSpan:
    """What is to be remembered of a span that was fed."""
    return LastSpan(span.start, chain(len(span.tokens)) if span.parents is None else span.parents)


def check_one_text(spans: Sequence[Span], lasts: Mapping[int, LastSpan]) -> None:
    """Refuse to feed what would follow no single text: after a tree, one of its paths is kept first."""
    for span in spans:
        last = lasts.get(span.sequence_id)
        if last is not None and last.is_tree:
            raise ContractError(
                "the last span was a tree", f"sequence {span.sequence_id}", "keep one of its paths before feeding more"
            )


def kept_places(last: LastSpan | None, cached: int, length: int, path: tuple[int, ...] = ()) -> list[int]:
    """The places in a cache of `cached` tokens of the tokens of `path` (indices into the last span), which follow its
    first `length` tokens. ContractError where these are not one text."""
    if not 0 <= length <= cached:
        raise ContractError(f"cannot keep {length} of {cached} cached tokens", f"path {path}")
    if last is not None and length > last.start + last.trunk:
        raise ContractError(
            f"the first {length} cached tokens are not one text", "the last span was a tree", "name the accepted path"
        )
    if path and last is None:
        raise ContractError("a path needs a span that was fed just before", f"path {path}")
    before = length - 1 - (0 if last is None else last.start)
    places = []
    for node in path:
        if last is None or not 0 <= node < len(last.parents) or last.parents[node] != before:
            raise ContractError(f"path {path} does not follow the {length} tokens kept before it", f"at node {node}")
        places.append(last.start + node)
        before = node
    return places
