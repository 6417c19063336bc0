"""A user's logits processors under speculation: what they are called with, what they see, and what they may do.

A stateful processor that lives on must have seen exactly the calls of plain decoding, whatever was drafted and
rejected. `Remembering` records the texts it was called with and lets its memory decide the next token, so a wrong call
shows in both.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import log_softmax
from tests.helpers import complete, run
from tests.sampling.tools import LIBRARIES, SIZE, Remembering, Walk, adjusted, by_length, random_rows

from forerun.control import FixedLength
from forerun.drafting import LookupDrafter, ModelDrafter
from forerun.drafting.scripted import HalfDrafter, LiarDrafter, OracleDrafter
from forerun.engine import Engine
from forerun.errors import ParameterError, UserCodeError
from forerun.runtime.toy import ToyModel
from forerun.sampling import SamplingParams, StatefulProcessor
from forerun.sampling.processing import Processing
from forerun.verification import RULES

TARGET, PROMPT, NUM = ToyModel.random(SIZE, order=2, seed=14, spread=1.5), (1, 2, 1, 2), 30
STATEFUL = StatefulProcessor(Remembering)
DRAFTERS: dict[str, Any] = {
    "none": lambda truth: None,
    "lookup": lambda truth: LookupDrafter(3, 1),
    "model": lambda truth: ModelDrafter(ToyModel.random(SIZE, order=1, seed=5)),
    "self": lambda truth: ModelDrafter(ToyModel.random(SIZE, order=2, seed=14, spread=1.5)),
    "unsure": lambda truth: ModelDrafter(ToyModel.random(SIZE, order=1, seed=5), min_confidence=0.2),
    "smaller head": lambda truth: ModelDrafter(ToyModel.random(SIZE - 2, order=1, seed=5)),
    "oracle": OracleDrafter,
    "liar": LiarDrafter,
    "half": HalfDrafter,
}
MODES: dict[str, dict[str, Any]] = {"greedy": {"temperature": 0.0}, "seeded": {"seed": 9}, "free": {}}
LISTS: dict[str, Sequence[Any]] = {
    "stateless": [by_length],
    "stateful": [STATEFUL],
    "two stateful": [STATEFUL, STATEFUL],
    "mixed": [by_length, STATEFUL, by_length],
}


@pytest.fixture(autouse=True)
def rows_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """These tests look at the survivors of the last pass, of which a finished request lets go."""
    monkeypatch.setattr(Processing, "release", lambda processing: None)


def survivors(sequence: Any) -> list[Any]:
    """The sequence's stateful processors, once all it committed is taken in."""
    sequence.processing.begin_round()
    return list(sequence.processing._stateful._committed)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", DRAFTERS)
def test_survivors_have_seen_the_calls_of_plain_decoding(name: str, rule: str, mode: str) -> None:
    for processors in LISTS.values():
        params = {"max_tokens": NUM, "logits_processors": processors, **MODES[mode]}
        plain = complete(TARGET, PROMPT, **params)[1]
        for k in (1, 3, 8):
            drafter = DRAFTERS[name]({PROMPT: plain})
            made, text = complete(TARGET, PROMPT, drafter, k, engine={"rules": RULES[rule]}, **params)
            expected = [(*PROMPT, *text[:i]) for i in range(NUM)]
            for survivor in survivors(made):
                assert survivor.seen == expected
            if mode != "free":
                assert text == plain
            if name not in ("none", "lookup", "unsure", "smaller head"):
                assert made.statistics.num_proposed > 0


def test_a_batch_of_choices_has_a_processor_for_each_text() -> None:
    engine = Engine(TARGET, LookupDrafter(3, 1), FixedLength(4))
    params = SamplingParams(max_tokens=NUM, seed=3, logits_processors=[STATEFUL, by_length])
    made = [engine.add(PROMPT, params, choice=choice) for choice in range(4)]
    run(engine)
    assert len({tuple(sequence.tokens) for sequence in made}) == 4
    for sequence in made:
        text = tuple(sequence.tokens)
        assert [s.seen for s in survivors(sequence)] == [[text[: len(PROMPT) + i] for i in range(NUM)]]


