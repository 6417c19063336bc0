"""Parameters that name tokens (cases.md C21): keys and values that are none are refused by name, ids the model does not
have are refused before any work, and a bias does the same with and without speculation."""

from __future__ import annotations

import math
from typing import Any

import pytest
from tests.helpers import complete, run
from tests.sampling.tools import SIZE

from forerun.control import FixedLength
from forerun.drafting import LookupDrafter, ModelDrafter
from forerun.drafting.scripted import OracleDrafter
from forerun.engine import Engine
from forerun.errors import ParameterError
from forerun.runtime.toy import ToyModel
from forerun.sampling import SamplingParams

NAN, INF = math.nan, math.inf

BAD_KEYS: list[Any] = [
    "-1", -1, "3.0", 3.0, 3.5, "abc", "", "007", "00", "+1", " 1", "1 ", "1_0", "\u0663", "\u00b2", "1e2", "0x1", None,
    True, False, (1,), b"1", NAN, "9" * 5000, "1" * 30,
]  # fmt: skip
BAD_BIASES: list[Any] = [101, -101, 100.0000001, 1e9, None, NAN, INF, -INF, "5", True, [1], 1j]


@pytest.mark.parametrize("key", BAD_KEYS, ids=lambda value: ascii(value)[:20])
def test_c21_a_key_that_is_no_token_id_is_refused(key: Any) -> None:
    with pytest.raises(ParameterError, match=r"^logit_bias: ") as caught:
        engine_with(logit_bias={1: 1.0, key: 2.0} if key is not True else {key: 2.0})
    assert caught.value.name == "logit_bias"
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("bias", BAD_BIASES, ids=str)
def test_c21_a_bias_that_is_out_of_range_is_refused_with_its_token(bias: Any) -> None:
    with pytest.raises(ParameterError, match=r"^logit_bias: .*token 3") as caught:
        SamplingParams(logit_bias={1: 1.0, 3: bias})
    assert caught.value.name == "logit_bias"


def test_c21_a_token_given_twice_is_refused() -> None:
    for given in ({"3": 1.0, 3: 2.0}, [(3, 1.0), (3, 1.0)], [(3, 1.0), ("3", 2.0)]):
        with pytest.raises(ParameterError, match=r"^logit_bias: token 3 is given twice"):
            SamplingParams(logit_bias=given)  # type: ignore[arg-type]


TARGET = ToyModel.random(SIZE + 2, order=1, seed=4)


def engine_with(**params: Any) -> Any:
    """The sequence of a request to an engine whose rows are padded by two ids beyond the real vocabulary."""
    return Engine(TARGET, vocabulary_size=SIZE).add([1], SamplingParams(max_tokens=3, **params))


@pytest.mark.parametrize("token", [SIZE, SIZE + 1, SIZE + 2, 10**9, 2**63])
@pytest.mark.parametrize(
    "make",
    [lambda t: {"logit_bias": {t: 1.0}}, lambda t: {"logit_bias": {str(t): 1.0}},
     lambda t: {"bad_words": [[1], [1, t]]}, lambda t: {"allowed_token_ids": [1, t]}],
)  # fmt: skip
def test_c21_ids_beyond_the_real_vocabulary_are_refused_by_the_engine(make: Any, token: int) -> None:
    """V, V + 1 and the padding between the tokenizer's size and the rows'; nothing was begun."""
    params = make(token)
    with pytest.raises(ParameterError, match=rf"^{next(iter(params))}: .*{token}.*0.*{SIZE - 1}"):
        engine_with(**params)
    assert TARGET.num_sequences == 0


def test_the_last_real_id_is_taken_and_stop_ids_beyond_it_are_refused() -> None:
    last = SIZE - 1
    engine_with(logit_bias={last: 1.0}, bad_words=[[last]], allowed_token_ids=[0, last], stop_token_ids=[last])
    with pytest.raises(ParameterError, match=r"^stop_token_ids: token id .* is outside"):
        engine_with(stop_token_ids=[last, SIZE])


DRAFTERS: dict[str, Any] = {
    "none": lambda truth: None, "lookup": lambda truth: LookupDrafter(3, 1), "oracle": OracleDrafter,
    "model": lambda truth: ModelDrafter(ToyModel.random(SIZE, order=1, seed=4)),
}  # fmt: skip


@pytest.mark.parametrize("name", DRAFTERS)
def test_c21_a_forced_token_fills_the_text_and_a_biased_away_draft_token_is_rejected(name: str) -> None:
    target = ToyModel.random(SIZE, order=1, seed=4)
    plain = complete(target, [1], max_tokens=20, temperature=0.0)[1]
    truth = {(1,): plain}
    for mode in ({"temperature": 0.0}, {"seed": 3}, {}):
        for k in (1, 4):
            text = complete(target, [1], DRAFTERS[name](truth), k, max_tokens=20, logit_bias={5: 100.0}, **mode)[1]
            assert text == [5] * 20
            text = complete(
                target, [1], DRAFTERS[name](truth), k, max_tokens=20, logit_bias={plain[0]: -100.0}, **mode
            )[1]
            assert plain[0] not in text
            assert len(text) == 20


def test_requests_that_are_refused_leave_the_engine_as_it_was() -> None:
    engine = Engine(TARGET, LookupDrafter(2, 1), FixedLength(2), vocabulary_size=SIZE)
    for params in (
        {"bad_words": ["text"]},
        {"stop": "x"},
        {"regex": "a"},
        {"json_schema": {}},
        {"logit_bias": {99: 1}},
    ):
        with pytest.raises(ParameterError, match=f"^{next(iter(params))}: "):
            engine.add([1], SamplingParams(max_tokens=3, **params))
        assert engine.is_idle
    made = engine.add([1], SamplingParams(max_tokens=3))
    run(engine)
    assert made.finish_reason == "length"
