"""Sets of characters as ranges of code points, and what of them a lexer of bytes sees first."""

from __future__ import annotations

from collections.abc import Iterable

Ranges = tuple[tuple[int, int], ...]
"""Code points, first and last of each range: ascending, apart, without surrogates."""

ANY: Ranges = ((0, 0xD7FF), (0xE000, 0x10FFFF))


def merged(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """Ranges in any order, as one set."""
    found: list[list[int]] = []
    for low, high in sorted(ranges):
        if found and low <= found[-1][1] + 1:
            found[-1][1] = max(found[-1][1], high)
        else:
            found.append([low, high])
    inside = ((max(low, first), min(high, last)) for low, high in found for first, last in ANY)
    return tuple((low, high) for low, high in inside if low <= high)


def complement(ranges: Ranges) -> Ranges:
    """Every character that is not in `ranges`."""
    found, start = [], 0
    for low, high in ranges:
        found.append((start, low - 1))
        start = high + 1
    return merged((low, high) for low, high in [*found, (start, 0x10FFFF)] if low <= high)


def overlap(one: Ranges, other: Ranges) -> bool:
    """Whether some character is in both."""
    return any(low <= last and first <= high for low, high in one for first, last in other)


def lead_bytes(ranges: Ranges) -> int:
    """The bytes that UTF-8 begins these characters with: bit b for byte b."""
    bits = 0
    for low, high in ranges:
        first, last = _lead(low), _lead(high)
        bits |= (1 << (last + 1)) - (1 << first)
    return bits


def as_pattern(ranges: Ranges) -> str:
    """The set in the syntax of Rust's regex crate."""
    return "[" + "".join(f"\\x{{{low:x}}}" + (f"-\\x{{{high:x}}}" if high > low else "") for low, high in ranges) + "]"


def _lead(code: int) -> int:
    return chr(code).encode()[0]
