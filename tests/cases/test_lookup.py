"""cases.md C28, C29, C30 (whole kinds): n-gram state, cost and edges."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.drafting.test_occurrences import search
from tests.helpers import complete, run

from forerun.control import FixedLength
from forerun.drafting import LookupDrafter, ModelDrafter
from forerun.drafting.lookup import MAX_SIZES
from forerun.engine import Engine
from forerun.errors import ParameterError
from forerun.runtime.toy import ToyModel
from forerun.sampling import SamplingParams
from forerun.types import Plan


def view(tokens: list[int], sequence_id: int = 0) -> SimpleNamespace:
    return SimpleNamespace(sequence_id=sequence_id, tokens=tokens, prompt_length=len(tokens))


def propose(drafter: LookupDrafter, tokens: list[int], k: int, sequence_id: int = 0) -> list[int]:
    return list(drafter.propose([view(tokens, sequence_id)], [Plan(k)])[0].tokens)


def reference(tokens: list[int], k: int, low: int, high: int, prefer: str) -> list[int]:
    """The same rule by exhaustive search."""
    for size in range(min(high, len(tokens) - 1), low - 1, -1):
        tail = tokens[len(tokens) - size :]
        places = [i for i in range(size, len(tokens)) if tokens[i - size : i] == tail]
        if not places:
            continue
        if prefer == "frequent":
            return search(tokens, tokens, range(low, high + 1), k, 64, True)[1]
        return [tokens[places[-1] + i % (len(tokens) - places[-1])] for i in range(k)]
    return []


@given(
    tokens=st.lists(st.integers(0, 3), max_size=40),
    k=st.integers(1, 9),
    low=st.integers(1, 3),
    extra=st.integers(0, 4),
    prefer=st.sampled_from(["recent", "frequent"]),
    cuts=st.lists(st.integers(0, 40), max_size=4),
)
def test_c28_longest_match_first_whatever_the_increments(
    tokens: list[int], k: int, low: int, extra: int, prefer: str, cuts: list[int]
) -> None:
    drafter = LookupDrafter(low + extra, low, prefer)  # type: ignore[arg-type]
    for end in sorted({*(min(cut, len(tokens)) for cut in cuts), len(tokens)}):
        assert propose(drafter, tokens[:end], k) == reference(tokens[:end], k, low, low + extra, prefer)


def test_c28_nothing_survives_a_request() -> None:
    poem = [int(i) for i in np.random.default_rng(0).integers(0, 16, 400)]
    short = [*range(16), *range(10), 3, 4]
    target = ToyModel.random(16, order=1, seed=2, spread=3.0)
    drafter = LookupDrafter()
    engine = Engine(target, drafter, FixedLength(4))
    engine.add(poem, SamplingParams(temperature=0, max_tokens=40))
    run(engine)
    assert len(drafter._texts) == 0
    second = engine.add(short, SamplingParams(temperature=0, max_tokens=60))
    run(engine)
    fresh, _ = complete(target, short, LookupDrafter(), 4, temperature=0, max_tokens=60)
    assert second.statistics.rounds == fresh.statistics.rounds
    assert second.tokens == fresh.tokens


def test_c28_an_ngram_seen_only_in_another_request_is_not_drafted_from() -> None:
    drafter = LookupDrafter()
    assert propose(drafter, [1, 2, 3, 4, 1, 2, 3], 2, sequence_id=1) == [4, 1]
    assert propose(drafter, [9, 1, 2, 3], 2, sequence_id=2) == []
    drafter.release(1)
    assert propose(drafter, [9, 1, 2, 3], 2, sequence_id=1) == []


@pytest.mark.parametrize("size", range(1, 9))
def test_c28_settings_take_effect(size: int) -> None:
    tokens = [*range(20, 20 + size), 77, 5, *range(20, 20 + size)]
    assert propose(LookupDrafter(size, size), tokens, 1) == [77]
    assert propose(LookupDrafter(size + 1, size + 1), tokens, 1) == []
    for k in range(1, 9):
        assert len(propose(LookupDrafter(size, 1), tokens, k)) == k


@pytest.mark.parametrize("max_size", [3, 50, 500])
@pytest.mark.parametrize("pattern", ["random", "periodic"])
def test_c29_work_per_token_does_not_grow_with_history_or_size(max_size: int, pattern: str) -> None:
    rng = np.random.default_rng(1)
    for length in (512, 2048, 8192, 32768, 131072):
        tokens = [int(i) for i in rng.integers(0, 50_000, length)] if pattern == "random" else [7, 8] * (length // 2)
        drafter = LookupDrafter(max_size, 2)
        while drafter._texts.read(view(tokens)) is None:  # type: ignore[arg-type]
            pass
        index = drafter._texts._indexes[0][0]
        assert index.num_entries <= MAX_SIZES * length  # the index is built once
        before = index.num_entries, index.num_looked_at
        for step in range(10):
            propose(drafter, [*tokens, *range(step)], 8)
        assert index.num_entries - before[0] <= MAX_SIZES * 10  # and then only extended
        assert index.num_looked_at - before[1] <= 256 * 10


PROMPTS = [
    [5], [5, 5, 5], [3, 14, 15, 9, 6, 3, 14], [4] * 40, [4, 1] * 40, [1, 2, 3, 9, 1, 2, 3], [0],
]  # fmt: skip


@pytest.mark.parametrize("prompt", PROMPTS)
@pytest.mark.parametrize("k", [1, 4])
@pytest.mark.parametrize("params", [{"temperature": 0}, {"seed": 5, "temperature": 1.2}])
def test_c30_edges_are_plain_decoding(prompt: list[int], k: int, params: dict) -> None:
    target = ToyModel.random(16, order=2, seed=3, spread=2.0)
    plain = complete(target, prompt, max_tokens=64, **params)[1]
    for drafter in (LookupDrafter(3, 1), LookupDrafter(), LookupDrafter(2, 1, "frequent")):
        assert complete(target, prompt, drafter, k, max_tokens=64, **params)[1] == plain


def test_c30_a_draft_token_is_never_committed_unverified() -> None:
    rows = np.full((1, 6), 0.0)
    rows[0, 2] = 50.0  # the target wants 2, always; lookup on [5, 5, 5] proposes 5
    for k in (1, 2, 5):
        _, tokens = complete(
            ToyModel.by_position(rows), [5, 5, 5], LookupDrafter(3, 1), k, temperature=0, max_tokens=1 + k
        )
        assert tokens == [2] * (1 + k)
        assert 5 not in tokens


@pytest.mark.parametrize("k", [1, 4])
def test_c30_a_model_drafting_for_itself_is_always_accepted(k: int) -> None:
    target = ToyModel.random(16, order=2, seed=3, spread=2.0)
    for params in ({"temperature": 0}, {"seed": 5}, {}):
        sequence, _ = complete(target, [1, 2], ModelDrafter(target_copy()), k, max_tokens=128, **params)
        assert sequence.statistics.acceptance_rate == 1.0
        assert sequence.statistics.tokens_per_pass > 0.9 * (k + 1)


def target_copy() -> ToyModel:
    return ToyModel.random(16, order=2, seed=3, spread=2.0)


@pytest.mark.parametrize(
    "settings", [{"max_size": 0}, {"min_size": 0}, {"max_size": 1, "min_size": 2}, {"max_size": 2.5}, {"prefer": "x"}]
)
def test_bad_settings_are_refused_by_name(settings: dict) -> None:
    with pytest.raises(ParameterError, match=next(iter(settings))):
        LookupDrafter(**settings)
