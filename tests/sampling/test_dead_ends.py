"""Where everything is ruled out: the request ends there with NoLegalTokenError, its text so far kept, and nobody else
notices. Plain decoding and every way of drafting come to the same place.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.helpers import complete, run
from tests.sampling.tools import INF, LIBRARIES, SIZE, Parity, Walk, random_rows
from tests.verification.laws import TOLERANCE, violations

from forerun.constraints import TokenSet
from forerun.control import FixedLength
from forerun.drafting import LookupDrafter, ModelDrafter
from forerun.drafting.scripted import HalfDrafter, LiarDrafter, OracleDrafter
from forerun.engine import Engine
from forerun.errors import NoLegalTokenError, NumericalError
from forerun.runtime.toy import ToyModel
from forerun.sampling import SamplingParams
from forerun.verification import RULES
from forerun.verification.enumerate import Chooser, enumerating, outcomes

RULED_OUT: dict[str, dict[str, Any]] = {
    "words and set": {"allowed_token_ids": [1, 2], "bad_words": [(1,), (2,)]},
    "all words": {"bad_words": [(i,) for i in range(SIZE)]},
    "ends and set": {"allowed_token_ids": [6], "min_tokens": 3, "stop_ids": [6]},
    "processor": {"logits_processors": [lambda tokens, logits: logits - INF]},
    "word after processor": {"logits_processors": [lambda tokens, logits: lone(logits)], "bad_words": [(4,)]},
}


def lone(logits: Any) -> Any:
    """Only token 4 is left."""
    value = float(logits[4])
    logits[:] = -INF
    logits[4] = value if value > -INF else 0.0
    return logits


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("name", RULED_OUT)
def test_every_look_at_a_dead_row_says_so(name: str, library: str) -> None:
    params = dict(RULED_OUT[name])
    allowed = params.pop("allowed_token_ids", None)
    for filters in ({"temperature": 0.0}, {}, {"top_k": 1, "top_p": 0.1, "min_p": 0.5}):
        constraints = [TokenSet(allowed, SIZE).start()] if allowed else []
        made = Walk([0], constraints=constraints, **params, **filters)
        row = made.round(LIBRARIES[library](random_rows(1, SIZE)), (), "size")[0]
        for _ in range(2):
            for look in ("argmax", "probs", "support"):
                with pytest.raises(NoLegalTokenError, match=r"no token is legal.*bad_words.*allowed_token_ids"):
                    getattr(row, look)
        assert 0.0 < row.confidence <= 1.0  # the model's own row is as good as ever
    assert issubclass(NoLegalTokenError, NumericalError)


# -- through the engine: 1, 2, 3, 4 and then nowhere -------------------------------------------------------------------

CHAIN = np.full((SIZE, SIZE), -30.0)
CHAIN[np.arange(SIZE), (np.arange(SIZE) + 1) % SIZE] = 30.0
TARGET = ToyModel.from_table(CHAIN)
ENDS: dict[str, dict[str, Any]] = {
    "words and set": {"allowed_token_ids": [1, 2, 3, 4], "bad_words": [[4, i] for i in range(1, 5)]},
    "ends and set": {"allowed_token_ids": [1, 2, 3, 4, 5], "bad_words": [[4, i] for i in range(1, 5)], "min_tokens": 9,
                     "stop_token_ids": [5]},
    "long words": {"bad_words": [[2, 3, 4, i] for i in range(SIZE)]},
    "processor": {"logits_processors": [lambda tokens, logits: logits - INF if tokens[-1] == 4 else logits]},
}  # fmt: skip
TRUTH = {(0,): [1, 2, 3, 4, 4, 4, 4, 4, 4, 4, 4]}
DRAFTERS: dict[str, Callable[[], Any]] = {
    "none": lambda: None,
    "model": lambda: ModelDrafter(ToyModel.from_table(CHAIN)),
    "poor model": lambda: ModelDrafter(ToyModel.random(SIZE, seed=3)),
    "smaller head": lambda: ModelDrafter(ToyModel.from_table(CHAIN[: SIZE - 3, : SIZE - 3])),
    "lookup": lambda: LookupDrafter(2, 1),
    "oracle": lambda: OracleDrafter(TRUTH),
    "half": lambda: HalfDrafter(TRUTH),
    "liar": lambda: LiarDrafter(TRUTH),
}
MODES: list[dict[str, Any]] = [{"temperature": 0.0}, {"seed": 5}, {}]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("name", ENDS)
def test_the_text_so_far_is_that_of_plain_decoding_and_neighbours_go_on(name: str, drafter: str, rule: str) -> None:
    for mode in MODES:
        for k in (1, 2, 3, 4, 5, 8):
            engine = Engine(TARGET, DRAFTERS[drafter](), FixedLength(k), rules=RULES[rule])
            before = engine.add([0], SamplingParams(max_tokens=9, temperature=0.0))
            made = engine.add([0], SamplingParams(max_tokens=20, **ENDS[name], **mode))
            after = engine.add([3], SamplingParams(max_tokens=9, temperature=0.0, logit_bias={0: -1.0}))
            with warnings.catch_warnings():
                warnings.simplefilter("error")  # a dead end is no failure of the draft model
                deltas = run(engine)
            assert (made.tokens, made.finish_reason) == ([0, 1, 2, 3, 4], "error")
            ends = [delta for delta in deltas[made.sequence_id] if delta.finish_reason is not None]
            assert [(type(delta.error), delta.tokens) for delta in ends] == [(NoLegalTokenError, ())]
            assert [token for delta in deltas[made.sequence_id] for token in delta.tokens] == [1, 2, 3, 4]
            assert before.tokens == [0, 1, 2, 3, 4, 5, 6, 7, 0, 1]
            assert after.tokens == [3, 4, 5, 6, 7, 0, 1, 2, 3, 4]
            assert TARGET.num_sequences == 0


def test_statistics_count_what_was_kept() -> None:
    """The rows of the last block: 4 tokens accepted, and none of the target's own."""
    engine = Engine(TARGET, DRAFTERS["oracle"](), FixedLength(4))
    made = engine.add([0], SamplingParams(max_tokens=20, temperature=0.0, **ENDS["long words"]))
    run(engine)
    assert (made.statistics.num_emitted, made.statistics.num_accepted, made.num_output) == (4, 4, 4)


