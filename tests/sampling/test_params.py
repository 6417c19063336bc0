"""`SamplingParams`: every field is checked when it is made, and a refusal names the field, what was given and what is
needed. Filters, seed and budgets have more cases in `tests/verification/test_sampling.py`; biases and what needs the
model's vocabulary are in `test_token_ids.py`."""

from __future__ import annotations

import copy
import inspect
import math
import pickle
import re
from dataclasses import MISSING, FrozenInstanceError, fields, replace
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from tests.sampling.tools import Parity, Remembering, by_length

from forerun.errors import InputError, ParameterError
from forerun.sampling import SamplingParams, StatefulProcessor

NAN, INF = math.nan, math.inf
ODD: list[Any] = [NAN, INF, -INF, "1", "", b"1", None, True, False, 1j, [1], (1,), {1}, {1: 1}, object(), Decimal(1)]
"""Nothing that is a number from a user's point of view."""


def written(value: object) -> str:
    """A value in a test's name, which is the same in every process: without addresses."""
    return re.sub(r" at 0x[0-9a-f]+", "", value if isinstance(value, str) and value.isidentifier() else ascii(value))


class Grammar:
    def start(self) -> Parity:
        return Parity()


REAL: dict[str, tuple[Any, ...]] = {  # out of range
    "repetition_penalty": (0, 0.0, -0.0, -1.0, 0.0099, 100.1, 1e300),
    "frequency_penalty": (-2.0000001, 2.0000001, 3, -100),
    "presence_penalty": (-2.0000001, 2.0000001, 3, -100),
}
WHOLE: dict[str, tuple[Any, ...]] = {
    "n": (0, -1, 1.0, 1.5), "best_of": (0, -1, 1.0), "logprobs": (-1, 1.0, 0.5), "prompt_logprobs": (-1, 2.0),
    "min_tokens": (-1, 1.0), "max_tokens": (-1, 1.0),
}  # fmt: skip
OPTIONAL = ("best_of", "logprobs", "prompt_logprobs", "max_tokens")
FLAGS = ("ignore_eos", "include_stop_token", "include_stop_string")
OTHERS: dict[str, list[Any]] = {
    "logprobs_kind": [None, 1, True, "Raw", "", "log", ["raw"], b"raw", {"raw"}],
    "logit_bias": [1, 1.5, True, "1", "12", b"12", [1, 2], [(1,)], [(1, 2, 3)], {1}, {(1, 2): 3}, object()],
    "bad_words": ["word", b"word", 1, {1}, {"word"}, {"word": 1}, object(), [1], [[1.0]], [[-1]], [[True]], [["a"]],
                  [None], [[]], [()], [""], [[1], []], [b"word"], [[1, None]]],
    "allowed_token_ids": [1, "12", b"12", {1}, [], (), [-1], [1.0], [True], ["1"], [None], [[1]], object()],
    "logits_processors": [by_length, StatefulProcessor(Remembering), 1, "name", [1], ["name"], [None], {by_length},
                          {"a": by_length}, [by_length, 1], object()],
    "regex": [1, b"a", ["a"], True, re.compile("a")],
    "json_schema": [1, b"{}", ["{}"], 1.5, object()],
    "constraint": [1, "a", object(), Parity(), Grammar.start],
    "stop": [1, True, [1], [None], [["a"]], b"a", {"a"}, {"a": 1}, object(), [""], "", "\ud83d"],
    "stop_token_ids": [1, "1", {1}, [-1], [1.5], [True], None],
}  # fmt: skip


def refusals() -> list[tuple[str, Any]]:
    cases = [(name, value) for name, values in (*REAL.items(), *WHOLE.items()) for value in values]
    cases += [(name, value) for name in REAL for value in ODD]
    cases += [(name, value) for name in WHOLE for value in ODD if not (value is None and name in OPTIONAL)]
    cases += [(name, value) for name in FLAGS for value in (0, 1, "yes", "", None, [], np.bool_(True))]
    return cases + [(name, value) for name, values in OTHERS.items() for value in values]


@pytest.mark.parametrize(("name", "value"), refusals(), ids=lambda value: written(value)[:40])
def test_what_is_not_allowed_is_refused_by_its_name(name: str, value: Any) -> None:
    with pytest.raises(ParameterError, match=f"^{name}: ") as caught:
        SamplingParams(**{name: value})
    assert caught.value.name == name
    assert isinstance(caught.value, (InputError, ValueError))
    assert len(str(caught.value)) < 300


