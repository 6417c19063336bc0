"""The index of occurrences: compiled and plain are one, and both are the rule by exhaustive search."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.drafting.occurrences import READ_AT_ONCE, OwnTexts, PlainOccurrences, make_occurrences

KINDS: dict[str, Any] = {"compiled": make_occurrences, "plain": PlainOccurrences}
SIZES = (1, 2, 3, 5, 8)


def search(text: list[int], tail: list[int], sizes: Any, most: int, most_voters: int, is_own: bool) -> Any:
    """The rule by exhaustive search; None in a text divides it."""
    for size in sorted(sizes, reverse=True):
        places = [i for i in range(size, len(text)) if len(tail) >= size and text[i - size : i] == tail[-size:]]
        if not places:
            continue
        voters, tokens, votes, nums = places[-most_voters:][::-1], [], [], []
        for i in range(most):
            said = []
            for place in voters:
                if place + i < len(text):
                    said.append(text[place + i])
                else:
                    said.append(text[place + i % (len(text) - place)] if is_own else None)
            heard = [token for token in said if token is not None]
            if not heard:
                break
            best = max(heard, key=lambda token: (heard.count(token), -heard.index(token)))
            tokens.append(best)
            votes.append(heard.count(best))
            nums.append(len(voters))
            voters = [place for place, token in zip(voters, said, strict=True) if token == best]
        return size, tokens, votes, nums
    return 0, [], [], []


texts = st.lists(st.integers(0, 2), max_size=60)


@pytest.mark.parametrize("kind", KINDS)
@given(texts, st.lists(st.integers(0, 60), max_size=3), st.integers(0, 9), st.integers(1, 5))
def test_what_follows_a_texts_own_end(kind: str, text: list[int], cuts: list[int], most: int, voters: int) -> None:
    index, done = KINDS[kind](SIZES), 0
    for end in sorted({*(min(cut, len(text)) for cut in cuts), len(text)}):
        index.append(text[done:end])
        done = end
        assert index.follow(most, voters) == search(text[:end], text[:end], SIZES, most, voters, True)
    assert index.num_tokens == len(text)


@pytest.mark.parametrize("kind", KINDS)
@given(st.lists(texts, max_size=4), texts, st.integers(1, 5), st.integers(1, 40))
def test_what_follows_in_other_texts_within_a_window(
    kind: str, others: list[list[int]], tail: list[int], voters: int, window: int
) -> None:
    index = KINDS[kind](SIZES, window)
    whole: list[Any] = []
    for other in others:
        index.append(other)
        index.end_text()
        whole += [*other, None]
    assert index.follow_tail(tail, 7, voters) == search(whole[-window:], tail, SIZES, 7, voters, False)
    assert index.num_tokens == min(len(whole), window)


def test_a_window_that_was_filled_many_times_over_is_as_good_as_new() -> None:
    text = [(i * i + i // 7) % 11 for i in range(3_000)]
    worn, plain, fresh = make_occurrences(SIZES, 300), PlainOccurrences(SIZES, 300), make_occurrences(SIZES)
    for token in text:
        worn.append([token])
        plain.append([token])
    fresh.append(text[-300:])
    for end in range(50, 250):
        assert worn.follow_tail(text[:end], 5, 16) == plain.follow_tail(text[:end], 5, 16)
        assert worn.follow_tail(text[:end], 5, 16) == fresh.follow_tail(text[:end], 5, 16)[:4]
    assert worn.num_bytes <= 300 * 2 * 4 * (1 + 2 * len(SIZES))  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", KINDS)
def test_ids_of_31_bits_and_empty_texts(kind: str) -> None:
    index = KINDS[kind](SIZES)
    assert index.follow(4, 4) == index.follow_tail([1, 2], 4, 4) == index.follow_tail([], 4, 4) == (0, [], [], [])
    high = 2**31
    index.append([high, high - 1, 0, high, high - 1])
    assert index.follow(2, 4) == (2, [0, high], [1, 1], [1, 1])
    index.append([])
    assert index.num_tokens == 5


def test_what_the_compiled_index_cannot_hold_is_refused() -> None:
    with pytest.raises(ValueError, match="beyond"):
        make_occurrences(SIZES).append([2**32 - 1])
    for sizes in ([], [0, 1], [2, 2], [3, 1]):
        with pytest.raises(ValueError, match="size"):
            make_occurrences(sizes)


def test_growth_changes_nothing() -> None:
    """Across several enlargements of its tables, with room made before and without."""
    text = [(i * 7919) % 13 if i % 50 < 40 else i for i in range(5_000)]
    roomy, growing = make_occurrences(SIZES), make_occurrences(SIZES)
    roomy.reserve(10_000)
    for start in range(0, len(text), 61):
        roomy.append(text[start : start + 61])
        growing.append(text[start : start + 61])
        assert roomy.follow(6, 16) == growing.follow(6, 16)
    assert roomy.num_entries == growing.num_entries <= len(SIZES) * len(text)


def test_a_long_prompt_is_read_a_piece_at_a_time() -> None:
    class View:
        sequence_id, tokens = 1, [1, 2] * READ_AT_ONCE

    owns, view, num = OwnTexts(SIZES), View(), 0
    while (index := owns.read(view)) is None:  # type: ignore[arg-type]
        num += 1
        assert owns._indexes[1][0].num_tokens == num * READ_AT_ONCE
    assert num == 1
    assert index.follow(3, 4)[1] == [1, 2, 1]


@pytest.mark.parametrize("pattern", ["random", "periodic", "one token", "many alike"])
def test_work_is_bounded_whatever_the_text(pattern: str) -> None:
    for length in (512, 8_192, 65_536):
        text = {
            "random": [(i * 2654435761) % 150_001 for i in range(length)],
            "periodic": [7, 8] * (length // 2),
            "one token": [5] * length,
            "many alike": [i % 3 for i in range(length)],
        }[pattern]
        index = make_occurrences(SIZES)
        index.append(text)
        assert index.num_entries <= len(SIZES) * length
        for _ in range(10):
            index.follow(8, 16)
        assert index.num_looked_at <= 10 * 256
        before = index.num_entries
        index.append([3])
        assert index.num_entries - before == len(SIZES)
