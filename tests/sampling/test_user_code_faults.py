"""Whatever goes wrong in a request's own code ends that request, with the reason, and nothing else.

In every case the request sits in the middle of a batch, alone faulty; its neighbours' texts, and the engine after it,
are as if it had never been there. Where the fault depends on the text, what was committed before it is kept, and is the
same with and without speculation.
"""

from __future__ import annotations

import copy
import functools
import math
import threading
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from tests.helpers import complete, run
from tests.sampling.tools import SIZE, Parity, Remembering
from tests.verification.laws import TOLERANCE, violations

from forerun.control import FixedLength
from forerun.drafting import LookupDrafter, ModelDrafter
from forerun.drafting.scripted import HalfDrafter, OracleDrafter
from forerun.engine import Engine
from forerun.errors import ContractError, ForerunError, NoLegalTokenError, NumericalError, ParameterError, UserCodeError
from forerun.runtime.toy import ToyModel
from forerun.sampling import SamplingParams, StatefulProcessor
from forerun.sampling.processors import call
from forerun.verification.enumerate import Chooser, enumerating, outcomes

TARGET, PROMPT, NUM = ToyModel.random(SIZE, order=2, seed=14, spread=1.5), (1, 2, 1, 2), 12
MODES: dict[str, dict[str, Any]] = {"greedy": {"temperature": 0.0}, "seeded": {"seed": 9}}
DRAFTERS: dict[str, Any] = {
    "none": lambda truth: None,
    "lookup": lambda truth: LookupDrafter(3, 1),
    "model": lambda truth: ModelDrafter(ToyModel.random(SIZE, order=1, seed=5)),
    "self": lambda truth: ModelDrafter(ToyModel.random(SIZE, order=2, seed=14, spread=1.5)),
    "oracle": OracleDrafter,
    "half": HalfDrafter,
}


def raises(tokens: list[int], logits: Any) -> Any:
    raise KeyError("the user's own bug")


def filled(value: float) -> Any:
    def fill(tokens: list[int], logits: Any) -> Any:
        logits[len(tokens) % SIZE] = value
        return logits

    return fill


class NotCopied(Remembering):
    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()


class Fussy(Remembering):
    def __deepcopy__(self, memo: Any) -> Any:
        raise ValueError("not me")


class NotCallable:
    pass


