"""cases.md C22 (whole kind): structured output under speculation, with drafts that break a grammar or pass its end."""

from __future__ import annotations

import json
import logging
import re
import warnings
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest
from tests.cases.tools import DRAFTERS, check_r0, outcome, pieces_tokenizer, request

from forerun.constraints import TokenSet
from forerun.constraints.grammar import compile_regex
from forerun.constraints.vocabulary import Vocabulary
from forerun.control import FixedLength
from forerun.drafting import ModelDrafter
from forerun.errors import NoLegalTokenError, ParameterError
from forerun.llm import LLM
from forerun.runtime.toy import ToyModel
from forerun.types import Draft, Plan, Prospect

PIECES = [
    *"{}:,\"- 0123456789aefklnorstu", '"ok"', '"n"', '{"', "ok", '":', "true", "fal", "se", "\n", "\n\n", "```", "json",
    "12", "true,", ' "', "}\n", "\u65e5".encode()[:1], "\u65e5".encode()[1:],
]  # fmt: skip
TOKENIZER = pieces_tokenizer(PIECES)
EOS = TOKENIZER.eos_ids[0]
SIZE = TOKENIZER.vocabulary_size
FENCE, BLANK = PIECES.index("```"), PIECES.index("\n\n")
PROMPT = "{}"

OK_N = {
    "type": "object", "properties": {"ok": {"type": "boolean"}, "n": {"type": "integer"}}, "required": ["ok", "n"],
    "additionalProperties": False,
}  # fmt: skip
NOTE = {"type": "object", "properties": {"n": {"type": "string"}}, "required": ["n"], "additionalProperties": False}
MODES: dict[str, dict[str, Any]] = {"greedy": {"temperature": 0}, "seeded": {"seed": 17, "temperature": 1.0}}


@cache
def table_of(padding: int) -> np.ndarray:
    """Any token may follow any two; closing, quoting and ending are likely enough for texts to end."""
    table = np.random.default_rng(1).normal(0.0, 1.0, (SIZE, SIZE, SIZE + padding))
    table[..., [PIECES.index("}"), PIECES.index('"'), EOS]] += 2.0
    table[..., SIZE:] = 50.0  # padded ids, the favourites of all
    return table


def target(padding: int = 0) -> ToyModel:
    table = table_of(padding)
    return ToyModel(lambda tokens: table[((0, *tokens)[-2], tokens[-1])], SIZE + padding)


def is_ok_n(text: str) -> bool:
    found = json.loads(text)
    return set(found) == {"ok", "n"} and type(found["ok"]) is bool and type(found["n"]) is int


class Junk:
    """Proposes what models draft against a grammar: a code fence at the beginning, blank lines inside strings, and
    tokens of the wrong kind, behind a few that are right now and then."""

    needs: tuple[str, ...] = ()

    def __init__(self) -> None:
        self.num_calls = 0

    def prospects(self, sequences: Sequence[Any], longest: Sequence[int]) -> list[list[Prospect]]:
        return [[] for _ in sequences]

    def propose(self, sequences: Sequence[Any], plans: Sequence[Plan]) -> list[Draft]:
        return [Draft(tuple(self._one(sequence, plan.shape))) for sequence, plan in zip(sequences, plans, strict=True)]

    def _one(self, sequence: Any, shape: int) -> list[int]:
        self.num_calls += 1
        if len(sequence.tokens) == sequence.prompt_length:
            return [FENCE, PIECES.index("json"), BLANK, *[FENCE] * shape][:shape]
        kinds = [[BLANK], [FENCE], [EOS], [PIECES.index("a"), BLANK], [PIECES.index('"'), EOS, EOS, FENCE]]
        return (kinds[self.num_calls % len(kinds)] * shape)[:shape]

    def observe(self, sequences: Any, rows: Any, verdicts: Any) -> None:
        pass

    def release(self, sequence_id: int) -> None:
        pass


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """An illegal draft is no event: nothing is logged above debug, and nothing is warned of."""
    caplog.set_level(logging.DEBUG)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield
    assert not [record for record in caplog.records if record.levelno > logging.DEBUG]


# -- always legal, always plain decoding's text ------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("padding", [0, 9])
def test_c22_json_is_what_plain_decoding_writes_for_every_drafter(mode: str, padding: int) -> None:
    """The oracle knows the text and what the target would write behind its end, unconstrained: junk."""

    def make() -> ToyModel:
        return target(padding)

    for schema in (OK_N, NOTE):
        params = {"json_schema": schema, "max_tokens": 200, "logprobs": 1, **MODES[mode]}
        result = check_r0(make, PROMPT, tokenizer=TOKENIZER, ks=(7, 1) if schema is OK_N else (7,), **params)
        assert result.finish_reason == "stop"
        assert max(result.tokens) < SIZE
        assert is_ok_n(result.text) if schema is OK_N else isinstance(json.loads(result.text)["n"], str)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("k", [1, 3, 7])
