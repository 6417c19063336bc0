"""Tokenizers: ids against independent references and llama.cpp, special tokens, and text back from ids."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import regex
from hypothesis import given
from hypothesis import strategies as st
from tests.models.probe_vocabulary import write_probe
from tests.models.real_files import real_file
from tests.models.tiny_gguf import CONTROL, NORMAL, USER_DEFINED, byte_level, sentencepiece, write_tiny_gguf

from forerun.errors import ParameterError, PromptError
from forerun.models.pretokenizers import PRE_TOKENIZERS
from forerun.models.tokenizer import Tokenizer, load_tokenizer
from forerun.models.tokenizer_parts import GUARD

DATA = Path(__file__).parent / "data"
TEXTS = st.text(st.sampled_from("thepol isad12.'\n\t<|_>éß日本🚀\u0301ﬁ \u00a0"), max_size=40)


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


@pytest.fixture(params=["bpe", "spm"])
def either(request: pytest.FixtureRequest) -> Tokenizer:
    return request.getfixturevalue(request.param)


# -- ids ---------------------------------------------------------------------------------------------------------------


def naive_byte_level(text: str) -> list[int]:
    """Byte-level BPE as its definition says it, for the tiny vocabulary and Qwen's pre-tokenizer."""
    tokens, _, merges = byte_level(600)
    ranks = {tuple(merge.split(" ")): rank for rank, merge in enumerate(merges)}
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = dict(zip([*printable, *(b for b in range(256) if b not in printable)], tokens[:256], strict=True))
    ids = []
    for piece in regex.findall(PRE_TOKENIZERS["qwen2"].patterns[0], text):
        parts = [alphabet[byte] for byte in piece.encode()]
        while pairs := [(ranks[pair], i) for i, pair in enumerate(pairwise(parts)) if pair in ranks]:
            at = min(pairs)[1]
            parts[at : at + 2] = [parts[at] + parts[at + 1]]
        ids += [tokens.index(part) for part in parts]
    return ids


def naive_sentencepiece(text: str) -> list[int]:
    """SentencePiece BPE as its definition says it: join the neighbours whose union scores best, leftmost first."""
    tokens = sentencepiece(600)[0]
    parts = list(("▁" + text.replace(" ", "▁")) if text else "")
    while True:
        pairs = [(tokens.index(a + b), i) for i, (a, b) in enumerate(pairwise(parts)) if a + b in tokens]
        if not pairs:
            break
        at = min(pairs)[1]
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return [
        i for part in parts for i in ([tokens.index(part)] if part in tokens else [3 + byte for byte in part.encode()])
    ]


@given(text=TEXTS)
def test_byte_level_ids_follow_the_definition(bpe: Tokenizer, text: str) -> None:
    assert bpe.encode(text, parse_special=False) == naive_byte_level(text)


@given(text=TEXTS)
def test_sentencepiece_ids_follow_the_definition(spm: Tokenizer, text: str) -> None:
    assert spm.encode(text, add_special=False, parse_special=False) == naive_sentencepiece(text)


PRE = json.loads((DATA / "pre_tokenizers.json").read_text())


@pytest.mark.parametrize("group", PRE["groups"], ids=lambda group: group["names"][0])
def test_every_pre_tokenizer_cuts_text_as_llama_cpp_does(tmp_path: Path, group: dict[str, Any]) -> None:
    texts = [text for text in PRE["texts"] if text.isascii()] if group["ascii_only"] else PRE["texts"]
    for name in group["names"]:
        tokenizer = load_tokenizer(write_probe(tmp_path / f"{name}.gguf", name))
        for index, text in enumerate(texts):
            ids = tokenizer.encode(text, add_special=False, parse_special=False)
            digest = hashlib.sha256(json.dumps(ids).encode()).hexdigest()[:8]
            assert digest == group["digests"][8 * index : 8 * index + 8], (name, text, list(map(tokenizer.token, ids)))


def test_the_fixture_covers_the_whole_table_and_tells_rules_apart() -> None:
    assert {name for group in PRE["groups"] for name in group["names"]} == set(PRE_TOKENIZERS)
    assert len({group["digests"] for group in PRE["groups"]}) == len(PRE["groups"]) >= 15


