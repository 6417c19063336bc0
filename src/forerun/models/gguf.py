"""GGUF files, whole or split: metadata, the tensor table, and tensors as stored bytes or float32.

The header's own rules are in gguf_header.py, those of split files in gguf_shards.py.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import cached_property
from math import prod
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from forerun.errors import FileFormatError, ForerunError, UnsupportedModelError
from forerun.models.file_bytes import FileBytes, TensorInfo
from forerun.models.gguf_header import MAGIC, Cursor, read_counts, read_metadata, read_tensors
from forerun.models.gguf_shards import check_shards, is_piece, piece_error, shard_paths

FOREIGN = (
    (b"version https://git-lfs", "a Git LFS pointer, without the weights themselves"),
    (b"pk\x03\x04", "a zip archive (a PyTorch checkpoint or a wheel)"),
    (b"<!doctype", "a web page"),
    (b"<html", "a web page"),
    (b"tjgg", "a GGML file from before GGUF"),
    (b"lmgg", "a GGML file from before GGUF"),
)


class GGUFFile:
    """An open model: one GGUF file, or all shards of a split one. Headers have been checked; tensors' bytes stay on
    disk until they are asked for, and every array handed out is a copy.

    `metadata` maps keys to plain Python values, `tensors` maps names to TensorInfo in the files' order, `path` is the
    file or the first shard. Use it as a context manager, or `close` it. Whatever reads bytes raises FileFormatError if
    the file was cut since it was opened, and ValueError once it is closed.
    """

    def __init__(self, files: Sequence[FileBytes]) -> None:
        self.path, self._files = files[0].path, files
        headers, tensors, num_bytes = [], [], []
        for shard, file in enumerate(files):
            header, table, end = _read_header(file, shard)
            headers.append(header)
            tensors.append(table)
            num_bytes.append(end)
        check_shards([file.path for file in files], headers, sum(map(len, tensors)))
        self.metadata: Mapping[str, Any] = headers[0]
        self.tensors: Mapping[str, TensorInfo] = self._join(tensors)
        self._header_bytes = num_bytes

    @property
    def stamps(self) -> tuple[tuple[int, int], ...]:
        """(size, time of the last change in ns) of every file that is open, whatever its path leads to by now."""
        return tuple(file.stamp for file in self._files)

    @property
    def architecture(self) -> str:
        """The model family, such as "llama" or "qwen2"."""
        name = self.metadata.get("general.architecture")
        if not isinstance(name, str) or not name:
            fact = f"{self.path} does not name its architecture"
            raise FileFormatError(fact, "general.architecture is missing", "take another file of the same model")
        return name

    @cached_property
    def header_digest(self) -> str:
        """sha256 of everything before the tensors' bytes, of all shards: the identity of vocabulary, template and
        layout."""
        digest = hashlib.sha256()
        for file, end in zip(self._files, self._header_bytes, strict=True):
            for start in range(0, end, 1 << 20):
                digest.update(file.read(start, min(end - start, 1 << 20)))
        return digest.hexdigest()

    def raw(self, name: str, first: int = 0, last: int | None = None) -> np.ndarray:
        """The stored bytes of a tensor, or of its rows first..last - 1 along its slowest dimension: uint8
        [*shape[:-1], bytes per innermost row]."""
        info = self._info(name)
        rows = info.num_rows
        last = rows if last is None else last
        if not 0 <= first <= last <= rows:
            raise ValueError(f"tensor {name} has {rows} rows, and rows {first} to {last} were asked for")
        data = np.empty((last - first) * info.row_bytes, np.uint8)
        self.read_into(data, name, first)
        if len(info.shape) == 1:
            return data
        return data.reshape(last - first, *info.shape[1:-1], info.row_bytes // prod(info.shape[1:-1]))

    def read_into(self, data: np.ndarray, name: str, first: int = 0) -> None:
        """Fill `data` (uint8, contiguous) with the tensor's stored bytes from row `first` on: `raw` without an array of
        its own, for who reads many pieces one after another."""
        info = self._info(name)
        start = info.place(first, data.nbytes)
        if data.nbytes:
            self._files[info.shard].read_into(data.data.cast("B"), start)

    def dequantise(self, name: str) -> np.ndarray:
        """The tensor as float32 [*shape], through the `gguf` package's reference kernels."""
        from gguf import GGMLQuantizationType
        from gguf.quants import dequantize

        info = self._info(name)
        try:
            values = dequantize(self.raw(name), GGMLQuantizationType[info.type_name])
        except NotImplementedError:
            raise UnsupportedModelError(
                f"tensor {name} is stored as {info.type_name}, which cannot be dequantised here",
                f"in {self.path}",
                "use a Q4_K_M, Q5_K_M, Q6_K, Q8_0, F16 or BF16 file of the same model",
            ) from None
        return np.ascontiguousarray(values, dtype=np.float32).reshape(info.shape)

    def close(self) -> None:
        """Let go of the files. What was already read stays; the rest says that the file was closed."""
        for file in self._files:
            file.close()

    def __enter__(self) -> GGUFFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _info(self, name: str) -> TensorInfo:
        if name not in self.tensors:
            raise FileFormatError(f"{self.path} has no tensor named {name}", f"it has {len(self.tensors)} others")
        return self.tensors[name]

    def _join(self, tensors: Sequence[Mapping[str, TensorInfo]]) -> dict[str, TensorInfo]:
        joined: dict[str, TensorInfo] = {}
        for of_shard in tensors:
            for name, info in of_shard.items():
                if name in joined:
                    one, other = (self._files[shard].path for shard in (joined[name].shard, info.shard))
                    raise FileFormatError(f"tensor {name} is in two shards", f"{one} and {other}", "fetch them again")
                joined[name] = info
        return joined


def open_gguf(path: str | Path) -> GGUFFile:
    """Open a GGUF file, or the model that a shard or a directory of shards belongs to, and check all of its header.

    Raises UnknownModelError if there is no such file, or a shard is missing; FileFormatError if a file is truncated,
    damaged, something else, or shards do not belong together; UnsupportedModelError for a version or tensor type that
    is not served.
    """
    path, files = Path(path), list[FileBytes]()
    try:
        for shard in shard_paths(path):
            files.append(FileBytes(shard))
        return GGUFFile(files)
    except BaseException as error:
        for file in files:
            file.close()
        if isinstance(error, OSError) and not isinstance(error, ForerunError):
            fact = f"{path} cannot be read: {error.strerror or error}"
            raise FileFormatError(fact, "", "check the path and the disk") from error
        raise


def _read_header(file: FileBytes, shard: int) -> tuple[Mapping[str, Any], dict[str, TensorInfo], int]:
    """(metadata, tensors, bytes before the padding) of one file."""
    try:
        _check_start(file)
        cursor = Cursor(file)
        num_tensors, num_keys = read_counts(cursor)
        metadata = read_metadata(cursor, num_keys)
        return metadata, read_tensors(cursor, num_tensors, metadata, shard), cursor.at
    except FileFormatError as error:
        if is_piece(file.path):
            raise piece_error(file.path, error.fact) from error
        raise


def _check_start(file: FileBytes) -> None:
    """Refuse what is no GGUF file, and say what it is."""
    start = file.read(0, min(64, file.size))
    if start[: len(MAGIC)] == MAGIC:
        return
    guess = next((what for magic, what in FOREIGN if start.lower().startswith(magic)), None)
    found = "it is empty" if not start else f"it looks like {guess}" if guess else f"it begins with {start[:8]!r}"
    raise FileFormatError(f"{file.path} is not a GGUF file", found, "give a .gguf file or a transformers directory")