# -- a draft model that knows no way on --------------------------------------------------------------------------------


def draft_without(tokens: list[int]) -> ToyModel:
    """A draft that is right but for thinking that some tokens are impossible after token 2."""
    table = CHAIN.copy()
    table[2, tokens] = -INF
    return ToyModel.from_table(table)


@pytest.mark.parametrize("mode", MODES, ids=["greedy", "seeded", "free"])
def test_a_draft_models_dead_end_only_makes_its_drafts_shorter(mode: dict[str, Any]) -> None:
    """After token 2 it gives no mass to what is allowed: it drafts that far, without a warning, and later on."""
    params = {"max_tokens": 12, "allowed_token_ids": [1, 2, 3, 4], "bad_words": [[4, 2], [4, 3], [4, 4]], **mode}
    plain = complete(TARGET, [1], **params)[1]
    assert plain[:6] == [2, 3, 4, 1, 2, 3]
    drafter = ModelDrafter(draft_without([1, 2, 3, 4]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made, text = complete(TARGET, [1], drafter, 4, **params)
    assert text == plain
    # From 1 it can draft 2; from 3 it drafts 4, 1, 2; nothing behind a 2.
    assert made.statistics.num_accepted == made.statistics.num_proposed > 0
    assert max(proposed for proposed, _ in made.statistics.rounds) <= 3


def test_a_dead_end_of_the_draft_does_not_bias_a_free_text() -> None:
    """Exact law, on a table where the draft is stuck after some of its own tokens."""
    target, rng = ToyModel.random(3, order=1, seed=1), np.random.default_rng(4)
    table = rng.normal(size=(3, 3))
    table[1, [0, 2]] = -INF  # with token 1 banned after token 1, the draft is stuck there
    params = {"max_tokens": 3, "bad_words": [[1, 1], [2, 0]], "repetition_penalty": 1.5}

    def law(k: int, rule: str) -> Any:
        def one(chooser: Chooser) -> Any:
            drafter = ModelDrafter(ToyModel.from_table(table)) if k else None
            noise = enumerating(chooser, "sampled")
            engine = Engine(target, drafter, FixedLength(k), make_noise=noise, rules=RULES[rule])
            made = engine.add([0], SamplingParams(**params))
            run(engine)
            return tuple(made.tokens), made.finish_reason

        return outcomes(one)

    plain = law(0, "block")
    assert len(plain) > 10
    for rule in RULES:
        for k in (1, 2):
            assert not violations(law(k, rule), plain, TOLERANCE)


def test_a_dead_end_of_a_constraint_alone() -> None:
    """A constraint of the user's own whose mask becomes empty."""

    class Three(Parity):
        def mask(self) -> np.ndarray:
            return np.full(self.size, len(self.taken) < 3)

    for drafter in DRAFTERS.values():
        engine = Engine(TARGET, drafter(), FixedLength(4))
        made = engine.add([0], SamplingParams(max_tokens=20, temperature=0.0), constraints=[Three()])
        deltas = run(engine)[made.sequence_id]
        assert (made.tokens, type(deltas[-1].error)) == ([0, 1, 2, 3], NoLegalTokenError)