def test_a_processor_that_keeps_to_itself_what_it_was_made_with_is_shared_by_nobody() -> None:
    """`make` may return the same object every time: only copies of it are called."""
    shared = Remembering()
    texts = [complete(TARGET, PROMPT, HalfDrafter({}), 3, max_tokens=9, temperature=0.0,
                      logits_processors=[StatefulProcessor(lambda: shared)])[1] for _ in range(2)]  # fmt: skip
    assert shared.seen == []
    assert texts[0] == texts[1]


@pytest.mark.parametrize("library", LIBRARIES)
def test_processors_are_called_in_the_order_they_are_given(library: str) -> None:
    double = lambda tokens, logits: logits * 2  # noqa: E731
    add = lambda tokens, logits: logits + 1  # noqa: E731

    class Square:
        def __call__(self, tokens: list[int], logits: Any) -> Any:
            return logits * logits

    matrix = LIBRARIES[library](np.array([[1.0, 3.0]]))
    for processors, expected in (
        ([double, add, StatefulProcessor(Square)], [9.0, 49.0]),
        ([StatefulProcessor(Square), double, add], [3.0, 19.0]),
        ([add, StatefulProcessor(Square), double], [8.0, 32.0]),
    ):
        row = Walk([0], size=2, logits_processors=processors).round(matrix, (), "argmax")[0]
        assert adjusted(row).tolist() == expected


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_processor_sees_penalties_and_bias_but_no_bans_and_no_temperature(library: str) -> None:
    seen: list[list[float]] = []

    def look(tokens: list[int], logits: Any) -> Any:
        assert tokens == [0, 1]
        seen.append([float(value) for value in logits])
        return logits

    made = Walk([0], size=4, stop_ids=[3], repetition_penalty=2.0, logit_bias={2: 5.0}, bad_words=[(1,)], min_tokens=9,
                temperature=0.5, top_k=1, logits_processors=[look])  # fmt: skip
    row = made.round(LIBRARIES[library](np.array([[9.0] * 4, [4.0, 2.0, 1.0, 3.0]])), [1], "size")[1]
    assert adjusted(row).tolist() == [2.0, -math.inf, 6.0, -math.inf]
    assert seen == [[2.0, 1.0, 6.0, 3.0]]


# -- what a processor may do with its arguments ------------------------------------------------------------------------


def wipe(tokens: list[int], logits: Any) -> Any:
    """Changes everything it is given, in place."""
    logits[:] = 0.0
    logits[len(tokens) % SIZE] = 5.0
    tokens.clear()
    return logits


def test_changes_in_place_reach_neither_raw_log_probabilities_nor_the_pass() -> None:
    for k in (0, 4):
        engine = Engine(TARGET, LookupDrafter(3, 1), FixedLength(k))
        params = {"max_tokens": NUM, "logits_processors": [wipe, STATEFUL], "logprobs": SIZE, "temperature": 0.0}
        made = engine.add(PROMPT, SamplingParams(**params))
        deltas = run(engine)[made.sequence_id]
        entries = [entry for delta in deltas for entry in delta.logprobs or ()]
        for i, entry in enumerate(entries):
            raw = log_softmax(TARGET.logits(made.tokens[: len(PROMPT) + i]))
            assert entry.logprob == pytest.approx(raw[entry.token], abs=1e-12)
            np.testing.assert_allclose([value for _, value in entry.top], np.sort(raw)[::-1], atol=1e-12)
        assert len(entries) == NUM
        # `wipe` emptied its list of tokens, and its neighbour's is another one.
        assert [s.seen for s in survivors(made)] == [[tuple(made.tokens[: len(PROMPT) + i]) for i in range(NUM)]]


