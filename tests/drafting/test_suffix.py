"""Suffix drafts: the documented rule by exhaustive search, its scores, and what may be shared between requests."""

from __future__ import annotations

from math import prod
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.drafting.test_occurrences import search
from tests.helpers import complete, run

from forerun.control import FixedLength
from forerun.drafting import SharedTexts, SuffixDrafter
from forerun.drafting.suffix import NEGLIGIBLE, SIZES, VOTERS
from forerun.engine import Engine
from forerun.errors import ParameterError
from forerun.runtime.toy import ToyModel
from forerun.sampling import SamplingParams
from forerun.types import Plan, Prospect


def view(tokens: list[int], sequence_id: int = 0, **more: Any) -> Any:
    settings = {"vocabulary_size": 100, "prompt_length": 0, "finish_reason": None, "tenant": None, **more}
    params = SamplingParams(tenant=settings.pop("tenant"))
    return SimpleNamespace(sequence_id=sequence_id, tokens=tokens, params=params, **settings)


def propose(drafter: SuffixDrafter, one: Any, k: int) -> list[int]:
    return list(drafter.propose([one], [Plan(k)])[0].tokens)


def prospect(drafter: SuffixDrafter, one: Any, most: int) -> Prospect | None:
    found = drafter.prospects([one], [most])[0]
    return found[0] if found else None


def reference(tokens: list[int], k: int) -> tuple[list[int], list[float]]:
    """The docstring's rule: tokens and their expected acceptance."""
    size, drafted, votes, voters = search(tokens, tokens, SIZES, k, VOTERS, True)
    expected = [(c - 4 / (4 + size + i)) / v for i, (c, v) in enumerate(zip(votes, voters, strict=True))]
    num = 0
    while num < len(expected) and prod(expected[: num + 1]) >= NEGLIGIBLE:
        num += 1
    return drafted[:num], expected[:num]


@given(
    st.lists(st.integers(0, 2), max_size=70), st.lists(st.integers(0, 70), max_size=3), st.integers(1, 12),
    st.booleans(),
)  # fmt: skip
def test_the_most_frequent_continuation_of_the_longest_match(
    tokens: list[int], cuts: list[int], k: int, asks_before: bool
) -> None:
    drafter = SuffixDrafter()
    for end in sorted({*(min(cut, len(tokens)) for cut in cuts), len(tokens)}):
        one = view(tokens[:end])
        drafted, expected = reference(tokens[:end], k)
        found = prospect(drafter, one, k) if asks_before else None
        assert propose(drafter, one, k) == drafted
        if asks_before:
            assert (found.longest if found else 0) == len(drafted)
            assert found is None or found.expected == pytest.approx(expected)
            assert found is None or found.num_free == found.longest
            assert propose(drafter, one, max(k - 2, 0)) == drafted[: max(k - 2, 0)]  # what was found is kept
            assert propose(drafter, one, k + 3) == reference(tokens[:end], k + 3)[0]


def test_a_branch_is_followed_by_most_of_those_that_came_so_far() -> None:
    """After "1 2": 3 twice and 5 once; after "1 2 3": 4 and then 6, the later of which wins."""
    tokens = [1, 2, 3, 4, 9, 1, 2, 5, 5, 8, 1, 2, 3, 6, 7, 1, 2]
    found = prospect(SuffixDrafter(), view(tokens), 3)
    assert found is not None
    assert propose(SuffixDrafter(), view(tokens), 3) == [3, 6, 7]
    assert found.expected == pytest.approx(((2 - 4 / 6) / 3, (1 - 4 / 7) / 2, (1 - 4 / 8) / 1))
    assert found.context == "2 split"


@pytest.mark.parametrize(
    "tokens, context",
    [
        ([1, 2, 9, 1], "1 one"), ([1, 2, 9, 1, 2, 8, 1], "1 all"), ([1, 2, 9, 1, 3, 8, 1], "1 split"),
        ([5, 1, 2, 9, 5, 1], "2 one"), ([3, 5, 1, 2, 9, 3, 5, 1], "3-5 one"), ([*range(20), *range(9)], "8+"),
        ([*range(40), *range(39)], "8+"),
    ],
)  # fmt: skip
def test_kinds_of_match(tokens: list[int], context: str) -> None:
    found = prospect(SuffixDrafter(), view(tokens), 3)
    assert found is not None
    assert (found.source, found.context) == ("suffix", context)