def test_pieces_that_are_tokens_are_taken_whole_where_the_rule_says_so(make: Make) -> None:
    """llama-bpe and tekken have tokens that their merges do not lead to."""
    few = {"tokenizer.ggml.merges": byte_level(600)[2][:1], "tokenizer.ggml.add_bos_token": False}
    whole, merged = (make(metadata={**few, "tokenizer.ggml.pre": name}) for name in ("llama-bpe", "qwen2"))
    assert whole.tokens[414] == "Ġpeople"
    assert whole.encode(" people") == [414]
    assert len(merged.encode(" people")) == 7


# -- special tokens ----------------------------------------------------------------------------------------------------


def test_control_tokens_in_text_are_read_or_not_as_asked(bpe: Tokenizer) -> None:
    text = "the<|im_end|> of<|im_start|>"
    ids = bpe.encode(text)
    assert [i for i in ids if i in bpe.parts.control_ids] == [597, 596]
    plain = bpe.encode(text, parse_special=False)
    assert bpe.parts.control_ids.isdisjoint(plain)
    assert bpe.decode(plain) == text
    assert bpe.decode(ids) == "the of"
    assert bpe.decode(ids, skip_special=False) == text


def test_user_defined_tokens_are_always_read_and_are_text(bpe: Tokenizer) -> None:
    for parse in (True, False):
        ids = bpe.encode("a<tool_call>b", parse_special=parse)
        assert ids == [*bpe.encode("a"), 598, *bpe.encode("b")]
    assert bpe.decode([598]) == "<tool_call>"


@given(
    parts=st.lists(st.sampled_from(["<|im_end|>", "<|im_", "<|", "end|>", "a", " ", "<|endoftext|>", "<tool_call>"]))
)
def test_guarded_text_never_yields_control_tokens_and_survives(bpe: Tokenizer, parts: list[str]) -> None:
    text = "".join(parts)
    ids = bpe.encode(text, parse_special=False)
    assert bpe.parts.control_ids.isdisjoint(ids)
    assert bpe.decode(ids) == text


def test_merges_never_lead_to_a_control_token(make: Make) -> None:
    tokens, marks, _ = sentencepiece(600)
    metadata = {"tokenizer.ggml.tokens": [*tokens[:598], "</", "s>"], "tokenizer.ggml.token_type": marks}
    tokenizer = make(kind="llama", metadata=metadata)
    ids = tokenizer.encode("</s>", add_special=False, parse_special=False)
    assert ids[-2:] == [598, 599]
    assert tokenizer.encode("</s>", add_special=False)[-1] == 2


def test_the_tokens_of_phi_3_swallow_white_space_after_them(make: Make) -> None:
    phi, other = make(metadata={"general.name": "Phi-3 Mini"}), make()
    assert phi.encode("a<|im_end|> \n b") == [*other.encode("a<|im_end|>"), *other.encode("b")]
    assert phi.encode("a<|endoftext|> b") == other.encode("a<|endoftext|> b")


def test_bos_comes_once_and_only_if_the_file_says_so(make: Make) -> None:
    bpe = make(metadata={"tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.add_eos_token": True})
    bos, eos = 595, 597
    assert bpe.encode("the") == [bos, *bpe.encode("the", add_special=False), eos]
    assert bpe.encode("<|endoftext|>the<|im_end|>") == bpe.encode("the")
    assert bpe.encode("") == [bos, eos]
    chat = bpe.encode_chat([{"role": "user", "content": "the"}])
    assert chat.count(bos) == 1
    assert chat[0] == bos
    assert chat[-1] != eos
    template = "{{ bos_token }}{{ messages[0].content }}"
    twice = make(metadata={"tokenizer.ggml.add_bos_token": True, "tokenizer.chat_template": template})
    assert twice.encode_chat([{"role": "user", "content": "the"}]) == [bos, *bpe.encode("the", add_special=False)]
    never = make(metadata={"tokenizer.chat_template": template})
    assert never.encode("the") == bpe.encode("the", add_special=False)
    assert never.encode_chat([{"role": "user", "content": "the"}])[0] == bos  # the template's own is kept
    none = make(metadata={"tokenizer.ggml.bos_token_id": None, "tokenizer.ggml.add_bos_token": None})
    assert none.bos_id is None
    assert none.encode("the") == bpe.encode("the", add_special=False)


