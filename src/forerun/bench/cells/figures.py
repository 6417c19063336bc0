"""From blocks to figures and verdicts of a cell."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from forerun.bench.cells.batches import Block
from forerun.bench.cells.contenders import ADAPTIVE
from forerun.bench.cells.entries import Entry
from forerun.bench.cells.ratios import Ratio, Speed, decoding, is_steady, ratio_of, whole
from forerun.bench.summary import PLAIN
from forerun.engine.statistics import Statistics
from forerun.types import Origin

NEVER_SLOWER, NEAR_BEST = 0.98, 0.95
MIN_BLOCKS = 4
"""Blocks of each side below which an interval means nothing."""
SPEEDS: dict[str, Speed] = {"decoding": decoding, "whole": whole}


def cell_figures(entries: Sequence[Entry]) -> dict[str, Any]:
    """Every contender's figures, the adaptive ones' ratios to plain decoding and to the best fixed choice, verdicts.

    The best fixed choice is taken from the same blocks as its figure, which flatters it a little.
    """
    names = sorted({entry.contender for entry in entries}, key=_place)
    fixed = [name for name in names if name != PLAIN and name not in ADAPTIVE]
    contenders = {name: _contender(entries, name) for name in names}
    best = {}
    most = max((contenders[name]["blocks"] for name in fixed), default=0)
    known = [name for name in fixed if contenders[name]["blocks"] >= most / 2]  # not those that were dropped early
    for metric in SPEEDS:
        over = {name: ratio for name in known if (ratio := contenders[name]["over_plain"][metric]) is not None}
        best[metric] = max(over, key=lambda name: float(over[name]["ratio"]), default=None)
    adaptive = {name: _adaptive(entries, name, best) for name in ADAPTIVE if name in names}
    return {
        "contenders": contenders,
        "best_fixed": best,
        "adaptive": adaptive,
        "blocks": len(entries),
        "unsteady": sum(not is_steady(entry) for entry in entries),
    }


def _place(name: str) -> tuple[int, str, int]:
    """Plain first, then the adaptive ones, then each drafter by k."""
    unfixed = (PLAIN, *ADAPTIVE)
    drafter, _, k = name.partition(" k=")
    return unfixed.index(name) if name in unfixed else len(unfixed), drafter, int(k) if k.isdecimal() else 0


def verdict_of(ratio: Ratio | None, bound: float) -> str:
    """Whether a ratio is at least `bound`: "yes" and "no" where the whole interval says so, "likely" and "unclear"
    where only the estimate lies above or below, "too few" and "unmeasured" where there are too few blocks, or none,
    that may be compared."""
    if ratio is None:
        return "unmeasured"
    if min(ratio.blocks) < MIN_BLOCKS:
        return "too few"
    if ratio.low >= bound:
        return "yes"
    if ratio.high < bound:
        return "no"
    return "likely" if ratio.ratio >= bound else "unclear"


def overall(cells: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The two claims over all cells: no cell's interval lies below 0.98x plain, and each is at least 0.95x of the best
    fixed choice; with the cells that break them or say nothing."""
    found: dict[str, Any] = {}
    for claim, broken in (("never_slower", ("no",)), ("near_best", ("no", "unclear"))):
        verdicts = {
            f"{cell}, {name}, {metric}": adaptive[claim][metric]["verdict"]
            for cell, figures in cells.items()
            for name, adaptive in figures["adaptive"].items()
            for metric in SPEEDS
        }
        failed = [place for place, verdict in verdicts.items() if verdict in broken]
        unknown = [place for place, verdict in verdicts.items() if verdict in ("unmeasured", "too few")]
        found[claim] = {
            "holds": not failed and not unknown and bool(verdicts),
            "broken": failed, "unmeasured": unknown, "counts": dict(Counter(verdicts.values())),
        }  # fmt: skip
    return found


def _adaptive(entries: Sequence[Entry], name: str, best: dict[str, str | None]) -> dict[str, Any]:
    claims: dict[str, Any] = {"never_slower": {}, "near_best": {}}
    for metric, speed in SPEEDS.items():
        rival = best[metric]
        for claim, other, bound in (("never_slower", PLAIN, NEVER_SLOWER), ("near_best", rival, NEAR_BEST)):
            ratio = None if other is None else ratio_of(entries, name, other, speed)
            claims[claim][metric] = {
                "over": other,
                "ratio": None if ratio is None else ratio.to_dict(),
                "verdict": verdict_of(ratio, bound),
            }
    return claims


def _contender(entries: Sequence[Entry], name: str) -> dict[str, Any]:
    mine = [entry.block for entry in entries if entry.contender == name]
    over = {metric: ratio_of(entries, name, PLAIN, speed) for metric, speed in SPEEDS.items()}
    speeds = [block.tokens_per_s for block in mine]
    return {
        "blocks": len(mine),
        "tokens_per_s": float(np.median(speeds)),
        "tokens_per_s_range": [min(speeds), max(speeds)],
        "whole_tokens_per_s": float(np.median([block.whole_tokens_per_s for block in mine])),
        "over_plain": {metric: None if ratio is None else ratio.to_dict() for metric, ratio in over.items()},
        **speculation_of(mine),
    }


def speculation_of(blocks: Sequence[Block]) -> dict[str, Any]:
    """What drafting came to over some blocks, and where the time of decoding went."""
    rounds: Counter[tuple[str, int, int, int]] = Counter()
    origins: Counter[Origin] = Counter()
    parts: Counter[str] = Counter()
    for block in blocks:
        rounds.update(block.rounds)
        origins.update(block.origins)
        parts.update(block.parts)
    statistics = Statistics(Counter(), sum(block.num_decoded for block in blocks))
    lengths: Counter[int] = Counter()
    sources: Counter[str] = Counter()
    for (source, proposed, accepted, examined), times in rounds.items():
        statistics.rounds[proposed, accepted] += times
        statistics.depths[examined, accepted] += times
        lengths[proposed] += times
        sources[source if proposed else "none"] += times
    spent = sum(parts.values())
    return {
        "tokens_per_pass": statistics.tokens_per_pass,
        "acceptance_rate": statistics.acceptance_rate,
        "acceptance_by_depth": statistics.acceptance_by_depth,
        "k_histogram": {str(k): times for k, times in sorted(lengths.items())},
        "sources": dict(sources.most_common()),
        "origins": dict(origins.most_common()),
        "share": {name: seconds / spent for name, seconds in parts.items()} if spent else {},
    }
