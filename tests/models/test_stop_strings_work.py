"""Stop strings take time linear in the text and in the stops, counted in lines executed and characters copied."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any, SupportsIndex

import pytest

from forerun.models import stop_strings
from forerun.models.stop_strings import StopStrings


class Counted(str):
    """A string that counts the characters copied out of it."""

    num_copied = 0

    def __getitem__(self, place: SupportsIndex | slice) -> str:
        part = super().__getitem__(place)
        Counted.num_copied += len(part)
        return part


def lines_run(function: Callable[[], object]) -> int:
    """How many lines of the matcher's module `function` executes: work, however noisy the machine is."""
    count = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal count
        count += event == "line"
        return trace if frame.f_code.co_filename == stop_strings.__file__ else None

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        function()
    finally:
        sys.settrace(before)
    return count


def feed(stops: list[str], text: str, size: int, counts: bool = True) -> StopStrings:
    matcher = StopStrings(list(map(Counted, stops)))
    shown = [matcher.add(Counted(text[i : i + size]), counts) for i in range(0, len(text), size)]
    assert "".join(shown) + matcher.finish() == text[: matcher.cut]
    return matcher


# (stops, text, whether matches count) that are quadratic for a matcher that starts again or tries stop by stop.
HARD: dict[str, Callable[[int], tuple[list[str], str, bool]]] = {
    "falls back": lambda size: (["a" * size + "b"], "a" * (4 * size), True),
    "nearly": lambda size: (["a" * size], ("a" * (size - 1) + "b") * 4, True),
    "many": lambda size: (["a" * n + "b" for n in range(1, size, 40)], "a" * (4 * size), True),
    "passed over": lambda size: (["a" * n for n in range(1, size, 40)], "a" * (4 * size), False),
    "suffixes": lambda size: (["b" + "a" * n + "c" for n in range(1, size, 40)], ("b" + "a" * size) * 4, True),
}


@pytest.mark.parametrize("case", HARD)
@pytest.mark.parametrize("piece", [1, 7, 10**9])
def test_work_is_linear_in_the_text_and_the_stop_strings(case: str, piece: int) -> None:
    for size in (100, 1600):
        stops, text, counts = HARD[case](size)
        num_characters, Counted.num_copied = len(text) + sum(map(len, stops)), 0
        assert lines_run(partial(feed, stops, text, piece, counts)) < 30 * num_characters
        assert Counted.num_copied < 3 * num_characters


def test_a_long_repetitive_stop_string_is_quick() -> None:
    text, stop = "a" * 100_000, "a" * 10_000
    assert feed([stop], text, 4).cut == 0
    assert feed([stop + "b"], text, 4).matched is None
    assert feed([stop + "b"], text + "b", 4).cut == 90_000


def test_many_stop_strings_cost_no_more_than_few() -> None:
    text = "some text § without any of them. §00 " * 100
    few, many = (StopStrings([f"§{n:04}" for n in range(count)]) for count in (10, 10_000))
    assert lines_run(lambda: many.add(text)) == lines_run(lambda: few.add(text))