def test_c22_junk_drafts_change_nothing(mode: str, k: int) -> None:
    for schema in (OK_N, NOTE):
        params = {"json_schema": schema, "max_tokens": 200, "logprobs": 1, **MODES[mode]}
        plain = request(LLM(target(), TOKENIZER), PROMPT, **params)
        drafter = Junk()
        result = request(LLM(target(), TOKENIZER, drafter, FixedLength(k)), PROMPT, **params)
        assert outcome(result) == outcome(plain)
        assert drafter.num_calls


@pytest.mark.parametrize("drafter", ["junk", "self", "model", "lookup"])
@pytest.mark.parametrize("temperature", [1.0, 2.5])
def test_c22_sampled_texts_all_parse(drafter: str, temperature: float) -> None:
    used = Junk() if drafter == "junk" else DRAFTERS[drafter]({}, target)
    llm = LLM(target(), TOKENIZER, used, FixedLength(7))
    texts = set()
    for _ in range(10):
        for result in llm.generate([PROMPT, "json"], json_schema=OK_N, max_tokens=300, temperature=temperature):
            assert result.finish_reason == "stop"
            assert is_ok_n(result.text)
            texts.add(result.text)
    assert len(texts) > 8


REGEXES = [
    r"(ok|n)+[0-9]{2}",
    r"-?(0|[1-9][0-9]*)",
    r"\"[a-z]*\"",
    "(\u65e5|0){0,9}\n",
    r"true|false",
    r"[0-9]{12}",
    r"(a?e){1,4}",
]


@pytest.mark.parametrize("pattern", REGEXES)
def test_c22_patterns_match_the_whole_text(pattern: str) -> None:
    for params in MODES.values():
        result = check_r0(
            target, PROMPT, tokenizer=TOKENIZER, ks=(7,), drafters=["oracle", "half", "self"],
            regex=pattern, max_tokens=100, **params,
        )  # fmt: skip
        assert result.finish_reason == "stop"
        assert re.fullmatch(pattern, result.text)


def test_c22_a_grammar_that_is_complete_ends_the_text_where_the_model_has_no_end_of_text() -> None:
    """openvino.genai#4081: nothing is asked of a matcher after its end, also if a draft runs past it."""
    tokenizer = pieces_tokenizer(PIECES)
    tokenizer.eos_ids = ()
    for params in MODES.values():
        result = check_r0(target, PROMPT, tokenizer=tokenizer, ks=(1, 7), regex="true|12", max_tokens=50, **params)
        assert (result.text in ("true", "12"), result.finish_reason, result.stop_reason) == (True, "stop", None)


@pytest.mark.parametrize("mode", MODES)
def test_c22_with_every_other_parameter(mode: str) -> None:
    for extra in (
        {"repetition_penalty": 1.3, "frequency_penalty": 0.7}, {"logit_bias": {PIECES.index("1"): 4, EOS: -3}},
        {"stop": ["1", "e,"], "include_stop_string": True}, {"bad_words": [[PIECES.index("true")]], "min_tokens": 6},
        {"max_tokens": 5}, {"n": 3}, {"stop_token_ids": [PIECES.index("}")], "include_stop_token": True},
        {"allowed_token_ids": [*range(28), EOS]},
    ):  # fmt: skip
        params = {"json_schema": OK_N, "max_tokens": 60, "logprobs": 1, **MODES[mode], **extra}
        result = check_r0(target, PROMPT, tokenizer=TOKENIZER, ks=(4,), drafters=["oracle", "self"], **params)
        for one in result.choices:
            assert one.finish_reason == "length" or one.stop_reason not in (EOS,) or is_ok_n(one.text)


# -- batches, neighbours, refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize("drafter", ["junk", "self", "lookup"])
def test_c22_structured_and_plain_requests_in_one_batch(drafter: str) -> None:
    requests: list[tuple[str, dict[str, Any]]] = [
        ("{}", {"json_schema": OK_N, "max_tokens": 80}), ("json", {"max_tokens": 30, "ignore_eos": True}),
        ("{}", {"regex": r"[0-9]{9}", "max_tokens": 80}), ("true", {"json_schema": NOTE, "max_tokens": 80, "n": 2}),
    ]  # fmt: skip
    for mode in MODES.values():
        alone = [LLM(target(), TOKENIZER).generate(prompt, **params, **mode) for prompt, params in requests]
        used = Junk() if drafter == "junk" else DRAFTERS[drafter]({}, target)
        llm = LLM(target(), TOKENIZER, used, FixedLength(5))
        streams = [llm.stream(prompt, **params, **mode) for prompt, params in requests]
        for stream in reversed(streams):
            list(stream)
        for stream, expected in zip(streams, alone, strict=True):
            assert list(map(outcome, stream.result.choices)) == list(map(outcome, expected.choices))


