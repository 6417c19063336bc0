"""Ratios whose right answers are known: binning, strata, intervals and verdicts."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from forerun.bench.cells.batches import Block
from forerun.bench.cells.contenders import COLD, WARM
from forerun.bench.cells.entries import Entry
from forerun.bench.cells.figures import cell_figures, overall, verdict_of
from forerun.bench.cells.ratios import BIN, Ratio, bin_of, decoding, is_steady, ratio_of, strata_of, whole
from forerun.bench.summary import PLAIN


def entry(
    name: str, speed: float, prompts: int = 0, gb_s: float = 20.0, run: str = "", after: float | None = None
) -> Entry:
    """A block of 100 decoded tokens at `speed` tokens per second, behind prompts that took a second to read."""
    rounds: Counter[tuple[str, int, int, int]] = Counter({("", 0, 0, 0): 50, ("model", 2, 1, 2): 25})
    block = Block(1, 100, 1.0, 0.1, 100 / speed, rounds, Counter(decoded=50, drafted=25, recovered=25), {"target": 1.0})
    return Entry(name, prompts, 0, (gb_s, gb_s if after is None else after), 0.0, block, run)


def test_only_like_bandwidth_is_compared() -> None:
    # The adaptive side ran mostly while memory was fast: the plain means would call it 1.5 times as fast.
    entries = [entry(PLAIN, 10, gb_s=10)] * 8 + [entry(PLAIN, 20, gb_s=20)] * 2
    entries += [entry(WARM, 11, gb_s=10)] * 2 + [entry(WARM, 22, gb_s=20)] * 8
    ratio = ratio_of(entries, WARM, PLAIN)
    assert ratio is not None
    assert ratio.ratio == pytest.approx(1.1)
    assert ratio.low == pytest.approx(1.1)
    assert ratio.high == pytest.approx(1.1)
    assert (ratio.blocks, ratio.strata, ratio.prompts) == ((10, 10), 2, 1)


def test_prompts_and_runs_are_strata_of_their_own() -> None:
    entries = [entry(PLAIN, 10, 0), entry(PLAIN, 40, 1), entry(WARM, 20, 0), entry(WARM, 80, 1)]
    ratio = ratio_of(entries, WARM, PLAIN)
    assert ratio is not None
    assert (ratio.ratio, ratio.strata, ratio.prompts) == (pytest.approx(2.0), 2, 2)
    apart = [entry(PLAIN, 10, run="a"), entry(WARM, 20, run="b")]
    assert ratio_of(apart, WARM, PLAIN) is None, "a baseline is of the same run"
    assert ratio_of([entry(PLAIN, 10, 0), entry(WARM, 20, 1)], WARM, PLAIN) is None
    assert ratio_of(entries, WARM, "nobody") is None


def test_bins_are_as_wide_as_they_say() -> None:
    readings = np.geomspace(5, 80, 500)
    bins = [bin_of((reading, reading)) for reading in readings]
    assert bins == sorted(bins)
    for number in set(bins[20:-20]):
        inside = [reading for reading, of in zip(readings, bins, strict=True) if of == number]
        assert max(inside) <= BIN * min(inside) + 1e-9
    assert bin_of((10.0, 12.0)) == bin_of((11.0, 11.0))


def test_blocks_in_which_the_machine_changed_are_left_out() -> None:
    assert is_steady(entry(PLAIN, 10, gb_s=20, after=25))
    changed = entry(PLAIN, 99, gb_s=20, after=30)
    assert not is_steady(changed)
    assert strata_of([changed], decoding) == {}
    figures = cell_figures([entry(PLAIN, 10), changed, entry(WARM, 10)])
    assert figures["unsteady"] == 1
    assert figures["adaptive"][WARM]["never_slower"]["decoding"]["ratio"]["ratio"] == pytest.approx(1.0)


def test_a_block_that_its_first_step_wrote_has_no_speed() -> None:
    """Prompts are read beforehand, and a copying drafter may be right about all of a short answer."""
    at_once = entry(WARM, 10)
    at_once = replace(at_once, block=replace(at_once.block, num_first=101, num_decoded=0))
    assert strata_of([at_once], decoding) == strata_of([at_once], whole) == {}
    figures = cell_figures([entry(PLAIN, 10), at_once, entry(WARM, 20)])
    assert figures["adaptive"][WARM]["never_slower"]["decoding"]["ratio"]["ratio"] == pytest.approx(2.0)


def noisy(random: np.random.Generator, truth: float, prompts: int, blocks: int) -> list[Entry]:
    found = []
    for prompt in range(prompts):
        base, own = random.lognormal(2, 0.5), truth * random.lognormal(0, 0.03)
        for state in (10.0, 20.0):
            for name, speed in ((PLAIN, base), (WARM, base * own)):
                count = int(random.integers(1, blocks + 1))
                found += [entry(name, speed * state * random.lognormal(0, 0.05), prompt, state) for _ in range(count)]
    return found


def test_the_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    random = np.random.default_rng(1)
    ratios = [ratio_of(noisy(random, 1.3, 12, 4), WARM, PLAIN, level=0.9) for _ in range(120)]
    covered = sum(r is not None and r.low <= 1.3 <= r.high for r in ratios)
    assert 0.80 <= covered / len(ratios) <= 0.98
    widths = [r.high - r.low for r in ratios if r is not None]
    assert 0.01 < float(np.median(widths)) < 0.2


def test_more_blocks_narrow_the_interval_and_the_level_widens_it() -> None:
    random = np.random.default_rng(2)
    few, many = (
        ratio_of([entry(name, 10 * random.lognormal(0, 0.1)) for name in (PLAIN, WARM) for _ in range(n)], WARM, PLAIN)
        for n in (4, 400)
    )
    assert few is not None
    assert many is not None
    assert many.high - many.low < 0.3 * (few.high - few.low)
    entries = noisy(random, 1.0, 6, 3)
    wide, narrow = ratio_of(entries, WARM, PLAIN, level=0.99), ratio_of(entries, WARM, PLAIN, level=0.5)
    assert wide is not None
    assert narrow is not None
    assert wide.low < narrow.low <= narrow.ratio <= narrow.high < wide.high
    assert wide == ratio_of(entries, WARM, PLAIN, level=0.99), "the seed is fixed"


def test_the_interval_is_as_wide_as_the_scatter_of_blocks_makes_it() -> None:
    # Fifty strata of two blocks, whose logs scatter by 0.1: a hundred of them give the mean to 0.01.
    random = np.random.default_rng(4)
    entries = [entry(PLAIN, 10, gb_s=BIN ** (number + 0.5)) for number in range(50)]
    entries += [
        entry(WARM, 10 * random.lognormal(0, 0.1), gb_s=BIN ** (number + 0.5)) for number in range(50) for _ in "ab"
    ]
    ratio = ratio_of(entries, WARM, PLAIN)
    assert ratio is not None
    assert ratio.strata == 50
    assert np.log(ratio.high / ratio.low) == pytest.approx(2 * 2.576 * 0.01, rel=0.15)


def test_whole_requests_count_the_reading_of_prompts() -> None:
    entries = [entry(PLAIN, 10), entry(WARM, 100)]
    decoded, all_of_it = ratio_of(entries, WARM, PLAIN, decoding), ratio_of(entries, WARM, PLAIN, whole)
    assert decoded is not None
    assert all_of_it is not None
    assert decoded.ratio == pytest.approx(10)
    assert all_of_it.ratio == pytest.approx(11.1 / 2.1)


@pytest.mark.parametrize(
    ("ratio", "low", "high", "verdict"),
    [(1.0, 0.98, 1.1, "yes"), (1.0, 0.97, 1.1, "likely"), (0.97, 0.9, 0.99, "unclear"), (0.9, 0.8, 0.979, "no")],
)
def test_verdicts(ratio: float, low: float, high: float, verdict: str) -> None:
    assert verdict_of(Ratio(ratio, low, high, (4, 5), 1, 1), 0.98) == verdict
    assert verdict_of(Ratio(ratio, low, high, (3, 5), 1, 1), 0.98) == "too few"
    assert verdict_of(None, 0.98) == "unmeasured"


def test_the_best_fixed_choice_is_the_fastest_over_plain_and_never_an_adaptive_one() -> None:
    entries = [entry(PLAIN, 10), entry(COLD, 50), entry(WARM, 19), entry("model k=2", 20), entry("lookup k=4", 15)]
    figures = cell_figures([*3 * entries, entry("lookup k=8", 99)])
    assert figures["adaptive"][WARM]["never_slower"]["decoding"]["verdict"] == "too few"
    assert figures["best_fixed"] == {"decoding": "model k=2", "whole": "model k=2"}
    near = figures["adaptive"][WARM]["near_best"]["decoding"]
    assert near["over"] == "model k=2"
    assert near["ratio"]["ratio"] == pytest.approx(0.95)
    found = figures["contenders"]["model k=2"]
    assert found["tokens_per_pass"] == pytest.approx(100 / 75)
    assert found["acceptance_rate"] == pytest.approx(0.5)
    assert found["k_histogram"] == {"0": 150, "2": 75}
    assert found["sources"] == {"none": 150, "model": 75}
    assert found["origins"] == {"decoded": 150, "drafted": 75, "recovered": 75}


def test_the_claims_fail_where_one_cell_does_and_where_one_says_nothing() -> None:
    good = cell_figures(4 * [entry(PLAIN, 10), entry(WARM, 10), entry("lookup k=4", 10)])
    slow = cell_figures(4 * [entry(PLAIN, 10), entry(WARM, 9.79), entry("lookup k=4", 10.34)])
    silent = cell_figures(4 * [entry(PLAIN, 10), entry(WARM, 10)])
    found = overall({"good": good})
    assert found["never_slower"]["holds"]
    assert found["near_best"]["holds"]
    found = overall({"good": good, "slow": slow})
    assert not found["never_slower"]["holds"]
    assert found["never_slower"]["broken"] == [f"slow, {WARM}, decoding"], "whole requests hide it behind the reading"
    assert found["near_best"]["broken"] == [f"slow, {WARM}, decoding"]
    found = overall({"silent": silent})
    assert found["never_slower"]["holds"]
    assert not found["near_best"]["holds"]
    assert len(found["near_best"]["unmeasured"]) == 2
    assert not overall({})["never_slower"]["holds"], "nothing measured shows nothing"
