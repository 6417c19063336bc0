"""A transformers directory: its config.json, and its tensors in one safetensors file or in shards with an index."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from forerun.errors import FileFormatError, ModelError, UnsupportedModelError
from forerun.models.decoder_model import ANOTHER_FILE
from forerun.models.file_bytes import TensorInfo
from forerun.models.safetensors_file import SafetensorsFile, open_safetensors, parse_object

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
MAX_JSON_BYTES = 100_000_000
MAX_SHARDS = 10_000
IGNORED = ".rotary_emb.inv_freq"
"""What old directories store beside the weights; it follows from the configuration."""


class TransformersFiles:
    """An open directory. `config` is config.json's object, `tensors` maps names to their places. Use it as a context
    manager, or `close` it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._files: list[SafetensorsFile] = []
        self.config: Mapping[str, Any] = _read_json(path / "config.json")
        try:
            self._places = self._open()
        except BaseException:
            self.close()
            raise
        self.tensors: Mapping[str, TensorInfo] = {
            name: file.tensors[name] for name, file in self._places.items() if not name.endswith(IGNORED)
        }

    @property
    def stamps(self) -> tuple[tuple[int, int], ...]:
        """(size, time of the last change in ns) of every file that is open, whatever its path leads to by now."""
        return tuple(file.stamp for file in self._files)

    def read_into(self, data: np.ndarray, name: str, first: int = 0) -> None:
        """Fill `data` (uint8, contiguous) with the tensor's stored bytes from row `first` on."""
        if data.nbytes:
            self._places[name].read_into(data.data.cast("B"), name, first)

    def dequantise(self, name: str) -> np.ndarray:
        """The tensor as float32 [*shape]; it must be F32, F16 or BF16."""
        info = self.tensors[name]
        data = np.empty(info.num_bytes, dtype=np.uint8)
        self.read_into(data, name)
        if info.type_name == "BF16":
            wide = data.view("<u2").astype(np.uint32) << 16
            return wide.view(np.float32).reshape(info.shape)
        return data.view({"F32": "<f4", "F16": "<f2"}[info.type_name]).astype(np.float32).reshape(info.shape)

    def close(self) -> None:
        """Close all files."""
        for file in self._files:
            file.close()

    def __enter__(self) -> TransformersFiles:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _open(self) -> dict[str, SafetensorsFile]:
        """The file that holds each tensor. One whole file is preferred to shards, as in transformers."""
        if (self.path / SINGLE).is_file():
            whole = self._opened(SINGLE)
            return dict.fromkeys(whole.tensors, whole)
        if not (self.path / INDEX).is_file():
            others = sorted(item.name for item in self.path.glob("*.bin"))[:1]
            raise UnsupportedModelError(
                f"{self.path} has no {SINGLE} and no {INDEX}",
                f"it has {others[0]}, and pickled weights are not read" if others else "",
                "save it again with transformers: model.save_pretrained(DIR)",
            )
        index = _read_json(self.path / INDEX).get("weight_map")
        if not isinstance(index, dict) or not all(isinstance(name, str) for name in index.values()):
            raise FileFormatError(f"{self.path / INDEX} has no weight_map of names", "", "fetch the file again")
        names = sorted(set(index.values()))
        if len(names) > MAX_SHARDS:
            raise FileFormatError(
                f"{self.path / INDEX} names {len(names)} files", f"at most {MAX_SHARDS} are served", ANOTHER_FILE
            )
        for name in names:
            if not name or Path(name).name != name or "\\" in name or "\0" in name or name in (".", ".."):
                fact = f"{self.path / INDEX} names the file {name!r}"[:300]
                raise FileFormatError(fact, "which is no name of a shard", ANOTHER_FILE)
            if not os.path.isfile(self.path / name):  # noqa: PTH113 - no name is too long or too odd for it
                fact = f"{self.path} lacks the shard {name[:200]}"
                raise FileFormatError(fact, f"{INDEX} names it", "fetch it again")
        shards = {name: self._opened(name) for name in names}
        places: dict[str, SafetensorsFile] = {}
        for shard_name, shard in shards.items():
            for name in shard.tensors:
                if index.get(name) != shard_name:
                    fact = f"{self.path / shard_name} holds the tensor {name}"
                    raise FileFormatError(fact, f"{INDEX} has it in {index.get(name)}", "fetch the files again")
                places[name] = shard
        missing = sorted(index.keys() - places.keys())
        if missing:
            fact = f"{self.path / index[missing[0]]} lacks the tensor {missing[0]}"
            raise FileFormatError(fact, f"{INDEX} has it there", "fetch the files again")
        return places

    def _opened(self, name: str) -> SafetensorsFile:
        file = open_safetensors(self.path / name)
        self._files.append(file)
        return file


def _read_json(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > MAX_JSON_BYTES:
            raise FileFormatError(
                f"{path} has more than {MAX_JSON_BYTES:,} bytes", "no model says so much", ANOTHER_FILE
            )
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise FileFormatError(
            f"there is no {path}", "the directory is no transformers model", "give one that has it, or a .gguf file"
        ) from None
    except PermissionError as error:
        raise ModelError(f"{path} cannot be read: permission denied", "", "fix its permissions") from error
    except (OSError, UnicodeDecodeError) as error:
        raise FileFormatError(f"{path} cannot be read: {error}", "", "fetch the file again") from error
    return parse_object(text, str(path))
