"""What a plan's measurements are kept in: rounds and passes of every generation, scaled to one speed of the machine."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import fmean, median

from forerun.planning.recorded import Tick
from forerun.types import CostCurve, Round

STALL = 4.0
"""Times its kind's median, beyond which a pass or a round was interrupted: it is left out, and counted."""


class Timings:
    """Milliseconds by kind, with interruptions left out."""

    def __init__(self) -> None:
        self.by_kind: dict[int, list[float]] = {}

    def add(self, kind: int, milliseconds: float) -> None:
        """Keep one."""
        self.by_kind.setdefault(kind, []).append(milliseconds)

    def extend(self, other: Timings, scale: float) -> None:
        """Keep another's, interruptions left out, times `scale`."""
        for kind in other.by_kind:
            self.by_kind.setdefault(kind, []).extend(scale * one for one in other.settled(kind))

    def settled(self, kind: int) -> list[float]:
        """Those of a kind that were not interrupted."""
        found = self.by_kind[kind]
        limit = STALL * median(found)
        return [one for one in found if one <= limit]

    def mean(self, kind: int) -> float:
        """The mean of those."""
        return fmean(self.settled(kind))

    @property
    def num_stalls(self) -> int:
        """How many were left out."""
        return sum(len(found) - len(self.settled(kind)) for kind, found in self.by_kind.items())


@dataclass(slots=True)
class Generation:
    """One source at one k on one prompt. Kinds of `rounds_ms` and of `other_ms` (a round without its passes) are the
    numbers of draft tokens proposed; of `passes` ("target" and "draft") the tokens fed: the target gave as many rows, a
    draft one."""

    source: str
    k: int
    rounds: list[Round] = field(default_factory=list)
    rounds_ms: Timings = field(default_factory=Timings)
    other_ms: Timings = field(default_factory=Timings)
    passes: dict[str, Timings] = field(default_factory=lambda: {"target": Timings(), "draft": Timings()})

    def add(self, tick: Tick) -> None:
        """Count the time of one round."""
        proposed = tick.round.num_proposed
        self.rounds_ms.add(proposed, 1e3 * tick.whole_s)
        self.other_ms.add(proposed, 1e3 * (tick.whole_s - tick.target_s - tick.draft_s))

    @property
    def unit_ms(self) -> float:
        """The target's pass of one row, in the seconds of this generation."""
        return self.passes["target"].mean(1)


@dataclass(frozen=True, slots=True)
class Variant:
    """All generations of one source at one k. `rounds_ms` and `other_ms` are scaled to the session's `unit_ms`,
    `as_it_ran_ms` are not."""

    texts: list[list[Round]]
    rounds_ms: Timings
    other_ms: Timings
    as_it_ran_ms: Timings

    @property
    def tokens_per_pass(self) -> float:
        """Measured tokens per round."""
        return fmean(one.num_emitted for text in self.texts for one in text)

    @property
    def round_ms(self) -> float:
        """Milliseconds of a round on a machine of the session's speed."""
        return _mean_of_kinds(self.rounds_ms)

    @property
    def tokens_per_s(self) -> float:
        """Measured speed, on a machine of the session's speed."""
        return 1e3 * self.tokens_per_pass / self.round_ms

    @property
    def tokens_per_s_as_it_ran(self) -> float:
        """Measured speed, on the machine as it was in these seconds."""
        return 1e3 * self.tokens_per_pass / _mean_of_kinds(self.as_it_ran_ms)


@dataclass(slots=True)
class Session:
    """All that was measured. `reading_ms`: a draft model's reading of each prompt, by source."""

    generations: list[Generation] = field(default_factory=list)
    contexts: list[int] = field(default_factory=list)
    probes: list[float] = field(default_factory=list)
    reading_ms: dict[str, list[float]] = field(default_factory=dict)

    @property
    def unit_ms(self) -> float:
        """The target's pass of one row: the median over generations, to which everything is scaled."""
        return median(one.unit_ms for one in self.generations)

    @property
    def num_stalls(self) -> int:
        """Passes and rounds left out because something interrupted them."""
        parts = [one for g in self.generations for one in (g.rounds_ms, *g.passes.values())]
        return sum(one.num_stalls for one in parts)

    def curve(self, model: str, source: str | None = None) -> CostCurve:
        """Scaled milliseconds of passes of "target" or of a source's "draft", at the mean context."""
        unit, pooled = self.unit_ms, Timings()
        for one in self.generations:
            if source is None or one.source == source:
                pooled.extend(one.passes[model], unit / one.unit_ms)
        return CostCurve(round(fmean(self.contexts)), {kind: pooled.mean(kind) for kind in sorted(pooled.by_kind)})

    def round_ms_by_prompt(self, source: str) -> list[float]:
        """Scaled milliseconds of a source's rounds, of each generation in turn."""
        unit = self.unit_ms
        return [_mean_of_kinds(one.rounds_ms) * unit / one.unit_ms for one in self.generations if one.source == source]

    def variant(self, source: str, k: int) -> Variant:
        """Everything about one source at one k."""
        unit, found = self.unit_ms, Variant([], Timings(), Timings(), Timings())
        for one in self.generations:
            if (one.source, one.k) == (source, k):
                found.texts.append(one.rounds)
                found.rounds_ms.extend(one.rounds_ms, unit / one.unit_ms)
                found.other_ms.extend(one.other_ms, unit / one.unit_ms)
                found.as_it_ran_ms.extend(one.rounds_ms, 1.0)
        return found


def _mean_of_kinds(timings: Timings) -> float:
    """The mean of each kind, by how often it came."""
    counts = {kind: len(found) for kind, found in timings.by_kind.items()}
    return sum(count * timings.mean(kind) for kind, count in counts.items()) / sum(counts.values())
