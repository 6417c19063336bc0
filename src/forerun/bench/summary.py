"""From samples to figures: medians, paired ratios with intervals, and how the same text was reached.

A ratio compares two variants on the same prompt in the same round. A prompt's ratio is the median over its rounds;
the reported one is the median over prompts, with a 95 % percentile bootstrap over prompts (the rounds of one prompt
are not independent of each other). Best k is chosen and measured on the same runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from forerun.bench.agreement import Difference
from forerun.bench.probe import ProbeSummary
from forerun.bench.rounds import Measurement, Session
from forerun.bench.variants import PARTS, Sample, Variant, combined
from forerun.engine.statistics import Statistics

PLAIN = "plain"
NUM_RESAMPLES = 2000
SLACK = 1.02
"""What a clock may add to a ratio before it counts as noise."""
Metric = Callable[[Sample], float]


def ms_per_token(sample: Sample) -> float:
    """Decoding only."""
    return sample.ms_per_token


def end_to_end_ms_per_token(sample: Sample) -> float:
    """Reading the prompt included."""
    return 1e3 / sample.end_to_end_tokens_per_s


def is_noise(ratio: float, tokens_per_pass: float) -> bool:
    """Whether drafting cannot have made a text so much sooner: a round makes at least one pass of the target, and a
    pass of more rows is not cheaper than one of a single row."""
    return ratio > SLACK * tokens_per_pass


def median_interval(values: Sequence[float], seed: int = 0) -> tuple[float, float, float]:
    """(median, low, high): a 95 % percentile bootstrap of the median; one value is its own interval."""
    array = np.asarray(values, dtype=np.float64)
    if len(array) == 0:
        raise ValueError("no values to take a median of")
    picks = np.random.default_rng(seed).integers(0, len(array), (NUM_RESAMPLES, len(array)))
    low, high = np.quantile(np.median(array[picks], axis=1), (0.025, 0.975))
    return float(np.median(array)), float(low), float(high)


def paired_ratio(
    baseline: Iterable[Measurement], variant: Iterable[Measurement], metric: Metric = ms_per_token
) -> dict[str, Any] | None:
    """How many times faster `variant` is than `baseline` where both ran; None where they never met."""
    others = {(m.prompt, m.round): metric(m.sample) for m in baseline}
    by_prompt: dict[int, list[float]] = {}
    for m in variant:
        other = others.get((m.prompt, m.round))
        if other is not None:
            by_prompt.setdefault(m.prompt, []).append(other / metric(m.sample))
    if not by_prompt:
        return None
    median, low, high = median_interval([float(np.median(ratios)) for ratios in by_prompt.values()])
    pairs = sum(len(ratios) for ratios in by_prompt.values())
    return {"median": median, "low": low, "high": high, "prompts": len(by_prompt), "pairs": pairs}


def _median(values: Iterable[float]) -> float:
    return float(np.median(list(values)))


def _ratios(
    baselines: Mapping[str, Sequence[Measurement]], measured: Sequence[Measurement], metric: Metric
) -> dict[str, Any]:
    ratios = {name: paired_ratio(of_baseline, measured, metric) for name, of_baseline in baselines.items()}
    return {name: ratio for name, ratio in ratios.items() if ratio is not None}


def _speed(measured: Sequence[Measurement], baselines: Mapping[str, Sequence[Measurement]]) -> dict[str, Any]:
    """Milliseconds per token, and the speed-up over every baseline that ran beside it."""
    values = [m.sample.ms_per_token for m in measured]
    return {
        "ms_per_token": _median(values),
        "ms_per_token_range": [min(values), max(values)],
        "tokens_per_s": 1e3 / _median(values),
        "speedup_over": _ratios(baselines, measured, ms_per_token),
    }


def _by_regime(
    probe: ProbeSummary, measured: Sequence[Measurement], baselines: Mapping[str, Sequence[Measurement]]
) -> dict[str, Any]:
    """The same figures for each state of the memory, over pairs whose two sides were in that state."""
    regimes: dict[str, Any] = {}
    for regime in ("slow", "fast") if probe.threshold is not None else ():
        mine = [m for m in measured if probe.regime(m.probe_gb_s) == regime]
        theirs = {
            name: [m for m in of_baseline if probe.regime(m.probe_gb_s) == regime]
            for name, of_baseline in baselines.items()
        }
        if mine:
            regimes[regime] = {"measurements": len(mine), **_speed(mine, theirs)}
    return regimes


def _speculation(samples: Sequence[Sample]) -> dict[str, Any]:
    """What drafting came to, and where the time of decoding went; of an engine that only delivers tokens, how many
    came at a time."""
    told = [sample.statistics for sample in samples if sample.statistics is not None]
    if not told:
        counted = [sample for sample in samples if sample.num_passes]
        passes = sum(sample.num_passes or 0 for sample in counted)
        return {"tokens_per_pass": sum(sample.num_decoded for sample in counted) / passes if passes else None}
    statistics = combined(told)
    by_sample = [_round_ms(sample, sample.statistics) for sample in samples if sample.statistics is not None]
    # The median over runs: one run that somebody else's burst made ten times slower must not decide where time goes.
    round_ms = {part: _median(ms[part] for ms in by_sample) for part in (*PARTS, "api")}
    total = sum(round_ms.values())
    return {
        "tokens_per_pass": statistics.tokens_per_pass,
        "acceptance_rate": statistics.acceptance_rate,
        "acceptance_by_depth": statistics.acceptance_by_depth,
        "histogram": statistics.histogram,
        "k_histogram": _lengths(statistics),
        "origins": dict(Counter(origin for sample in samples for origin in sample.origins).most_common()),
        "share": {part: ms / total for part, ms in round_ms.items()},
        "round_ms": round_ms,
    }


def _lengths(statistics: Statistics) -> dict[str, int]:
    """Rounds by how many draft tokens were verified."""
    counts: Counter[int] = Counter()
    for (proposed, _), times in statistics.rounds.items():
        counts[proposed] += times
    return {str(k): times for k, times in sorted(counts.items())}


def _round_ms(sample: Sample, statistics: Statistics) -> dict[str, float]:
    """Milliseconds of one round of decoding by part; "api" lies between engine and user (stream, detokenizer)."""
    seconds = {part: getattr(statistics, f"{part}_s") for part in PARTS}
    seconds["api"] = max(sample.decode_s - sum(seconds.values()), 0.0)
    return {part: 1e3 * value / statistics.num_rounds for part, value in seconds.items()}


def summarise(
    session: Session,
    variants: Sequence[Variant],
    workload: str,
    probe: ProbeSummary,
    differences: Mapping[str, Sequence[Difference]],
) -> dict[str, Any]:
    """Every variant's figures on one workload. `differences` has no entry for variants whose texts are not comparable
    (sampled without a seed)."""
    measured = {variant.name: session.of(workload, variant.name) for variant in variants}
    baselines = {v.name: measured[v.name] for v in variants if v.is_peer or v.name == PLAIN}
    figures: dict[str, Any] = {}
    for variant in variants:
        mine = measured[variant.name]
        if not mine:
            continue
        others = {name: of_baseline for name, of_baseline in baselines.items() if name != variant.name}
        samples = [m.sample for m in mine]
        figures[variant.name] = {
            **session.described[workload, variant.name],
            **_speed(mine, others),
            "end_to_end_tokens_per_s": _median(sample.end_to_end_tokens_per_s for sample in samples),
            "end_to_end_speedup_over": _ratios(others, mine, end_to_end_ms_per_token),
            "first_token_s": _median(sample.first_s for sample in samples),
            **_speculation(samples),
            "noisy_pairs": _noisy_pairs(measured[PLAIN], mine) if variant.drafter is not None else 0,
            "text": _text(mine, differences, variant.name),
            "regimes": _by_regime(probe, mine, others),
            "runs": len(mine),
        }
    return figures


def _noisy_pairs(plain: Sequence[Measurement], measured: Sequence[Measurement]) -> int:
    """How many runs beat plain decoding of the same prompt in the same round by more than their tokens per pass."""
    others = {(m.prompt, m.round): m.sample.ms_per_token for m in plain}
    return sum(
        is_noise(others[m.prompt, m.round] / m.sample.ms_per_token, m.sample.num_decoded / m.sample.num_passes)
        for m in measured
        if m.sample.num_passes and (m.prompt, m.round) in others
    )


def _text(
    measured: Sequence[Measurement], differences: Mapping[str, Sequence[Difference]], variant: str
) -> dict[str, Any] | None:
    if variant not in differences:
        return None
    mine, num_prompts = differences[variant], len({m.prompt for m in measured})
    return {
        "prompts": num_prompts,
        "equal_to_plain": num_prompts - len(mine),
        "differences": [d.to_dict() for d in mine],
    }


def best_of(figures: Mapping[str, Any], variants: Sequence[Variant]) -> dict[str, Any]:
    """The best k of every drafter and the best variant of all, plain decoding included: it may well win."""

    def speed(name: str) -> float:
        return 1.0 if name == PLAIN else float(figures[name]["speedup_over"][PLAIN]["median"])

    def entry(name: str, k: int) -> dict[str, Any]:
        taken = ("ms_per_token", "speedup_over", "end_to_end_speedup_over")
        return {"variant": name, "k": k, **{key: figures[name][key] for key in taken}}

    own = [v for v in variants if not v.is_peer and v.name in figures]
    drafters = dict.fromkeys(v.drafter for v in own if v.drafter is not None)
    best: dict[str, Any] = {}
    for drafter in drafters:
        winner = max((v for v in own if v.drafter == drafter), key=lambda v: speed(v.name))
        best[drafter] = entry(winner.name, winner.k)
    overall = max(own, key=lambda v: speed(v.name))
    best["overall"] = entry(overall.name, overall.k)
    return best
