"""The loop itself: interruptions, failures of parts, cancellation, statistics, fairness of chunked prompts."""

from __future__ import annotations

import dataclasses
import threading
import warnings
from collections.abc import Mapping
from typing import ClassVar

import numpy as np
import pytest
from tests.helpers import complete, run

from forerun.control import FixedLength
from forerun.drafting import LookupDrafter, ModelDrafter
from forerun.drafting.scripted import HalfDrafter, OracleDrafter, record
from forerun.engine import Engine, Scheduler
from forerun.engine.statistics import Statistics
from forerun.errors import ContractError, ForerunError, NumericalError, ParameterError
from forerun.llm import LLM
from forerun.randomness import make_noise
from forerun.runtime.toy import ToyModel
from forerun.sampling import SamplingParams
from forerun.types import Draft, Plan, Round
from forerun.verification import RULES


def model(seed: int = 4, size: int = 12) -> ToyModel:
    return ToyModel.random(size, order=2, seed=seed, spread=2.0)


def broken_after(length: int, value: float = np.nan, seed: int = 4) -> ToyModel:
    """Like `model`, but every row after `length` tokens or more holds `value`."""
    fine = model(seed)

    def logits_of(tokens: tuple[int, ...]) -> np.ndarray:
        row = fine.logits(tokens).copy()
        if len(tokens) >= length:
            row[3 if np.isnan(value) or value > 0 else slice(None)] = value
        return row

    return ToyModel(logits_of, 12)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("params", [{"temperature": 0}, {"seed": 1}, {}])
def test_a_row_without_a_finite_best_fails_its_own_request_only(value: float, params: dict) -> None:
    engine = Engine(broken_after(8, value), LookupDrafter(), FixedLength(3))
    long = engine.add([1, 2, 3, 4, 5], SamplingParams(max_tokens=20, **params))
    short = engine.add([1], SamplingParams(max_tokens=5, **params))
    deltas = run(engine)
    assert isinstance(deltas[long.sequence_id][-1].error, NumericalError)
    assert (long.finish_reason, short.finish_reason) == ("error", "length")
    assert 5 + 3 >= len(long.tokens) >= 7  # what was fine is kept
    assert engine.target.num_sequences == 0


@pytest.mark.parametrize("rules", RULES.values(), ids=RULES)
def test_a_broken_row_behind_a_rejected_draft_token_harms_nobody(rules: Mapping) -> None:
    """Plain decoding would never see the row after a token of probability 0; no rule may fail because of it."""
    row = np.array([0.0, 0.0, -np.inf])
    target = ToyModel(lambda tokens: np.full(3, np.nan) if 2 in tokens else row, 3)
    drafter = ModelDrafter(ToyModel(lambda tokens: np.array([-9.0, -9.0, 9.0]), 3))
    sequence, tokens = complete(target, [0, 0], drafter, 3, {"rules": rules}, max_tokens=50)
    assert (len(tokens), sequence.finish_reason) == (50, "length")
    assert sequence.statistics.num_proposed > 0


@pytest.mark.parametrize("params", [{"temperature": 0}, {"seed": 1}, {}])
def test_a_draft_id_that_cannot_be_fed_back_ends_the_draft(params: dict) -> None:
    """Id 11 is drafted and accepted, but never fed to the draft model, and text that holds it is not drafted for."""
    draft = model(seed=4)
    draft.capabilities = dataclasses.replace(draft.capabilities, num_embeddings=11)
    fixed = {"make_noise": lambda params, seed, choice, committed: make_noise(params, 1, choice, committed)}
    sequence, tokens = complete(model(), [1, 2], ModelDrafter(draft), 4, fixed, max_tokens=60, **params)
    assert len(tokens) == 60
    assert tokens.index(11) > 1  # drafting was possible before it came
    assert 0 < sequence.statistics.num_proposed < 60
    if params:
        assert tokens == complete(model(), [1, 2], engine=fixed, max_tokens=60, **params)[1]


def test_generate_reports_the_failed_prompt_and_keeps_the_other_results() -> None:
    llm = LLM(broken_after(8))
    with pytest.raises(NumericalError, match="prompt 1: ") as caught:
        llm.generate([[1, 2], [1, 2, 3, 4, 5, 6], [2]], temperature=0, max_tokens=5)
    results = caught.value.results  # type: ignore[attr-defined]
    assert [result and result.usage.completion_tokens for result in results] == [5, None, 5]
    assert llm.engine.is_idle


@pytest.mark.parametrize("params", [{"temperature": 0}, {"seed": 1}])
def test_a_failing_draft_model_is_dropped_with_a_warning_and_the_text_is_unaffected(params: dict) -> None:
    plain = complete(model(), [1, 2], max_tokens=30, **params)[1]
    with pytest.warns(RuntimeWarning, match="drafting failed"):
        sequence, tokens = complete(model(), [1, 2], ModelDrafter(broken_after(12)), 4, max_tokens=30, **params)
    assert tokens == plain
    assert 0 < sequence.statistics.num_proposed < 30


