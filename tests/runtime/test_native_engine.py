"""The native runtime through the API: text under speculation is plain decoding's, and torch stays out."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.models.tiny_gguf import write_tiny_gguf

from forerun.errors import ContextLengthError, NumericalError
from forerun.llm import LLM
from forerun.loading import load
from forerun.models.gguf import open_gguf
from forerun.runtime.native import NativeModel

PROMPTS = [[5, 6, 7], [9] * 40, [30, 31], list(range(100, 170))]
MODES: list[dict[str, Any]] = [{"temperature": 0}, {"seed": 8, "temperature": 0.7, "top_p": 0.9}]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A target and a draft near it, in different types."""
    folder = tmp_path_factory.mktemp("pair")
    target = write_tiny_gguf(folder / "target.gguf", seed=3, tensor_type="Q8_0")
    return target, write_tiny_gguf(folder / "draft.gguf", seed=3, perturb=0.2, tensor_type="Q4_0")


@pytest.fixture(scope="module")
def plain(pair: tuple[Path, Path]) -> Iterator[LLM]:
    with load(pair[0]) as llm:
        yield llm


@pytest.mark.parametrize("settings", [{}, {"draft_requantise": True}, {"draft_vocabulary": 300}, {"draft_context": 30}])
@pytest.mark.parametrize("k", [1, 3, 8])
def test_drafts_leave_the_text_alone(pair: tuple[Path, Path], plain: LLM, k: int, settings: dict[str, Any]) -> None:
    with load(pair[0], draft=pair[1], k=k, **settings) as llm:
        assert type(llm.engine.target) is type(llm.engine.drafter.model) is NativeModel
        for params in MODES:
            expected = plain.generate(PROMPTS, max_tokens=24, ignore_eos=True, **params)
            found = llm.generate(PROMPTS, max_tokens=24, ignore_eos=True, **params)
            assert [result.tokens for result in found] == [result.tokens for result in expected]
            assert sum(result.speculation.num_accepted for result in found) > 0


def test_a_model_drafts_perfectly_for_itself(pair: tuple[Path, Path]) -> None:
    """Rows do not depend on how many share a pass, so nothing is ever rejected."""
    with load(pair[0], draft=pair[0], k=5) as llm:
        for params in MODES:
            for result in llm.generate(PROMPTS, max_tokens=24, ignore_eos=True, **params):
                assert result.speculation.acceptance_rate == 1.0


def test_batches_and_chunks_leave_the_text_alone(pair: tuple[Path, Path], plain: LLM) -> None:
    alone = [plain.generate(prompt, max_tokens=16, temperature=0).tokens for prompt in PROMPTS]
    assert [result.tokens for result in plain.generate(PROMPTS, max_tokens=16, temperature=0)] == alone
    for settings in ({"drafter": "lookup"}, {"drafter": "suffix"}, {"drafter": "stack", "draft": pair[1]}):
        with load(pair[0], max_sequences=2, **settings) as llm:
            assert [result.tokens for result in llm.generate(PROMPTS, max_tokens=16, temperature=0)] == alone
    with load(pair[0], max_sequences=2, drafter="lookup", k=9) as llm:
        assert [result.tokens for result in llm.generate(PROMPTS, max_tokens=16, temperature=0)] == alone


def test_choices_share_their_prompt(plain: LLM) -> None:
    result = plain.generate(PROMPTS[3], n=3, seed=1, max_tokens=12, ignore_eos=True)
    assert len({choice.tokens for choice in result.choices}) == 3
    assert plain.engine.target.cache_bytes == 0, "a finished request leaves nothing"


def test_a_context_is_filled_to_its_end_and_no_further(pair: tuple[Path, Path]) -> None:
    with load(pair[0], context_length=32, draft=pair[1], k=4) as llm:
        result = llm.generate([5, 6, 7], ignore_eos=True, temperature=0)
        assert (len(result.tokens), result.finish_reason) == (29, "length")
        with pytest.raises(ContextLengthError):
            llm.generate([5] * 32)


def test_a_row_without_a_number_ends_its_request_only(tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "nan.gguf", tied=False)
    with open_gguf(path) as file:
        embedding = file.tensors["token_embd.weight"]
    data = bytearray(path.read_bytes())
    at = embedding.offset + 9 * embedding.num_bytes // embedding.shape[0]
    data[at : at + 4] = np.float32("nan").tobytes()
    path.write_bytes(data)
    with load(path) as llm:
        with pytest.raises(NumericalError) as caught:
            llm.generate([[5, 9, 6], [5, 6]], max_tokens=3, temperature=0)
        bad, good = caught.value.results
        assert bad is None
        assert len(good.tokens) == 3


WITHOUT_TORCH = """
import sys
import forerun
llm = forerun.load(sys.argv[1], draft=sys.argv[2], k=3)
for params in ({"temperature": 0}, {"seed": 1, "top_p": 0.9}, {"logprobs": 2}, {"regex": "[a-z ]*"}):
    assert llm.generate("the words of it", max_tokens=12, **params).tokens
print(sorted({"torch", "transformers", "accelerate"} & set(sys.modules)))
"""


HIDE_TORCH = """
import sys
class Hide:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "transformers", "accelerate"):
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Hide())
"""


def test_a_native_pair_never_imports_torch(pair: tuple[Path, Path]) -> None:
    arguments = [sys.executable, "-c", WITHOUT_TORCH, *map(str, pair)]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr


def test_a_native_pair_needs_no_torch(pair: tuple[Path, Path]) -> None:
    """Where it is not installed: nothing finds it."""
    code = f"{HIDE_TORCH}\n{WITHOUT_TORCH}"
    done = subprocess.run([sys.executable, "-c", code, *map(str, pair)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
