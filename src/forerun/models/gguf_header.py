"""The header of a GGUF file, read without trusting it.

Every count, length and offset is checked against the bytes that are really there before anything is allocated, so a
truncated, foreign or hostile file costs milliseconds and ends in a FileFormatError. Scalars are parsed at once;
arrays (a vocabulary has 150,000 strings) are walked once for bounds and decoded when they are asked for. Bytes come
through a window of the file, which is read by position (file_bytes.py).

Layout (GGUF version 2 and 3, little endian): magic "GGUF", version u32, tensor count u64, key count u64; keys as
(string, type u32, value); tensors as (string, dimensions u32, u64 each with the fastest first, type u32, offset
u64); padding to `general.alignment`; the tensors' bytes. A string is (length u64, UTF-8 bytes).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from forerun.errors import FileFormatError, UnsupportedModelError
from forerun.models.file_bytes import FileBytes, TensorInfo
from forerun.models.gguf_shards import JOIN

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_KEYS = 1 << 16
MAX_TENSORS = 1 << 16
MAX_ARRAY_ITEMS = 1 << 22
MAX_NAME_BYTES = 1 << 16
MAX_TEXT_BYTES = 1 << 26
MAX_DIMENSIONS = 4

STRING, ARRAY = 8, 9
SCALARS: Mapping[int, np.dtype[Any]] = {
    number: np.dtype(code)
    for number, code in zip(
        (0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12),
        ("<u1", "<i1", "<u2", "<i2", "<u4", "<i4", "<f4", "?", "<u8", "<i8", "<f8"),
        strict=True,
    )
}
PIECES = f"; if it is one piece of a file that was cut up, join all pieces: {JOIN}"
WINDOW = 1 << 16
"""Bytes of the file held while its header is walked."""

_LENGTH = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class LazyArray:
    """An array that was walked but not decoded: item type, first byte, number of items, bytes."""

    kind: int
    start: int
    count: int
    num_bytes: int


class Cursor:
    """A bounds-checked position in a file."""

    def __init__(self, file: FileBytes) -> None:
        self.file, self.path, self.size, self.at = file, file.path, file.size, 0
        self._window, self._begin = b"", 0

    def broken(self, what: str, remedy: str = "") -> FileFormatError:
        """The error for a file that says something impossible."""
        return FileFormatError(
            f"{self.path} is damaged or truncated: {what}",
            f"at byte {self.at:,} of {self.size:,}",
            "fetch the file again, and compare its size with the source's" + remedy,
        )

    def skip(self, num_bytes: int, what: str) -> int:
        """Step over `num_bytes`, which need not be read; returns where they begin."""
        start = self.at
        if num_bytes > self.size - start:
            raise self.broken(f"{what} needs {num_bytes:,} bytes and {self.size - start:,} are left")
        self.at = start + num_bytes
        return start

    def take(self, num_bytes: int, what: str) -> bytes:
        """The next `num_bytes`."""
        start = self.skip(num_bytes, what) - self._begin
        if start < 0 or start + num_bytes > len(self._window):
            self._look(self.at - num_bytes, max(num_bytes, WINDOW))
            start = 0
        return self._window[start : start + num_bytes]

    def number(self, code: str, what: str) -> int:
        """One unsigned integer, `code` as in `struct`."""
        return int(struct.unpack(code, self.take(struct.calcsize(code), what))[0])

    def name(self, what: str) -> str:
        """The name of a key or a tensor."""
        length = self.number("<Q", what)
        if length > MAX_NAME_BYTES:
            raise self.broken(f"{what} is {length:,} bytes long")
        return self._text(self.take(length, what), what)

    def value(self, kind: int, key: str) -> Any:
        """The value of `key`: a Python scalar, a string, or a LazyArray."""
        if kind in SCALARS:
            return np.frombuffer(self.take(SCALARS[kind].itemsize, key), SCALARS[kind])[0].item()
        if kind == STRING:
            length = self.number("<Q", key)
            if MAX_TEXT_BYTES < length <= self.size:
                raise self.broken(f"{key} is a text of {length:,} bytes, and at most {MAX_TEXT_BYTES:,} are served")
            return self._text(self.take(length, key), key)
        if kind != ARRAY:
            raise self.broken(f"{key} has the unknown value type {kind}")
        item, count = self.number("<I", key), self.number("<Q", key)
        if count > MAX_ARRAY_ITEMS:
            raise self.broken(f"{key} says it has {count:,} items, and at most {MAX_ARRAY_ITEMS:,} are served")
        start = self.at
        if item == STRING:
            self._skip_strings(count, key)
        elif item in SCALARS:
            self.skip(count * SCALARS[item].itemsize, key)
        else:
            raise self.broken(f"{key} is an array of the unknown or nested type {item}")
        return LazyArray(item, start, count, self.at - start)

    def items(self, array: LazyArray, key: str) -> list[Any]:
        """Decode an array that `value` has walked."""
        data = self.file.read(array.start, array.num_bytes)
        if array.kind != STRING:
            values: list[Any] = np.frombuffer(data, SCALARS[array.kind], array.count).tolist()
            return values
        at, strings = 0, []
        for _ in range(array.count):
            end = at + 8 + (_LENGTH.unpack_from(data, at)[0] if at + 8 <= len(data) else 0)
            if end > len(data):
                raise self.broken(f"{key} changed while it was being read")
            strings.append(data[at + 8 : end])
            at = end
        return [self._text(raw, key) for raw in strings]

    def _look(self, start: int, num_bytes: int) -> None:
        self._window, self._begin = self.file.read(start, min(num_bytes, self.size - start)), start

    def _skip_strings(self, count: int, what: str) -> None:
        """Walk over strings. This runs once per vocabulary entry at every load, so it is kept tight."""
        read, left = _LENGTH.unpack_from, count
        while left and self.at + 8 <= self.size:
            self._look(self.at, 16 * WINDOW)
            data, at, last = self._window, 0, len(self._window) - 8
            while left and at <= last:
                at += 8 + read(data, at)[0]
                left -= 1
            self.at += at
        if left or self.at > self.size:
            raise self.broken(f"{what} says it has {count:,} strings, which run past the end of the file")

    def _text(self, raw: bytes, what: str) -> str:
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            raise self.broken(f"{what} holds bytes that are not UTF-8: {raw[:40]!r}") from None


class Metadata(Mapping[str, Any]):
    """Keys to plain Python values. Arrays become lists on first use and are kept."""

    def __init__(self, cursor: Cursor, values: dict[str, Any]) -> None:
        self._cursor, self._values = cursor, values

    def __getitem__(self, key: str) -> Any:
        value = self._values[key]
        if isinstance(value, LazyArray):
            if self._cursor.file.closed:
                raise ValueError(f"{self._cursor.path} was closed before {key} was read")
            value = self._values[key] = self._cursor.items(value, key)
        return value

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


def read_counts(cursor: Cursor) -> tuple[int, int]:
    """(tensors, keys), read after the magic and the version. A key takes 13 bytes at least, a tensor 32."""
    cursor.skip(len(MAGIC), "the magic")
    version = cursor.number("<I", "the version")
    if version not in VERSIONS:
        swapped = int.from_bytes(version.to_bytes(4, "little"), "big") in VERSIONS
        raise UnsupportedModelError(
            f"{cursor.path} is " + ("a big-endian GGUF file" if swapped else f"GGUF version {version}"),
            f"little-endian versions {' and '.join(map(str, VERSIONS))} are served",
            "convert the model again with a current converter",
        )
    num_tensors, num_keys = cursor.number("<Q", "the tensor count"), cursor.number("<Q", "the key count")
    left = cursor.size - cursor.at
    if num_keys > min(MAX_KEYS, left // 13):
        raise cursor.broken(f"it says it has {num_keys:,} keys")
    if num_tensors > min(MAX_TENSORS, left // 32):
        raise cursor.broken(f"it says it has {num_tensors:,} tensors")
    return num_tensors, num_keys


def read_metadata(cursor: Cursor, num_keys: int) -> Metadata:
    """The keys and their values."""
    values: dict[str, Any] = {}
    for index in range(num_keys):
        key = cursor.name(f"the name of key {index}")
        if key in values:
            raise cursor.broken(f"the key {key!r} appears twice")
        values[key] = cursor.value(cursor.number("<I", key), key)
    return Metadata(cursor, values)


def read_tensors(
    cursor: Cursor, num_tensors: int, metadata: Mapping[str, Any], shard: int = 0
) -> dict[str, TensorInfo]:
    """The tensor table; every tensor is checked to be aligned, inside the file, and apart from the others."""
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment & (alignment - 1) or not 1 <= alignment <= 1 << 20:
        raise cursor.broken(f"general.alignment is {alignment!r}, which is no power of two")
    infos = [_read_tensor(cursor, index, alignment) for index in range(num_tensors)]
    base = -(-cursor.at // alignment) * alignment
    tensors: dict[str, TensorInfo] = {}
    for name, shape, type_name, num_bytes, offset in infos:
        if name in tensors:
            raise cursor.broken(f"two tensors are named {name}")
        tensors[name] = TensorInfo(name, shape, type_name, num_bytes, base + offset, shard)
    end = base
    for info in sorted(tensors.values(), key=lambda info: info.offset):
        if info.offset < end:
            raise cursor.broken(f"tensor {info.name} overlaps the tensor before it")
        end = info.offset + info.num_bytes
        if end > cursor.size:
            raise cursor.broken(f"tensor {info.name} ends at byte {end:,}, past the end of the file", PIECES)
    return tensors


def _read_tensor(cursor: Cursor, index: int, alignment: int) -> tuple[str, tuple[int, ...], str, int, int]:
    """(name, shape, type, bytes, offset from the start of the data) of one entry of the table."""
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    name = cursor.name(f"the name of tensor {index}")
    num_dimensions = cursor.number("<I", name)
    if not 1 <= num_dimensions <= MAX_DIMENSIONS:
        raise cursor.broken(f"tensor {name} has {num_dimensions} dimensions")
    shape = tuple(cursor.number("<Q", name) for _ in range(num_dimensions))[::-1]
    number, offset = cursor.number("<I", name), cursor.number("<Q", name)
    try:
        kind = GGMLQuantizationType(number)
        per_block, block_bytes = GGML_QUANT_SIZES[kind]
    except (ValueError, KeyError):
        raise UnsupportedModelError(
            f"tensor {name} has type {number}, which this version does not know",
            f"in {cursor.path}",
            "update the gguf package (pip install -U gguf), or use another quantisation of the model",
        ) from None
    num_elements = 1
    for length in shape:
        num_elements *= length
    if num_elements < 1 or shape[-1] % per_block:
        raise cursor.broken(f"tensor {name} has shape {list(shape)}, which {kind.name} cannot hold")
    if offset % alignment:
        raise cursor.broken(f"tensor {name} begins at {offset:,}, which is not aligned to {alignment}")
    return name, shape, kind.name, num_elements // per_block * block_bytes, offset
