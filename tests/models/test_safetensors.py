"""Safetensors files and transformers directories: read as the library reads them, refused by what is wrong."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from tests.models.safetensors_tools import entry, write_safetensors, write_tensors

from forerun.errors import FileFormatError, ForerunError, ModelError, UnknownModelError, UnsupportedModelError
from forerun.models.safetensors_file import open_safetensors
from forerun.models.transformers_files import INDEX, SINGLE, TransformersFiles

DATA = bytes(range(64))


def tensors() -> dict[str, torch.Tensor]:
    torch.manual_seed(3)
    return {
        "a": torch.randn(5, 8),
        "b": torch.randn(3, 4).to(torch.bfloat16),
        "c": torch.randn(7).to(torch.float16),
        "d": torch.arange(6).reshape(2, 3),
    }


def directory(folder: Path, **files: dict[str, np.ndarray]) -> Path:
    """A directory with config.json and the named shards, indexed."""
    (folder / "config.json").write_text("{}")
    index = {}
    for shard, held in files.items():
        write_tensors(folder / f"{shard}.safetensors", held)
        index |= dict.fromkeys(held, f"{shard}.safetensors")
    (folder / INDEX).write_text(json.dumps({"weight_map": index}))
    return folder


def test_what_the_library_writes(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    save_file(tensors(), tmp_path / SINGLE, metadata={"format": "pt"})
    with TransformersFiles(tmp_path) as files:
        assert files.config == {"model_type": "llama"}
        assert {name: (one.type_name, one.shape) for name, one in files.tensors.items()} == {
            "a": ("F32", (5, 8)), "b": ("BF16", (3, 4)), "c": ("F16", (7,)), "d": ("I64", (2, 3)),
        }  # fmt: skip
        for name in "abc":
            np.testing.assert_array_equal(files.dequantise(name), tensors()[name].float().numpy())
        some = np.empty((2, files.tensors["b"].row_bytes), np.uint8)
        files.read_into(some, "b", 1)
        assert some.tobytes() == tensors()["b"][1:].view(torch.int16).numpy().tobytes()
        with pytest.raises(ValueError, match="more than tensor b has"):
            files.read_into(some, "b", 2)


def test_shards(tmp_path: Path) -> None:
    a, b = np.arange(6, dtype=np.float32).reshape(2, 3), np.ones(4, dtype=np.float16)
    directory(tmp_path, **{"model-00001-of-00002": {"a": a}, "model-00002-of-00002": {"b": b}})
    with TransformersFiles(tmp_path) as files:
        np.testing.assert_array_equal(files.dequantise("a"), a)
        np.testing.assert_array_equal(files.dequantise("b"), b)
    save_file({"a": torch.zeros(1)}, tmp_path / SINGLE)
    with TransformersFiles(tmp_path) as files:  # as transformers prefers it
        assert list(files.tensors) == ["a"]


ONE = {"t": entry("F32", [2, 2], 0, 16)}
BROKEN: list[tuple[Any, dict[str, Any], str]] = [
    (b"", {"length": 1 << 40}, r"no safetensors file.*1,099,511,627,776 bytes"),
    (ONE, {"length": 100_000_001}, "no safetensors file"),
    (ONE, {"length": 4000}, "no safetensors file"),
    (b"{", {}, "no valid JSON"),
    (b"\xff\xfe{}", {}, "no valid JSON"),
    (b"[" * 100_000, {}, "no valid JSON"),
    (b"[]", {}, "no JSON object"),
    (b'{"t": 1, "t": 2}', {}, "the key 't' comes twice"),
    (b'{"t": {"dtype": "F32", "dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}}', {}, "'dtype' comes twice"),
    ({"t": 3}, {}, "tensor t .*its entry is not"),
    ({"t": {"dtype": "F32", "shape": [2, 2]}}, {}, "tensor t .*its entry is not"),
    ({"t": ONE["t"] | {"more": 1}}, {}, "tensor t .*its entry is not"),
    ({"t": entry("F4", [2, 2], 0, 16)}, {}, "tensor t .*dtype is 'F4'"),
    ({"t": entry("F32", [2, -2], 0, 16)}, {}, "tensor t .*shape is"),
    ({"t": entry("F32", [True, 4], 0, 16)}, {}, "tensor t .*shape is"),
    ({"t": entry("F32", [1] * 9, 0, 4)}, {}, "tensor t .*shape is"),
    ({"t": entry("F32", [2.0, 2], 0, 16)}, {}, "tensor t .*shape is"),
    ({"t": entry("F32", [1 << 62, 1 << 62], 0, 16)}, {}, "tensor t .*larger than the file"),
    ({"t": entry("F32", [0, 1 << 62], 0, 16)}, {}, "tensor t .*takes 0 bytes and 16"),
    ({"t": entry("F32", [2, 2], 16, 0)}, {}, "tensor t .*data_offsets are"),
    ({"t": entry("F32", [2, 2], 0, 15)}, {}, "tensor t .*takes 16 bytes and 15"),
    ({"t": entry("F32", [2, 2], 56, 72)}, {}, "tensor t .*past the end"),
    ({"t": entry("F32", [2, 2], 1 << 62, (1 << 62) + 16)}, {}, "tensor t .*past the end"),
    (ONE | {"u": entry("F16", [2], 12, 16)}, {}, "tensor u .*overlaps t"),
    (ONE | {"u": entry("F32", [2, 2], 0, 16)}, {}, "tensor . .*overlaps"),
]


@pytest.mark.parametrize("header, settings, message", BROKEN)
def test_what_is_wrong_is_named(header: Any, settings: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = write_safetensors(tmp_path / "m.safetensors", header, DATA, **settings)
    with pytest.raises(FileFormatError, match=message):
        open_safetensors(path)


@pytest.mark.parametrize("size", [0, 3, 7, 8, 40])
def test_files_that_end_too_soon(size: int, tmp_path: Path) -> None:
    whole = write_safetensors(tmp_path / "m.safetensors", ONE, DATA).read_bytes()
    (tmp_path / "cut.safetensors").write_bytes(whole[:size])
    with pytest.raises(FileFormatError, match="no safetensors file"):
        open_safetensors(tmp_path / "cut.safetensors")
    with pytest.raises(UnknownModelError):
        open_safetensors(tmp_path / "absent.safetensors")


def test_a_file_cut_while_it_is_read_is_an_error(tmp_path: Path) -> None:
    path = write_safetensors(tmp_path / "m.safetensors", ONE | {"u": entry("F32", [12], 16, 64)}, DATA)
    file = open_safetensors(path)
    os.truncate(path, path.stat().st_size - 8)
    buffer = memoryview(bytearray(48))
    file.read_into(buffer[: file.tensors["t"].num_bytes], "t")
    with pytest.raises(FileFormatError, match=r"was cut while it was being read"):
        file.read_into(buffer, "u")
    with pytest.raises(ValueError, match="more than tensor t has"):
        file.read_into(buffer, "t")


def test_every_byte_of_a_header_may_be_wrong(tmp_path: Path) -> None:
    """What is read is what the header says, or it is refused: never another error."""
    whole = bytearray(
        write_safetensors(tmp_path / "m.safetensors", ONE | {"u": entry("F16", [8], 16, 32)}, DATA).read_bytes()
    )
    generator = np.random.default_rng(5)
    for place in range(len(whole) - len(DATA)):
        damaged = bytearray(whole)
        damaged[place] = generator.integers(0, 256)
        (tmp_path / "d.safetensors").write_bytes(damaged)
        try:
            file = open_safetensors(tmp_path / "d.safetensors")
        except ForerunError:
            continue
        for name, one in file.tensors.items():
            assert one.offset + one.num_bytes <= len(whole)
            file.read_into(memoryview(bytearray(one.num_bytes)), name)
        file.close()


@pytest.mark.parametrize(
    "index, message",
    [
        ({"weight_map": []}, "no weight_map"),
        ({"weight_map": {"a": 3}}, "no weight_map"),
        ({}, "no weight_map"),
        ({"weight_map": {"a": "../s.safetensors"}}, "no name of a shard"),
        ({"weight_map": {"a": "/etc/passwd"}}, "no name of a shard"),
        ({"weight_map": {"a": ".."}}, "no name of a shard"),
        ({"weight_map": {"a": "absent.safetensors"}}, "lacks the shard absent.safetensors"),
        ({"weight_map": {"a": "x" * 5000}}, r"lacks the shard x{200}\."),
        ({"weight_map": {"a": "s.safetensors", "z": "s.safetensors"}}, "lacks the tensor z"),
        ({"weight_map": {"z": "s.safetensors"}}, "holds the tensor a"),
    ],
)
def test_an_index_that_does_not_fit(index: Any, message: str, tmp_path: Path) -> None:
    directory(tmp_path, s={"a": np.ones(2, dtype=np.float32)})
    (tmp_path / INDEX).write_text(json.dumps(index))
    with pytest.raises(FileFormatError, match=message):
        TransformersFiles(tmp_path)


def test_directories_without_what_is_needed(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match=r"there is no .*config\.json"):
        TransformersFiles(tmp_path)
    (tmp_path / "config.json").write_text("[1]")
    with pytest.raises(FileFormatError, match="no JSON object"):
        TransformersFiles(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "pytorch_model.bin").write_bytes(b"PK")
    with pytest.raises(UnsupportedModelError, match=r"pytorch_model\.bin, and pickled weights are not read"):
        TransformersFiles(tmp_path)


def test_a_configuration_that_may_not_be_read_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fetching it again would not help."""

    def denied(self: Path, **kwargs: Any) -> str:
        raise PermissionError(13, "Permission denied", str(self))

    directory(tmp_path, s={"a": np.ones(2, dtype=np.float32)})
    monkeypatch.setattr(Path, "read_text", denied)
    with pytest.raises(ModelError, match=r"config\.json cannot be read: permission denied\. fix its permissions"):
        TransformersFiles(tmp_path)