def test_scores_grow_with_the_length_of_the_match_and_with_agreement() -> None:
    def first(tokens: list[int]) -> float:
        found = prospect(SuffixDrafter(), view(tokens), 1)
        assert found is not None
        return found.expected[0]

    lengths = [first([*range(10, 10 + n), 77, 5, *range(10, 10 + n)]) for n in SIZES]
    assert lengths == sorted(lengths)
    assert lengths[0] < 0.25 < 0.85 < lengths[-1]
    assert first([1, 2, 9, 1]) < first([1, 2, 9, 1, 2, 8, 1]) < first([1, 2, 9, 1, 2, 8, 1, 2, 7, 1])
    assert first([1, 2, 9, 1, 3, 8, 1]) < first([1, 2, 9, 1])


def test_a_draft_ends_where_acceptance_is_negligible() -> None:
    weak = prospect(SuffixDrafter(), view([1, *range(2, 60), 1]), 50)
    strong = prospect(SuffixDrafter(), view([*range(90), *range(40)]), 50)
    assert weak is not None
    assert strong is not None
    assert weak.longest < 6
    assert strong.longest == 50
    assert propose(SuffixDrafter(), view([1, *range(2, 60), 1]), 50) == [*range(2, 2 + weak.longest)]
    assert len(propose(SuffixDrafter(longest=7), view([*range(90), *range(40)]), 50)) == 7


# -- what may be shared ------------------------------------------------------------------------------------------------

SENTENCE = [*range(30, 50)]


def end(drafter: SuffixDrafter, tokens: list[int], sequence_id: int, **more: Any) -> None:
    """A request that wrote these tokens behind a prompt of one, and ended."""
    one = view([99, *tokens], sequence_id, prompt_length=1, **{"finish_reason": "stop", **more})
    drafter.prospects([one], [4])
    drafter.release(sequence_id)


def drafted(drafter: SuffixDrafter, tokens: list[int], **more: Any) -> list[int]:
    found = propose(drafter, view(tokens, 77, **more), 4)
    drafter.release(77)
    return found


def test_nothing_is_shared_unless_it_is_asked_for() -> None:
    drafter = SuffixDrafter()
    end(drafter, SENTENCE, 1, tenant="a")
    assert drafted(drafter, SENTENCE[:5], tenant="a") == []
    assert drafter._library is None


def test_a_tenants_past_outputs_are_drafted_from_and_nobody_elses() -> None:
    drafter = SuffixDrafter(shared=SharedTexts())
    end(drafter, SENTENCE, 1, tenant="a")
    assert drafted(drafter, SENTENCE[:5], tenant="a") == SENTENCE[5:9]
    assert drafted(drafter, SENTENCE[:5], tenant="b") == []
    assert drafted(drafter, SENTENCE[:5]) == []
    assert drafted(drafter, SENTENCE[:5], tenant="a", vocabulary_size=101) == []  # ids of another vocabulary


def test_requests_without_a_tenant_give_nothing() -> None:
    drafter = SuffixDrafter(shared=SharedTexts())
    end(drafter, SENTENCE, 1)
    assert drafted(drafter, SENTENCE[:5]) == []
    assert drafter._library is not None
    assert len(drafter._library) == 0


@pytest.mark.parametrize("reason", ["cancelled", "error", None])
def test_only_texts_that_ended_by_themselves_are_kept(reason: str | None) -> None:
    drafter = SuffixDrafter(shared=SharedTexts())
    end(drafter, SENTENCE, 1, tenant="a", finish_reason=reason)
    assert drafted(drafter, SENTENCE[:5], tenant="a") == []


def test_prompts_are_not_shared_and_a_running_request_is_not() -> None:
    drafter = SuffixDrafter(shared=SharedTexts())
    running = view([99, *SENTENCE], 1, prompt_length=1, tenant="a")
    drafter.prospects([running], [4])
    assert drafted(drafter, SENTENCE[:5], tenant="a") == []
    asked = view([*SENTENCE, 1, 2], 2, prompt_length=len(SENTENCE), tenant="a", finish_reason="stop")
    drafter.prospects([asked], [4])
    drafter.release(2)
    assert drafted(drafter, SENTENCE[:5], tenant="a") == []


