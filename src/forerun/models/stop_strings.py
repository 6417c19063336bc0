"""Stop strings in text that arrives in pieces: what may be shown now, and where the text ends.

A piece may end in the middle of a stop string, so a tail that could still become one is held back, and nothing more.
Searching is Aho and Corasick's automaton ("Efficient string matching", CACM 18(6), 1975): one pass over the characters,
in time linear in the text plus the stop strings, however many, long or repetitive they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from forerun.errors import ParameterError

ROOT = 0


def check_stops(stop: Any) -> tuple[str, ...]:
    """The stop strings that a `stop` parameter names: None or [] none, a str one, a sequence of str several.

    Repeated ones are dropped; any number, length and character is allowed. ParameterError for what could only be a
    mistake: an empty string, half a surrogate pair, and what is not text.
    """
    if stop is None:
        return ()
    if isinstance(stop, str):
        stop = [stop]
    if isinstance(stop, (bytes, bytearray, memoryview)) or not isinstance(stop, Sequence):
        raise ParameterError("stop", f"{_shown(stop)} is neither a string nor a sequence of strings")
    for text in stop:
        if not isinstance(text, str):
            raise ParameterError("stop", f"{_shown(text)} is not a string", "stop_token_ids takes token ids")
        if not text:
            raise ParameterError("stop", "an empty string would be found at once", "leave it out for no stop strings")
        half = next((char for char in text if "\ud800" <= char <= "\udfff"), None)
        if half is not None:
            raise ParameterError(
                "stop",
                f"{_shown(text)} can never be found: {half!a} is half of a UTF-16 pair, and decoded text never "
                "holds half a character",
                "write the whole character",
            )
    return tuple(dict.fromkeys(stop))


class StopStrings:
    """`add` each piece and join what it returns, then `finish`: together the text up to the first stop string.

    The match whose last character comes first wins; of those that end together, the longest. So the cut depends on the
    characters alone, never on how they were split into pieces. `matched` is the stop string found and `cut` the number
    of characters before it; both are None while there is none.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self.matched: str | None = None
        self.cut: int | None = None
        self._num_released = 0
        # A node is a prefix of a stop string, as (its longest word)[:depth]. The current node is the tail held back,
        # so its characters need no other buffer.
        self._node = ROOT
        self._edges: dict[tuple[int, str], int] = {}
        self._depths, self._words = [0], [""]
        self._fails = [ROOT]  # the longest proper suffix of a node that is a node too
        self._found: list[str | None] = [None]  # the longest stop string that ends a node
        # Depth by depth, so that shallower nodes are complete; the longest first, so that a node's word is its longest.
        words = sorted(check_stops(stops), key=len, reverse=True)
        self._firsts = frozenset(word[0] for word in words)
        level = [(word, ROOT) for word in words]
        while level:
            level = [(word, self._extend(word, node)) for word, node in level]
            level = [(word, node) for word, node in level if self._depths[node] < len(word)]

    def add(self, text: str, counts: bool = True) -> str:
        """What cannot belong to a stop string once `text` is known; after a match, nothing.

        Without `counts` matches that end in `text` are passed over for good: the characters flow on like any others,
        and a later match may overlap them.
        """
        if self.matched is not None:
            return ""
        if self._node == ROOT and self._firsts.isdisjoint(text):  # most text: no stop string begins in it
            self._num_released += len(text)
            return text
        node = self._node
        for num_read, char in enumerate(text, 1):
            node = self._next(node, char)
            found = self._found[node]
            if found is not None and counts:
                released = self._release(text[:num_read], len(found))
                self.matched, self.cut, self._node = found, self._num_released, ROOT
                return released
        while node != ROOT and self._depths[node] == len(self._words[node]):  # complete: nothing to wait for
            node = self._fails[node]
        released = self._release(text, self._depths[node])
        self._node = node
        return released

    def finish(self) -> str:
        """The tail held back, for a text that ends without a match; nothing after one, or a second time."""
        rest = self._release("", 0)
        self._node = ROOT
        return rest

    def _release(self, text: str, num_kept: int) -> str:
        """The tail held back and `text`, without the last `num_kept` characters."""
        word, depth = self._words[self._node], self._depths[self._node]
        num = depth + len(text) - num_kept
        self._num_released += num
        return word[: min(num, depth)] + text[: max(num - depth, 0)]

    def _extend(self, word: str, node: int) -> int:
        """The node one character further into `word`, added if need be."""
        char = word[self._depths[node]]
        child = self._edges.get((node, char))
        if child is None:
            fail = self._next(self._fails[node], char)  # looked up before the edge is there: the root's lead to it
            child = len(self._words)
            self._edges[node, char] = child
            self._depths.append(self._depths[node] + 1)
            self._words.append(word)
            self._fails.append(fail)
            self._found.append(self._found[fail])
        if self._depths[child] == len(word):
            self._found[child] = word
        return child

    def _next(self, node: int, char: str) -> int:
        """The longest suffix of (a node and one more character) that is a node."""
        while (child := self._edges.get((node, char))) is None:
            if node == ROOT:
                return ROOT
            node = self._fails[node]
        return child


def _shown(value: Any) -> str:
    text = ascii(value)
    return text if len(text) <= 60 else text[:57] + "..."
