"""cases.md C24, the tokenizers' half: which vocabularies may draft for each other, and what the refusal says."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.models.real_files import real_file
from tests.models.tiny_gguf import CONTROL, NORMAL, USER_DEFINED, byte_level, write_tiny_gguf

from forerun.errors import VocabularyMismatchError
from forerun.models.tokenizer import Tokenizer, load_tokenizer
from forerun.models.vocabulary import require_same_vocabulary

Make = Callable[..., Tokenizer]


@pytest.fixture(scope="module", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Tokenizers built here are kept here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FORERUN_HOME", str(tmp_path_factory.mktemp("home")))
        yield


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Make:
    directory = tmp_path_factory.mktemp("tiny")

    def build(**settings: Any) -> Tokenizer:
        path = directory / f"{len(list(directory.iterdir()))}.gguf"
        return load_tokenizer(write_tiny_gguf(path, vocabulary_only=True, **settings))

    return build


def refusal(target: Tokenizer, draft: Tokenizer) -> str:
    with pytest.raises(VocabularyMismatchError) as caught:
        require_same_vocabulary(target, draft)
    assert "--drafter lookup" in caught.value.remedy
    return str(caught.value)


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
@pytest.mark.parametrize(("target_padding", "draft_padding"), [(0, 0), (64, 0), (0, 64), (128, 24)])
def test_equal_pairs_pass_whatever_their_padding(
    make: Make, kind: str, target_padding: int, draft_padding: int
) -> None:
    target = make(kind=kind, num_tokens=600, padding=target_padding, seed=1)
    draft = make(kind=kind, num_tokens=600, padding=draft_padding, seed=2)
    assert target.vocabulary_size == draft.vocabulary_size == 600
    require_same_vocabulary(target, draft)


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
@pytest.mark.parametrize("padding", [0, 64])
def test_two_ordinary_tokens_swapped_are_named(make: Make, kind: str, padding: int) -> None:
    target, draft = make(kind=kind), make(kind=kind, padding=padding, swap=[(310, 300)], seed=3)
    one, other = (target.token_bytes(i).decode() for i in (300, 310))
    assert one != other
    message = refusal(target, draft)
    assert f"id 300 is {one!r} in the target and {other!r} in the draft" in message
    assert f"id 300 is {other!r} in the target and {one!r} in the draft" in refusal(draft, target)


def test_a_difference_in_special_tokens_only(make: Make) -> None:
    target = make()
    tokens = byte_level(600)[0]
    renamed = make(metadata={"tokenizer.ggml.tokens": [*tokens[:596], "<|start|>", *tokens[597:]]})
    assert "id 596 is the control token '<|im_start|>' in the target and the control token '<|start|>'" in refusal(
        target, renamed
    )
    swapped = make(swap=[(596, 597)])
    assert "id 596 is the control token '<|im_start|>' in the target" in refusal(target, swapped)


def test_another_role_for_the_same_token(make: Make) -> None:
    target = make()
    ordinary = make(types={596: NORMAL})
    assert "id 596 is the control token '<|im_start|>' in the target and '<|im_start|>' in the draft" in refusal(
        target, ordinary
    )
    control = make(types={599: CONTROL})
    assert "id 599 is '</tool_call>' in the target and the control token" in refusal(target, control)
    require_same_vocabulary(target, make(types={598: NORMAL}))  # text in both; how it is cut out of text is no matter


@pytest.mark.parametrize("swap", [(0, 1), (10, 200)])
def test_the_same_tokens_with_other_merges(make: Make, swap: tuple[int, int]) -> None:
    target, draft = make(), make(swap_merges=[swap])
    assert target.tokens == draft.tokens
    message = refusal(target, draft)
    assert f"merge {swap[0]} is" in message
    assert f"it makes token {256 + swap[0]}" in message
    fewer = make(metadata={"tokenizer.ggml.merges": byte_level(600)[2][:-1]})
    assert "in the target and none in the draft" in refusal(target, fewer)
    assert "is none in the target" in refusal(fewer, target)


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_one_real_token_more_is_a_difference(make: Make, kind: str) -> None:
    """A row with text on one side only is no padding: the target could emit what the draft cannot read."""
    tokens = make(kind=kind).tokens
    marks = [NORMAL] * 599 + [USER_DEFINED]
    scores = {"tokenizer.ggml.scores": [0.0] * 600}
    settings = {"tokenizer.ggml.tokens": [*tokens[:599], "<|new|>"], "tokenizer.ggml.token_type": marks, **scores}
    pads = [*marks[:599], 5]
    full = make(kind=kind, metadata=settings)
    short = make(kind=kind, metadata={**settings, "tokenizer.ggml.token_type": pads})
    assert (full.vocabulary_size, short.vocabulary_size) == (600, 599)
    assert "id 599 is '<|new|>' in the target and no token in the draft" in refusal(full, short)
    assert "id 599 is no token in the target and '<|new|>' in the draft" in refusal(short, full)


def test_bos_handling_and_templates_are_no_difference(make: Make) -> None:
    """The draft is fed the target's own ids, so what its file puts around a prompt is never used."""
    draft = make(
        metadata={
            "tokenizer.ggml.add_bos_token": True,
            "tokenizer.ggml.bos_token_id": 300,
            "tokenizer.ggml.eos_token_id": 301,
            "tokenizer.ggml.pre": "llama-bpe",
            "tokenizer.chat_template": None,
        }
    )
    require_same_vocabulary(make(), draft)


def test_byte_level_against_sentencepiece(make: Make) -> None:
    assert "id 0 is '!' in the target and the control token '<unk>'" in refusal(make(), make(kind="llama")).replace(
        "and '<unk>'", "and the control token '<unk>'"
    )


def test_a_gguf_file_against_a_directory_of_the_same_model(make: Make, tmp_path: Path) -> None:
    target = make()
    document = json.loads(target.parts.backend.to_str())
    for token in document["added_tokens"]:
        token["special"] = token["content"] == "<|endoftext|>"  # sources mark their tokens differently
    (tmp_path / "tokenizer.json").write_text(json.dumps(document))
    draft = load_tokenizer(tmp_path)
    require_same_vocabulary(target, draft)
    require_same_vocabulary(draft, target)
    assert "id 300 is" in refusal(make(swap=[(300, 301)]), draft)


@pytest.mark.slow
def test_real_pairs() -> None:
    names = ("qwen2.5-coder-1.5b", "qwen2.5-coder-0.5b", "smollm2-135m")
    large, small, other = (load_tokenizer(real_file(name)) for name in names)
    require_same_vocabulary(large, small)
    require_same_vocabulary(small, large)
    message = refusal(large, other)
    assert "id 0 is '!' in the target and the control token '<|endoftext|>' in the draft" in message
    assert "151,665 tokens and the draft 49,152" in message
