"""cases.md C32: loads and contents that change. Lengths stay bounded, come back, and never stall or slow anybody down.

The real engine, drafters and policy over toy models; only the clock is made: every pass moves it by what it is said to
cost, so that times are the same in every run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import numpy as np
import pytest
from tests.control.worlds import by_depth

import forerun.drafting.model
import forerun.engine.engine
from forerun.control import AdaptiveLength, FixedLength, PassCost
from forerun.drafting import ModelDrafter, StackDrafter, SuffixDrafter
from forerun.engine import Engine, Scheduler
from forerun.runtime.toy import ToyModel
from forerun.sampling import SamplingParams
from forerun.types import CostCurve, Plan, Round, Span, Step

SIZE = 50


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(forerun.engine.engine, "perf_counter", made)
    monkeypatch.setattr(forerun.drafting.model, "perf_counter", made)
    return made


class Timed(ToyModel):
    """A model whose passes take first_ms * (1 + slope * further rows)."""

    def __init__(self, clock: Clock, logits_of: Any, first_ms: float, slope: float = 0.02) -> None:
        super().__init__(logits_of, SIZE)
        self.clock, self.first_ms, self.slope = clock, first_ms, slope

    def forward(self, spans: Sequence[Span]) -> Any:
        self.clock.now_s += self.pass_ms(sum(len(span.tokens) for span in spans)) / 1e3
        return super().forward(spans)

    def pass_ms(self, num_tokens: int) -> float:
        return self.first_ms * (1.0 + self.slope * (num_tokens - 1))

    def cost(self) -> CostCurve:
        return CostCurve(0, {rows: self.pass_ms(rows) for rows in (1, 2, 4, 8, 16, 32, 64)})


def certain(token: int) -> np.ndarray:
    row = np.full(SIZE, -30.0)
    row[token] = 0.0
    return row


def text_at(length: int) -> int:
    """What the target writes: a phrase again and again for 300 tokens, then noise for 300, then the phrase."""
    if 300 <= length < 600:
        return int(np.random.default_rng(length).integers(SIZE))
    return 10 + length % 12


def writer(tokens: tuple[int, ...]) -> np.ndarray:
    return certain(text_at(len(tokens)))


def guesser(share: float) -> Callable[[tuple[int, ...]], np.ndarray]:
    """A draft model that is right about that share of tokens."""

    def logits_of(tokens: tuple[int, ...]) -> np.ndarray:
        is_right = np.random.default_rng((7, len(tokens))).random() < share
        return certain(text_at(len(tokens)) if is_right else 1)

    return logits_of


class Noted:
    """A policy, and what it planned and found, round by round."""

    def __init__(self, policy: Any) -> None:
        self.policy = policy
        self.plans: list[list[Plan]] = []
        self.rounds: list[list[Round]] = []
        self.steps: list[Step] = []

    def plan(self, *given: Any) -> list[Plan]:
        self.plans.append(self.policy.plan(*given))
        return self.plans[-1]

    def update(self, rounds: Sequence[Round], step: Step) -> None:
        self.rounds.append(list(rounds))
        self.steps.append(step)
        self.policy.update(rounds, step)

    def release(self, *sequence_ids: int) -> None:
        self.policy.release(*sequence_ids)


def engine_with(
    clock: Clock, share: float = 0.9, draft_ms: float = 2.0, slope: float = 0.02, adaptive: bool = True, **more: Any
) -> tuple[Engine, Noted, Timed]:
    target, draft = Timed(clock, writer, 30.0, slope), Timed(clock, guesser(share), draft_ms, slope)
    policy: Any = FixedLength(0)
    if adaptive:
        policy = AdaptiveLength(PassCost(target.cost()), PassCost(draft.cost()), **more)
    noted = Noted(policy)
    drafter = StackDrafter([SuffixDrafter(), ModelDrafter(draft, meter=getattr(policy, "meter", None))])
    return Engine(target, drafter, noted, scheduler=Scheduler(16)), noted, draft


def write(engine: Engine, clock: Clock, arrivals: dict[int, list[int]]) -> tuple[dict[int, list[float]], float]:
    """Requests of so many tokens that arrive at these milliseconds: (for each the moments of its deltas, the first of
    them that of its arrival; the seconds that requests took on average)."""
    start, moments, left = clock.now_s, dict[int, list[float]](), sorted(arrivals.items())
    for _ in range(20_000):
        if engine.is_idle and left:
            clock.now_s = max(clock.now_s, start + left[0][0] / 1e3)
        while left and clock.now_s >= start + left[0][0] / 1e3:
            arrived, lengths = left.pop(0)
            for num_tokens in lengths:
                made = engine.add([3, 4, 5], SamplingParams(max_tokens=num_tokens, temperature=0))
                moments[made.sequence_id] = [start + arrived / 1e3]
        if engine.is_idle:
            return moments, float(np.mean([of_one[-1] - of_one[0] for of_one in moments.values()]))
        for delta in engine.step():
            moments[delta.sequence_id].append(clock.now_s)
    raise AssertionError("it does not end")


LOADS = {
    "1, 8, 1, 12": {0: [180], 1500: [180] * 7, 16_000: [180], 20_000: [180] * 11},
    "dithering": {at: [40] for at in range(0, 12_000, 300)},
}


@pytest.mark.parametrize("share", [0.1, 0.9])
@pytest.mark.parametrize("slope", [0.02, 0.3])
@pytest.mark.parametrize("load", LOADS)
def test_load_steps_neither_stall_nor_slow_down(load: str, slope: float, share: float, clock: Clock) -> None:
    """Requests take no longer than with plain decoding, and no stream stands still: a gap may be as long as plain
    decoding's longest (prompts are read then), or five times the usual one."""
    engine, noted, _ = engine_with(clock, share, slope=slope)
    moments, seconds = write(engine, clock, LOADS[load])
    plain, _, _ = engine_with(clock, slope=slope, adaptive=False)
    of_plain, plain_seconds = write(plain, clock, LOADS[load])
    assert seconds <= plain_seconds / 0.98
    assert max(plan.shape for plans in noted.plans for plan in plans) <= 32
    allowed = max(max(np.diff(of_one[1:])) for of_one in of_plain.values())
    usual = median([gap for of_one in of_plain.values() for gap in np.diff(of_one[1:])])
    longest = max(max(np.diff(of_one[1:]), default=0.0) for of_one in moments.values())
    assert longest <= max(allowed, 5 * usual)


