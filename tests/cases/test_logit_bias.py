"""cases.md C21 (whole kind): what makes no sense as a `logit_bias` is refused by name, the rest is obeyed."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.cases.tools import DRAFTERS, SCRIPTED, TorchRows, check_r0, pieces_tokenizer, request, written

from forerun.control import FixedLength
from forerun.drafting import ModelDrafter
from forerun.drafting.scripted import OracleDrafter
from forerun.errors import NoLegalTokenError, ParameterError
from forerun.llm import LLM
from forerun.runtime.toy import ToyModel
from forerun.verification.broken import BROKEN

TOKENIZER = pieces_tokenizer([chr(97 + i) for i in range(15)])
SIZE = TOKENIZER.vocabulary_size  # 16, end of text included
PADDING = 8
PROMPT = "abac"
MODES: dict[str, dict[str, Any]] = {"greedy": {"temperature": 0}, "seeded": {"seed": 13, "temperature": 1.1}}


TABLE = np.random.default_rng(4).uniform(-3.0, 3.0, (SIZE + PADDING,) * 3)
TABLE[..., SIZE + 2] = 9.0


def target() -> ToyModel:
    """Bounded logits, within -3 and 3, in rows wider than the vocabulary; a padded id is the favourite."""
    return ToyModel(lambda tokens: TABLE[((0, *tokens)[-2], tokens[-1])], SIZE + PADDING)


# -- what is refused ---------------------------------------------------------------------------------------------------

BAD: list[Any] = [
    # ids: beyond the vocabulary, padded ones, negative ones, and what is no id
    {SIZE: 1.0}, {str(SIZE): 1.0}, {SIZE + 1: 1.0}, {str(SIZE + 1): 1.0}, {SIZE + PADDING - 1: 1.0}, {10**9: 1.0},
    {10**30: 1.0}, {-1: 1.0}, {"-1": 1.0}, {-SIZE: 1.0}, {"3.0": 1.0}, {3.0: 1.0}, {"abc": 1.0}, {"007": 1.0},
    {"": 1.0}, {" 3": 1.0}, {"+3": 1.0}, {"3 ": 1.0}, {"٣": 1.0}, {"1_0": 1.0}, {"²": 1.0}, {None: 1.0}, {True: 1.0},
    {(3,): 1.0},
    {b"3": 1.0}, {math.nan: 1.0}, {"1" * 30: 1.0}, {3: 1.0, "abc": 1.0}, {3: 1.0, "3": 1.0}, [(3, 1.0), (3, 2.0)],
    # values
    {3: 101}, {3: -101}, {3: 100.0001}, {3: 1e9}, {3: -1e9}, {3: None}, {3: math.nan}, {3: math.inf}, {3: -math.inf},
    {3: "5"}, {3: True}, {3: [1]}, {3: 10**400}, {3: 1j},
    # the whole
    "3", 3, [3], ["abc"], [(3, 1.0, 2)], {3}, b"3", 1.5, True,
]  # fmt: skip


@pytest.mark.parametrize("bias", BAD, ids=lambda bias: repr(bias)[:30])
def test_c21_bad_keys_and_values_are_refused_by_name_and_the_engine_lives(bias: Any) -> None:
    llm = LLM(target(), TOKENIZER, ModelDrafter(target()), FixedLength(3))
    running = llm.stream(PROMPT, max_tokens=12, ignore_eos=True, **MODES["greedy"])
    shown = [next(running).token for _ in range(3)]
    for call in (llm.generate, llm.stream):
        with pytest.raises(ValueError, match=r"^logit_bias: ") as caught:
            call(PROMPT, max_tokens=5, logit_bias=bias)
        assert isinstance(caught.value, ParameterError)
        assert caught.value.name == "logit_bias"
    shown += [piece.token for piece in running if piece.token is not None]
    assert tuple(shown) == request(llm, PROMPT, max_tokens=12, ignore_eos=True, **MODES["greedy"]).tokens


@pytest.mark.parametrize("key", ["9" * 4_299, "9" * 4_301, "9" * 100_000])
def test_c21_a_key_too_long_to_be_a_number_is_refused_like_any_other(key: str) -> None:
    with pytest.raises(ParameterError, match=r"^logit_bias: ") as caught:
        LLM(target(), TOKENIZER).generate(PROMPT, max_tokens=5, logit_bias={key: 1.0})
    assert len(str(caught.value)) < 300


def test_c21_the_message_names_the_id_and_what_is_allowed() -> None:
    llm = LLM(target(), TOKENIZER)
    for bias, words in [
        ({SIZE: 1.0}, [f"token id {SIZE}", f"0..{SIZE - 1}"]), ({"abc": 1.0}, ["'abc'", "whole numbers"]),
        ({3: 101}, ["101", "token 3", "-100 to 100"]), ({-1: 1.0}, ["-1", "at least 0"]),
    ]:  # fmt: skip
        with pytest.raises(ParameterError) as caught:
            llm.generate(PROMPT, max_tokens=5, logit_bias=bias)
        assert all(word in str(caught.value) for word in words)


def test_c21_without_a_tokenizer_the_row_width_is_the_vocabulary() -> None:
    llm = LLM(target())
    llm.generate([1], max_tokens=2, logit_bias={SIZE + PADDING - 1: 1.0})
    with pytest.raises(ParameterError, match=f"token id {SIZE + PADDING}"):
        llm.generate([1], max_tokens=2, logit_bias={SIZE + PADDING: 1.0})


@pytest.mark.parametrize("mode", MODES)
def test_c21_spellings_of_one_bias_are_one_bias(mode: str) -> None:
    spellings: list[Any] = [
        {3: 5, 7: -2.5}, {"3": 5, "7": -2.5}, {7: -2.5, 3: 5.0}, [(3, 5), (7, -2.5)], ((7, -2.5), (3, 5)),
        {np.int64(3): np.float32(5), np.uint8(7): -2.5},
    ]  # fmt: skip
    llm, common = LLM(target(), TOKENIZER), {"max_tokens": 12, "ignore_eos": True, **MODES[mode]}
    texts = {llm.generate(PROMPT, logit_bias=bias, **common).tokens for bias in spellings}
    assert len(texts) == 1
    none = {llm.generate(PROMPT, logit_bias=bias, **common).tokens for bias in (None, {}, [], {3: 0}, {15: 0.0})}
    assert none == {llm.generate(PROMPT, **common).tokens}
    assert none != texts


# -- what is obeyed ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("bias", [{3: 2.0}, {3: -2.0, 9: 1.5}, dict.fromkeys(range(0, 12, 2), -100), {15: -100}])
def test_c21_every_drafter_and_length_writes_what_plain_decoding_writes(bias: dict[int, float], mode: str) -> None:
    check_r0(target, PROMPT, tokenizer=TOKENIZER, ks=(4, 8), max_tokens=12, logit_bias=bias, logprobs=1, **MODES[mode])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("k", [1, 3, 8])
@pytest.mark.parametrize("place", [0, 1, 4, 7])
def test_c21_a_draft_token_that_is_biased_away_is_rejected(mode: str, k: int, place: int) -> None:
    """The oracle proposes the text without the bias; -100 is on its token number `place`."""
    common = {"max_tokens": 16, "ignore_eos": True, **MODES[mode]}
    known = written(target, TOKENIZER, PROMPT, {}, common)
    text = known[0][tuple(TOKENIZER.encode(PROMPT))]
    banned = text[place]
    place = text.index(banned)
    plain = LLM(target(), TOKENIZER).generate(PROMPT, logit_bias={banned: -100}, **common)
    llm = LLM(target(), TOKENIZER, OracleDrafter(known[0]), FixedLength(k))
    result = request(llm, PROMPT, logit_bias={banned: -100}, **common)
    assert (result.tokens, result.text) == (plain.tokens, plain.text)
    assert banned not in result.tokens
    assert list(result.tokens[:place]) == text[:place]
    assert "drafted" not in result.origins[place : place + 1]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("forced", [0, 6, 14])
def test_c21_plus_100_forces_an_id_whatever_is_drafted(mode: str, forced: int) -> None:
    common = {"max_tokens": 16, "ignore_eos": True, **MODES[mode]}
    result = check_r0(target, PROMPT, tokenizer=TOKENIZER, ks=(1, 8), logit_bias={forced: 100}, **common)
    assert result.tokens == (forced,) * 16
    assert result.text == chr(97 + forced) * 16
    # Oracles that know the text without the bias: nothing of it survives.
    known = written(target, TOKENIZER, PROMPT, {}, common)
    for name in SCRIPTED:
        llm = LLM(target(), TOKENIZER, DRAFTERS[name](known, target), FixedLength(5))
        assert request(llm, PROMPT, logit_bias={forced: 100}, **common).tokens == (forced,) * 16


def test_c21_forced_and_banned_end_of_text() -> None:
    eos = TOKENIZER.eos_ids[0]
    for mode in MODES.values():
        result = check_r0(
            target, PROMPT, tokenizer=TOKENIZER, ks=(3,), max_tokens=16, min_tokens=4, logit_bias={eos: 100}, **mode
        )
        assert (len(result.tokens), result.finish_reason, result.stop_reason) == (4, "stop", eos)
        result = check_r0(target, PROMPT, tokenizer=TOKENIZER, ks=(3,), max_tokens=60, logit_bias={eos: -100}, **mode)
        assert (len(result.tokens), result.finish_reason) == (60, "length")


def test_c21_unseeded_texts_obey_too_and_a_draft_model_is_asked_with_the_bias() -> None:
    llm = LLM(target(), TOKENIZER, ModelDrafter(target()), FixedLength(4))
    common = {"max_tokens": 60, "ignore_eos": True}
    result = llm.generate(PROMPT, logit_bias=dict.fromkeys(range(8), -100), **common)
    assert min(result.tokens) >= 8
    assert result.speculation.acceptance_rate == 1.0
    result = llm.generate(PROMPT, logit_bias={5: 100}, **common)
    assert set(result.tokens) == {5}
    assert result.speculation.acceptance_rate == 1.0


def test_c21_a_padded_id_is_never_chosen_though_it_is_the_favourite() -> None:
    for mode in MODES.values():
        result = check_r0(
            target, PROMPT, tokenizer=TOKENIZER, ks=(3,), max_tokens=30, ignore_eos=True, logit_bias={2: 0.5}, **mode
        )
        assert max(result.tokens) < SIZE


@pytest.mark.parametrize("params", MODES.values())
def test_c21_rows_on_a_device_and_draft_models_with_a_smaller_head(params: dict[str, Any]) -> None:
    """The draft model has no row for the biased id: it is biased in the target all the same."""
    table = np.random.default_rng(4).uniform(-3.0, 3.0, (SIZE, SIZE))

    def make() -> ToyModel:
        return TorchRows(lambda tokens: table[tokens[-1]], SIZE)

    for bias in ({14: 100}, {14: 2.5, 1: -100}):
        common = {"max_tokens": 10, "ignore_eos": True, "logit_bias": bias, **params}
        plain = check_r0(make, PROMPT, tokenizer=TOKENIZER, drafters=["oracle"], ks=(3,), **common)
        small = ToyModel.random(10, order=1, seed=1)
        llm = LLM(make(), TOKENIZER, ModelDrafter(small), FixedLength(3))
        assert request(llm, PROMPT, **common).tokens == plain.tokens


@given(
    bias=st.dictionaries(
        st.integers(0, SIZE - 1), st.floats(-100, 100) | st.sampled_from([-100, 100, 0.5]), max_size=20
    ),
    k=st.sampled_from([1, 4]),
    drafter=st.sampled_from(list(DRAFTERS)),
    mode=st.sampled_from(list(MODES)),
)
@settings(max_examples=40)
def test_c21_any_bias_is_added_to_its_own_logit_and_no_other(
    bias: dict[int, float], k: int, drafter: str, mode: str
) -> None:
    params = {"max_tokens": 10, "ignore_eos": True, "logit_bias": bias, **MODES[mode]}
    result = check_r0(target, PROMPT, tokenizer=TOKENIZER, drafters=[drafter], ks=[k], **params)
    if mode == "greedy":
        tokens = TOKENIZER.encode(PROMPT)
        for token in result.tokens:
            row = target().logits(tokens)[:SIZE].copy()
            for biased, value in bias.items():
                row[biased] += value
            assert token == int(np.argmax(row))
            tokens.append(token)


def test_c21_everything_banned_is_still_a_choice_and_ruling_everything_out_is_an_error() -> None:
    """-100 is a bias, not a ban: with all ids at -100 the text is the one without any bias."""
    common = {"max_tokens": 8, "ignore_eos": True, "temperature": 0}
    plain = LLM(target(), TOKENIZER).generate(PROMPT, **common)
    result = check_r0(
        target, PROMPT, tokenizer=TOKENIZER, ks=(3,), logit_bias=dict.fromkeys(range(SIZE), -100), **common
    )
    assert result.tokens == plain.tokens
    llm = LLM(target(), TOKENIZER)
    with pytest.raises(NoLegalTokenError):
        llm.generate(PROMPT, allowed_token_ids=[3], bad_words=[[3]], logit_bias={3: 100}, **common)
    assert llm.generate(PROMPT, **common).tokens == plain.tokens


@pytest.mark.parametrize("value", [-100, 100])
def test_c21_a_bias_lost_behind_draft_tokens_would_be_seen(value: float) -> None:
    """The oracle proposes a block with the token at -100 in it, or a block of the token at 100."""
    common = {"max_tokens": 16, "ignore_eos": True, "temperature": 0}
    prompt = tuple(TOKENIZER.encode(PROMPT))
    known = written(target, TOKENIZER, PROMPT, {}, common)[0]
    text = known[prompt]
    bias = {next(token for i, token in enumerate(text) if i > 1 and token not in text[:i]): value}
    plain = LLM(target(), TOKENIZER).generate(PROMPT, logit_bias=bias, **common).tokens
    drafter = OracleDrafter(known if value < 0 else {prompt: plain})
    broken = BROKEN["bias_dropped"].processing
    llm = LLM(target(), TOKENIZER, drafter, FixedLength(5), make_processing=broken)
    assert llm.generate(PROMPT, logit_bias=bias, **common).tokens != plain