PROCESSORS: dict[str, tuple[Any, type[ForerunError], str]] = {
    "raises": (raises, UserCodeError, "KeyError.*the user's own bug"),
    "too many arguments": (lambda tokens, logits, more: logits, UserCodeError, "TypeError"),
    "divides by zero": (lambda tokens, logits: logits * (1 // 0), UserCodeError, "ZeroDivisionError"),
    "exits": (lambda tokens, logits: logits + next(iter(())), UserCodeError, "StopIteration"),
    "returns nothing": (lambda tokens, logits: None, UserCodeError, "returned None"),
    "returns a list": (lambda tokens, logits: logits.tolist(), UserCodeError, "returned a list"),
    "returns a number": (lambda tokens, logits: 1.0, UserCodeError, "returned a float"),
    "returns tokens": (lambda tokens, logits: tokens, UserCodeError, "returned a list"),
    "one too short": (lambda tokens, logits: logits[1:], UserCodeError, f"\\({SIZE - 1},\\).*\\({SIZE},\\)"),
    "a matrix": (lambda tokens, logits: logits[None, :], UserCodeError, "shape"),
    "a scalar": (lambda tokens, logits: logits[0], UserCodeError, "a logits processor"),
    "float32": (lambda tokens, logits: logits.astype(np.float32), UserCodeError, "float32.*float64"),
    "whole numbers": (lambda tokens, logits: np.zeros(SIZE, dtype=np.int64), UserCodeError, "int64.*float64"),
    "another library": (lambda tokens, logits: torch.from_numpy(logits), UserCodeError, "float64"),
    "nan": (filled(math.nan), NumericalError, "nan.*logits processor"),
    "infinity": (filled(math.inf), NumericalError, "inf.*logits processor"),
    "nothing left": (lambda tokens, logits: logits - math.inf, NoLegalTokenError, "no token is legal"),
    "not copied": (StatefulProcessor(NotCopied), UserCodeError, "cannot be copied.*lock"),
    "fussy": (StatefulProcessor(Fussy), UserCodeError, "cannot be copied.*not me"),
    "not callable": (StatefulProcessor(NotCallable), UserCodeError, "not callable"),  # type: ignore[arg-type]
}


@functools.cache
def alone(params: tuple[tuple[str, Any], ...]) -> tuple[int, ...]:
    """The text of a request that has the engine to itself, without speculation."""
    return tuple(complete(TARGET, PROMPT, max_tokens=NUM, **dict(params))[1])


def run_between(params: dict[str, Any], drafter: Any, k: int, constraints: Sequence[Any] = ()) -> tuple[Any, Any]:
    """(the sequence, its last delta) of a request with `params` between two plain ones, which must not notice."""
    engine = Engine(TARGET, drafter, FixedLength(k))
    others: list[dict[str, Any]] = [{"temperature": 0.0}, {"seed": 4, "repetition_penalty": 1.1}]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "drafting failed")
        before = engine.add(PROMPT, SamplingParams(max_tokens=NUM, **others[0]))
        made = engine.add(PROMPT, SamplingParams(max_tokens=NUM, **params), constraints=constraints)
        after = engine.add(PROMPT, SamplingParams(max_tokens=NUM, **others[1]))
        deltas = run(engine)
        late = engine.add(PROMPT, SamplingParams(max_tokens=NUM, **others[0]))
        run(engine)
    for sequence, other in ((before, others[0]), (after, others[1]), (late, others[0])):
        assert sequence.finish_reason == "length"
        assert tuple(sequence.tokens[len(PROMPT) :]) == alone(tuple(other.items()))
    assert TARGET.num_sequences == 0
    return made, deltas[made.sequence_id][-1]


@pytest.mark.parametrize("name", DRAFTERS)
@pytest.mark.parametrize("fault", PROCESSORS)
def test_a_faulty_processor_ends_its_request_alone(fault: str, name: str) -> None:
    processor, kind, message = PROCESSORS[fault]
    truth = {PROMPT: alone((("temperature", 0.0),))}
    for mode in (*MODES.values(), {}):
        made, last = run_between({"logits_processors": [processor], **mode}, DRAFTERS[name](truth), 3)
        assert (made.finish_reason, last.finish_reason, made.tokens) == ("error", "error", list(PROMPT))
        assert type(last.error) is kind
        with pytest.raises(kind, match=f"(?s){message}"):
            raise last.error


def after(num_tokens: int, fault: Any) -> Any:
    """Sound up to `num_tokens` tokens, prompt included."""
    return lambda tokens, logits: logits if len(tokens) < num_tokens else fault(tokens, logits)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", DRAFTERS)
@pytest.mark.parametrize("fault", ["raises", "one too short", "nan", "nothing left"])
def test_what_was_committed_before_the_fault_is_kept(fault: str, name: str, mode: str) -> None:
    """Every place in a block: text so far, error and finish reason are those of plain decoding."""
    processor, kind, _ = PROCESSORS[fault]
    plain = list(alone(tuple(MODES[mode].items())))
    for num, k in [(0, 3), (1, 1), (1, 3), (2, 3), (3, 3), (4, 3), (5, 1), (5, 8), (9, 3), (11, 8)]:
        params = {"logits_processors": [after(len(PROMPT) + num, processor)], **MODES[mode]}
        made, last = run_between(params, DRAFTERS[name]({PROMPT: plain}), k)
        assert (made.tokens[len(PROMPT) :], made.finish_reason) == (plain[:num], "error")
        assert type(last.error) is kind


def test_a_fault_in_a_draft_that_is_never_committed_is_none() -> None:
    """A processor that cannot stand token 0 in the text, and a text without one: what drafters tried does not count."""

    def fault(tokens: list[int], logits: Any) -> Any:
        if 0 in tokens:
            raise ValueError("zero")
        return logits

    params: dict[str, Any] = {"logit_bias": {0: -100.0}, "max_tokens": 40}
    for mode in ({"temperature": 0.0}, {"seed": 3}, {}):
        for k in (1, 4):
            for name in ("lookup", "model", "self"):
                with warnings.catch_warnings():
                    warnings.simplefilter("error")
                    made, text = complete(
                        TARGET, PROMPT, DRAFTERS[name]({}), k, logits_processors=[fault], **params, **mode
                    )
                assert (len(text), made.finish_reason) == (40, "length")


# -- constraints -------------------------------------------------------------------------------------------------------


class Broken(Parity):
    """A constraint that fails in `method` once it has taken `num` tokens."""

    def __init__(self, method: str, error: Exception, num: int) -> None:
        super().__init__()
        self.method, self.error, self.num = method, error, num

    def _check(self, method: str) -> None:
        if method == self.method and len(self.taken) >= self.num:
            raise self.error

    def advance(self, token: int) -> bool:
        self._check("advance")
        return super().advance(token)

    def mask(self) -> np.ndarray:
        self._check("mask")
        return super().mask()

    @property
    def is_finished(self) -> bool:
        self._check("is_finished")
        return False


ERRORS = [KeyError("their own bug"), ParameterError("regex", "their own bug"), ContractError("their own bug")]


@pytest.mark.parametrize("name", DRAFTERS)
@pytest.mark.parametrize("method", ["advance", "mask", "is_finished"])
def test_a_faulty_constraint_ends_its_request_alone(method: str, name: str) -> None:
    """Errors of every kind, forerun's own included: a grammar of the package gives up with a ParameterError."""
    plain = alone((("temperature", 0.0),))
    for error in ERRORS:
        for num in (0, 1, 4):
            constraint = Broken(method, error, num)
            drafter = DRAFTERS[name]({PROMPT: plain})
            made, last = run_between({"temperature": 0.0}, drafter, 3, [constraint])
            assert (made.finish_reason, type(last.error)) == ("error", UserCodeError)
            assert "their own bug" in str(last.error)
            assert made.num_output <= num + 1


@pytest.mark.parametrize(
    "mask", [None, [True] * SIZE, np.ones(SIZE - 1, bool), np.ones((1, SIZE), bool), np.ones(SIZE), np.ones(SIZE, "i1")]
)  # fmt: skip
def test_a_mask_of_the_wrong_kind_ends_its_request_alone(mask: Any) -> None:
    class Odd(Parity):
        def mask(self) -> Any:
            return mask

    for name in ("none", "lookup", "model"):
        made, last = run_between({"temperature": 0.0}, DRAFTERS[name]({}), 3, [Odd()])
        assert (made.finish_reason, type(last.error)) == ("error", UserCodeError)
        assert "mask" in str(last.error)


class AfterToken(Parity):
    """All tokens are legal, but no mask can be given after token 1."""

    def mask(self) -> np.ndarray:
        if self.taken[-1:] == [1]:
            raise ValueError("after a one")
        return np.ones(self.size, dtype=bool)


@pytest.mark.parametrize("k", [1, 2])
def test_a_constraint_that_fails_behind_a_draft_token_does_not_bias_the_text(k: int) -> None:
    """A sampled draft may not be dropped because of what was drawn: the law of (text, how it ended) is plain
    decoding's."""
    fragile = [AfterToken(3)]
    assert not violations(law_with(fragile, k), law_with(fragile, 0), TOLERANCE)


class NotAgain(AfterToken):
    """Cannot take token 1."""

    def mask(self) -> np.ndarray:
        return np.ones(self.size, dtype=bool)

    def advance(self, token: int) -> bool:
        if token == 1:
            raise ValueError("not a one")
        return super().advance(token)


@pytest.mark.parametrize("k", [1, 2])
def test_a_constraint_that_fails_behind_a_rejected_draft_leaves_the_others_where_they_were(k: int) -> None:
    """The first constraint took a draft token at which the second one failed; the text goes on without that token."""
    pair = [Parity(3), NotAgain(3)]

    def complete_texts(num_drafted: int) -> dict[Any, float]:
        return {outcome: mass for outcome, mass in law_with(pair, num_drafted).items() if outcome[1] == "length"}

    plain = complete_texts(0)
    assert 0.0 < sum(plain.values()) < 1.0
    assert complete_texts(k) == pytest.approx(plain, abs=TOLERANCE)


def law_with(constraints: Sequence[Any], k: int) -> Any:
    """The exact law of (text, how it ended), with copies of the constraints."""
    target, draft = (ToyModel.random(3, order=1, seed=seed) for seed in (1, 2))

    def one(chooser: Chooser) -> Any:
        noise = enumerating(chooser, "sampled")
        engine = Engine(target, ModelDrafter(draft) if k else None, FixedLength(k), make_noise=noise)
        made = engine.add([0], SamplingParams(max_tokens=3), constraints=copy.deepcopy(list(constraints)))
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "drafting failed")
            run(engine)
        return tuple(made.tokens), made.finish_reason

    return outcomes(one)


def test_a_row_on_another_device_is_refused() -> None:
    with pytest.raises(UserCodeError, match="on meta where"):
        call(lambda tokens, logits: torch.empty(5, device="meta"), [1], torch.zeros(5))


def test_a_class_where_an_object_is_needed_is_named_with_the_remedy() -> None:
    class Memory:
        def __call__(self, tokens: list[int], logits: Any) -> Any:
            return logits

    with pytest.raises(ParameterError, match=r"Memory is a class. StatefulProcessor\(Memory\)"):
        SamplingParams(logits_processors=[Memory])  # type: ignore[list-item]
    assert len(SamplingParams(logits_processors=[StatefulProcessor(Memory)]).logits_processors) == 1