def test_the_texts_own_match_wins_ties_and_a_longer_one_elsewhere_does_not_lose() -> None:
    drafter = SuffixDrafter(shared=SharedTexts())
    end(drafter, [1, 2, 3, 60, 61, 62], 1, tenant="a")
    assert drafted(drafter, [1, 2, 3, 50, 51, 1, 2, 3], tenant="a")[0] == 50
    assert drafted(drafter, [2, 3, 50, 51, 1, 2, 3], tenant="a")[0] == 60
    assert drafted(drafter, [1, 2, 3, 50, 51, 7, 2, 3], tenant="a")[0] == 50


def test_a_draft_does_not_run_from_one_past_text_into_the_next() -> None:
    drafter = SuffixDrafter(shared=SharedTexts())
    end(drafter, SENTENCE[:7], 1, tenant="a")
    end(drafter, [60, 61, 62, 63], 2, tenant="a")
    assert drafted(drafter, SENTENCE[:5], tenant="a") == SENTENCE[5:7]
    across = prospect(drafter, view([*SENTENCE[3:7], 60], tenant="a"), 4)
    assert across is not None
    assert across.context == "1 one"


def test_memory_is_bounded_and_the_oldest_goes_first() -> None:
    drafter = SuffixDrafter(shared=SharedTexts(max_tokens=50, max_tenants=2))
    assert drafter._library is not None
    for number in range(40):
        end(drafter, [number, *SENTENCE[number % 5 :]], number, tenant="a")
        assert drafter._library._shelves["a", 100].num_tokens <= 50
    assert drafted(drafter, [38], tenant="a") != []
    assert drafted(drafter, [3], tenant="a") == []
    for tenant in ("b", "a", "c"):  # b has been quiet longest
        end(drafter, SENTENCE, 1, tenant=tenant)
    assert len(drafter._library) == 2
    assert drafted(drafter, SENTENCE[:5], tenant="b") == []
    assert drafted(drafter, SENTENCE[:5], tenant="c") == SENTENCE[5:9]
    end(drafter, [*range(100)], 1, tenant="c")  # a text longer than all that may be kept
    assert drafted(drafter, [70, 71, 72], tenant="c") == [73, 74, 75, 76]
    assert drafted(drafter, [20, 21, 22], tenant="c") == []


def test_release_forgets_all_of_a_sequence() -> None:
    drafter = SuffixDrafter(shared=SharedTexts())
    end(drafter, SENTENCE, 1)
    assert not drafter._texts
    assert not drafter._found
    assert not drafter._sharing
    drafter.release(12345)


def test_shared_texts_in_the_engine_speed_up_the_same_answer_and_change_nothing() -> None:
    target = ToyModel.random(50, order=3, seed=3, spread=3.0)
    drafter = SuffixDrafter(shared=SharedTexts())
    engine = Engine(target, drafter, FixedLength(6))
    plain = complete(target, [1, 2, 3], temperature=0, max_tokens=40)[1]
    rounds = []
    for tenant in ("a", "b", "a", None):
        sequence = engine.add([1, 2, 3], SamplingParams(temperature=0, max_tokens=40, tenant=tenant))
        run(engine)
        assert sequence.tokens[3:] == plain
        rounds.append(sequence.statistics.rounds)
    assert rounds[0] == rounds[1] == rounds[3]
    assert sum(rounds[2].values()) < sum(rounds[0].values()) / 2


@pytest.mark.parametrize("settings", [{"max_tokens": 0}, {"max_tokens": 1 << 25}, {"max_tenants": 0}])
def test_bad_limits_are_refused_by_name(settings: dict[str, int]) -> None:
    with pytest.raises(ParameterError, match=next(iter(settings))):
        SharedTexts(**settings)


@pytest.mark.parametrize("tenant", ["", 3, b"a"])
def test_a_tenant_is_a_name(tenant: Any) -> None:
    with pytest.raises(ParameterError, match="tenant"):
        SamplingParams(tenant=tenant)


def test_bad_settings_are_refused_by_name() -> None:
    with pytest.raises(ParameterError, match="longest"):
        SuffixDrafter(longest=0)
