"""Every family that the native runtime serves, as a GGUF file and as a transformers directory, against transformers in
float32: windows shorter than the text, soft caps, scales, positions of every kind, biases."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.runtime.as_gguf import write_gguf
from tests.runtime.closeness import Closeness
from tests.runtime.contract import feed
from tests.runtime.families import CASES, Case
from tests.runtime.numpy_decoder import NumpyDecoder, NumpyMatrix
from tests.runtime.tiny import CONTEXT, VOCABULARY, tiny

from forerun import _native
from forerun.runtime.native import NativeModel, load_native_model

FAITHFUL = {"kl": 1e-6, "largest": 2e-3, "rms": 2e-4, "top_1": 0.99}
TOKENS = [(11 * i + 3) % VOCABULARY for i in range(CONTEXT)]


def written(case: Case, source: str, folder: Path, **changes: Any) -> tuple[Any, Path]:
    """(transformers' model of a case, where it was saved as "gguf" or "directory")."""
    module = tiny(case.name, **case.changes | changes)
    if source == "gguf":
        return module, write_gguf(folder / "m.gguf", module, case.architecture, metadata=case.metadata)
    module.save_pretrained(folder / "m")
    return module, folder / "m"


def rows_of(model: NativeModel, tokens: list[int]) -> np.ndarray:
    model.begin(0)
    try:
        return feed(model, 0, tokens)
    finally:
        model.free(0)


def rows_of_transformers(module: Any, tokens: list[int]) -> np.ndarray:
    with torch.no_grad():
        return module(input_ids=torch.tensor([tokens]), use_cache=False).logits[0].float().numpy()


def tokens_of(case: Case) -> list[int]:
    return TOKENS[: case.loading.get("context_length", CONTEXT)]


@pytest.mark.parametrize("source", ["gguf", "directory"])
@pytest.mark.parametrize("name", CASES)
def test_same_description_as_transformers(
    name: str, source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over the decoder in numpy: to float32's rounding, so nothing hides in the decoder's own arithmetic."""
    monkeypatch.setattr(_native, "Decoder", NumpyDecoder)
    monkeypatch.setattr(_native, "PackedMatrix", NumpyMatrix)
    case = CASES[name]
    module, path = written(case, source, tmp_path)
    found = rows_of(load_native_model(path, **case.loading), tokens_of(case))
    np.testing.assert_allclose(found, rows_of_transformers(module, tokens_of(case)), atol=1e-4)


@pytest.mark.parametrize("source", ["gguf", "directory"])
@pytest.mark.parametrize("name", CASES)
def test_same_rows_as_transformers(name: str, source: str, tmp_path: Path) -> None:
    case = CASES[name]
    module, path = written(case, source, tmp_path)
    found = rows_of(load_native_model(path, **case.loading), tokens_of(case))
    Closeness.of(found, rows_of_transformers(module, tokens_of(case))).check(**FAITHFUL)
