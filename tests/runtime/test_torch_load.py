"""Directories: what loads, in which dtype, and what is said about files that cannot be used."""

from __future__ import annotations

import importlib
import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.runtime.contract import feed
from tests.runtime.tiny import tiny

import forerun.runtime.torch as package
from forerun.errors import (
    FileFormatError,
    MissingDependencyError,
    ParameterError,
    UnknownModelError,
    UnsupportedModelError,
)
from forerun.extras import install_line
from forerun.runtime.torch import check_torch_model, load_torch_model
from forerun.runtime.torch.load import choose_device, choose_dtype

TOKENS = [5, 66, 3, 3, 40, 21, 9, 8, 60]
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("llama")
    tiny("llama").save_pretrained(path)
    return path


@pytest.fixture
def damaged(directory: Path, tmp_path: Path) -> Path:
    """A copy to break."""
    for file in directory.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path


def load(path: Path, **settings: Any) -> Any:
    return load_torch_model(path, kind="transformers", **{"device": "cpu"} | settings)


@pytest.mark.parametrize("name", ["llama", "gemma2, soft caps and alternating windows", "gpt_oss, sinks and experts"])
def test_a_directory_is_the_model_it_was_saved_from(name: str, tmp_path: Path) -> None:
    module = tiny(name)
    module.save_pretrained(tmp_path)
    check_torch_model(tmp_path, kind="transformers")
    model = load(tmp_path)
    assert model.dtype is torch.float32
    with torch.no_grad():
        expected = module(input_ids=torch.tensor([TOKENS]), use_cache=False).logits[0].numpy()
    model.begin(0)
    np.testing.assert_allclose(feed(model, 0, TOKENS), expected, atol=1e-4)


def test_settings_reach_the_model(directory: Path) -> None:
    model = load(directory, dtype="bfloat16", context_length=20, head_ids=[5, 9], strict=True)
    assert model.dtype is torch.bfloat16
    assert model.capabilities.context_length == 20
    assert model._module.get_output_embeddings().out_features == 2
    assert model._strict


def test_stored_float16_becomes_what_the_cpu_computes(tmp_path: Path) -> None:
    tiny("llama", torch.float16).save_pretrained(tmp_path)
    assert load(tmp_path).dtype in (torch.bfloat16, torch.float32)
    assert load(tmp_path, dtype="float32").dtype is torch.float32


