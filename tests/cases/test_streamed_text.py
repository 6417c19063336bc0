"""cases.md C06 and C07 as far as this version goes, and the part of C20 that streams need.

Stop strings are not built yet and are refused by name, whatever their value. What C06 asks of streams holds already:
the deltas join to the non-streamed text, nothing is sent twice, and held-back text is flushed at the end.
"""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.control import FixedLength
from forerun.drafting.scripted import HalfDrafter, LiarDrafter, OracleDrafter
from forerun.errors import ParameterError
from forerun.llm import LLM
from forerun.models.detokenizer import Detokenizer
from forerun.runtime.toy import ToyModel

EOS = 256


def byte_tokenizer() -> SimpleNamespace:
    """Every byte is a token; id 256 ends a text."""
    return SimpleNamespace(
        vocabulary_size=257,
        eos_ids=(EOS,),
        encode=lambda text: list(text.encode()),
        detokenizer=lambda continues=False: Detokenizer(lambda token: bytes([token]), {EOS}),
    )


def writer(ids: list[int], prompt_length: int) -> ToyModel:
    """A target that writes exactly `ids` after its prompt."""
    rows = np.zeros((prompt_length + len(ids), 257))
    for i, token in enumerate(ids):
        rows[prompt_length - 1 + i, token] = 30.0
    return ToyModel.by_position(rows)


TEXTS = ["hi 🚀 ok", "日本", "👨‍👩‍👧", "e\u0301", '    ."', " begins with a space", "Lima.\n", "red blue green"]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("k", [0, 1, 3, 7, 8])
@pytest.mark.parametrize("make", [OracleDrafter, LiarDrafter, HalfDrafter])
def test_c06_c20_deltas_join_to_the_text_and_split_no_character(text: str, k: int, make: type) -> None:
    ids = [*text.encode(), EOS]
    llm = LLM(writer(ids, 2), byte_tokenizer(), make({tuple(b"ab"): ids}), FixedLength(k))  # type: ignore[arg-type]
    pieces = list(llm.stream("ab", temperature=0, max_tokens=100))
    assert "".join(piece.text for piece in pieces) == text
    assert not any("\ufffd" in piece.text for piece in pieces)
    whole = llm.generate("ab", temperature=0, max_tokens=100)
    assert (whole.text, whole.finish_reason, list(whole.tokens)) == (text, "stop", ids[:-1])


@pytest.mark.parametrize("cut", [1, 2, 3])
def test_c20_an_unfinished_character_is_flushed_once_at_the_end(cut: int) -> None:
    ids = [*b"hi ", *"🚀".encode()]
    llm = LLM(writer(ids, 2), byte_tokenizer())  # type: ignore[arg-type]
    pieces = list(llm.stream("ab", temperature=0, max_tokens=3 + cut))
    assert "".join(piece.text for piece in pieces) == "hi \ufffd"
    assert [piece.finish_reason for piece in pieces][-1] == "length"
    assert pieces[-1].text == "\ufffd"


@given(ids=st.lists(st.integers(0, 255), max_size=40), k=st.integers(0, 6))
def test_c20_any_bytes_stream_as_they_decode(ids: list[int], k: int) -> None:
    script = [*ids, EOS]
    llm = LLM(writer(script, 1), byte_tokenizer(), HalfDrafter({(97,): script}), FixedLength(k))  # type: ignore[arg-type]
    pieces = list(llm.stream("a", temperature=0, max_tokens=100))
    assert "".join(piece.text for piece in pieces) == bytes(ids).decode("utf-8", "replace")


@pytest.mark.parametrize("stop", ["", [""], ["", "x"], [], None, ["a"] * 5, "x" * 10_000, "\u0000", "\ud83d", "ab"])
def test_c07_stop_strings_are_refused_by_name_until_they_are_built(stop: object) -> None:
    llm = LLM(writer([65, EOS], 2), byte_tokenizer())  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match="stop: not built yet"):
        llm.generate("ab", temperature=0, max_tokens=3, stop=stop)
    assert llm.generate("ab", temperature=0, max_tokens=3).text == "A"