class _Interrupted(ToyModel):
    """Raises KeyboardInterrupt on chosen passes, before or after the cache was written."""

    when: ClassVar[dict[int, str]] = {}

    def forward(self, spans):  # type: ignore[no-untyped-def]
        moment = self.when.pop(self.num_forwards, None)
        if moment == "before":
            raise KeyboardInterrupt
        rows = super().forward(spans)
        if moment == "after":
            raise KeyboardInterrupt
        return rows


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("params", [{"temperature": 0}, {"seed": 9}])
@pytest.mark.parametrize("whose", ["target", "draft"])
def test_an_interrupted_pass_changes_nothing(moment: str, params: dict, whose: str) -> None:
    plain = complete(model(), [1, 2, 3], max_tokens=24, **params)[1]
    for at in range(1, 6):
        parts = {"target": model(), "draft": model(seed=5)}
        parts[whose] = _Interrupted(parts[whose]._logits_of, 12)
        parts[whose].when = {at: moment}
        engine = Engine(parts["target"], ModelDrafter(parts["draft"]), FixedLength(3))
        sequence = engine.add([1, 2, 3], SamplingParams(max_tokens=24, **params))
        interrupted = 0
        while not engine.is_idle:
            try:
                engine.step()
            except KeyboardInterrupt:
                interrupted += 1
        assert interrupted == 1
        assert sequence.tokens[3:] == plain


def test_cancelling_frees_everything_at_once() -> None:
    target, draft = model(), model(seed=5)
    drafter = ModelDrafter(draft)
    engine = Engine(target, drafter, FixedLength(3), scheduler=Scheduler(max_sequences=2))
    made = [engine.add([1, 2], SamplingParams(max_tokens=50)) for _ in range(4)]
    for _ in range(3):
        engine.step()
    for sequence in made:
        engine.cancel(sequence.sequence_id)
        engine.cancel(sequence.sequence_id)
    assert engine.is_idle
    assert (target.num_sequences, draft.num_sequences, len(drafter._caches)) == (0, 0, 0)
    assert {sequence.finish_reason for sequence in made} == {"cancelled"}


def test_long_prompts_are_read_in_chunks_beside_running_streams() -> None:
    target = model()
    engine = Engine(target, scheduler=Scheduler(max_tokens=8))
    running = engine.add([1], SamplingParams(temperature=0, max_tokens=40))
    engine.step()
    engine.add([2] * 50, SamplingParams(temperature=0, max_tokens=1))
    before = running.num_output
    num_steps = 0
    while len(engine.scheduler.running) + len(engine.scheduler.waiting) == 2:
        fed = target.num_fed
        engine.step()
        num_steps += 1
        assert target.num_fed - fed <= 8
    assert num_steps >= 50 / 8
    assert running.num_output - before == num_steps  # the stream got a token in every pass


def test_a_plain_round_computes_one_row_and_touches_no_draft() -> None:
    target, draft = model(), model(seed=5)
    complete(target, [1, 2, 3], ModelDrafter(draft), 0, temperature=0, max_tokens=10)
    assert (target.num_forwards, target.num_fed) == (10, 3 + 9)
    assert draft.num_forwards == 0


def test_draft_cache_feeds_only_what_is_missing() -> None:
    """After a fully accepted block two tokens are missing (the last draft token was never fed), else one."""
    texts = record(model(), [[1, 2, 3]], 40)
    draft = model()
    sequence, _ = complete(model(), [1, 2, 3], ModelDrafter(draft), 4, temperature=0, max_tokens=31)
    assert sequence.statistics.histogram[4] == 6
    assert list(texts[1, 2, 3][:31]) == sequence.tokens[3:]
    assert draft.num_forwards == 4 * 6
    assert draft.num_fed == 3 + 1 + 3 + 5 * (2 + 3)


class _Drafts(LookupDrafter):
    def __init__(self, *drafts: Draft) -> None:
        super().__init__()
        self._given = list(drafts)

    def propose(self, sequences, plans):  # type: ignore[no-untyped-def]
        return self._given


@pytest.mark.parametrize(
    "drafts",
    [[], [Draft((1,)), Draft((1,))], [Draft((1, 2, 3))], [Draft((12,))], [Draft((-1,))],
     [Draft((1, 2), "sampled")], [Draft((1, 2), parents=(0, 0))]],
)  # fmt: skip
def test_drafters_that_break_the_contract_are_named(drafts: list[Draft]) -> None:
    engine = Engine(model(), _Drafts(*drafts), FixedLength(2))
    engine.add([1], SamplingParams(temperature=0, max_tokens=9))
    with pytest.raises(ContractError):
        engine.step()


