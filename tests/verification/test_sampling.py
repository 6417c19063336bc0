"""Sampling parameters and processed probabilities: definitions, two libraries, transformers as a witness, bad input.

Extreme numbers (cases.md C16) are in `test_sampling_extremes.py`.
"""

from __future__ import annotations

import inspect
import math
from dataclasses import fields
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.helpers import complete, run
from tests.verification.laws import reference_probs, to_logits

from forerun.control import FixedLength
from forerun.drafting import LookupDrafter, ModelDrafter
from forerun.engine import Engine
from forerun.errors import ContractError, InputError, NumericalError, ParameterError
from forerun.runtime.base import Rows
from forerun.runtime.toy import ToyModel
from forerun.sampling import GREEDY_BELOW, NOT_BUILT, Distribution, SamplingParams

OFF = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
GRID = [
    OFF | change
    for change in (
        {}, {"temperature": 0.3}, {"temperature": 2.5}, {"top_k": 1}, {"top_k": 5}, {"top_k": 39}, {"top_p": 0.11},
        {"top_p": 0.5}, {"top_p": 0.97}, {"min_p": 0.03}, {"min_p": 0.5}, {"min_p": 1.0},
        {"temperature": 0.7, "top_k": 20}, {"temperature": 1.6, "top_p": 0.8}, {"top_k": 12, "top_p": 0.6},
        {"top_p": 0.9, "min_p": 0.1}, {"temperature": 1.3, "top_k": 25, "top_p": 0.9, "min_p": 0.05},
    )
]  # fmt: skip


def processed(row: Any, size: int | None = None, **params: Any) -> Any:
    """What the engine would sample this one row from."""
    matrix = row[None, :]
    return Distribution(Rows(matrix, [1]), 0, SamplingParams(**params), size or int(row.shape[0])).probs


def random_rows(num: int, size: int, dtype: Any = np.float64) -> np.ndarray:
    """Rows of model-like shapes: spread 1 to 8."""
    rng = np.random.default_rng(3)
    return (rng.normal(size=(num, size)) * rng.uniform(1, 8, (num, 1))).astype(dtype)


# -- against transformers ----------------------------------------------------------------------------------------------


def by_transformers(row: np.ndarray, temperature: float, top_k: int, top_p: float, min_p: float) -> np.ndarray:
    """The row through transformers' own warpers, in the order its `generate` applies them."""
    from transformers.generation import logits_process as warpers

    chain: list[Any] = [warpers.TemperatureLogitsWarper(temperature)]
    chain += [warpers.TopKLogitsWarper(top_k)] if top_k else []
    chain += [warpers.TopPLogitsWarper(top_p)] if top_p < 1 else []
    chain += [warpers.MinPLogitsWarper(min_p)] if min_p else []
    scores = torch.from_numpy(row)[None, :]
    for warper in chain:
        scores = warper(torch.zeros((1, 1), dtype=torch.long), scores)
    return torch.softmax(scores, dim=-1)[0].numpy()


@pytest.mark.parametrize("params", GRID, ids=str)
def test_rows_equal_transformers_warpers(params: dict[str, Any]) -> None:
    for row in random_rows(40, 40):
        np.testing.assert_allclose(processed(row, **params), by_transformers(row, **params), rtol=1e-9, atol=1e-15)


@pytest.mark.parametrize("params", GRID, ids=str)
def test_wide_rows_equal_transformers_warpers(params: dict[str, Any]) -> None:
    """3,000 tokens: the nucleus is not always among the few that are sorted first."""
    for row in random_rows(3, 3000) * np.array([[0.02], [0.2], [1.0]]):
        np.testing.assert_allclose(processed(row, **params), by_transformers(row, **params), rtol=1e-9, atol=1e-15)


# -- against the definitions -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("params", GRID, ids=str)
def test_numpy_and_torch_rows_agree_with_the_definitions(params: dict[str, Any]) -> None:
    for row in random_rows(20, 40, np.float32):
        expected = reference_probs(row.astype(np.float64).tolist(), **params)
        by_numpy, by_torch = processed(row, **params), processed(torch.from_numpy(row), **params)
        assert by_numpy.dtype == np.float64
        assert by_torch.dtype == torch.float64
        np.testing.assert_allclose(by_numpy, expected, rtol=1e-12, atol=1e-15)
        np.testing.assert_allclose(by_torch.numpy(), expected, rtol=1e-12, atol=1e-15)


