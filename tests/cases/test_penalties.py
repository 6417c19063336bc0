"""cases.md C10 (whole kind): a penalty sees prompt, accepted tokens and draft prefix, and nothing that was rejected."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.cases.tools import DRAFTERS, SCRIPTED, TorchRows, check_r0, written

from forerun.control import FixedLength
from forerun.errors import ParameterError
from forerun.llm import LLM
from forerun.runtime.toy import ToyModel
from forerun.sampling import Processing
from forerun.verification.broken import BROKEN

SIZE = 24
ECHO = [3, 17, 9, 17, 9, 9]  # "maple maple": a text that repeats itself
NUM_TOKENS = 24


TABLE = np.random.default_rng(33).normal(0.0, 0.7, (SIZE,) * 3)
TABLE[np.arange(SIZE), :, np.arange(SIZE)] += 0.5


def target() -> ToyModel:
    """Fond of going on as its context did, so that lookup has something to find and penalties something to do."""
    return ToyModel.from_table(TABLE)


PENALTIES: dict[str, dict[str, float]] = {
    "frequency -2": {"frequency_penalty": -2}, "frequency 2": {"frequency_penalty": 2},
    "presence 2": {"presence_penalty": 2}, "presence -2": {"presence_penalty": -2},
    "repetition 1.3": {"repetition_penalty": 1.3}, "repetition 0.7": {"repetition_penalty": 0.7},
    "slight repetition": {"repetition_penalty": 1.05},
    "all": {"frequency_penalty": 0.3, "presence_penalty": -0.4, "repetition_penalty": 1.2},
}  # fmt: skip
MODES: dict[str, dict[str, Any]] = {"greedy": {"temperature": 0}, "seeded": {"seed": 11, "temperature": 0.8}}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("penalty", PENALTIES)
def test_c10_every_drafter_and_length_writes_what_plain_decoding_writes(penalty: str, mode: str) -> None:
    params = {"max_tokens": NUM_TOKENS, "logprobs": 0, **PENALTIES[penalty], **MODES[mode]}
    is_listed = mode == "greedy" and penalty in ("frequency -2", "frequency 2", "presence 2", "repetition 1.3")
    check_r0(target, ECHO, drafters=[*SCRIPTED, "lookup"], ks=(2, 8, 48) if is_listed else (8,), **params)
    assert len(check_r0(target, ECHO, drafters=["model"], ks=(3,), **params).tokens) == NUM_TOKENS


@pytest.mark.parametrize("mode", MODES)
def test_c10_penalties_are_never_silent(mode: str) -> None:
    """Each gives a text of its own, with the drafter that hides it best: whole blocks accepted."""
    texts = {}
    for name, penalty in {"none": {}, **PENALTIES}.items():
        params = {"max_tokens": NUM_TOKENS, **penalty, **MODES[mode]}
        drafter = DRAFTERS["oracle"](written(target, None, ECHO, {}, params), target)
        texts[name] = LLM(target(), None, drafter, FixedLength(8)).generate(ECHO, **params).tokens
    assert texts["frequency -2"] != texts["frequency 2"]
    assert texts["presence -2"] != texts["presence 2"]
    assert texts["repetition 0.7"] != texts["repetition 1.3"]
    assert all(texts[name] != texts["none"] for name in PENALTIES)


def expected(rows: Any, prompt: list[int], num: int, repetition: float, frequency: float, presence: float) -> list[int]:
    """The greedy text by the definition: every token's count looked up in the whole text, one at a time."""
    tokens = list(prompt)
    for _ in range(num):
        row = [float(value) for value in rows(tuple(tokens))]
        for token in range(len(row)):
            times = tokens.count(token)
            if times:
                row[token] = row[token] * repetition if row[token] < 0 else row[token] / repetition
                row[token] -= frequency * times + presence
        tokens.append(row.index(max(row)))
    return tokens[len(prompt) :]


@settings(max_examples=40)
@given(
    prompt=st.lists(st.integers(0, 5), min_size=1, max_size=6),
    repetition=st.sampled_from([1.0, 0.71, 1.3, 2.1]),
    frequency=st.sampled_from([0.0, -2.0, 2.0, 0.37]),
    presence=st.sampled_from([0.0, -1.3, 2.0, 0.19]),
    drafter=st.sampled_from(list(DRAFTERS)),
    k=st.sampled_from([2, 8, 48]),
)
def test_c10_the_text_is_the_one_that_counting_gives(
    prompt: list[int], repetition: float, frequency: float, presence: float, drafter: str, k: int
) -> None:
    def make() -> ToyModel:
        return ToyModel.random(6, order=1, seed=12, spread=1.1)

    result = check_r0(
        make, prompt, drafters=[drafter], ks=[k], max_tokens=16, temperature=0, repetition_penalty=repetition,
        frequency_penalty=frequency, presence_penalty=presence,
    )  # fmt: skip
    assert list(result.tokens) == expected(make().logits, prompt, 16, repetition, frequency, presence)


# -- each fault, in a case where it shows ------------------------------------------------------------------------------

A, B, C, D = range(4)


def steady() -> ToyModel:
    """The same row for ever: only penalties move it."""
    return ToyModel.by_position(np.array([[5.5, 4.6, 4.3, -0.4]]))


class _Ignored(Processing):
    """vllm#18902: speculation on, penalties off."""

    def __init__(self, params: Any, *args: Any, **settings: Any) -> None:
        neutral = {"repetition_penalty": 1.0, "frequency_penalty": 0.0, "presence_penalty": 0.0}
        super().__init__(replace(params, **neutral), *args, **settings)