@pytest.mark.parametrize("plans", [[], [Plan(-1)], [Plan(1), Plan(1)]])
def test_policies_that_break_the_contract_are_named(plans: list[Plan]) -> None:
    class Bad(FixedLength):
        def plan(self, sequences, prospects, load):  # type: ignore[no-untyped-def]
            return plans

    engine = Engine(model(), LookupDrafter(), Bad(1))
    engine.add([1], SamplingParams(temperature=0, max_tokens=9))
    with pytest.raises(ContractError, match="policy"):
        engine.step()


@pytest.mark.parametrize("k", [-1, 1.5, "auto", True, None])
def test_fixed_length_refuses_what_is_not_a_length(k: object) -> None:
    with pytest.raises(ParameterError, match=r"^k: "):
        FixedLength(k)  # type: ignore[arg-type]


def test_statistics_derive_from_one_table() -> None:
    statistics = Statistics()
    for proposed, accepted, emitted in [(0, 0, 1), (4, 4, 5), (4, 2, 3), (4, 0, 1), (2, 2, 3), (3, 3, 3)]:
        statistics.add(Round(0, proposed, accepted, emitted))
    assert statistics.histogram == [2, 0, 2, 1, 1]
    assert statistics.acceptance_by_depth == [4 / 5, 4 / 4, 2 / 3, 1 / 1]
    assert statistics.acceptance_rate == 11 / 17
    assert statistics.tokens_per_pass == 16 / 6
    empty = Statistics().to_dict()
    assert (empty["tokens_per_pass"], empty["acceptance_rate"], empty["histogram"]) == (None, None, [])


@pytest.mark.parametrize("k", [1, 2, 5])
def test_half_drafter_hits_every_accepted_length(k: int) -> None:
    texts = record(model(), [[1, 2, 3]], 80)
    sequence, tokens = complete(model(), [1, 2, 3], HalfDrafter(texts), k, temperature=0, max_tokens=80)
    assert tokens == list(texts[1, 2, 3])
    assert all(sequence.statistics.histogram[i] for i in range(k + 1))


def test_origins_name_where_each_token_came_from() -> None:
    texts = record(model(), [[1, 2]], 12)
    llm = LLM(model(), drafter=OracleDrafter(texts), policy=FixedLength(3))
    assert llm.generate([1, 2], temperature=0, max_tokens=9).origins == (
        "decoded", "drafted", "drafted", "drafted", "bonus", "drafted", "drafted", "drafted", "bonus",
    )  # fmt: skip
    llm = LLM(model(), drafter=HalfDrafter(texts), policy=FixedLength(3))
    assert llm.generate([1, 2], temperature=0, max_tokens=12).origins[:7] == (
        "decoded", "recovered", "drafted", "recovered", "drafted", "drafted", "recovered",
    )  # fmt: skip


def test_streams_equal_results_and_interleave() -> None:
    llm = LLM(model(), drafter=LookupDrafter(), policy=FixedLength(3))
    expected = [llm.generate([i, i], seed=4, max_tokens=12).tokens for i in range(3)]
    streams = [llm.stream([i, i], seed=4, max_tokens=12) for i in range(3)]
    pieces = list(zip(*streams, strict=True))
    assert [tuple(p.token for p in column if p.token is not None) for column in zip(*pieces, strict=True)] == expected
    assert [stream.result.tokens for stream in streams] == expected


def test_closing_a_stream_cancels_and_keeps_what_there_is() -> None:
    llm = LLM(model())
    stream = llm.stream([1], temperature=0, max_tokens=500)
    got = [next(stream).token for _ in range(5)]
    stream.close()
    assert llm.engine.is_idle
    assert (stream.result.finish_reason, list(stream.result.tokens)) == ("cancelled", got)
    assert [piece.finish_reason for piece in stream] == ["cancelled"]
    stream.close()


def test_a_closed_llm_refuses_work_and_ends_open_streams() -> None:
    with LLM(model()) as llm:
        stream = llm.stream([1], temperature=0, max_tokens=500)
        next(stream)
    assert [piece.finish_reason for piece in stream if piece.token is None] == ["cancelled"]
    with pytest.raises(ForerunError, match="closed"):
        llm.generate([1], max_tokens=1)


def test_threads_share_the_engine_and_get_their_own_text() -> None:
    llm = LLM(model(), drafter=ModelDrafter(model(seed=5)), policy=FixedLength(3))
    expected = {i: llm.generate([i, i + 1], seed=i, max_tokens=60).tokens for i in range(8)}
    got: dict[int, tuple[int, ...]] = {}

    def work(i: int) -> None:
        got[i] = llm.generate([i, i + 1], seed=i, max_tokens=60).tokens

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert got == expected
    assert llm.engine.is_idle
    assert not llm._outbox


def test_requests_leave_nothing_behind() -> None:
    llm = LLM(model(), drafter=ModelDrafter(model(seed=5)), policy=FixedLength(3))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for i in range(50):
            llm.generate([[1, 2], [3]], max_tokens=5 + i % 3)
            llm.generate([1], max_tokens=0)
    assert not llm._outbox
    assert llm.engine.is_idle
    assert llm.engine.target.num_sequences == 0
