"""Which drafts a datasheet plans with: compared where something tells, and said where nothing does."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import pytest
from tests.models.real_files import real_file
from tests.models.tiny_gguf import write_tiny_gguf

from forerun.errors import VocabularyMismatchError
from forerun.models.registry import entries
from forerun.models.tokenizer import load_tokenizer
from forerun.planning.vocabularies import SAME, UNKNOWN, compared, fits, in_words, verdicts


@pytest.fixture(autouse=True)
def own_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing is in the cache."""
    monkeypatch.setenv("FORERUN_HOME", str(tmp_path / "home"))


def test_registered_models_by_the_name_of_their_vocabulary() -> None:
    assert all(entry.vocabulary for entry in entries())
    assert verdicts("qwen2.5-coder-1.5b", ["qwen2.5-coder-0.5b"]) == {"qwen2.5-coder-0.5b": SAME}
    with pytest.raises(VocabularyMismatchError, match="that of smollm2"):
        verdicts("qwen2.5-coder-1.5b", ["smollm2-135m"])
    found = verdicts("qwen2.5-coder-1.5b", ["smollm2-135m", "0.1b@4"])
    assert [fits(one) for one in found.values()] == [False, True]


@pytest.mark.slow
def test_the_registry_s_names_are_true() -> None:
    tokenizers = {entry: load_tokenizer(real_file(entry.name)) for entry in entries()}
    for one, other in combinations(tokenizers, 2):
        is_same = compared(tokenizers[one], tokenizers[other]) is None
        assert is_same == (one.vocabulary == other.vocabulary), (one.name, other.name)


def test_files_by_their_tokenizers(tmp_path: Path) -> None:
    one = str(write_tiny_gguf(tmp_path / "one.gguf", seed=1))
    other = str(write_tiny_gguf(tmp_path / "other.gguf", seed=2, padding=64))
    odd = str(write_tiny_gguf(tmp_path / "odd.gguf", swap=[(310, 300)]))
    found = verdicts(one, [other, odd, "1b@16"])
    assert found[other] == SAME
    assert "id 300 is" in found[odd]
    assert found["1b@16"] == UNKNOWN
    assert verdicts(one, ["smollm2-135m"]) == {"smollm2-135m": UNKNOWN}, "its files are not here"


def test_files_that_tell_nothing(tmp_path: Path) -> None:
    one = str(write_tiny_gguf(tmp_path / "one.gguf"))
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes((tmp_path / "one.gguf").read_bytes()[:200])
    assert verdicts(one, [str(damaged)]) == {str(damaged): UNKNOWN}


def test_no_drafts_and_shapes_alone() -> None:
    assert verdicts("70b@16", []) == {}
    assert verdicts("70b@16", ["8b@16", "qwen2.5-coder-0.5b"]) == dict.fromkeys(
        ("8b@16", "qwen2.5-coder-0.5b"), UNKNOWN
    )


def test_equal_verdicts_share_a_line() -> None:
    assert in_words({"a": UNKNOWN, "b": SAME, "c": UNKNOWN, "d": "id 3 differs"}) == [
        "vocabulary of a, c: not known here, taken to be the target's",
        "vocabulary of b: the same as the target",
        "vocabulary of d: id 3 differs; left out",
    ]
