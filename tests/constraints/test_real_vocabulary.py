"""The 151,665 tokens of Qwen2.5-Coder: every mask bit against the regex package's partial matching."""

from __future__ import annotations

import json
import random

import pytest
from tests.constraints.test_json_schema import C22, is_c22
from tests.constraints.vocabularies import text_of
from tests.runtime.real import pulled

from forerun.constraints.grammar import compile_json_schema, compile_regex
from forerun.constraints.vocabulary import Vocabulary
from forerun.models.tokenizer import Tokenizer, load_tokenizer

pytestmark = pytest.mark.slow

TEXTS = {
    r"(- [^\n]{1,40}\n){1,3}": "- whisk 2 eggs, 東京 🚀\n- bake\n",
    r"[0-9]{4}-(0[1-9]|1[0-2])-[0-3][0-9]( [a-zéü]+)?": "2026-11-29 über",
    r"Answer: (yes|no)\. (?s:.*)": "Answer: no. The rest\n\tis free: 𝔘 é.",
}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return load_tokenizer(pulled("qwen2.5-coder-0.5b"))


@pytest.mark.parametrize("pattern", TEXTS)
def test_every_bit_of_a_mask_is_right(tokenizer: Tokenizer, pattern: str) -> None:
    regex = pytest.importorskip("regex")
    compiled, vocabulary = regex.compile(pattern), Vocabulary.of(tokenizer, 151_936)
    constraint, tokens = compile_regex(pattern, vocabulary).start(), []
    for token in [*tokenizer.encode(TEXTS[pattern], add_special=False), tokenizer.eos_ids[0]]:
        mask, so_far = constraint.mask(), text_of(vocabulary, tokens)
        is_match = _is_text(so_far) and compiled.fullmatch(so_far.decode()) is not None
        assert all(mask[eos] == is_match for eos in tokenizer.eos_ids)
        for other in range(tokenizer.vocabulary_size):
            text = so_far + tokenizer.token_bytes(other)
            if other in tokenizer.parts.control_ids:
                assert not mask[other] or other in tokenizer.eos_ids
            elif _is_text(text):  # parts of characters are left to the small vocabularies
                assert mask[other] == (compiled.fullmatch(text.decode(), partial=True) is not None), text
        assert not mask[tokenizer.vocabulary_size :].any()
        assert constraint.advance(token)
        tokens.append(token)
    assert constraint.is_finished


def test_random_json_parses_and_validates(tokenizer: Tokenizer) -> None:
    vocabulary = Vocabulary.of(tokenizer)
    grammar = compile_json_schema(C22, vocabulary)
    for seed in range(100):
        choose, constraint, tokens = random.Random(seed), grammar.start(), list[int]()
        while not constraint.is_finished:
            token = choose.choice(constraint.mask().nonzero()[0].tolist())
            assert constraint.advance(token)
            tokens.append(token)
        assert is_c22(json.loads(text_of(vocabulary, tokens)))


def _is_text(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True
