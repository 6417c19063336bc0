"""Texts of every family on the native runtime: through `forerun.load`, and under speculation the same as without."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.runtime.as_gguf import write_gguf
from tests.runtime.families import CASES, perturbed, save_tokenizer
from tests.runtime.tiny import tiny

from forerun.loading import load
from forerun.runtime.native import NativeModel

SIZE: dict[str, Any] = {"vocab_size": 600, "intermediate_size": 64}
PROMPTS = [[5, 6, 7], [9, 30, 31, 200] * 6, "def water(self): return", [40] * 11]
SETTINGS: list[dict[str, Any]] = [{"temperature": 0}, {"seed": 8, "temperature": 0.8, "top_p": 0.95}]
NAMES = ("gemma2", "gemma3", "gemma3, scaled", "phi3, long", "olmo2", "granite", "smollm3", "mistral, windows", "qwen3")


def module_of(name: str, share: float = 0.0) -> Any:
    case = CASES[name]
    module = tiny(case.name, **case.changes | SIZE)
    return perturbed(module, share) if share else module


@pytest.mark.parametrize("name", NAMES)
def test_speculation_changes_no_text(name: str, tmp_path: Path) -> None:
    """Greedy and seeded, prompts shorter and longer than the windows, several at once."""
    case = CASES[name]
    common: dict[str, Any] = {"metadata": case.metadata, "with_tokenizer": True}
    target = write_gguf(tmp_path / "t.gguf", module_of(name), case.architecture, "Q8_0", **common)
    draft = write_gguf(tmp_path / "d.gguf", module_of(name, 0.1), case.architecture, **common)
    with load(target) as plain, load(target, draft=draft, k=3) as llm:
        assert isinstance(llm.engine.target, NativeModel)
        for params in SETTINGS:
            expected = plain.generate(PROMPTS, max_tokens=24, ignore_eos=True, **params)
            found = llm.generate(PROMPTS, max_tokens=24, ignore_eos=True, **params)
            assert [one.tokens for one in found] == [one.tokens for one in expected]
            assert [one.text for one in found] == [one.text for one in expected]
            assert all(one.text for one in found)
            assert sum(one.speculation.num_accepted for one in found) > 0


@pytest.mark.parametrize("quantize", [None, "q4", "q8_0", "bf16"])
def test_a_directory_speculates_like_a_file(quantize: str | None, tmp_path: Path) -> None:
    for name, share in (("t", 0.0), ("d", 0.1)):
        module_of("gemma3", share).save_pretrained(tmp_path / name)
        save_tokenizer(tmp_path / name, 600)
    common: dict[str, Any] = {"runtime": "native" if quantize is None else "auto", "quantize": quantize}
    drafted: dict[str, Any] = {"draft": tmp_path / "d", "draft_requantise": True, "k": 2}
    with load(tmp_path / "t", **common) as plain, load(tmp_path / "t", **common, **drafted) as llm:
        assert isinstance(llm.engine.target, NativeModel)
        assert isinstance(llm.engine.drafter.model, NativeModel)
        for params in SETTINGS:
            expected = plain.generate(PROMPTS, max_tokens=16, ignore_eos=True, **params)
            found = llm.generate(PROMPTS, max_tokens=16, ignore_eos=True, **params)
            assert [one.tokens for one in found] == [one.tokens for one in expected]
            assert sum(one.speculation.num_accepted for one in found) > 0


def test_a_file_and_a_directory_of_one_model_write_the_same(tmp_path: Path) -> None:
    """Bit for bit: the same weights, rounded by gguf's own code or while they are loaded."""
    module = module_of("phi3, long")
    module.save_pretrained(tmp_path / "m")
    save_tokenizer(tmp_path / "m", 600)
    path = write_gguf(tmp_path / "m.gguf", module, "phi3", "Q8_0", with_tokenizer=True)
    with load(path) as stored, load(tmp_path / "m", quantize="q8_0") as rounded:
        for params in SETTINGS:
            first, second = (
                llm.generate(PROMPTS, max_tokens=20, ignore_eos=True, **params) for llm in (stored, rounded)
            )
            assert [one.tokens for one in first] == [one.tokens for one in second]