def test_defaults_of_bos_follow_the_kind_and_the_pre_tokenizer(make: Make, spm: Tokenizer) -> None:
    unsaid = {"tokenizer.ggml.add_bos_token": None}
    assert make(metadata=unsaid).encode("") == []
    assert make(metadata=unsaid | {"tokenizer.ggml.pre": "llama-bpe"}).encode("") == [595]
    assert spm.encode("") == [1]
    assert make(kind="llama", metadata={"tokenizer.ggml.add_bos_token": False}).encode("") == []


def test_all_ids_that_end_generation(make: Make, bpe: Tokenizer, spm: Tokenizer) -> None:
    assert bpe.eos_ids == (597, 595)  # the file's own, then <|endoftext|>
    assert spm.eos_ids == (2,)
    assert make(metadata={"tokenizer.ggml.eot_token_id": 300, "tokenizer.ggml.eom_token_id": 301}).eos_ids[:3] == (
        597,
        300,
        301,
    )
    ordinary = make(types={595: NORMAL})
    assert ordinary.eos_ids == (597,)  # an ordinary token is no end, whatever its name
    added = make(types={595: USER_DEFINED})
    assert added.eos_ids == (597, 595)
    tokens = byte_level(600)[0]
    harmony = [*tokens[:596], "<|end|>", "<|return|>", "<|call|>", tokens[599]]
    types = {596: CONTROL, 597: CONTROL, 598: CONTROL}
    assert set(make(metadata={"tokenizer.ggml.tokens": harmony}, types=types).eos_ids) == {595, 597, 598}