TAKEN: list[tuple[str, Any, Any]] = [
    ("repetition_penalty", 1, 1.0), ("repetition_penalty", np.float32(1.5), 1.5), ("repetition_penalty", 0.01, 0.01),
    ("repetition_penalty", Fraction(1, 2), 0.5), ("repetition_penalty", 100, 100.0), ("frequency_penalty", -2, -2.0),
    ("frequency_penalty", 2.0, 2.0), ("presence_penalty", np.int64(2), 2.0), ("presence_penalty", -2.0, -2.0),
    ("n", np.int32(3), 3), ("best_of", 1, 1), ("best_of", None, None), ("logprobs", 0, 0), ("logprobs", np.int64(5), 5),
    ("logprobs", 10**7, 10**7), ("prompt_logprobs", 0, 0), ("logprobs_kind", "processed", "processed"),
    ("min_tokens", np.int64(4), 4), ("logit_bias", None, ()), ("logit_bias", {}, ()), ("logit_bias", (), ()),
    ("logit_bias", {5: 1, "3": -100, np.int64(4): np.float32(0.5)}, ((3, -100.0), (4, 0.5), (5, 1.0))),
    ("logit_bias", [(5, 1), (3, 100.0)], ((3, 100.0), (5, 1.0))), ("logit_bias", {"0": 0}, ((0, 0.0),)),
    ("bad_words", None, ()), ("bad_words", ["a b", [1, np.int64(2)], (3,)], ("a b", (1, 2), (3,))),
    ("bad_words", [], ()), ("allowed_token_ids", [3, 1, np.int64(3)], (3, 1, 3)), ("allowed_token_ids", None, None),
    ("allowed_token_ids", range(3), (0, 1, 2)), ("logits_processors", None, ()), ("regex", "a|b", "a|b"),
    ("logits_processors", [by_length], (by_length,)), ("json_schema", {"type": "object"}, {"type": "object"}),
    ("json_schema", "{}", "{}"), ("stop", None, ()), ("stop", "a", ("a",)), ("stop", ["a", "b", "a"], ("a", "b")),
    ("stop_token_ids", [np.int64(3), 1], (3, 1)), ("include_stop_string", True, True),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value", "kept"), TAKEN, ids=lambda value: written(value)[:40])
def test_what_is_allowed_is_kept_as_plain_values(name: str, value: Any, kept: Any) -> None:
    got = getattr(SamplingParams.from_keywords({name: value}), name)
    assert got == kept
    assert type(got) is type(kept)
    if isinstance(kept, tuple) and kept and isinstance(kept[0], (int, tuple)):
        flat = [number for item in got for number in (item if isinstance(item, tuple) else (item,))]
        assert {type(number) for number in flat} <= {int, float, str}


# -- combinations ------------------------------------------------------------------------------------------------------

SCHEMA, ONE = {"type": "integer"}, Grammar()
CONTRADICTIONS: list[tuple[dict[str, Any], str]] = [
    ({"regex": "a", "json_schema": SCHEMA}, "json_schema"), ({"regex": "a", "constraint": ONE}, "constraint"),
    ({"json_schema": SCHEMA, "constraint": ONE}, "constraint"), ({"n": 3, "best_of": 2}, "best_of"),
    ({"min_tokens": 5, "max_tokens": 4}, "min_tokens"), ({"min_tokens": 1, "max_tokens": 0}, "min_tokens"),
    ({"ignore_eos": True, "regex": "a"}, "ignore_eos"), ({"ignore_eos": True, "json_schema": SCHEMA}, "ignore_eos"),
    ({"ignore_eos": True, "constraint": ONE}, "ignore_eos"),
]  # fmt: skip


@pytest.mark.parametrize(("params", "name"), CONTRADICTIONS, ids=written)
def test_contradictions_are_refused_and_each_half_is_fine(params: dict[str, Any], name: str) -> None:
    with pytest.raises(ParameterError, match=f"^{name}: ") as caught:
        SamplingParams(**params)
    assert caught.value.name == name
    for key, value in params.items():
        SamplingParams(**{key: value})


def test_what_only_looks_contradictory_is_taken() -> None:
    SamplingParams(n=3, best_of=3, min_tokens=4, max_tokens=4, regex="a", allowed_token_ids=[1], bad_words=[[1]])
    SamplingParams(temperature=0.0, seed=3, top_k=5, logprobs_kind="processed", prompt_logprobs=2)


# -- the object --------------------------------------------------------------------------------------------------------

FULL: dict[str, Any] = {
    "temperature": 0.7, "top_k": 5, "top_p": 0.9, "min_p": 0.1, "repetition_penalty": 1.2, "frequency_penalty": 0.3,
    "presence_penalty": -0.4, "logit_bias": {"3": 1, 1: 2.0}, "bad_words": ["a", [1, 2]], "allowed_token_ids": [1, 2],
    "logits_processors": [by_length], "regex": "a+", "seed": 7, "n": 2, "best_of": 3, "min_tokens": 1, "max_tokens": 9,
    "stop": "x", "stop_token_ids": [4], "include_stop_token": True, "include_stop_string": True, "logprobs": 2,
    "logprobs_kind": "processed", "prompt_logprobs": 1,
}  # fmt: skip


def test_replace_and_copies_keep_every_value() -> None:
    made = SamplingParams(**FULL)
    for other in (replace(made), replace(made, temperature=0.7), copy.copy(made), pickle.loads(pickle.dumps(made))):
        assert {field.name: getattr(other, field.name) for field in fields(made)} == {
            field.name: getattr(made, field.name) for field in fields(made)
        }
        assert other == made
    changed = replace(made, temperature=0.0, logit_bias=None, n=1)
    assert (changed.temperature, changed.biases, changed.n, changed.seed, changed.stops) == (0.0, (), 1, 7, ("x",))
    with pytest.raises(ParameterError, match=r"^best_of: "):
        replace(made, n=4)


def test_nothing_that_can_change_is_shared() -> None:
    """Defaults are values, and what a caller passed may be changed afterwards without changing the request."""
    assert all(field.default_factory is MISSING for field in fields(SamplingParams))
    assert all(isinstance(field.default, (int, float, str, tuple, type(None))) for field in fields(SamplingParams))
    bias, words, ids, processors, stops = {1: 1.0}, [[1]], [1], [by_length], ["x"]
    made = SamplingParams(
        logit_bias=bias, bad_words=words, allowed_token_ids=ids, logits_processors=processors, stop=stops
    )  # type: ignore[arg-type]
    before = repr(made)
    bias[2], words[0][0], ids[0], processors[0], stops[0] = 5.0, 9, 9, wiped, "y"
    assert repr(made) == before
    with pytest.raises(FrozenInstanceError):
        made.temperature = 0.0  # type: ignore[misc]
    assert SamplingParams() == SamplingParams()


def wiped(tokens: list[int], logits: Any) -> Any:
    raise AssertionError("a processor that was never given")


def test_every_parameter_is_described() -> None:
    described = inspect.getdoc(SamplingParams) or ""
    assert [field.name for field in fields(SamplingParams) if field.name not in described] == []


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [("top_logprobs", "logprobs"), ("max_new_tokens", "max_tokens"), ("min_new_tokens", "min_tokens"),
     ("bad_words_ids", "bad_words"), ("sequence_bias", "logit_bias"), ("logits_processor", "logits_processors"),
     ("num_return_sequences", "n"), ("guided_json", "json_schema"), ("stop_strings", "stop"), ("frequncy_penalty",
     "frequency_penalty"), ("logitbias", "logit_bias"), ("repeat_penalty", "repetition_penalty")],
)  # fmt: skip
def test_other_engines_names_and_typing_errors_lead_to_ours(theirs: str, ours: str) -> None:
    with pytest.raises(ParameterError, match=f"^{theirs}: unknown parameter.*did you mean {ours}\\?"):
        SamplingParams.from_keywords({theirs: 1})


@pytest.mark.parametrize("name", ["seed", "repetition_penalty", "temperature", "presence_penalty"])
def test_a_number_too_long_to_be_written_out_is_refused_like_any_other(name: str) -> None:
    with pytest.raises(ParameterError, match=f"^{name}: a whole number of 16610 bits"):
        SamplingParams(**{name: 10**5000})
