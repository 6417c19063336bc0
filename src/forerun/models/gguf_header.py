"""The header of a GGUF file, read without trusting it.

Every count, length and offset is checked against the bytes that are really there before anything is allocated, so a
truncated, foreign or hostile file costs milliseconds and ends in a FileFormatError. Scalars are parsed at once;
arrays (a vocabulary has 150,000 strings) are walked once for bounds and decoded when they are asked for.

Layout (GGUF version 2 and 3, little endian): magic "GGUF", version u32, tensor count u64, key count u64; keys as
(string, type u32, value); tensors as (string, dimensions u32, u64 each with the fastest first, type u32, offset
u64); padding to `general.alignment`; the tensors' bytes. A string is (length u64, UTF-8 bytes).
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from forerun.errors import FileFormatError, UnsupportedModelError

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_KEYS = 1 << 16
MAX_TENSORS = 1 << 20
MAX_ARRAY_ITEMS = 1 << 22
MAX_NAME_BYTES = 1 << 16
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
_LENGTH = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class LazyArray:
    """An array that was walked but not decoded: item type, first byte, number of items."""

    kind: int
    start: int
    count: int


class Cursor:
    """A bounds-checked position in the mapped bytes of a file."""

    def __init__(self, data: mmap.mmap, path: Path) -> None:
        self.data, self.path, self.size, self.at = data, path, len(data), 0

    def broken(self, what: str) -> FileFormatError:
        """The error for a file that says something impossible."""
        return FileFormatError(
            f"{self.path} is damaged or truncated: {what}",
            f"at byte {self.at:,} of {self.size:,}",
            "fetch the file again, and compare its size with the source's",
        )

    def take(self, num_bytes: int, what: str) -> int:
        """Step over `num_bytes`; returns where they begin."""
        start = self.at
        if num_bytes > self.size - start:
            raise self.broken(f"{what} needs {num_bytes:,} bytes and {self.size - start:,} are left")
        self.at = start + num_bytes
        return start

    def number(self, code: str, what: str) -> int:
        """One unsigned integer, `code` as in `struct`."""
        return int(struct.unpack_from(code, self.data, self.take(struct.calcsize(code), what))[0])

    def name(self, what: str) -> str:
        """The name of a key or a tensor."""
        length = self.number("<Q", what)
        if length > MAX_NAME_BYTES:
            raise self.broken(f"{what} is {length:,} bytes long")
        start = self.take(length, what)
        return self._text(self.data[start : self.at], what)

    def value(self, kind: int, key: str) -> Any:
        """The value of `key`: a Python scalar, a string, or a LazyArray."""
        if kind in SCALARS:
            start = self.take(SCALARS[kind].itemsize, key)
            return np.frombuffer(self.data[start : self.at], SCALARS[kind])[0].item()
        if kind == STRING:
            start = self.take(self.number("<Q", key), key)
            return self._text(self.data[start : self.at], key)
        if kind != ARRAY:
            raise self.broken(f"{key} has the unknown value type {kind}")
        item, count = self.number("<I", key), self.number("<Q", key)
        if count > MAX_ARRAY_ITEMS:
            raise self.broken(f"{key} says it has {count:,} items, and at most {MAX_ARRAY_ITEMS:,} are served")
        array = LazyArray(item, self.at, count)
        if item == STRING:
            self._skip_strings(count, key)
        elif item in SCALARS:
            self.take(count * SCALARS[item].itemsize, key)
        else:
            raise self.broken(f"{key} is an array of the unknown or nested type {item}")
        return array

    def items(self, array: LazyArray, key: str) -> list[Any]:
        """Decode an array that `value` has walked."""
        if array.kind != STRING:
            values: list[Any] = np.frombuffer(self.data, SCALARS[array.kind], array.count, array.start).tolist()
            return values
        data, at, strings = self.data, array.start, []
        for _ in range(array.count):
            end = at + 8 + _LENGTH.unpack_from(data, at)[0]
            strings.append(data[at + 8 : end])
            at = end
        return [self._text(raw, key) for raw in strings]

    def _skip_strings(self, count: int, what: str) -> None:
        """Walk over strings. This runs once per vocabulary entry at every load, so it is kept tight."""
        read, data, at, last, left = _LENGTH.unpack_from, self.data, self.at, self.size - 8, count
        while left and at <= last:
            at += 8 + read(data, at)[0]
            left -= 1
        if left or at > self.size:
            raise self.broken(f"{what} says it has {count:,} strings, which run past the end of the file")
        self.at = at

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
            if self._cursor.data.closed:
                raise ValueError(f"{self._cursor.path} was closed before {key} was read")
            value = self._values[key] = self._cursor.items(value, key)
        return value

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


def read_counts(cursor: Cursor) -> tuple[int, int]:
    """(tensors, keys), read after the magic and the version. A key takes 13 bytes at least, a tensor 32."""
    cursor.take(len(MAGIC), "the magic")
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
