"""Measure: generations, and between their rounds the same passes alone, so that both meet the same machine.

A shared machine's speed changes by a factor within seconds. So passes are timed between the rounds of every generation,
about as many seconds of them as of rounds; every k and plain decoding follow each other on every prompt in a balanced
order (`turn_order`); and all of a generation is scaled by its own passes of one row of the target (`Session.unit_ms`),
which are timed throughout. Prompts are read once for all generations: reading is in no figure but its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import accumulate, cycle
from statistics import median
from time import perf_counter
from typing import Any

from forerun.bench.curves import context_tokens, row_tokens
from forerun.bench.probe import BandwidthProbe
from forerun.bench.rounds import Report, turn_order
from forerun.bench.summary import PLAIN
from forerun.drafting import Drafter, ModelDrafter
from forerun.llm import LLM
from forerun.planning.recorded import Keeping, Recorder, Tick, TimedModel
from forerun.planning.session import Generation, Session
from forerun.runtime.base import Model
from forerun.runtime.cost import UNUSED, read_tokens
from forerun.types import Span

NUM_READING = 1
"""Rounds at the start of a generation that count for nothing: the first token's."""
NUM_SKIPPED = 2
"""Rounds at the start whose time is not counted: in the first that drafts, a draft model reads what it has not seen."""
PASSES = 0.6
"""Seconds of passes for each second of rounds."""
WARM_TOKENS = 4
"""Tokens of a generation that only warms up."""
MIN_TIMED = 6
"""Rounds of a generation whose time is counted, at least: long drafts write the tokens asked for in very few."""


@dataclass(frozen=True, slots=True)
class Source:
    """What drafts: `make` gives a fresh drafter; `draft` is its model, None for one that costs no passes."""

    name: str
    make: Callable[[], Drafter]
    draft: TimedModel | None = None


