"""Weights of the families in several types and shards, and rounded while they are loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.runtime.as_gguf import write_gguf
from tests.runtime.closeness import Closeness
from tests.runtime.families import CASES
from tests.runtime.family_files import refused
from tests.runtime.rows import rows_of, rows_of_transformers
from tests.runtime.stored import rounded
from tests.runtime.test_families import FAITHFUL, TOKENS, written
from tests.runtime.test_native_model import QUANTISED
from tests.runtime.tiny import tiny

from forerun import _native
from forerun.errors import FileFormatError, ParameterError
from forerun.models.transformers_files import INDEX, SINGLE
from forerun.runtime.native import check_native_model, load_native_model


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sixteen_bit_weights_in_shards(dtype: torch.dtype, tmp_path: Path) -> None:
    module = tiny("gemma3", dtype)
    module.save_pretrained(tmp_path / "m", max_shard_size="60KB")
    assert (tmp_path / "m" / INDEX).is_file()
    found = rows_of(load_native_model(tmp_path / "m"), TOKENS)
    Closeness.of(found, rows_of_transformers(module.float(), TOKENS)).check(**FAITHFUL)


WIDE: dict[str, Any] = {"hidden_size": 256, "intermediate_size": 512, "vocab_size": 256}
FORMS = {"q8_0": ("Q8_0", QUANTISED), "bf16": ("BF16", FAITHFUL)}


@pytest.mark.parametrize("source", ["gguf", "directory"])
@pytest.mark.parametrize("form", FORMS)
def test_weights_rounded_at_load(form: str, source: str, tmp_path: Path) -> None:
    """Against transformers on the weights that gguf's own rounding leaves."""
    module, path = written(CASES["gemma3"], source, tmp_path, **WIDE)
    type_name, bounds = FORMS[form]
    model = load_native_model(path, quantize=form)
    assert model.weight_bytes < 0.6 * load_native_model(path).weight_bytes
    expected = rows_of_transformers(rounded(module, lambda name: type_name), TOKENS)
    Closeness.of(rows_of(model, TOKENS), expected).check(**bounds)


@pytest.mark.parametrize("source", ["gguf", "directory"])
def test_four_bits(source: str, tmp_path: Path) -> None:
    """As requantised drafts are rounded: the packed matrices themselves say to what."""
    module, path = written(CASES["phi3"], source, tmp_path, **WIDE)
    with torch.no_grad():
        for weight in module.parameters():
            if weight.ndim == 2:
                values = np.ascontiguousarray(weight.numpy())
                packed = _native.pack_matrix("F32", values.view(np.uint8), values.shape[1], rounding="q4")
                weight.copy_(torch.from_numpy(np.concatenate([packed.row(i) for i in range(len(values))])))
    found = rows_of(load_native_model(path, quantize="q4"), TOKENS)
    Closeness.of(found, rows_of_transformers(module, TOKENS)).check(**QUANTISED)


def test_what_is_quantised_already_stays_as_it_is(tmp_path: Path) -> None:
    module = tiny("qwen2", **WIDE)
    mixed = write_gguf(tmp_path / "m.gguf", module, "qwen2", "Q8_0", types={"token_embd.weight": "F16"})
    whole = write_gguf(tmp_path / "w.gguf", module, "qwen2", "Q8_0")
    kept, rounded_, plain = (
        load_native_model(path, quantize=form) for path, form in ((mixed, "q4"), (mixed, "q8_0"), (whole, None))
    )
    assert kept.weight_bytes == load_native_model(mixed).weight_bytes  # the head is apart, and stays in 8 bits
    first, second = rows_of(rounded_, TOKENS), rows_of(plain, TOKENS)
    Closeness.of(first, second).check(**QUANTISED | {"top_1": 0.9})
    refused(whole, ParameterError, "quantize: .*no matrix of floats", quantize="q4")
    refused(mixed, ParameterError, "quantize: 'q6' is not allowed", quantize="q6")


def test_widths_that_groups_do_not_divide(tmp_path: Path) -> None:
    module = tiny("llama", intermediate_size=40)
    module.save_pretrained(tmp_path / "m")
    refused(tmp_path / "m", ParameterError, "quantize: .*down_proj.* has rows of 40.*or give bf16", quantize="q8_0")
    check_native_model(tmp_path / "m", quantize="bf16")


def test_a_directory_cut_while_it_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error that names the tensor, where a mapped file would end the process."""
    import os

    from forerun.runtime.native import load

    _, path = written(CASES["llama"], "directory", tmp_path)
    real = load.describe

    def cutting(files: Any) -> Any:
        found = real(files)
        os.truncate(path / SINGLE, (path / SINGLE).stat().st_size - 5000)
        return found

    monkeypatch.setattr(load, "describe", cutting)
    with pytest.raises(FileFormatError, match=r"model\.safetensors was cut while it was being read"):
        load_native_model(path)
