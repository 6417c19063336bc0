"""What a plan says of its own figures."""

from __future__ import annotations

from typing import Any

from forerun.planning.doubts import doubts


def figures(**speedups: float) -> dict[str, Any]:
    """Of one source, two tokens a round at every k; `k1=1.5`: the speed-up of k = 1."""
    return {"d": {name[1:]: {"tokens_per_pass": 2.0, "speedup": value} for name, value in speedups.items()}}


SOUND = {"predicted": figures(k0=1.0, k1=1.9), "measured": figures(k0=1.0, k1=1.9)}


def test_sound_figures_are_not_doubted() -> None:
    assert list(doubts(SOUND, [10.0, 10.4, 10.9])) == []


def test_few_prompts() -> None:
    assert next(doubts(SOUND, [10.0])).startswith("1 prompt tells little")
    assert next(doubts(SOUND, [10.0, 10.0])).startswith("2 prompts tell little")


def test_plain_rounds_that_differ() -> None:
    (said,) = doubts(SOUND, [10.0, 11.5, 10.0])
    assert "10.0 to 11.5 ms" in said
    assert "below 15 % mean nothing" in said


def test_speedups_that_cannot_be() -> None:
    document = {"predicted": SOUND["predicted"], "measured": figures(k0=1.0, k1=2.5, k2=1.2, k3=2.1)}
    (said,) = doubts(document, [10.0, 10.0, 10.0])
    assert said.startswith("noise: measured speed-ups above the tokens of a round")
    assert said.endswith(": d k = 1, 3")
