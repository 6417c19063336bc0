"""cases.md C01, C02, C03, C05 (whole kinds): where a text ends, with and without speculation.

Rule R0 behind every test here: (tokens, finish reason, delivered count) with speculation equal those without.
"""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cases.tools import check_r0
from tests.helpers import complete, run

from forerun.control import FixedLength
from forerun.drafting import LookupDrafter, ModelDrafter, NoDrafter
from forerun.drafting.scripted import HalfDrafter, LiarDrafter, OracleDrafter, record
from forerun.engine import Engine
from forerun.llm import LLM
from forerun.runtime.toy import ToyModel
from forerun.sampling import SamplingParams

PROMPT = [7, 8, 9, 7, 8, 9, 7, 8]


def target() -> ToyModel:
    return ToyModel.random(16, order=2, seed=4, spread=2.0, context_length=300)


TEXTS = record(target(), [PROMPT, [1], [2, 3]], 60)
TEXT = list(TEXTS[tuple(PROMPT)])
DRAFTERS = {
    "oracle": lambda: OracleDrafter(TEXTS),
    "liar": lambda: LiarDrafter(TEXTS),
    "half": lambda: HalfDrafter(TEXTS),
    "lookup": lambda: LookupDrafter(),
    "model": lambda: ModelDrafter(ToyModel.random(16, order=1, seed=9)),
    "self": lambda: ModelDrafter(target()),
}


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("k", [1, 3, 5, 8])
@pytest.mark.parametrize("step", range(12))
def test_c01_declared_end_of_text_lands_anywhere_in_a_block(drafter: str, k: int, step: int) -> None:
    eos = TEXT[step]
    end = TEXT.index(eos)
    sequence, tokens = complete(
        target(), PROMPT, DRAFTERS[drafter](), k, {"eos_ids": (eos, 99_999)}, temperature=0, max_tokens=40
    )
    assert tokens == TEXT[:end]
    assert sequence.finish_reason == "stop"
    # The counters know committed tokens only: the tail of a block behind the end of text is in none of them.
    statistics = sequence.statistics
    assert sequence.num_output == statistics.num_emitted == end + 1
    assert statistics.num_accepted <= statistics.num_emitted
    if drafter == "oracle" and end:
        assert statistics.acceptance_rate in (None, 1.0)


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_c01_the_stop_token_is_delivered_only_when_asked_for(drafter: str) -> None:
    stop = TEXT[7]
    end = TEXT.index(stop)
    for include, expected in ((False, TEXT[:end]), (True, TEXT[: end + 1])):
        sequence, tokens = complete(
            target(), PROMPT, DRAFTERS[drafter](), 5, temperature=0, max_tokens=40, stop_token_ids=[stop],
            include_stop_token=include,
        )  # fmt: skip
        assert (tokens, sequence.finish_reason) == (expected, "stop")


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_c01_a_second_end_of_text_id_counts_and_ignore_eos_ignores_all(drafter: str) -> None:
    second = TEXT[9]
    engine = {"eos_ids": (15 if 15 not in TEXT[:10] else 14, second)}
    sequence, tokens = complete(target(), PROMPT, DRAFTERS[drafter](), 4, engine, temperature=0, max_tokens=40)
    assert tokens == TEXT[: min(TEXT.index(i) for i in engine["eos_ids"] if i in TEXT)]
    engine = {"eos_ids": tuple(range(16))}
    sequence, tokens = complete(
        target(), PROMPT, DRAFTERS[drafter](), 4, engine, temperature=0, max_tokens=40, ignore_eos=True
    )
    assert tokens == TEXT[:40]
    assert sequence.finish_reason == "length"


def test_c01_cache_holds_no_more_than_what_was_committed() -> None:
    """After every round the target's next span starts where the committed text ends, whatever was drafted."""
    model = target()
    engine = Engine(model, LiarDrafter(TEXTS), FixedLength(5))
    sequence = engine.add(PROMPT, SamplingParams(temperature=0, max_tokens=30))
    while not engine.is_idle:
        engine.step()
        if sequence.finish_reason is None:
            engine._batch()
            assert model.length(sequence.sequence_id) == len(sequence.tokens) - 1
    assert model.num_sequences == 0


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("k", [1, 4])
def test_c03_budget_is_exact(drafter: str, k: int) -> None:
    prompt = PROMPT
    for max_tokens in (0, 1, 2, 3, k, k + 1, k + 2):
        sequence, tokens = complete(target(), prompt, DRAFTERS[drafter](), k, temperature=0, max_tokens=max_tokens)
        assert tokens == TEXT[:max_tokens]
        assert sequence.finish_reason == "length"


def test_c03_no_pass_beyond_the_prompt_for_budgets_of_zero_and_one() -> None:
    for max_tokens, passes in ((0, 0), (1, 1)):
        model = target()
        complete(model, PROMPT, OracleDrafter(TEXTS), 4, temperature=0, max_tokens=max_tokens)
        assert model.num_forwards == passes


class _Watching(LookupDrafter):
    """Notes how much was drafted with how much budget left."""

    def __init__(self) -> None:
        super().__init__(max_size=3, min_size=1)
        self.seen: list[tuple[int, int]] = []

    def propose(self, sequences, plans):  # type: ignore[no-untyped-def]
        drafts = super().propose(sequences, plans)
        self.seen += [(len(d.tokens), s.limit - len(s.tokens)) for d, s in zip(drafts, sequences, strict=True)]
        return drafts