def test_contents_that_change_are_followed_within_twenty_rounds(clock: Clock) -> None:
    """Copies, noise, copies: C32's content step, with a draft model that is no use."""
    engine, noted, _ = engine_with(clock, share=0.05)
    moments, _ = write(engine, clock, {0: [1500]})
    ends = next(iter(moments.values()))[1:]
    places = list(np.cumsum([sum(one.num_emitted for one in rounds) for rounds in noted.rounds]) + 3)

    def ms_a_token(start: int, end: int) -> float:
        return 1e3 * (ends[end] - ends[start]) / (places[end] - places[start])

    noise, copies = (next(i for i, place in enumerate(places) if place >= edge) for edge in (300, 600))
    assert ms_a_token(noise - 10, noise - 1) <= 30.0 / 5
    assert ms_a_token(noise + 20, copies - 1) <= 30.0 / 0.97
    assert ms_a_token(copies + 20, copies + 27) <= 30.0 / 5


def test_a_liar_after_a_perfect_request(clock: Clock) -> None:
    """The first request's drafts are all accepted, the second's never: it begins with what the first taught, and is
    plain decoding's equal within twenty rounds. The third begins as any new one."""
    share = {"now": 1.0}
    target = Timed(clock, lambda tokens: certain(20 + int(np.random.default_rng(len(tokens)).integers(25))), 30.0)
    right = target._logits_of
    draft = Timed(clock, lambda tokens: right(tokens) if share["now"] else certain(1), 2.0)
    policy = AdaptiveLength(PassCost(target.cost()), PassCost(draft.cost()))
    noted = Noted(policy)
    engine = Engine(target, ModelDrafter(draft, meter=policy.meter), noted)
    write(engine, clock, {0: [250]})
    assert np.mean([plans[0].shape for plans in noted.plans[-8:-1]]) >= 10
    share["now"], begun = 0.0, len(noted.plans)
    write(engine, clock, {0: [250]})
    ks = [rounds[0].depth for rounds in noted.rounds[begun:]]
    assert max(ks[:4]) >= 10
    assert max(ks[16:]) <= 2  # its gate ends it: one more is hoped for
    assert sum(ks[20:]) <= 0.1 * len(ks[20:])


@pytest.mark.parametrize("probe_share", [0.0, 0.006])
def test_where_nothing_is_drafted_the_draft_model_does_nothing(probe_share: float, clock: Clock) -> None:
    """A draft model as slow as the target: not one pass, but for probes; and the time is plain decoding's."""
    engine, noted, draft = engine_with(clock, share=0.05, draft_ms=30.0, probe_share=probe_share)
    engine.drafter = ModelDrafter(draft, meter=noted.policy.meter)
    _, seconds = write(engine, clock, {0: [800]})
    drafted = [plans[0].shape for plans in noted.plans]
    if probe_share == 0.0:
        assert draft.num_forwards == 0
        assert set(drafted) == {0}
        assert all(step.draft_s == 0.0 and step.num_rows == step.num_sequences for step in noted.steps)
    assert seconds <= 1.01 * 800 * 0.030 + 0.1


def test_the_acceptance_rate_knows_no_skipped_rounds_and_no_tokens_behind_the_end(clock: Clock) -> None:
    engine, noted, _ = engine_with(clock, share=1.0)
    engine.eos_ids = frozenset({text_at(30)})
    sequence = engine.add([3, 4, 5], SamplingParams(max_tokens=200, temperature=0))
    while not engine.is_idle:
        engine.step()
    assert sequence.finish_reason == "stop"
    found = sequence.statistics
    # What was drafted behind the end was neither kept nor refused; second choices beside what was kept count as
    # proposed, and at each depth the first was accepted.
    assert set(found.acceptance_by_depth) == {1.0}
    assert found.num_rounds == sum(len(rounds) for rounds in noted.rounds)
    assert any(one.num_proposed == 0 for rounds in noted.rounds for one in rounds)  # the first token, for one
    assert found.num_accepted + found.num_rounds >= found.num_emitted
    depths = by_depth(noted.policy.acceptance, "model")
    assert all(one == 1.0 for one in depths)
