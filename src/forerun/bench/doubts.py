"""What of a bench's figures is noise, or rests on too little, said in words beside them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from forerun.bench.summary import PLAIN

MIN_PROMPTS = 3
"""Prompts below which an interval says nothing: it would span what was measured, and no more."""
SPREAD = 1.1
"""The slowest over the fastest of like measurements, from which on they are said to differ."""


def has_interval(ratio: Mapping[str, Any]) -> bool:
    """Whether a ratio is of prompts enough for its interval to be shown."""
    return int(ratio.get("prompts", MIN_PROMPTS)) >= MIN_PROMPTS


def longer(ks: Iterable[int], limit: int = 64) -> int | None:
    """Twice the longest speculation length that was tried, None where that is as long as any."""
    longest = max(ks, default=0)
    return min(2 * longest, limit) if 0 < longest < limit else None


def doubts(document: Mapping[str, Any], workload: str) -> Iterator[str]:
    """The doubts about one workload."""
    figures, settings = document["workloads"][workload], document["settings"]
    num_prompts = len(document["prompt_tokens"][workload])
    if num_prompts < MIN_PROMPTS:
        told = "1 prompt is" if num_prompts == 1 else f"{num_prompts} prompts are"
        yield f"{told} too few for intervals, and tell little: --prompts {MIN_PROMPTS} or more"
    low, high = figures[PLAIN]["ms_per_token_range"]
    if high > SPREAD * low:
        yield (
            f"plain decoding took {low:.1f} to {high:.1f} ms a token: over different prompts or seconds it varies by "
            f"{100 * (high / low - 1):.0f} %, so smaller differences between rows of ms/token mean nothing"
        )
    noisy = [f"{name} ({f['noisy_pairs']} of {f['runs']})" for name, f in figures.items() if f.get("noisy_pairs")]
    if noisy:
        yield (
            "noise: faster than their tokens per pass allow (a pass of more rows is not cheaper than one of a single "
            f"row), in so many of their runs: {', '.join(noisy)}"
        )
    further = longer(settings["k"])
    best = document["best"][workload]
    at_the_end = [
        drafter
        for drafter, winner in best.items()
        if drafter != "overall" and winner["k"] == max(settings["k"], default=0) and _gains(winner)
    ]
    if at_the_end and further is not None:
        longest = max(settings["k"])
        yield (
            f"k = {longest} is the best for {' and '.join(at_the_end)}, and the longest that was tried: "
            f"--k {longest},{further} tries a longer one"
        )


def _gains(winner: Mapping[str, Any]) -> bool:
    ratio = winner["speedup_over"].get(PLAIN)
    return ratio is not None and float(ratio["median"]) > 1.0