@pytest.mark.parametrize("library", LIBRARIES)
def test_raw_logits_and_confidence_are_the_models_whatever_a_processor_does(library: str) -> None:
    matrix = LIBRARIES[library](random_rows(2, SIZE))
    before = np.asarray(matrix).copy()
    plain = Walk([0]).round(matrix, [3])
    for row, other in zip(Walk([0], logits_processors=[wipe]).round(matrix, [3]), plain, strict=True):
        np.testing.assert_array_equal(np.asarray(row.raw_logits), np.asarray(other.raw_logits))
        assert row.confidence == other.confidence
        assert row.argmax != other.argmax or np.asarray(row.probs).max() != np.asarray(other.probs).max()
    np.testing.assert_array_equal(np.asarray(matrix), before)


@pytest.mark.parametrize("library", LIBRARIES)
def test_an_array_of_the_processors_own_is_not_written_to(library: str) -> None:
    """A table that is returned again and again: what bans rule out must not stay ruled out in it."""
    table = LIBRARIES[library](np.arange(float(SIZE)))
    made = Walk([0], logits_processors=[lambda tokens, logits: table], bad_words=[(7,), (3, 6)])
    first = made.round(LIBRARIES[library](random_rows(2, SIZE, np.float64)), [3])
    assert [row.argmax for row in first] == [6, 5]
    assert table.tolist() == list(range(SIZE))


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_buffer_that_is_used_again_does_not_change_rows_already_processed(library: str) -> None:
    buffer = LIBRARIES[library](np.zeros(SIZE))

    def reuse(tokens: list[int], logits: Any) -> Any:
        buffer[:] = 0.0
        buffer[len(tokens)] = 9.0
        return buffer

    rows = Walk([0], logits_processors=[reuse]).round(
        LIBRARIES[library](random_rows(4, SIZE, np.float64)), [1, 1, 1], "argmax"
    )
    assert [int(np.asarray(row.probs).argmax()) for row in rows] == [1, 2, 3, 4]


@pytest.mark.parametrize("expand", [np.broadcast_to, lambda value, shape: torch.tensor(value).expand(shape)])
def test_a_read_only_or_overlapping_array_is_as_good_as_any(expand: Any) -> None:
    library = "numpy" if expand is np.broadcast_to else "torch"
    made = Walk([0], logits_processors=[lambda tokens, logits: expand(np.float64(1.0), (SIZE,))], bad_words=[(2,)])
    row = made.round(LIBRARIES[library](random_rows(1, SIZE, np.float64)), ())[0]
    np.testing.assert_allclose(np.asarray(row.probs), [0.0 if i == 2 else 1 / 7 for i in range(SIZE)])


# -- what cannot be a processor ----------------------------------------------------------------------------------------


def a_function_that_remembers() -> Any:
    seen: list[int] = []

    def remembering(tokens: list[int], logits: Any) -> Any:
        seen.append(len(tokens))
        return logits

    return remembering


@pytest.mark.parametrize("made", [a_function_that_remembers, lambda: lambda tokens, logits: logits])
def test_a_function_cannot_be_stateful(made: Any) -> None:
    """`copy.deepcopy` of a function is that function: rejected drafts would stay in what it remembers."""
    with pytest.raises(ParameterError, match=r"^logits_processors: .*deepcopy.*__call__"):
        Engine(TARGET).add(PROMPT, SamplingParams(max_tokens=3, logits_processors=[StatefulProcessor(made)]))


@pytest.mark.parametrize("make", [lambda: Remembering().__call__, lambda: functools.partial(Remembering())])
def test_methods_and_partials_of_an_object_are_copied_with_it(make: Any) -> None:
    plain = complete(TARGET, PROMPT, max_tokens=NUM, temperature=0.0, logits_processors=[STATEFUL])[1]
    params = {"max_tokens": NUM, "temperature": 0.0, "logits_processors": [StatefulProcessor(make)]}
    assert complete(TARGET, PROMPT, LiarDrafter({PROMPT: plain}), 3, **params)[1] == plain


def test_a_processor_that_cannot_be_made_is_refused_before_any_work() -> None:
    def broken() -> Any:
        raise KeyError("config")

    engine = Engine(TARGET)
    with pytest.raises(UserCodeError, match=r"KeyError.*config"):
        engine.add(PROMPT, SamplingParams(max_tokens=3, logits_processors=[StatefulProcessor(broken)]))
    assert engine.is_idle
