"""Presence, frequency and repetition penalties: their formulas in plain Python, and counts of committed tokens alone.

Frequency and presence are OpenAI's formula, logit - count * frequency_penalty - (count > 0) * presence_penalty, here
over prompt and output, as transformers counts for the repetition penalty (equality with it: `test_transformers.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.helpers import complete, run
from tests.sampling.tools import INF, LIBRARIES, SIZE, Walk, adjusted, rows, texts

from forerun.control import FixedLength
from forerun.drafting import LookupDrafter, ModelDrafter
from forerun.drafting.scripted import HalfDrafter, LiarDrafter, OracleDrafter
from forerun.engine import Engine
from forerun.runtime.toy import ToyModel
from forerun.sampling import Processing, SamplingParams
from forerun.sampling.history import History


def reference(
    row: Sequence[float], tokens: Sequence[int], repetition: float = 1.0, frequency: float = 0.0, presence: float = 0.0
) -> list[float]:
    """A row after the penalties, token by token."""
    found = []
    for token, logit in enumerate(row):
        count = list(tokens).count(token)
        if count and repetition != 1.0:
            logit = logit / repetition if logit > 0 else logit * repetition
        found.append(logit - count * frequency - (1 if count else 0) * presence)
    return found


PENALTY = st.sampled_from([-2.0, -0.5, 0.0, 0.25, 2.0]) | st.floats(-2, 2)


@pytest.mark.parametrize("library", LIBRARIES)
@settings(max_examples=100)
@given(
    row=rows(SIZE), prompt=texts(SIZE, 1), output=texts(SIZE), prefix=texts(SIZE, 0, 3), frequency=PENALTY,
    presence=PENALTY, repetition=st.sampled_from([1.0, 1.3, 0.6]),
)  # fmt: skip
def test_penalties_are_their_formulas_over_prompt_output_and_prefix(
    library: str, row: np.ndarray, prompt: list[int], output: list[int], prefix: list[int], frequency: float,
    presence: float, repetition: float,
) -> None:  # fmt: skip
    made = Walk(prompt, frequency_penalty=frequency, presence_penalty=presence, repetition_penalty=repetition)
    made.tokens.extend(output)
    matrix = LIBRARIES[library](np.repeat(row, len(prefix) + 1, axis=0).astype(np.float64))
    for i, one in enumerate(made.round(matrix, prefix, "argmax")):
        expected = reference(row[0].tolist(), [*prompt, *output, *prefix[:i]], repetition, frequency, presence)
        np.testing.assert_allclose(adjusted(one), expected, rtol=1e-14, atol=1e-14)


def test_the_formula_by_hand() -> None:
    """Token 1 twice, token 2 once, token 0 never; logits of both signs."""
    made = Walk([1, 2, 1], size=4, frequency_penalty=0.5, presence_penalty=0.25)
    assert adjusted(made.round(np.array([[1.0, 1.0, -1.0, 3.0]]), ())[0]).tolist() == [1.0, -0.25, -1.75, 3.0]
    made = Walk([1, 2, 1], size=4, repetition_penalty=2.0)
    assert adjusted(made.round(np.array([[1.0, 1.0, -1.0, 3.0]]), ())[0]).tolist() == [1.0, 0.5, -2.0, 3.0]


@pytest.mark.parametrize(
    ("params", "sign"),
    [({"frequency_penalty": 1.0}, -1), ({"frequency_penalty": -1.0}, 1), ({"presence_penalty": 1.0}, -1),
     ({"presence_penalty": -1.0}, 1), ({"repetition_penalty": 1.5}, -1), ({"repetition_penalty": 0.5}, 1)],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("logit", [-2.0, 2.0])
def test_a_positive_penalty_makes_a_token_less_likely(params: dict[str, float], sign: int, logit: float) -> None:
    row = np.array([[logit, logit]])
    before, after = adjusted(Walk([0], size=2, **params).round(row, ())[0])[[1, 0]]
    assert np.sign(after - before) == sign


@pytest.mark.parametrize("library", LIBRARIES)
def test_penalties_come_before_bias_and_processors(library: str) -> None:
    """A penalty divides the model's logit, not the biased one; a processor sees both done."""
    seen: list[list[float]] = []

    def look(tokens: list[int], logits: Any) -> Any:
        seen.append([float(value) for value in logits])
        return logits

    made = Walk(
        [0], size=2, repetition_penalty=2.0, frequency_penalty=1.0, logit_bias={0: 4.0}, logits_processors=[look]
    )
    made.round(LIBRARIES[library](np.array([[8.0, 1.0]])), ())
    assert seen == [[8.0 / 2 - 1.0 + 4.0, 1.0]]


# -- counts ------------------------------------------------------------------------------------------------------------