@pytest.mark.parametrize("padding", [0, 1, 64])
@pytest.mark.parametrize("mark", [5, USER_DEFINED, NORMAL])
def test_padded_rows_are_no_tokens(make: Make, padding: int, mark: int) -> None:
    tokens = [*byte_level(600)[0], *(f"[PAD{600 + i}]" for i in range(padding))]
    marks = [*byte_level(600)[1], *[mark] * padding]
    metadata = {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": marks}
    tokenizer = make(metadata=metadata)
    assert tokenizer.vocabulary_size == 600
    assert all(i < 600 for i in tokenizer.encode("[PAD600] [PAD601]"))
    for wrong in (600, -1):
        with pytest.raises(ParameterError, match=rf"{wrong} is outside 0\.\.599"):
            tokenizer.token(wrong)
        with pytest.raises(ParameterError, match="outside"):
            tokenizer.decode([wrong])


# -- text from ids -----------------------------------------------------------------------------------------------------

PIECES = ["hi 🚀 ok", "日本", "👩‍👩‍👧‍👦", "e\u0301", "    .", "  two", " one", "tab\t", "\n\n", "x", "", "\ufeffy"]


@pytest.mark.parametrize("text", PIECES)
def test_deltas_join_to_the_text_and_never_split_a_character(either: Tokenizer, text: str) -> None:
    ids = either.encode(text)
    assert either.decode(ids) == text
    detokenizer = either.detokenizer()
    deltas = [*map(detokenizer.add, ids), detokenizer.finish()]
    assert "".join(deltas) == text
    assert "\ufffd" not in "".join(deltas)
    assert deltas[-1] == ""


@given(data=st.data())
def test_any_ids_decode_alike_in_one_go_and_piecewise(bpe: Tokenizer, spm: Tokenizer, data: st.DataObject) -> None:
    tokenizer = data.draw(st.sampled_from([bpe, spm]))
    ids = data.draw(st.lists(st.integers(0, 599), max_size=30))
    skip, continues = data.draw(st.booleans()), data.draw(st.booleans())
    detokenizer = tokenizer.detokenizer(skip_special=skip, continues=continues)
    pieces = [*map(detokenizer.add, ids), detokenizer.finish()]
    kept = [i for i in ids if not (skip and i in tokenizer.parts.control_ids)]
    raw = b"".join(map(tokenizer.token_bytes, kept))
    if tokenizer.parts.strips_space and not continues:
        raw = raw.removeprefix(b" ")
    assert (
        "".join(pieces)
        == tokenizer.decode(ids, skip_special=skip, continues=continues)
        == raw.decode("utf-8", "replace")
    )


def test_broken_characters_are_marked_once_and_stall_nothing(either: Tokenizer) -> None:
    def byte(value: int) -> int:
        return next(
            i for i in range(600) if either.token_bytes(i) == bytes([value]) and i not in either.parts.control_ids
        )

    detokenizer = either.detokenizer(continues=True)
    assert [detokenizer.add(byte(value)) for value in b"\xff\xfe"] == ["\ufffd", "\ufffd"]
    assert detokenizer.add(byte(ord("x"))) == "x"
    emoji = "🚀".encode()
    assert [detokenizer.add(byte(value)) for value in emoji[:3]] == ["", "", ""]
    assert detokenizer.finish() == "\ufffd"
    cut_off = either.detokenizer(continues=True)
    assert [cut_off.add(byte(value)) for value in (*emoji[:2], ord("a"))] == ["", "", "\ufffda"]
    assert cut_off.finish() == ""


def test_the_first_space_of_a_text_and_of_a_continuation(spm: Tokenizer, bpe: Tokenizer) -> None:
    prompt, rest = spm.encode("the people"), spm.encode("said", add_special=False)
    assert spm.decode(rest) == "said"
    assert spm.decode(rest, continues=True) == " said"
    assert spm.decode(prompt) + spm.decode(rest, continues=True) == spm.decode([*prompt, *rest]) == "the people said"
    assert spm.decode([1, *rest]) == "said"
    assert bpe.decode(bpe.encode(" said")) == " said"


def test_forty_thousand_tokens_cost_one_look_each(bpe: Tokenizer) -> None:
    """Linear by construction: every id is looked up once, and nothing handed out is looked at again."""
    ids = bpe.encode("the people said ") * 8000
    assert len(ids) >= 40_000
    looked_up: list[int] = []
    detokenizer = bpe.detokenizer()
    detokenizer._token_bytes = lambda i: looked_up.append(i) or bpe.token_bytes(i)  # type: ignore[func-returns-value]
    longest = max(len(detokenizer.add(i)) for i in ids)
    assert looked_up == ids
    assert longest < 10


# -- bad text ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["\ud83d", "a\udc80b"])
def test_half_a_surrogate_pair_is_a_prompt_error(either: Tokenizer, text: str) -> None:
    with pytest.raises(PromptError, match="not valid Unicode"):
        either.encode(text)


@pytest.mark.parametrize("text", [None, 5, b"bytes", ["a"]])
def test_text_is_text(bpe: Tokenizer, text: Any) -> None:
    with pytest.raises(PromptError, match="text is expected"):
        bpe.encode(text)


# -- real vocabularies -------------------------------------------------------------------------------------------------

REAL = json.loads((DATA / "llamacpp_ids.json").read_text())
MODELS = [(name, group) for group in REAL["groups"] for name in group["models"]]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "group"), MODELS, ids=[name for name, _ in MODELS])
def test_ids_of_real_vocabularies_equal_llama_cpp(name: str, group: dict[str, Any]) -> None:
    tokenizer = load_tokenizer(real_file(name))
    for text, ids in zip(REAL["texts"], group["texts"], strict=True):
        assert tokenizer.encode(text) == ids, text
        assert tokenizer.decode(ids, skip_special=False) == text
    for text, read, plain in zip(REAL["control"], group["control"], group["control_as_text"], strict=True):
        assert tokenizer.encode(text) == read, text
        assert tokenizer.encode(text, parse_special=False) == plain, text
        assert tokenizer.decode(plain) == text
    assert {"smollm2-135m": (49152, (2, 0))}.get(name, (151665, (151645, 151643))) == (
        tokenizer.vocabulary_size,
        tokenizer.eos_ids,
    )


@pytest.mark.thorough("qwen2.5-coder-0.5b")
@pytest.mark.slow
@pytest.mark.parametrize("name", ["smollm2-135m", "qwen2.5-coder-0.5b"])
def test_ids_equal_transformers_conversion_where_it_is_right(name: str) -> None:
    """Not compared: texts that Qwen's NFC normalisation changes (llama.cpp leaves it out), and digits outside ASCII
    (transformers does not set SmolLM's digits apart, which shows where a digit is several bytes)."""
    import unicodedata

    from transformers import AutoTokenizer

    path = real_file(name)
    tokenizer = load_tokenizer(path)
    theirs = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    compared = [
        text
        for text in REAL["texts"]
        if unicodedata.normalize("NFC", text) == text
        and all(one.isascii() or unicodedata.category(one)[0] != "N" for one in text)
    ]
    assert len(compared) > 100
    assert {
        text for text in compared if theirs(text, add_special_tokens=False).input_ids != tokenizer.encode(text)
    } == set()
    assert GUARD not in tokenizer.decode(tokenizer.encode(GUARD))