@st.composite
def tied_rows(draw: Any) -> tuple[list[int], dict[str, Any]]:
    """Whole-number weights with many ties, and parameters whose limits no sum of them can hit exactly."""
    weights = draw(st.lists(st.integers(0, 4), min_size=2, max_size=9).filter(any))
    params = {
        "temperature": draw(st.sampled_from([1.0, 0.5, 1.7])),
        "top_k": draw(st.integers(-1, 10)),
        "top_p": draw(st.sampled_from([1.0, 0.1237, 0.4561, 0.7893])),
        "min_p": draw(st.sampled_from([0.0, 0.1373, 0.5171, 0.8713])),
    }
    return weights, params


@settings(max_examples=200)
@given(tied_rows())
def test_ties_and_zeros_agree_with_the_definitions_in_both_libraries(case: tuple[list[int], dict[str, Any]]) -> None:
    weights, params = case
    row = to_logits(weights)
    expected = reference_probs(row.tolist(), **{**params, "top_k": max(params["top_k"], 0)})
    np.testing.assert_allclose(processed(row, **params), expected, rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(processed(torch.from_numpy(row), **params).numpy(), expected, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize(
    ("top_p", "num_kept"), [(0.25, 1), (0.5, 1), (0.5 + 1e-9, 2), (0.75, 2), (0.75 + 1e-9, 3), (0.875, 3), (0.876, 4)]
)
@pytest.mark.parametrize("library", [np.array, torch.tensor])
def test_the_nucleus_ends_where_its_mass_reaches_top_p(library: Any, top_p: float, num_kept: int) -> None:
    """Weights 1/2, 1/4, 1/8, 1/8 are exact: the token that reaches top_p is kept, the next is not."""
    row = library([math.log(8), math.log(2), math.log(4), math.log(2)])
    kept = processed(row, top_p=top_p) > 0
    order = [0, 2, 1, 3]  # of the two equal ones, the lower id first
    assert [bool(kept[i]) for i in order] == [True] * num_kept + [False] * (4 - num_kept)


def test_top_k_keeps_every_tie_with_the_kth() -> None:
    row = to_logits([4, 2, 2, 2, 1])
    assert [(processed(row, top_k=k) > 0).sum() for k in range(7)] == [5, 1, 4, 4, 4, 5, 5]
    assert (processed(row, top_k=-1) == processed(row)).all()


def test_min_p_is_relative_to_the_likeliest_token_and_keeps_the_edge() -> None:
    row = to_logits([8, 4, 2, 1])
    assert [(processed(row, min_p=m) > 0).sum() for m in (0, 0.124, 0.13, 0.25, 0.26, 0.5, 0.51, 1)] == [
        4, 4, 3, 3, 2, 2, 1, 1,
    ]  # fmt: skip
    # A flat row's largest probability is small; relative to 1 nothing would be left.
    assert (processed(np.zeros(100), min_p=0.9) > 0).all()


def test_the_order_is_temperature_top_k_top_p_min_p() -> None:
    """Each pair of neighbours in the order, on a row where the other order keeps other tokens."""
    row = to_logits([8, 4, 2, 1, 1])
    assert (processed(row, temperature=3.0, top_k=2) > 0).sum() == 2
    assert (processed(row, temperature=3.0, top_p=0.5) > 0).sum() == 2  # .5 of the raw row is its first token
    assert (processed(row, temperature=3.0, min_p=0.55) > 0).sum() == 3  # .55 of the raw row's largest is only itself
    assert (processed(row, top_k=2, top_p=0.6) > 0).sum() == 1  # 8/12 of what top-k leaves is enough, 8/16 is not
    assert (
        processed(to_logits([9, 4, 3, 1]), top_p=0.65, min_p=0.4) > 0
    ).sum() == 2  # after min-p, 9/13 would be enough


# -- distributions -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("library", [np.array, torch.tensor])
@pytest.mark.parametrize("params", [{"temperature": 0}, {}, {"temperature": 0.5, "top_k": 2}], ids=str)
def test_the_real_vocabulary_masks_wide_rows_and_pads_narrow_ones(library: Any, params: dict[str, Any]) -> None:
    row = library([0.0, 1.0, -1.0, 9.0, 9.0])
    wide = processed(row, 3, **params)
    np.testing.assert_allclose(np.asarray(wide), np.asarray(processed(row[:3], **params)))
    narrow = processed(row, 8, **params)
    assert narrow.shape[0] == 8
    assert float(narrow[5:].sum()) == 0.0
    np.testing.assert_allclose(np.asarray(narrow[:5]), np.asarray(processed(row, **params)))


@pytest.mark.parametrize("library", [np.array, torch.tensor])
def test_argmax_is_the_lowest_of_the_likeliest_under_any_parameters(library: Any) -> None:
    row = library([[0.0, 3.0, 1.0, 3.0, 3.0]])
    for params in ({}, {"temperature": 0}, {"top_k": 1}, {"top_p": 1e-4}, {"min_p": 1.0}):
        assert Distribution(Rows(row, [1]), 0, SamplingParams(**params), 5).argmax == 1
    greedy = Distribution(Rows(row, [1]), 0, SamplingParams(temperature=0), 5)
    assert greedy.probs.tolist() == [0, 1, 0, 0, 0]
    assert greedy.support[0].tolist() == [1]
    assert greedy.prob(1) == 1.0


def test_each_row_of_a_pass_is_its_own() -> None:
    matrix = np.array([[0.0, 1.0], [2.0, 0.0], [0.0, 3.0]])
    rows = Rows(matrix, [1, 2])
    got = [
        Distribution(rows, rows.index(span, row), SamplingParams(), 2).probs for span, row in ((0, 0), (1, 0), (1, 1))
    ]
    for own, logits in zip(got, matrix, strict=True):
        np.testing.assert_allclose(own, np.exp(logits) / np.exp(logits).sum())


@pytest.mark.parametrize("library", [np.array, torch.tensor])
def test_explicit_distributions_are_normalised_and_described(library: Any) -> None:
    made = Distribution.explicit(library([0.0, 3.0, 1.0]))
    assert made.probs.tolist() == [0.0, 0.75, 0.25]
    assert (made.argmax, made.size, made.prob(2), made.confidence) == (1, 3, 0.25, 0.75)
    ids, log_probs = made.support
    assert ids.tolist() == [1, 2]
    np.testing.assert_allclose(np.asarray(log_probs), np.log([0.75, 0.25]))


@pytest.mark.parametrize("probs", [[0.0, 0.0], [math.nan, 1.0], [math.inf, 1.0], [-1.0, 0.5]])
def test_explicit_refuses_what_has_no_positive_finite_total(probs: list[float]) -> None:
    with pytest.raises(NumericalError, match="sum to"):
        Distribution.explicit(np.array(probs))


def test_confidence_is_the_raw_rows_and_ignores_the_parameters() -> None:
    row = to_logits([6, 3, 1])[None, :]
    for params in ({}, {"temperature": 0}, {"temperature": 3.0}, {"top_k": 1}):
        assert Distribution(Rows(row, [1]), 0, SamplingParams(**params), 3).confidence == pytest.approx(0.6)
    assert Distribution(Rows(row, [1]), 0, SamplingParams(), 2).confidence == pytest.approx(2 / 3)


def test_a_pass_that_returns_the_wrong_number_of_rows_is_refused() -> None:
    with pytest.raises(ContractError, match="returned 2 rows where 3"):
        Rows(np.zeros((2, 4)), [1, 2])


# -- parameters --------------------------------------------------------------------------------------------------------

REFUSED = [
    (
        "temperature",
        (-1, -1e-9, math.inf, -math.inf, math.nan, "inf", "0.7", None, True, 1j, [1.0], 10**400),
        "at least 0",
    ),
    ("top_p", (0, 0.0, -0.5, 1.0000001, 2, math.nan, "1", None, False), "above 0 and at most 1"),
    ("min_p", (-1e-9, 1.0000001, 1.5, math.nan, "0", None, True), "between 0"),
    ("top_k", (-2, 1.0, 0.5, math.nan, "40", None, True), "whole number; 0 or -1 is off"),
    ("seed", (-1, 2**64, 1.0, "7", True, math.nan), "0 to 2\\^64 - 1"),
    ("max_tokens", (-1, 1.5, "16", True), "at least 0, or None"),
    ("stop_token_ids", ([-1], [1.5], ["a"], [True], [None], "12", b"12", 5, {1}, None), "ids"),
    ("ignore_eos", (1, "yes", None), "True or False"),
    ("include_stop_token", (0, "no", None), "True or False"),
]


@pytest.mark.parametrize("name,value,need", [(n, value, need) for n, values, need in REFUSED for value in values])
def test_parameters_out_of_range_are_refused_by_name_with_what_is_allowed(name: str, value: Any, need: str) -> None:
    with pytest.raises(ParameterError, match=f"^{name}: .*{need}") as caught:
        SamplingParams(**{name: value})
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, InputError)
    assert (caught.value.name, caught.value.exit_code) == (name, 2)


@pytest.mark.parametrize(
    ("name", "value"),
    [("temperature", 0), ("temperature", np.float32(0.7)), ("temperature", Fraction(1, 3)), ("temperature", 1e6),
     ("top_p", 1), ("top_p", 1e-9), ("min_p", 0), ("min_p", 1), ("top_k", -1), ("top_k", 10**7), ("top_k", np.int64(4)),
     ("seed", 0), ("seed", 2**64 - 1), ("seed", None), ("max_tokens", 0), ("max_tokens", None),
     ("stop_token_ids", [1, np.int32(2)]), ("stop_token_ids", ()), ("ignore_eos", True)],
)  # fmt: skip
def test_parameters_at_their_limits_are_taken(name: str, value: Any) -> None:
    params = SamplingParams.from_keywords({name: value})
    kept = getattr(params, name)
    assert type(kept) in (int, float, bool, tuple, type(None))
    assert kept == (tuple(value) if name == "stop_token_ids" else float(value) if name == "temperature" else value)
    assert np.isfinite(processed(np.array([1.0, 2.0, 3.0]), **{name: value})).all()


@pytest.mark.parametrize("name", sorted(NOT_BUILT))
def test_parameters_not_built_yet_are_refused_by_name(name: str) -> None:
    with pytest.raises(ParameterError, match=f"^{name}: not built yet") as caught:
        SamplingParams.from_keywords({"temperature": 1.0, name: None})
    assert caught.value.name == name
    assert NOT_BUILT[name] in str(caught.value)


def test_a_near_name_is_asked_for_and_a_question_ends_as_one() -> None:
    with pytest.raises(ParameterError, match=r"did you mean temperature\?$"):
        SamplingParams.from_keywords({"temprature": 1.0})
    with pytest.raises(ParameterError, match=r"did you mean stop\?$"):
        SamplingParams.from_keywords({"stop_sequences": ["a"]})


def test_no_parameter_is_both_built_and_not() -> None:
    names = [field.name for field in fields(SamplingParams)]
    assert not set(NOT_BUILT) & set(names)
    assert all(name in inspect.getdoc(SamplingParams) for name in names)  # type: ignore[operator]


@pytest.mark.parametrize(
    ("name", "near"),
    [("temprature", "temperature"), ("topk", "top_k"), ("top-p", "top_p"), ("minp", "min_p"), ("Seed", "seed"),
     ("max_new_tokens", "max_tokens"), ("stop_token_id", "stop_token_ids"), ("ignore_eso", "ignore_eos")],
)  # fmt: skip
def test_unknown_parameters_are_refused_with_the_nearest_name(name: str, near: str) -> None:
    with pytest.raises(ParameterError, match=f"^{name}: unknown parameter.*did you mean {near}\\?"):
        SamplingParams.from_keywords({name: 1})


def test_unknown_parameters_without_a_near_name_list_all() -> None:
    with pytest.raises(
        ParameterError, match=r"known: temperature, top_k, top_p, min_p, repetition_penalty, .*, prompt_logprobs"
    ):
        SamplingParams.from_keywords({"zzz": 1})


@pytest.mark.parametrize("integer", [np.int64, np.uint64, np.int32])
def test_numpy_integers_are_the_numbers_they_stand_for(integer: Any) -> None:
    """A seed of np.int64 used to pass the check and overflow in the middle of a batch."""
    plain = complete(ToyModel.random(12, seed=2), [1], seed=5, top_k=9, max_tokens=12)[1]
    assert (
        complete(ToyModel.random(12, seed=2), [1], seed=integer(5), top_k=integer(9), max_tokens=integer(12))[1]
        == plain
    )


def test_greedy_begins_where_it_is_said_to() -> None:
    assert SamplingParams(temperature=0).is_greedy
    assert SamplingParams(temperature=GREEDY_BELOW / 2).is_greedy
    assert not SamplingParams(temperature=GREEDY_BELOW).is_greedy
    # A temperature that is merely small still shares the mass among exact ties.
    np.testing.assert_allclose(processed(np.array([2.0, 1.0, 2.0]), temperature=1e-4), [0.5, 0.0, 0.5])


# -- cases.md C12 ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("only", [{"top_k": 8}, {"top_p": 0.9}, {"min_p": 0.05}], ids=str)
@pytest.mark.parametrize("drafter", ["none", "lookup", "model"])
def test_c12_an_unset_temperature_is_one_with_and_without_speculation(drafter: str, only: dict[str, Any]) -> None:
    """20 unseeded texts are not one text, and one seed gives the text of an explicit temperature of 1.0."""
    model = ToyModel.random(12, order=1, seed=6)
    drafters = {"none": None, "lookup": LookupDrafter(2, 1), "model": ModelDrafter(ToyModel.random(12, seed=7))}
    engine = Engine(model, drafters[drafter], FixedLength(0 if drafter == "none" else 3))
    made = [engine.add([1, 2, 1], SamplingParams(max_tokens=12, **only)) for _ in range(20)]
    run(engine)
    assert len({tuple(sequence.tokens) for sequence in made}) >= 2
    assert SamplingParams(**only).temperature == 1.0
    texts = [complete(model, [1, 2, 1], drafters[drafter], 3, max_tokens=12, seed=4, **more)[1]
             for more in (only, {**only, "temperature": 1.0})]  # fmt: skip
    assert texts[0] == texts[1]
