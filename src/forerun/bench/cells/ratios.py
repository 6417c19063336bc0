"""Ratios of speeds where like is compared with like: the same prompts, in the same run, at the same bandwidth.

A shared machine has states in which memory is 1.5 times as fast as in others, and changes between them within seconds.
Blocks are binned by the bandwidth around them; a bin of one set of prompts in one run is a stratum, and a ratio is the
weighted mean over strata of the differences of mean log speeds. Its interval is a bootstrap over prompts and, within
strata, over blocks, whose residuals are taken from all strata of a contender: most strata have too few to tell.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from forerun.bench.cells.batches import Block
from forerun.bench.cells.entries import Entry

BIN = 1.25
"""A bin's upper bandwidth over its lower one."""
STEADY = 1.3
"""A block is left out where the probes before and after it differ more than this: the machine changed meanwhile."""
LEVEL = 0.99
NUM_RESAMPLES = 4000

Speed = Callable[[Block], float]
Key = tuple[str, int, int]
"""A stratum: run, set of prompts, bin of bandwidth."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """How many times faster one side is than another, with a 99 % interval, from so many blocks of each in so many
    strata; `prompts` sets of prompts took part."""

    ratio: float
    low: float
    high: float
    blocks: tuple[int, int]
    strata: int
    prompts: int

    def to_dict(self) -> dict[str, Any]:
        """As a JSON object."""
        return asdict(self)


def decoding(block: Block) -> float:
    """Tokens per second of decoding alone."""
    return block.tokens_per_s


def whole(block: Block) -> float:
    """Tokens per second of whole requests, reading the prompts included."""
    return block.whole_tokens_per_s


def is_steady(entry: Entry) -> bool:
    """Whether the machine was in one state around a block."""
    return max(entry.probes_gb_s) <= STEADY * min(entry.probes_gb_s)


def bin_of(probes_gb_s: Sequence[float]) -> int:
    """The bin of the mean of the probes around a block."""
    return math.floor(math.log(sum(probes_gb_s) / len(probes_gb_s)) / math.log(BIN))


def strata_of(entries: Iterable[Entry], speed: Speed) -> dict[Key, np.ndarray]:
    """Log speeds of the steady blocks by stratum. A block that was all written in its first step has none."""
    found: dict[Key, list[float]] = {}
    for entry in entries:
        if is_steady(entry) and entry.block.num_decoded:
            key = entry.run, entry.prompts, bin_of(entry.probes_gb_s)
            found.setdefault(key, []).append(math.log(speed(entry.block)))
    return {key: np.asarray(values) for key, values in found.items()}


def ratio_of(
    entries: Sequence[Entry], one: str, other: str, speed: Speed = decoding, level: float = LEVEL
) -> Ratio | None:
    """How many times faster `one` is than `other`; None where they never met."""
    sides, weights, gains = _compared(entries, one, other, speed)
    if not gains:
        return None
    random = np.random.default_rng(0)
    drawn = {key: np.full(NUM_RESAMPLES, gain) for key, gain in gains.items()}
    for sign, side in ((1, sides[0]), (-1, sides[1])):
        residuals = _residuals(side)
        for key in gains if len(residuals) else ():
            picks = random.integers(0, len(residuals), (NUM_RESAMPLES, len(side[key])))
            drawn[key] += sign * residuals[picks].mean(axis=1)
    by_prompts: dict[int, list[Key]] = {}
    for key in gains:
        by_prompts.setdefault(key[1], []).append(key)
    sums = np.stack([_sum_of(weights, drawn, keys) for keys in by_prompts.values()])  # [prompts, resamples]
    totals = np.asarray([sum(weights[key] for key in keys) for keys in by_prompts.values()])
    picks = random.integers(0, len(totals), (NUM_RESAMPLES, len(totals)))
    resampled = sums[picks, np.arange(NUM_RESAMPLES)[:, None]].sum(axis=1) / totals[picks].sum(axis=1)
    low, high = np.quantile(resampled, ((1 - level) / 2, (1 + level) / 2))
    centre = _mean(weights, gains)
    return Ratio(
        math.exp(centre), math.exp(min(low, centre)), math.exp(max(high, centre)),
        (sum(len(sides[0][key]) for key in gains), sum(len(sides[1][key]) for key in gains)),
        len(gains), len(by_prompts),
    )  # fmt: skip


def gain_of(entries: Sequence[Entry], one: str, other: str, speed: Speed = decoding) -> float | None:
    """The ratio of `ratio_of` without its interval."""
    _, weights, gains = _compared(entries, one, other, speed)
    return math.exp(_mean(weights, gains)) if gains else None


def _compared(
    entries: Sequence[Entry], one: str, other: str, speed: Speed
) -> tuple[list[dict[Key, np.ndarray]], dict[Key, float], dict[Key, float]]:
    """(log speeds of both sides, weights and gains of the strata that both have, in order): a gain is the difference of
    mean log speeds, its weight the inverse of that difference's variance in blocks."""
    sides = [strata_of((e for e in entries if e.contender == name), speed) for name in (one, other)]
    shared = sorted(sides[0].keys() & sides[1].keys())
    weights = {key: 1 / (1 / len(sides[0][key]) + 1 / len(sides[1][key])) for key in shared}
    gains = {key: float(sides[0][key].mean() - sides[1][key].mean()) for key in shared}
    return sides, weights, gains


def _mean(weights: Mapping[Key, float], gains: Mapping[Key, float]) -> float:
    return sum(weights[key] * gain for key, gain in gains.items()) / sum(weights.values())


def _sum_of(weights: Mapping[Key, float], drawn: Mapping[Key, np.ndarray], keys: Sequence[Key]) -> np.ndarray:
    """Weighted sum over some strata, [resamples]."""
    return np.asarray(sum(weights[key] * drawn[key] for key in keys))


def _residuals(side: Mapping[Key, np.ndarray]) -> np.ndarray:
    """Log speeds less the means of their strata, widened for the means that were taken; none where every stratum has
    one block, so that nothing is known of how blocks scatter."""
    total = sum(len(values) for values in side.values())
    spare = total - len(side)
    if spare < 1:
        return np.empty(0)
    several = [values - values.mean() for values in side.values() if len(values) > 1]
    pooled = np.concatenate(several)
    return pooled * math.sqrt(len(pooled) / spare)