@pytest.mark.parametrize("fast", [True, False])
def test_dtype_auto(fast: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forerun.runtime.torch.load.has_fast_bfloat16", lambda: fast)
    half = torch.bfloat16 if fast else torch.float32
    assert choose_dtype("auto", None, CPU) is half
    assert choose_dtype("auto", torch.float16, CPU) is half
    assert choose_dtype("auto", torch.bfloat16, CPU) is half
    assert choose_dtype("auto", torch.float32, CPU) is torch.float32
    assert choose_dtype("float32", torch.bfloat16, CPU) is torch.float32
    assert choose_dtype("bfloat16", None, CPU) is torch.bfloat16


def test_device_auto(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_device("auto") == CPU
    with pytest.raises(ParameterError, match="not there"):
        choose_device("cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert choose_device("auto") == torch.device("cuda", 0)
    assert choose_device("cuda:1") == torch.device("cuda", 1)
    with pytest.raises(ParameterError, match="not there"):
        choose_device("cuda:2")
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: False)
    assert choose_dtype("auto", None, choose_device("cuda")) is torch.float16


@pytest.mark.parametrize(
    "settings, name",
    [({"device": "tpu"}, "device"), ({"device": "cuda:x"}, "device"), ({"dtype": "int8"}, "dtype")],
)
def test_settings_that_do_not_exist(settings: dict[str, str], name: str, directory: Path) -> None:
    with pytest.raises(ParameterError, match=name):
        check_torch_model(directory, kind="transformers", **settings)
    with pytest.raises(ParameterError, match="kind"):
        check_torch_model(directory, kind="onnx")
    with pytest.raises(ParameterError, match="context_length: 4096 is more than the model's own context of"):
        check_torch_model(directory, kind="transformers", context_length=4096)


def test_strict_experts_are_refused_before_weights(tmp_path: Path) -> None:
    tiny("gpt_oss, sinks and experts").config.save_pretrained(tmp_path)
    check_torch_model(tmp_path, kind="transformers")
    with pytest.raises(UnsupportedModelError, match="mixtures of experts"):
        check_torch_model(tmp_path, kind="transformers", strict=True)


def test_absent_and_empty_directories(tmp_path: Path) -> None:
    with pytest.raises(UnknownModelError, match="no directory"):
        load(tmp_path / "absent")
    with pytest.raises(FileFormatError, match="no config"):
        load(tmp_path)


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", "nonsense", '{"model_type": 3}', "\x00\x01"])
def test_damaged_configurations(content: str, damaged: Path) -> None:
    (damaged / "config.json").write_text(content)
    with pytest.raises((FileFormatError, UnsupportedModelError)):
        check_torch_model(damaged, kind="transformers")


@pytest.mark.parametrize(
    "change", [{"num_attention_heads": 5}, {"hidden_size": "wide"}, {"num_key_value_heads": 3}, {"vocab_size": -1}]
)
def test_impossible_configurations(change: dict[str, Any], damaged: Path) -> None:
    file = damaged / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises((FileFormatError, UnsupportedModelError)):
        load(damaged)


def test_weights_that_are_cut_short_or_absent(damaged: Path) -> None:
    weights = damaged / "model.safetensors"
    whole = weights.read_bytes()
    for length in (0, 4, 100, len(whole) // 2, len(whole) - 4):
        weights.write_bytes(whole[:length])
        with pytest.raises(FileFormatError, match="cannot be read"):
            load(damaged)
    weights.write_bytes(b"not safetensors at all" * 100)
    with pytest.raises(FileFormatError, match="cannot be read"):
        load(damaged)
    weights.unlink()
    with pytest.raises(FileFormatError, match="cannot be read"):
        load(damaged)


def test_weights_that_lack_a_tensor_are_not_made_up(damaged: Path) -> None:
    """transformers would draw the missing ones at random."""
    from safetensors.torch import load_file, save_file

    weights = load_file(damaged / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, damaged / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(FileFormatError, match=r"missing.*up_proj"):
        load(damaged)


def test_weights_of_another_shape(damaged: Path) -> None:
    file = damaged / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"intermediate_size": 40}))
    with pytest.raises(FileFormatError):
        load(damaged)


def test_nothing_is_printed(directory: Path, capfd: pytest.CaptureFixture[str]) -> None:
    load(directory)
    out = capfd.readouterr()
    assert (out.out, out.err) == ("", "")


def test_progress_hears_of_every_byte_of_a_gguf(tmp_path: Path) -> None:
    from tests.runtime.as_gguf import write_gguf

    class Heard:
        total = done = 0
        finished = False

        def start(self, total_bytes: int, label: str) -> None:
            self.total, self.label = total_bytes, label

        def advance(self, num_bytes: int) -> None:
            self.done += num_bytes

        def note(self, text: str) -> None:
            raise AssertionError(text)

        def finish(self) -> None:
            self.finished = True

    heard = Heard()
    load_torch_model(write_gguf(tmp_path / "m.gguf", tiny("llama"), "llama"), kind="gguf", progress=heard)
    assert heard.done == heard.total > 0
    assert heard.finished
    assert heard.label == "loading m.gguf"


@pytest.mark.parametrize("absent", ["torch", "transformers"])
def test_missing_packages_name_the_extra(absent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if name == absent else find(name, *a))
    with pytest.raises(MissingDependencyError, match=re.escape(install_line("torch"))):
        importlib.reload(package)
    monkeypatch.undo()
    importlib.reload(package)
