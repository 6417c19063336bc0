"""Interleaved rounds: every prompt meets every variant, side by side in time, in a balanced order.

A shared machine drifts by tens of percent within minutes. Variants measured one after the other would be compared
across that drift; here the two sides of a ratio are the same prompt, seconds apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from forerun.bench.probe import BandwidthProbe
from forerun.bench.variants import Sample, Variant

Prompts = Mapping[str, Sequence[Sequence[int]]]
"""Token ids of every prompt, by workload."""

Report = Callable[[str, int, int], None]
"""Told of progress: (what is next, how much is done, of how much)."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """One generation and its place in the bench. `probe_gb_s` is the mean of the probes before and after it."""

    workload: str
    prompt: int
    round: int
    variant: str
    sample: Sample
    probe_gb_s: float


@dataclass(slots=True)
class Session:
    """Everything measured, every probe and when it was taken (`perf_counter`), the variants that failed with their
    reasons, and the settings each variant ran with, by (workload, variant)."""

    measurements: list[Measurement] = field(default_factory=list)
    probes: list[float] = field(default_factory=list)
    probed_at: list[float] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)
    described: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    interrupted: bool = False

    def probe(self, probe: BandwidthProbe) -> float:
        """Take one reading and keep it."""
        self.probes.append(probe.measure())
        self.probed_at.append(perf_counter())
        return self.probes[-1]

    @contextmanager
    def guard(self, variant: Variant) -> Iterator[None]:
        """A peer that fails inside is noted with its reason and takes no further part; forerun's failure is raised."""
        try:
            yield
        except Exception as error:
            if not variant.is_peer:
                raise
            self.failures[variant.name] = f"{type(error).__name__}: {error}"

    def of(self, workload: str, variant: str) -> list[Measurement]:
        """The measurements of one variant on one workload, in the order they were made."""
        return [m for m in self.measurements if m.workload == workload and m.variant == variant]


def turn_order(num_variants: int, turn: int) -> list[int]:
    """The order of the variants in turn number `turn` (a Williams design).

    Rotating one fixed order would let every variant follow the same neighbour for ever and inherit what it leaves
    behind (caches, clock, heat). Over `num_variants` turns (twice that if odd) every variant follows every other
    equally often and stands in every place equally often.
    """
    zigzag = [(place + 1) // 2 if place % 2 else -(place // 2) for place in range(num_variants)]
    if num_variants % 2 and (turn // max(num_variants, 1)) % 2:
        zigzag.reverse()
    return [(place + turn) % num_variants for place in zigzag]


def run_rounds(
    variants: Sequence[Variant],
    prompts: Prompts,
    num_tokens: int,
    num_rounds: int,
    probe: BandwidthProbe,
    report: Report = lambda what, done, total: None,
) -> Session:
    """Measure every variant on every prompt, `num_rounds` times. `report` gets (what is next, done, total).

    Ctrl-C ends the rounds; what was measured until then is returned.
    """
    session = Session()
    session.probe(probe)
    total = num_rounds * sum(len(of_workload) for of_workload in prompts.values()) * len(variants)
    done = turn = 0
    try:
        for workload, of_workload in prompts.items():
            for variant in variants:
                if variant.name not in session.failures:
                    report(f"{workload}: preparing {variant.name}", done, total)
                    with session.guard(variant):
                        variant.prepare(of_workload, num_tokens)
                        session.described[workload, variant.name] = variant.describe()
            for round_number in range(num_rounds):
                for index, prompt in enumerate(of_workload):
                    session.probe(probe)
                    for place in turn_order(len(variants), turn):
                        variant = variants[place]
                        report(f"{workload} {index + 1}/{len(of_workload)}: {variant.name}", done, total)
                        if variant.name not in session.failures:
                            with session.guard(variant):
                                before, sample = session.probes[-1], variant.generate(prompt, num_tokens)
                                mean = (before + session.probe(probe)) / 2
                                session.measurements.append(
                                    Measurement(workload, index, round_number, variant.name, sample, mean)
                                )
                        done += 1
                    turn += 1
    except KeyboardInterrupt:
        session.interrupted = True
    report("measured", done, total)
    return session
