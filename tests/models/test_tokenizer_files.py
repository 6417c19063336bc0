"""Where tokenizers come from: metadata that must be refused, the cache, and transformers directories."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.models.tiny_gguf import byte_level, write_tiny_gguf

from forerun.errors import FileFormatError, PromptError, UnknownModelError, UnsupportedModelError
from forerun.models.gguf import open_gguf
from forerun.models.tokenizer import Tokenizer, load_tokenizer
from forerun.models.tokenizer_cache import cache_path


@pytest.fixture(scope="module", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Tokenizers built here are kept here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FORERUN_HOME", str(tmp_path_factory.mktemp("home")))
        yield


Make = Callable[..., Tokenizer]


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Make:
    """A tokenizer from a tiny GGUF file with the settings given."""
    directory = tmp_path_factory.mktemp("tiny")

    def build(**settings: Any) -> Tokenizer:
        path = directory / f"{len(list(directory.iterdir()))}.gguf"
        return load_tokenizer(write_tiny_gguf(path, vocabulary_only=True, **settings))

    return build


@pytest.fixture(scope="module")
def bpe(make: Make) -> Tokenizer:
    return make()


@pytest.fixture(scope="module")
def spm(make: Make) -> Tokenizer:
    return make(kind="llama", architecture="llama")


# -- bad metadata ------------------------------------------------------------------------------------------------------

TOKENS = byte_level(600)[0]


@pytest.mark.parametrize(
    ("metadata", "error", "words"),
    [
        ({"tokenizer.ggml.model": None}, FileFormatError, "holds no tokenizer"),
        ({"tokenizer.ggml.model": "bert"}, UnsupportedModelError, "'bert'.*gpt2, llama"),
        ({"tokenizer.ggml.pre": "klingon"}, UnsupportedModelError, "'klingon' is not known.*qwen2"),
        ({"tokenizer.ggml.pre": None}, UnsupportedModelError, "does not name its pre-tokenizer"),
        ({"tokenizer.ggml.tokens": None}, FileFormatError, "tokens is no list"),
        ({"tokenizer.ggml.tokens": [1, 2]}, FileFormatError, "tokens is no list of str"),
        ({"tokenizer.ggml.token_type": [1, 1]}, FileFormatError, "2 entries for 600 tokens"),
        ({"tokenizer.ggml.tokens": [*TOKENS[:-1], TOKENS[0]]}, FileFormatError, "ids 0 and 599 are both"),
        ({"tokenizer.ggml.merges": None}, FileFormatError, "merges is no list"),
        ({"tokenizer.ggml.merges": ["ab"]}, FileFormatError, "the merge 'ab'"),
        ({"tokenizer.ggml.merges": ["q zz"]}, FileFormatError, "the merge 'q zz'"),
        ({"tokenizer.ggml.bos_token_id": 600}, FileFormatError, "bos_token_id is 600.*600 tokens"),
        ({"tokenizer.ggml.eos_token_id": "x"}, FileFormatError, "eos_token_id is 'x'"),
        ({"tokenizer.ggml.pre": ["qwen2"]}, UnsupportedModelError, "is not known"),
        ({"tokenizer.ggml.tokens": TOKENS[:598], "tokenizer.ggml.bos_token_id": 598}, FileFormatError, "598 tokens"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_metadata_that_cannot_be_right_is_refused(
    make: Make, metadata: dict[str, Any], error: type, words: str
) -> None:
    with pytest.raises(error, match=words):
        make(metadata=metadata)


def test_unimportant_special_ids_may_be_wrong(make: Make) -> None:
    wrong = {"tokenizer.ggml.padding_token_id": 4_000_000, "tokenizer.ggml.unknown_token_id": "x"}
    tokenizer = make(metadata={**wrong, "tokenizer.chat_template": 5})
    assert tokenizer.parts.special_tokens == {"bos_token": "<|endoftext|>", "eos_token": "<|im_end|>"}
    assert tokenizer.chat_template is None


def test_sentencepiece_without_scores_is_refused(make: Make) -> None:
    with pytest.raises(FileFormatError, match="scores is no list"):
        make(kind="llama", metadata={"tokenizer.ggml.scores": None})
    assert make(kind="llama", metadata={"tokenizer.ggml.eos_token_id": 0xFFFFFFFF}).eos_ids == (2,)  # a lost -1; </s>


# -- the cache ---------------------------------------------------------------------------------------------------------


def test_a_built_tokenizer_is_kept_and_a_damaged_one_built_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORERUN_HOME", str(tmp_path / "home"))
    path = write_tiny_gguf(tmp_path / "x.gguf")
    first = load_tokenizer(path)
    with open_gguf(path) as file:
        kept = cache_path(file)
    text = kept.read_text()
    assert json.loads(text)["model"]["type"] == "BPE"
    monkeypatch.setattr("forerun.models.gguf_tokenizer._byte_level", None)  # a second load does not build
    second = load_tokenizer(path)
    assert second.encode("the<|im_end|> people") == first.encode("the<|im_end|> people")
    monkeypatch.undo()
    monkeypatch.setenv("FORERUN_HOME", str(tmp_path / "home"))
    for damage in (text[:1000], "", "{}", "null"):
        kept.write_text(damage)
        assert load_tokenizer(path).encode("the people") == first.encode("the people")
        assert kept.read_text() == text
    assert [item.name for item in kept.parent.iterdir()] == [kept.name]  # no leftovers
    before = path.stat()
    write_tiny_gguf(path, swap=[(300, 301)])
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    with open_gguf(path) as file:
        assert cache_path(file) != kept


def test_no_room_or_permission_for_the_cache_is_harmless(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("not a directory")
    monkeypatch.setenv("FORERUN_HOME", str(tmp_path / "file"))
    tokenizer = load_tokenizer(write_tiny_gguf(tmp_path / "x.gguf"))
    assert tokenizer.decode(tokenizer.encode("the people")) == "the people"


# -- transformers directories ------------------------------------------------------------------------------------------


def directory(tmp_path: Path, tokenizer: Tokenizer, config: dict[str, Any], **files: Any) -> Path:
    """A transformers directory with the backend of `tokenizer`."""
    tmp_path.mkdir(exist_ok=True)
    document = json.loads(tokenizer.parts.backend.to_str())
    document["normalizer"] = files.pop("normalizer", None)
    document |= files.pop("document", {})
    (tmp_path / "tokenizer.json").write_text(json.dumps(document))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    for name, value in files.items():
        suffix = "jinja" if name == "chat_template" else "json"
        (tmp_path / f"{name}.{suffix}").write_text(value if isinstance(value, str) else json.dumps(value))
    return tmp_path


CONFIG = {"bos_token": "<|endoftext|>", "eos_token": {"content": "<|im_end|>"}, "chat_template": "{{ eos_token }}!"}


def test_a_directory_gives_the_ids_of_its_tokenizer_json(tmp_path: Path, bpe: Tokenizer) -> None:
    truncation = {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0}
    path = directory(
        tmp_path, bpe, CONFIG, document={"truncation": truncation}, generation_config={"eos_token_id": [597, 590]}
    )
    loaded = load_tokenizer(path)
    text = "the people said<|im_end|> <tool_call> 12 日本"
    assert loaded.encode(text) == bpe.encode(text)  # and no truncation
    assert loaded.encode(text, parse_special=False) == bpe.encode(text, parse_special=False)
    assert loaded.vocabulary_size == 600
    assert (loaded.bos_id, loaded.eos_ids) == (595, (597, 590))
    assert loaded.tokens == bpe.tokens
    assert [loaded.token_bytes(i) for i in range(600)] == [bpe.token_bytes(i) for i in range(600)]
    assert loaded.render_chat([{"role": "user", "content": "x"}]) == "<|im_end|>!"
    (path / "chat_template.jinja").write_text("file")
    assert load_tokenizer(path).render_chat([{"role": "user", "content": "x"}]) == "file"


def test_what_a_post_processor_adds_is_added_once(tmp_path: Path, spm: Tokenizer) -> None:
    template = [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    post = {
        "type": "TemplateProcessing",
        "single": template,
        "pair": [*template, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
    }
    normalizer = json.loads(spm.parts.backend.to_str())["normalizer"]
    normalizer["normalizers"] = normalizer["normalizers"][1:]  # without the guard, as a stranger's file is
    loaded = load_tokenizer(directory(tmp_path, spm, {}, normalizer=normalizer, document={"post_processor": post}))
    assert loaded.encode("the people") == spm.encode("the people")
    assert loaded.encode("<s>the people") == spm.encode("the people")
    assert loaded.encode("the", add_special=False) == spm.encode("the", add_special=False)
    assert loaded.decode(loaded.encode("the people")) == "the people"
    assert loaded.parts.strips_space


def test_late_control_tokens_are_kept_out_of_plain_text(tmp_path: Path, bpe: Tokenizer) -> None:
    """tokenizer.json may look for special tokens after normalising, where the guard is gone."""
    document = json.loads(bpe.parts.backend.to_str())
    late = [{**token, "normalized": True} for token in document["added_tokens"]]
    plain = load_tokenizer(directory(tmp_path / "a", bpe, {}, document={"added_tokens": late}))
    ids = plain.encode("a<|im_end|>", parse_special=False)
    assert plain.parts.control_ids.isdisjoint(ids)
    assert plain.encode("a<|im_end|>")[-1] == 597
    changed = {"type": "Replace", "pattern": {"String": "|"}, "content": "||"}
    hard = load_tokenizer(directory(tmp_path / "b", bpe, {}, document={"added_tokens": late}, normalizer=changed))
    with pytest.raises(PromptError, match="cannot be kept apart"):
        hard.encode("a<|im_end|>", parse_special=False)


@pytest.mark.parametrize(
    ("document", "error", "words"),
    [
        ("", FileFormatError, "cannot be read as JSON"),
        ("[]", FileFormatError, "no JSON object"),
        ('{"version": "1.0"}', UnsupportedModelError, "decoder"),
        ('{"decoder": {"type": "WordPiece"}}', UnsupportedModelError, "'WordPiece'"),
        ('{"decoder": {"type": "ByteLevel"}, "model": {"type": "x"}}', FileFormatError, "no usable tokenizer"),
    ],
)
def test_damaged_directories_are_refused(tmp_path: Path, document: str, error: type, words: str) -> None:
    (tmp_path / "tokenizer.json").write_text(document)
    with pytest.raises(error, match=words):
        load_tokenizer(tmp_path)


def test_a_directory_without_tokenizer_json_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match="save_pretrained"):
        load_tokenizer(tmp_path)
    with pytest.raises(UnknownModelError):
        load_tokenizer(tmp_path / "none")