class Measurement:
    """One session with a target and its sources. `sampling`: parameters of every request."""

    def __init__(
        self, target: Model, tokenizer: Any, sources: Sequence[Source], ks: Sequence[int], sampling: Mapping[str, Any]
    ) -> None:
        self.target, self.tokenizer = TimedModel(target), tokenizer
        self.sources, self.sampling = {source.name: source for source in sources}, dict(sampling)
        self.ks = sorted({k for k in ks if k})
        self.longest = max(self.ks, default=0)
        self.session = Session()
        self._recorder = Recorder()

    def run(self, prompts: Sequence[Sequence[int]], num_tokens: int, context: int | None, report: Report) -> Session:
        """Every k of every source on every prompt, `num_tokens` tokens and the rest of a round. `context`: cached
        tokens behind which passes are timed (default: as many as in the middle of a generation)."""
        order = [(PLAIN, 0), *((name, k) for name in self.sources for k in self.ks)]
        total = len(prompts) * len(order)
        with closing(BandwidthProbe()) as probe:
            for index, prompt in enumerate(prompts):
                report(f"prompt {index + 1} of {len(prompts)}: reading", index * len(order), total)
                with self._prepared(prompt, num_tokens, context) as drafters:
                    self.session.probes.append(probe.measure())
                    for place, variant in enumerate(turn_order(len(order), index)):
                        name, k = order[variant]
                        what = f"prompt {index + 1} of {len(prompts)}: {name}" + f", k = {k}" * bool(k)
                        report(what, index * len(order) + place, total)
                        made = self._generate(name, k, drafters.get(name), prompt, num_tokens)
                        self.session.generations.append(made)
                        self.session.probes.append(probe.measure())
        report("measured", total, total)
        return self.session

    @contextmanager
    def _prepared(self, prompt: Sequence[int], num_tokens: int, context: int | None) -> Iterator[dict[str, Keeping]]:
        """Everything has read the prompt and is warm; passes can be timed. Let go of at the end."""
        models = [self.target, *(source.draft for source in self.sources.values() if source.draft)]
        drafters = {name: Keeping(source.make(), source.draft) for name, source in self.sources.items()}
        try:
            self.target.read(prompt[:-1])
            around = context if context is not None else len(prompt) + num_tokens // 2
            self.session.contexts.append(min(self._begin_passes(model.model, around) for model in models))
            self._rounds(None, 0, prompt, WARM_TOKENS)
            for name, drafter in drafters.items():
                ticks = self._rounds(drafter, self.longest, prompt, WARM_TOKENS)
                self._note_reading(name, ticks)
            yield drafters
        finally:
            for drafter in drafters.values():
                drafter.end()
            self.target.forget()
            for model in models:
                model.model.free(UNUSED)

    def _begin_passes(self, model: Model, context: int) -> int:
        """Cache `context` tokens, or as many as leave room for the longest pass; how many they are."""
        limit = model.capabilities.context_length
        if limit is not None:
            context = max(1, min(context, limit - self.longest - 1))
        read_tokens(model, UNUSED, context_tokens(context, model.capabilities.num_inputs))
        return context

    def _note_reading(self, name: str, ticks: Sequence[Tick]) -> None:
        """A draft model read the prompt in the first round that it drafted in."""
        drafting = [tick.draft_s for tick in ticks if tick.draft_s]
        if len(drafting) > 1:
            reading = max(drafting[0] - median(drafting[1:]), 0.0)
            self.session.reading_ms.setdefault(name, []).append(1e3 * reading)

    def _generate(
        self, name: str, k: int, drafter: Keeping | None, prompt: Sequence[int], num_tokens: int
    ) -> Generation:
        """One generation with passes between its rounds."""
        found = Generation(name, k)
        rota = [("target", 1), ("target", k + 1)] if k else [("target", 1)]
        timed = {"target": self.target}
        if drafter is not None and drafter.draft is not None:
            timed["draft"] = drafter.draft
            rota = [("target", 1), ("draft", 1), ("target", k + 1), ("draft", 2), ("draft", 1)]
        turns, spent = cycle(rota), 0.0

        def between(ticks: Sequence[Tick]) -> None:
            nonlocal spent
            while spent < PASSES * sum(tick.whole_s for tick in ticks):
                model, num_fed = next(turns)
                num_rows = num_fed if model == "target" else 1
                seconds = _time_pass(timed[model].model, num_fed, num_rows)
                found.passes[model].add(num_fed, 1e3 * seconds)
                spent += seconds

        ticks = self._rounds(drafter, k, prompt, num_tokens, MIN_TIMED, between)
        # Tokens are counted over the same stretch of text at every k, time over all rounds.
        written = accumulate(tick.round.num_emitted for tick in ticks)
        needed = 1 + next(place for place, count in enumerate(written) if count > num_tokens)
        found.rounds = [tick.round for tick in ticks[NUM_READING:needed]]
        for tick in ticks[NUM_SKIPPED:]:
            found.add(tick)
        return found

    def _rounds(
        self,
        drafter: Keeping | None,
        k: int,
        prompt: Sequence[int],
        num_tokens: int,
        num_timed: int = 1,
        between: Callable[[Sequence[Tick]], None] = lambda ticks: None,
    ) -> list[Tick]:
        """The rounds of one generation, whole ones, until `num_tokens` tokens are written behind the first and
        `num_timed` rounds could be timed."""
        recorder = self._recorder
        recorder.draft = None if drafter is None else drafter.draft
        llm = LLM(self.target, self.tokenizer, drafter, recorder)
        recorder.start(k)
        most = num_tokens_at_most(num_tokens, self.longest)
        seen = 0
        with closing(llm.stream(list(prompt), max_tokens=most, ignore_eos=True, **self.sampling)) as stream:
            for _ in stream:
                if len(recorder.ticks) == seen:
                    continue
                seen = len(recorder.ticks)
                if seen >= NUM_SKIPPED + num_timed and recorder.num_emitted > num_tokens:
                    break
                start = perf_counter()
                between(recorder.ticks[NUM_SKIPPED:])
                recorder.leave_out(perf_counter() - start)
        between(recorder.ticks[NUM_SKIPPED:])
        return recorder.ticks


def num_tokens_at_most(num_tokens: int, longest: int) -> int:
    """The budget of a generation: so many tokens and rounds, and no draft that the budget cuts short."""
    return num_tokens + (NUM_SKIPPED + MIN_TIMED + 1) * (longest + 1)


def model_source(name: str, draft: Model) -> Source:
    """A draft model as a source."""
    timed = TimedModel(draft)
    return Source(name, lambda: ModelDrafter(timed), timed)


def _time_pass(model: Model, num_tokens: int, num_rows: int) -> float:
    """Seconds of one pass behind the context that `UNUSED` holds."""
    context = model.length(UNUSED)
    span = Span(UNUSED, context, row_tokens(num_tokens, model.capabilities.num_inputs), num_rows)
    start = perf_counter()
    model.forward([span]).wait()
    seconds = perf_counter() - start
    model.keep(UNUSED, context)
    return seconds