@settings(max_examples=100)
@given(st.lists(st.tuples(st.lists(st.integers(0, 200), max_size=90), st.lists(st.integers(0, 200), max_size=9))))
def test_a_history_is_a_counter_and_a_prefix_changes_nothing(steps: list[tuple[list[int], list[int]]]) -> None:
    history, model = History(), Counter[int]()
    for committed, prefix in steps:
        history.extend(committed)
        model.update(committed)
        for draft in (prefix, (), prefix):
            ids, counts = history.after(draft)
            assert dict(zip(ids.tolist(), counts.tolist(), strict=True)) == model + Counter(draft)
            assert len(set(ids.tolist())) == len(ids)
            assert (ids.dtype, counts.dtype) == (np.int64, np.int64)


TARGET, PROMPT, NUM = ToyModel.random(SIZE, order=1, seed=4, spread=2.0), [1, 2, 1, 2], 40


class Counted(Processing):
    """Checks at the start of every round that what is counted is what is committed."""

    num_rounds = 0

    def begin_round(self) -> None:
        super().begin_round()
        ids, counts = self._history.after(())
        assert dict(zip(ids.tolist(), counts.tolist(), strict=True)) == Counter(self._tokens)
        Counted.num_rounds += 1


DRAFTERS: dict[str, Any] = {
    "none": lambda truth: None,
    "lookup": lambda truth: LookupDrafter(3, 1),
    "model": lambda truth: ModelDrafter(ToyModel.random(SIZE, order=1, seed=5, spread=2.0)),
    "self": lambda truth: ModelDrafter(ToyModel.random(SIZE, order=1, seed=4, spread=2.0)),
    "oracle": OracleDrafter,
    "liar": LiarDrafter,
    "half": HalfDrafter,
}
PENALTIES = [
    {"frequency_penalty": 2.0}, {"frequency_penalty": -2.0}, {"presence_penalty": 2.0}, {"repetition_penalty": 1.3},
    {"frequency_penalty": 0.3, "presence_penalty": -0.4, "repetition_penalty": 1.1},
]  # fmt: skip
MODES: dict[str, dict[str, Any]] = {"greedy": {"temperature": 0.0}, "seeded": {"seed": 9}, "free": {}}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("k", [2, 8, 48])
@pytest.mark.parametrize("name", DRAFTERS)
def test_counts_are_those_of_the_committed_tokens_after_every_round(name: str, k: int, mode: str) -> None:
    """cases.md C10: drafts accepted in part, whole and not at all; the text is that of plain decoding."""
    for params in PENALTIES:
        plain = complete(TARGET, PROMPT, max_tokens=NUM, **params, **MODES[mode])[1]
        drafter = DRAFTERS[name]({tuple(PROMPT): plain})
        before = Counted.num_rounds
        settings = {"make_processing": Counted}
        made, text = complete(TARGET, PROMPT, drafter, k, engine=settings, max_tokens=NUM, **params, **MODES[mode])
        assert Counted.num_rounds - before >= 40 // (k + 1)
        assert len(text) == NUM
        if mode != "free":
            assert text == plain
        if name == "oracle" and mode != "free":
            assert made.statistics.acceptance_rate == 1.0
        if name == "liar" and mode != "free":
            assert made.statistics.num_accepted == 0


def test_one_batch_of_different_penalties_counts_each_text_by_itself() -> None:
    engine = Engine(TARGET, LookupDrafter(3, 1), FixedLength(4), make_processing=Counted)
    made = [engine.add(PROMPT, SamplingParams(max_tokens=NUM, temperature=0.0, **params)) for params in PENALTIES]
    run(engine)
    for sequence, params in zip(made, PENALTIES, strict=True):
        assert sequence.tokens[4:] == complete(TARGET, PROMPT, max_tokens=NUM, temperature=0.0, **params)[1]
    assert len({tuple(sequence.tokens) for sequence in made}) >= 3


def test_opposite_penalties_do_opposite_things() -> None:
    """cases.md C10: an engine in which -2 and 2 gave the same text had ignored both."""
    kinds = {
        penalty: len(set(complete(TARGET, PROMPT, LookupDrafter(3, 1), 4, max_tokens=NUM, temperature=0.0,
                                  frequency_penalty=penalty)[1]))
        for penalty in (-2.0, 2.0)
    }  # fmt: skip
    assert kinds[-2.0] <= 2
    assert kinds[2.0] == SIZE


def test_impossible_tokens_stay_impossible() -> None:
    row = np.array([[-INF, 0.0, 1.0, -INF]], dtype=np.float32)
    got = Walk([0, 3], size=4, repetition_penalty=0.1, frequency_penalty=-2.0, presence_penalty=-2.0).round(row, ())[0]
    assert np.isneginf(adjusted(got)).tolist() == [True, False, False, True]