class _AcceptedTwice(Processing):
    """vmlx-swift#357: accepted draft tokens are counted when verified and again when committed."""

    def begin_round(self) -> None:
        if self._history._num_counted:
            self._history.extend(self._tokens[self._history._num_counted : -1])
        super().begin_round()


class _PromptForgotten(Processing):
    """Only what was written counts."""

    def begin_round(self) -> None:
        self._history._num_counted = max(self._history._num_counted, self._prompt_length)
        super().begin_round()


FAULTS: dict[str, tuple[Any, str, list[str]]] = {  # what it is, who drafts where it shows, the penalties that show it
    "ignored": (_Ignored, "oracle", ["frequency", "presence", "repetition"]),
    "last token of a step": (BROKEN["penalty_per_step"].processing, "oracle", ["frequency", "presence", "repetition"]),
    "rejected": (BROKEN["penalty_from_rejected"].processing, "liar", ["frequency", "presence", "repetition"]),
    "accepted twice": (_AcceptedTwice, "oracle", ["frequency"]),
    "draft prefix": (BROKEN["prefix_forgotten"].processing, "oracle", ["frequency", "presence", "repetition"]),
    "prompt": (_PromptForgotten, "oracle", ["frequency", "presence", "repetition"]),
}
STEADY: dict[str, tuple[dict[str, float], list[int]]] = {
    # A (5.5) loses 0.41 a time: after three (one in the prompt, two written) it is 4.27, behind B and C, and so on.
    "frequency": ({"frequency_penalty": 0.41}, [A, A, B, C, A, B, C, A, B, C, A, B]),
    "presence": ({"presence_penalty": 2.0}, [B, C, A, A, A, A, A, A, A, A, A, A]),
    "repetition": ({"repetition_penalty": 1.3}, [B, C, A, A, A, A, A, A, A, A, A, A]),
}


@pytest.mark.parametrize("penalty", STEADY)
@pytest.mark.parametrize("rows, drafters", [(ToyModel, list(DRAFTERS)), (TorchRows, ["oracle"])])
def test_c10_constructed_texts(penalty: str, rows: type[ToyModel], drafters: list[str]) -> None:
    params, tokens = STEADY[penalty]

    def make() -> ToyModel:
        return rows(lambda tokens: np.array([5.5, 4.6, 4.3, -0.4]), 4)

    result = check_r0(make, [A], drafters=drafters, ks=(2, 8), temperature=0, max_tokens=12, **params)
    assert list(result.tokens) == tokens == expected(
        steady().logits, [A], 12, params.get("repetition_penalty", 1.0), params.get("frequency_penalty", 0.0),
        params.get("presence_penalty", 0.0),
    )  # fmt: skip


@pytest.mark.parametrize("fault, penalty", [(fault, penalty) for fault in FAULTS for penalty in FAULTS[fault][2]])
def test_c10_every_fault_changes_a_constructed_text(fault: str, penalty: str) -> None:
    broken, drafter, _ = FAULTS[fault]
    params, tokens = STEADY[penalty]
    params = {"temperature": 0, "max_tokens": 12, **params}
    texts = written(steady, None, [A], {}, params)
    for processing, is_sound in ((Processing, True), (broken, False)):
        llm = LLM(steady(), None, DRAFTERS[drafter](texts, steady), FixedLength(5), make_processing=processing)
        assert (list(llm.generate([A], **params).tokens) == tokens) == is_sound


# -- the rest of the kind ----------------------------------------------------------------------------------------------


def test_c10_a_sampled_draft_is_drawn_from_penalised_rows_too() -> None:
    """Unseeded: the target as its own draft is always accepted, so both processed every row alike."""
    llm = LLM(target(), None, DRAFTERS["self"]({}, target), FixedLength(5))
    for penalty in PENALTIES.values():
        did = llm.generate(ECHO, max_tokens=30, **penalty).speculation
        assert did.num_proposed == did.num_accepted > 15


def test_c10_every_choice_and_neighbour_has_its_own_counts() -> None:
    params = {"seed": 4, "max_tokens": 16, "frequency_penalty": 1.7, "n": 3}
    prompts = [ECHO, [1], ECHO[::-1]]
    alone = [check_r0(target, prompt, drafters=["oracle", "half"], ks=(8,), **params) for prompt in prompts]
    for drafter in ("self", "lookup"):
        together = LLM(target(), None, DRAFTERS[drafter]({}, target), FixedLength(3)).generate(prompts, **params)
        assert [[one.tokens for one in result.choices] for result in together] == [
            [one.tokens for one in result.choices] for result in alone
        ]


@pytest.mark.parametrize(
    "name, value",
    [("frequency_penalty", 2.1), ("frequency_penalty", float("nan")), ("presence_penalty", -2.1),
     ("presence_penalty", "1"), ("repetition_penalty", 0), ("repetition_penalty", -1),
     ("repetition_penalty", float("inf")), ("repetition_penalty", None), ("frequency_penalty", True)],
)  # fmt: skip
def test_c10_what_cannot_be_applied_is_refused_by_name(name: str, value: Any) -> None:
    llm = LLM(target(), None, DRAFTERS["lookup"]({}, target))
    with pytest.raises(ParameterError, match=f"^{name}: "):
        llm.generate(ECHO, max_tokens=4, **{name: value})
    assert len(llm.generate(ECHO, max_tokens=4).tokens) == 4


@pytest.mark.parametrize("penalty", [{"repetition_penalty": 100}, {"repetition_penalty": 0.01}])
def test_c10_extreme_repetition_penalties_never_kill_the_engine(penalty: dict[str, float]) -> None:
    result = check_r0(target, ECHO, ks=(3,), temperature=0, max_tokens=12, **penalty)
    assert len(result.tokens) == 12
