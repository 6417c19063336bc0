"""All that serving does at once, in any order: no text notices, memory is bounded, and nothing is left behind."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.engine.hashed import NEAR, SIZE, HashedModel, alone
from tests.verification.reference import AutomatonGrammar

from forerun.control import AdaptiveLength, FixedLength, FixedTree, PassCost
from forerun.drafting import LookupDrafter, ModelDrafter, NoDrafter, StackDrafter
from forerun.engine import Engine, KeptTexts, Scheduler, Sequence, Service
from forerun.errors import DeadlineError
from forerun.sampling import SamplingParams
from forerun.types import Delta

EDGES = [{0: 1, 1: 2, 5: 0}, {2: 3, 3: 0}, {0: 3, 1: 2, 2: 0}, {3: 4, 5: 0, 0: 1}, {}]
KINDS: list[dict[str, Any]] = [
    {"temperature": 0},
    {"seed": 3, "temperature": 1.3},
    {"temperature": 0, "frequency_penalty": 0.9, "repetition_penalty": 1.2},
    {"seed": 5, "constraint": AutomatonGrammar(EDGES, SIZE)},
    {"temperature": 0, "constraint": AutomatonGrammar(EDGES, SIZE)},
    {"seed": 2, "logprobs": 2, "prompt_logprobs": 1},
    {"seed": 9, "bad_words": ((1, 2),), "min_tokens": 3, "stop_token_ids": (4,)},
]
DRAFTERS = {
    "none": lambda target, draft: (NoDrafter(), FixedLength(0)),
    "model": lambda target, draft: (ModelDrafter(draft), FixedLength(3)),
    "tree": lambda target, draft: (ModelDrafter(draft), FixedTree((2, 2))),
    "stack": lambda target, draft: (StackDrafter([LookupDrafter(), ModelDrafter(draft)]), FixedLength(4)),
    "adaptive": lambda target, draft: (
        StackDrafter([LookupDrafter(), ModelDrafter(draft)]),
        AdaptiveLength(PassCost(target.cost()), PassCost(draft.cost())),
    ),
}


@dataclass(frozen=True)
class Ask:
    """A request that comes."""

    start: int
    length: int  # of the beginning, which all of the same start share
    rest: tuple[int, ...]
    kind: int
    num: int
    num_choices: int
    service: Service
    tenant: str | None
    is_late: bool

    @property
    def prompt(self) -> list[int]:
        return [*((self.start + i * i) % 5 for i in range(self.length)), *self.rest]

    @property
    def params(self) -> dict[str, Any]:
        kind = KINDS[self.kind]
        return {**kind, "max_tokens": max(self.num, kind.get("min_tokens", 0)), "tenant": self.tenant}


services = st.builds(
    Service,
    st.integers(0, 2),
    st.none(),
    st.sampled_from([None, None, 0, 2]),
    st.sampled_from([None, None, frozenset({"model"})]),
)
asks = st.builds(
    Ask,
    st.integers(0, 2),
    st.integers(0, 30),
    st.lists(st.integers(0, 5), min_size=1, max_size=4).map(tuple),
    st.integers(0, len(KINDS) - 1),
    st.integers(1, 12),
    st.sampled_from([1, 1, 1, 2, 3]),
    services,
    st.sampled_from([None, "a", "b"]),
    st.sampled_from([False] * 9 + [True]),
)
steps = st.tuples(st.just("steps"), st.integers(1, 6))
cancels = st.tuples(st.just("cancel"), st.integers(0, 30))
failures = st.tuples(st.just("fail"), st.integers(1, 4))
scripts = st.lists(st.one_of(asks, asks, steps, steps, cancels, failures), min_size=1, max_size=24)


@dataclass
class Server:
    """An engine as a server has it, and what it handed out."""

    of: Engine
    target: HashedModel
    draft: HashedModel
    made: list[tuple[Ask, Sequence]] = field(default_factory=list)
    deltas: dict[int, list[Delta]] = field(default_factory=dict)
    cancelled: set[int] = field(default_factory=set)

    def add(self, ask: Ask) -> None:
        service = ask.service
        if ask.is_late:
            service = Service(service.priority, perf_counter() - 1.0)
        leader = None
        for choice in range(ask.num_choices):
            params = SamplingParams(**ask.params)
            one = self.of.add(ask.prompt, params, choice=choice, leader=leader, service=service)
            leader = leader or one
            self.made.append((ask, one))

    def step(self) -> None:
        with suppress(MemoryError):
            for delta in self.of.step():
                self.deltas.setdefault(delta.sequence_id, []).append(delta)

    def cancel(self, number: int) -> None:
        if number < len(self.made):
            one = self.made[number][1]
            self.cancelled |= {one.sequence_id} if one.finish_reason is None else set()
            self.of.cancel(one.sequence_id)
            if one.finish_reason == "cancelled":
                assert one.sequence_id not in self.draft
                assert one.sequence_id not in self.target or one.sequence_id in self.of._prompts._ended

    def check_text(self, ask: Ask, one: Sequence) -> None:
        deltas = self.deltas.get(one.sequence_id, [])
        found = [token for delta in deltas for token in delta.tokens]
        whole, delivered = alone(ask.prompt, ask.params, one.choice)
        if one.sequence_id in self.cancelled:
            assert found == delivered[: len(found)]
            return
        assert [delta.finish_reason for delta in deltas[:-1]] == [None] * (len(deltas) - 1)
        if ask.is_late:
            assert found == []
            assert isinstance(deltas[-1].error, DeadlineError)
            return
        assert (found, deltas[-1].finish_reason) == (delivered, whole.finish_reason)
        assert one.tokens == whole.tokens
        if one.prompt_logprobs is not None:
            assert one.prompt_logprobs == whole.prompt_logprobs


@settings(max_examples=120, deadline=None)
@given(
    scripts,
    st.sampled_from(list(DRAFTERS)),
    st.one_of(st.none(), st.integers(47, 120)),
    st.one_of(st.none(), st.integers(0, 100)),
    st.integers(1, 4),
    st.integers(1, 30),
    st.booleans(),
)
def test_no_text_notices_what_else_is_served(
    script: list[Any],
    drafter: str,
    max_cached: int | None,
    max_kept: int | None,
    places: int,
    max_tokens: int,
    by_tenant: bool,
) -> None:
    def watch() -> None:
        if max_cached is not None:
            assert target.num_cached <= max_cached

    target, draft = HashedModel(watch=watch), HashedModel(NEAR)
    kept = None if max_kept is None else KeptTexts(target, max_kept, by_tenant=by_tenant)
    scheduler = Scheduler(places, max_tokens, max_cached=max_cached, pace=lambda num: 8)
    server = Server(Engine(target, *DRAFTERS[drafter](target, draft), scheduler=scheduler, kept=kept), target, draft)
    for one in script:
        if isinstance(one, Ask):
            server.add(one)
        elif one[0] == "steps":
            for _ in range(one[1]):
                server.step()
                assert len(scheduler.running) <= places
                assert set(draft._cached) <= {running.sequence_id for running in scheduler.running}
        elif one[0] == "cancel":
            server.cancel(one[1])
        else:
            target.num_until_failure = draft.num_until_failure = one[1]
    for _ in range(5000):
        if server.of.is_idle:
            break
        server.step()
    assert server.of.is_idle, "somebody starves"
    for ask, sequence in server.made:
        server.check_text(ask, sequence)
    _check_tenants(server, by_tenant)
    assert target.num_sequences == (0 if kept is None else len(kept))
    if kept is not None:
        assert target.num_cached == kept.num_tokens <= (max_kept or 0)
        kept.shrink(0)
        assert (target.num_sequences, kept._by_start) == (0, {})
    assert draft.num_sequences == 0
    prompts = server.of._prompts
    assert (prompts._followers, prompts._read, prompts._ended) == ({}, set(), {})
    assert (scheduler._served, server.of._deadlines, server.of._ending) == ({}, {}, {})


def _check_tenants(server: Server, by_tenant: bool) -> None:
    """No cache was forked from another tenant's, where that matters."""
    tenants = {one.sequence_id: ask.tenant for ask, one in server.made}
    forked = [*server.draft.forked, *(server.target.forked if by_tenant else ())]
    assert all(tenants[source] == tenants[target] for source, target in forked)