@pytest.mark.parametrize("max_tokens", range(1, 14))
def test_c03_a_round_drafts_at_most_what_remains_less_one(max_tokens: int) -> None:
    drafter = _Watching()
    complete(target(), [*range(16), *PROMPT], drafter, 8, temperature=0, max_tokens=max_tokens)
    assert all(drafted <= remaining - 1 for drafted, remaining in drafter.seen)
    assert max_tokens < 4 or any(drafted for drafted, _ in drafter.seen)


@pytest.mark.parametrize("max_tokens", range(8, 21))
def test_c05_delivered_tokens_and_logprobs_are_what_usage_says(max_tokens: int) -> None:
    params = {"temperature": 0, "logprobs": 1} if max_tokens % 4 else {"seed": 5, "logprobs": 0}
    result = check_r0(target, PROMPT, ks=(4,), max_tokens=max_tokens, **params)
    assert len(result.logprobs or ()) == len(result.tokens) == result.usage.completion_tokens == max_tokens
    assert (result.usage.prompt_tokens, result.finish_reason) == (len(PROMPT), "length")


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("max_tokens", [8, 13, 20])
def test_c05_rounds_add_up_to_what_was_delivered(drafter: str, max_tokens: int) -> None:
    llm = LLM(target(), drafter=DRAFTERS[drafter](), policy=FixedLength(4))
    speculation = llm.generate(PROMPT, temperature=0, max_tokens=max_tokens).speculation
    assert speculation.num_emitted == max_tokens
    assert sum(i * n for i, n in enumerate(speculation.histogram)) == speculation.num_accepted
    assert sum(speculation.histogram) == speculation.num_rounds


@pytest.mark.parametrize("include", [False, True])
def test_c05_usage_counts_what_was_delivered_where_a_token_or_a_string_ends_the_text(include: bool) -> None:
    stop = TEXT[11]
    end = TEXT.index(stop)
    result = check_r0(
        target, PROMPT, ks=(2, 5), temperature=0, max_tokens=40, stop_token_ids=[stop], include_stop_token=include,
        logprobs=2,
    )  # fmt: skip
    assert len(result.logprobs or ()) == result.usage.completion_tokens == end + include


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("k, drafter", [(0, None), (4, "oracle"), (3, "half"), (5, "liar")])
def test_c05_rates_are_of_delivered_tokens(
    n: int, k: int, drafter: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a clock that moves one second at each reading, so one a pass."""
    clock = itertools.count()
    monkeypatch.setattr("forerun.llm.perf_counter", lambda: float(next(clock)))
    llm = LLM(target(), drafter=DRAFTERS[drafter]() if drafter else None, policy=FixedLength(k))
    result = llm.generate(PROMPT, temperature=0, max_tokens=20, n=n)
    for one in result.choices:
        num_first = next(i for i, origin in enumerate(one.origins, 1) if origin != "drafted")
        assert one.usage.tokens_per_s == pytest.approx((20 - num_first) / (one.speculation.num_rounds - 1))
    # The first choice's prompt is read in the first pass, the others' last token with it in the second.
    assert [one.usage.time_to_first_token_s for one in result.choices] == [1.0, *[2.0] * (n - 1)]


@given(
    prompt=st.lists(st.integers(0, 15), min_size=1, max_size=12),
    k=st.integers(0, 9),
    max_tokens=st.integers(0, 30),
    stops=st.lists(st.integers(0, 15), max_size=3),
    seed=st.one_of(st.none(), st.integers(0, 2**64 - 1)),
    drafter=st.sampled_from(["lookup", "model", "self", "none"]),
    context=st.integers(20, 60),
)
def test_r0_any_request_ends_as_plain_decoding_would(
    prompt: list[int], k: int, max_tokens: int, stops: list[int], seed: int | None, drafter: str, context: int
) -> None:
    params = {"max_tokens": max_tokens, "stop_token_ids": stops}
    params |= {"temperature": 0} if seed is None else {"temperature": 1.3, "seed": seed, "top_p": 0.9}
    outcomes = []
    for made in (NoDrafter(), DRAFTERS.get(drafter, NoDrafter)()):
        model = ToyModel.random(16, order=2, seed=4, spread=2.0, context_length=context)
        sequence, tokens = complete(model, prompt, made, k, **params)  # type: ignore[arg-type]
        outcomes.append((tokens, sequence.finish_reason))
        assert model.num_sequences == 0
    assert outcomes[0] == outcomes[1]


def test_ragged_batch_equals_each_alone() -> None:
    prompts = [PROMPT, [1], [2, 3], PROMPT * 4, [5] * 17]
    alone = [
        complete(target(), p, ModelDrafter(target()), 3, seed=5, max_tokens=7 + i)[1] for i, p in enumerate(prompts)
    ]
    for order in itertools.islice(itertools.permutations(range(5)), 0, 120, 17):
        engine = Engine(target(), ModelDrafter(target()), FixedLength(3))
        made = {i: engine.add(prompts[i], SamplingParams(seed=5, max_tokens=7 + i)) for i in order}
        deltas = run(engine)
        for i, sequence in made.items():
            assert [t for d in deltas[sequence.sequence_id] for t in d.tokens] == alone[i]
