"""Safetensors files: a header that is checked in full, and tensors read by position.

Nothing is mapped: a file that is cut short while it is read raises an error, where a mapped one would kill the process.
The format: 8 bytes with the length of a JSON object, the object (name -> dtype, shape, data_offsets), then the data.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from forerun.errors import FileFormatError
from forerun.models.file_bytes import FileBytes, TensorInfo

MAX_HEADER_BYTES = 100_000_000
"""What the safetensors library allows."""
MAX_DIMENSIONS = 8
BYTES = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "U64": 8, "I32": 4, "U32": 4, "I16": 2, "U16": 2, "I8": 1,
    "U8": 1, "BOOL": 1, "F8_E4M3": 1, "F8_E5M2": 1,
}  # fmt: skip
"""Bytes of a value of each dtype that whole bytes hold; others are refused by name."""
_AGAIN = "fetch the file again"


class SafetensorsFile:
    """An open safetensors file; `tensors` maps names to their places, `stamp` is as in FileBytes. Made by
    `open_safetensors`; close it."""

    def __init__(self, file: FileBytes) -> None:
        self.path, self.stamp, self._file = file.path, file.stamp, file
        self.tensors: Mapping[str, TensorInfo] = _read_header(file)

    def read_into(self, buffer: memoryview, name: str, first: int = 0) -> None:
        """Fill `buffer` with the tensor's bytes from row `first` on. FileFormatError if the file was cut meanwhile."""
        self._file.read_into(buffer, self.tensors[name].place(first, len(buffer)))

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def open_safetensors(path: Path) -> SafetensorsFile:
    """Open `path` and check its header. UnknownModelError for no such file, FileFormatError for a damaged one."""
    file = FileBytes(path)
    try:
        return SafetensorsFile(file)
    except BaseException:
        file.close()
        raise


def _read_header(file: FileBytes) -> dict[str, TensorInfo]:
    path, size = file.path, file.size
    length = int.from_bytes(file.read(0, 8), "little") if size >= 8 else -1
    if not 0 <= length <= min(MAX_HEADER_BYTES, size - 8):
        fact = f"its header has {length:,} bytes by its own word" if length >= 0 else "it has no header"
        raise FileFormatError(f"{path} is no safetensors file", f"{fact}, the file {size:,}", _AGAIN)
    entries = parse_object(file.read(8, length), str(path))
    entries.pop("__metadata__", None)
    tensors = {name: _entry(path, name, entry, 8 + length, size) for name, entry in entries.items()}
    end, before = 8 + length, ""
    for tensor in sorted(tensors.values(), key=lambda tensor: (tensor.offset, tensor.num_bytes)):
        if tensor.offset < end:
            raise _broken(path, tensor.name, f"it overlaps {before}")
        end, before = tensor.offset + tensor.num_bytes, tensor.name
    return tensors


def parse_object(text: bytes | str, where: str) -> dict[str, Any]:
    """A JSON object none of whose keys comes twice."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in pairs:
            if key in found:
                raise ValueError(f"the key {key!r} comes twice")
            found[key] = value
        return found

    try:
        text = text.decode("utf-8") if isinstance(text, bytes) else text
        value = json.loads(text, object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise FileFormatError(f"{where} holds no valid JSON", str(error)[:200], _AGAIN) from error
    if not isinstance(value, dict):
        raise FileFormatError(f"{where} holds no JSON object", f"but a {type(value).__name__}", _AGAIN)
    return value


def _entry(path: Path, name: str, entry: Any, data: int, size: int) -> TensorInfo:
    """One tensor's entry, checked by itself; `data` is where the data begins and `size` where the file ends."""
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise _broken(path, name, "its entry is not dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in BYTES:
        raise _broken(path, name, f"its dtype is {dtype!r}"[:100])
    if not _whole_numbers(shape) or len(shape) > MAX_DIMENSIONS:
        raise _broken(path, name, f"its shape is {shape!r}"[:100])
    if not _whole_numbers(offsets) or len(offsets) != 2 or offsets[1] < offsets[0]:
        raise _broken(path, name, f"its data_offsets are {offsets!r}"[:100])
    num_bytes = BYTES[dtype]
    for length in shape:
        num_bytes *= length
        if num_bytes > size:
            raise _broken(path, name, f"{dtype} {shape} is larger than the file"[:100])
    if num_bytes != offsets[1] - offsets[0]:
        raise _broken(
            path, name, f"{dtype} {shape} takes {num_bytes:,} bytes and {offsets[1] - offsets[0]:,} are given"
        )
    if data + offsets[1] > size:
        raise _broken(path, name, f"it ends at byte {data + offsets[1]:,}, past the end of the file")
    return TensorInfo(name, tuple(shape), dtype, num_bytes, data + offsets[0])


def _whole_numbers(values: Any) -> bool:
    return isinstance(values, list) and all(type(value) is int and 0 <= value < 1 << 63 for value in values)


def _broken(path: Path, name: str, what: str) -> FileFormatError:
    return FileFormatError(f"tensor {name[:200]} of {path} is broken", what, _AGAIN)
