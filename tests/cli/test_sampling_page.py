"""docs/sampling.md is true: its table is that of `SamplingParams` and its flags, its examples print what it says."""

from __future__ import annotations

import doctest
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import forerun
from forerun.cli.options import PYTHON_ONLY, flag_names
from forerun.control import FixedLength
from forerun.drafting import LookupDrafter
from forerun.llm import LLM
from forerun.models.detokenizer import Detokenizer
from forerun.runtime.toy import ToyModel
from forerun.sampling.params import NOT_BUILT, SamplingParams

PAGE = Path(__file__).parents[2] / "docs" / "sampling.md"
TEXT = PAGE.read_text(encoding="utf-8")

WORDS = ["<end>", "the", " the", " cat", " dog", " sat", " ran", " and", ".", "\n", "cat", "dog", '"', " cats"]
FOLLOWS = {
    "the": {"cat": 2.0, "dog": 1.5}, "cat": {"sat": 2.0, "ran": 1.0, "and": 0.5}, "dog": {"ran": 2.0, "sat": 1.0},
    "sat": {"and": 2.0, ".": 1.0}, "ran": {"and": 1.5, ".": 1.5}, "and": {"the": 3.0}, ".": {"\n": 2.0, "<end>": 1.0},
    "\n": {"<end>": 2.0, "the": 1.0}, '"': {"cat": 1.0, "<end>": 0.5}, "cats": {"ran": 2.0},
}  # fmt: skip
"""Logits above the others' -4, by the word before."""


class WordTokenizer:
    """Text as the longest words of WORDS."""

    vocabulary_size = len(WORDS)
    eos_ids = (0,)
    parts = SimpleNamespace(control_ids=frozenset({0}))

    def encode(self, text: str, **settings: bool) -> list[int]:
        ids: list[int] = []
        while text:
            best = max((word for word in WORDS[1:] if text.startswith(word)), key=len)
            ids.append(WORDS.index(best))
            text = text[len(best) :]
        return ids

    def encode_chat(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        return self.encode(str(messages[-1]["content"]))

    def token_bytes(self, token: int) -> bytes:
        return WORDS[token].encode()

    def detokenizer(self, **settings: bool) -> Detokenizer:
        return Detokenizer(self.token_bytes, frozenset({0}), False)


def logits_of(tokens: tuple[int, ...]) -> np.ndarray:
    row = np.full(len(WORDS), -4.0)
    for word, value in FOLLOWS.get(WORDS[tokens[-1]].strip(" "), {}).items():
        spaced = " " + word if " " + word in WORDS and tokens[-1] not in (9, 12) else word
        row[WORDS.index(spaced)] = value
    return row


@pytest.fixture(params=["plain", "lookup"])
def llm(request: pytest.FixtureRequest) -> Iterator[LLM]:
    drafter = LookupDrafter(min_size=1) if request.param == "lookup" else None
    made = LLM(
        ToyModel(logits_of, len(WORDS), 200),
        WordTokenizer(),  # type: ignore[arg-type]
        drafter,
        FixedLength(3 if drafter else 0),
    )
    with made:
        yield made


def test_the_examples_print_what_the_page_says(llm: LLM) -> None:
    """With a drafter and without: the page is written once, and both must agree with it."""
    blocks = re.findall(r"```pycon\n(.*?)```", TEXT, re.DOTALL)
    assert len(blocks) >= 8
    names = {"llm": llm, "forerun": forerun}
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    parser = doctest.DocTestParser()
    for number, block in enumerate(blocks):
        said: list[str] = []
        test = parser.get_doctest(block, names, f"block {number}", str(PAGE), 0)
        names = test.globs
        outcome = runner.run(test, out=said.append, clear_globs=False)
        assert not outcome.failed, "".join(said)


def rows() -> dict[str, list[str]]:
    """Parameter -> its row of the page's table."""
    lines = [line.strip("|").split(" | ") for line in TEXT.splitlines() if re.match(r"\| `\w+` \| `", line)]
    return {cells[0].strip(" `"): [cell.strip() for cell in cells] for cells in lines}


def test_the_table_has_every_parameter_with_its_default_and_flag() -> None:
    found = rows()
    assert list(found) == [field.name for field in fields(SamplingParams)]
    for field in fields(SamplingParams):
        assert found[field.name][1] == f"`{field.default!r}`"
        flag = "Python only" if field.name in PYTHON_ONLY else f"`{flag_names()[field.name]}`"
        assert found[field.name][-1] == flag


def test_the_page_names_what_is_refused() -> None:
    for name in NOT_BUILT:
        assert f"`{name}`" in TEXT