def test_c22_a_draft_model_with_fewer_or_more_rows_than_the_vocabulary() -> None:
    for size in (20, SIZE - 1, SIZE + 12):
        draft = ToyModel.random(size, order=1, seed=2)
        for params in (*MODES.values(), {}):
            params = {"json_schema": OK_N, "max_tokens": 300, **params}
            result = LLM(target(5), TOKENIZER, ModelDrafter(draft), FixedLength(4)).generate(PROMPT, **params)
            assert is_ok_n(result.text)
            assert result.speculation.num_proposed
            if len(params) > 2:
                assert outcome(result) == outcome(LLM(target(5), TOKENIZER).generate(PROMPT, **params))


def test_c22_the_mask_is_as_wide_as_the_vocabulary_whatever_the_rows_are() -> None:
    for padding in (0, 1, 50):
        llm = LLM(target(padding), TOKENIZER, DRAFTERS["self"]({}, lambda padding=padding: target(padding)))
        result = llm.generate(PROMPT, json_schema=OK_N, max_tokens=300)
        assert is_ok_n(result.text)
        with pytest.raises(Exception, match="booleans are needed"):
            llm.generate(PROMPT, constraint=TokenSet([1], SIZE + padding + 1), max_tokens=3)


@pytest.mark.parametrize(
    "name, value",
    [("regex", "("), ("regex", 3), ("regex", "(?=a)"), ("regex", "a" * 10 + "\\"), ("json_schema", "{"),
     ("json_schema", {"type": "nonsense"}), ("json_schema", {"not": {}}), ("json_schema", 3), ("json_schema", False),
     ("json_schema", {"type": "object", "properties": {"a": {"$ref": "http://elsewhere"}}}), ("regex", "\U0001f680"),
     ("constraint", "x"), ("constraint", 3)],
)  # fmt: skip
def test_c22_what_cannot_be_enforced_is_refused_by_name_and_the_engine_lives(name: str, value: Any) -> None:
    llm = LLM(target(), TOKENIZER, DRAFTERS["self"]({}, target), FixedLength(3))
    running = llm.stream(PROMPT, max_tokens=20, temperature=0, ignore_eos=True)
    next(running)
    for call in (llm.generate, llm.stream):
        with pytest.raises(ParameterError) as caught:
            call(PROMPT, max_tokens=5, **{name: value})
        assert caught.value.name == name
    list(running)
    assert len(running.result.tokens) == 20
    assert is_ok_n(llm.generate(PROMPT, json_schema=OK_N, max_tokens=300).text)


def test_c22_a_dead_end_is_an_error_of_its_own_request() -> None:
    """What other parameters leave of the grammar may be nothing."""
    for params in (*MODES.values(), {}):
        llm = LLM(target(), TOKENIZER, DRAFTERS["self"]({}, target), FixedLength(3))
        neighbour = llm.stream(PROMPT, json_schema=OK_N, max_tokens=300, **params)
        with pytest.raises(NoLegalTokenError):
            llm.generate(
                PROMPT, regex="[0-9]{3}true", bad_words=[[PIECES.index("true")], [PIECES.index("t")]], max_tokens=30,
                **params,
            )  # fmt: skip
        list(neighbour)
        assert is_ok_n(neighbour.result.text)


def test_c22_compiled_grammars_are_shared_and_their_texts_are_not() -> None:
    vocabulary = Vocabulary.of(TOKENIZER, SIZE)
    grammar = compile_regex("[0-9]{5}", vocabulary)
    llm = LLM(target(), TOKENIZER, DRAFTERS["self"]({}, target), FixedLength(3))
    alone = [llm.generate(PROMPT, constraint=grammar, seed=seed, max_tokens=20).tokens for seed in range(6)]
    streams = [llm.stream(PROMPT, constraint=grammar, seed=seed, max_tokens=20) for seed in range(6)]
    for stream in streams[::-1]:
        list(stream)
    assert [stream.result.tokens for stream in streams] == alone
    named = [llm.generate(PROMPT, regex="[0-9]{5}", seed=seed, max_tokens=20).tokens for seed in range(6)]
    assert named == alone
