"""What tests of the families' files share: their names, copies with something changed, and refusals."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from forerun.errors import ForerunError
from forerun.models.transformers_files import SINGLE
from forerun.runtime.native import check_native_model, load_native_model

FAMILIES = ("llama", "mistral3", "qwen2", "qwen3", "gemma2", "gemma3", "phi3", "olmo2", "granite", "smollm3")
DIRECTORIES = tuple(name for name in FAMILIES if name != "mistral3")


def refused(path: Path, error: type[ForerunError], message: str, **settings: Any) -> None:
    """Before weights are read, and with what to do about it."""
    for refusing in (check_native_model, load_native_model):
        with pytest.raises(error, match=message) as found:
            refusing(path, **settings)
        assert found.value.remedy


def changed(folder: Path, to: Path, config: dict[str, Any] | None = None, **tensors: torch.Tensor | None) -> Path:
    """A copy of a directory with other settings and tensors (None takes one out)."""
    shutil.copytree(folder, to)
    values = json.loads((to / "config.json").read_text()) | (config or {})
    (to / "config.json").write_text(json.dumps(values))
    if tensors:
        held = load_file(to / SINGLE) | {name.replace("__", "."): value for name, value in tensors.items()}
        save_file({name: value for name, value in held.items() if value is not None}, to / SINGLE)
    return to
