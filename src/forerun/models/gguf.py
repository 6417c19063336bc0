"""GGUF files: metadata, the tensor table, and tensors as float32. The header's own rules are in gguf_header.py."""

from __future__ import annotations

import contextlib
import hashlib
import mmap
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from forerun.errors import FileFormatError, UnknownModelError, UnsupportedModelError
from forerun.models.gguf_header import MAGIC, MAX_DIMENSIONS, Cursor, read_counts, read_metadata

FOREIGN = (
    (b"version https://git-lfs", "a Git LFS pointer, without the weights themselves"),
    (b"pk\x03\x04", "a zip archive (a PyTorch checkpoint or a wheel)"),
    (b"<!doctype", "a web page"),
    (b"<html", "a web page"),
    (b"tjgg", "a GGML file from before GGUF"),
    (b"lmgg", "a GGML file from before GGUF"),
)


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor's place in the file. `shape` is in numpy order (slowest dimension first), `type_name` is GGML's
    name of the quantisation ("F32", "Q4_K"), `offset` counts from the start of the file."""

    name: str
    shape: tuple[int, ...]
    type_name: str
    num_bytes: int
    offset: int


class GGUFFile:
    """An open GGUF file. Its header has been checked; tensor bytes stay on disk until they are asked for.

    `metadata` maps keys to plain Python values, `tensors` maps names to TensorInfo in file order. Use it as a
    context manager, or `close` it; arrays handed out by `raw` keep the mapping alive on their own.
    """

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path, self._data = path, data
        cursor = Cursor(data, path)
        num_tensors, num_keys = read_counts(cursor)
        self.metadata: Mapping[str, Any] = read_metadata(cursor, num_keys)
        _refuse_shards(path, self.metadata)
        self.tensors: Mapping[str, TensorInfo] = _read_tensors(cursor, num_tensors, self.metadata)
        self._header_bytes = cursor.at

    @property
    def architecture(self) -> str:
        """The model family, such as "llama" or "qwen2"."""
        name = self.metadata.get("general.architecture")
        if not isinstance(name, str) or not name:
            raise FileFormatError(f"{self.path} does not name its architecture", "general.architecture is missing")
        return name

    @cached_property
    def header_digest(self) -> str:
        """sha256 of everything before the tensors' bytes: the identity of vocabulary, template and layout."""
        return hashlib.sha256(self._mapped()[: self._header_bytes]).hexdigest()

    def raw(self, name: str) -> np.ndarray:
        """The stored bytes of a tensor: read-only uint8 [*shape[:-1], bytes per innermost row], not copied."""
        info = self._info(name)
        flat = np.frombuffer(self._mapped(), np.uint8, info.num_bytes, info.offset)
        return flat.reshape(*info.shape[:-1], -1)

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

    def forget(self, name: str) -> None:
        """Let go of the memory that reading a tensor took, where the system allows it. Reading it again is fine."""
        info, page = self._info(name), mmap.PAGESIZE
        first = -(-info.offset // page) * page
        whole = (info.offset + info.num_bytes) // page * page - first
        if hasattr(mmap, "MADV_DONTNEED") and whole > 0:
            self._mapped().madvise(mmap.MADV_DONTNEED, first, whole)

    def close(self) -> None:
        """Unmap the file. What was already decoded stays readable; the rest says that the file was closed."""
        with contextlib.suppress(BufferError):  # an array from `raw` still looks in: the mapping goes with it
            self._data.close()

    def __enter__(self) -> GGUFFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _mapped(self) -> mmap.mmap:
        if self._data.closed:
            raise ValueError(f"{self.path} was closed")
        return self._data

    def _info(self, name: str) -> TensorInfo:
        if name not in self.tensors:
            raise FileFormatError(f"{self.path} has no tensor named {name}", f"it has {len(self.tensors)} others")
        return self.tensors[name]


def open_gguf(path: str | Path) -> GGUFFile:
    """Map `path` and check its whole header.

    Raises UnknownModelError if there is no such file, FileFormatError if it is truncated, damaged or something
    else, UnsupportedModelError for a version, tensor type or shard layout that is not served.
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            start = file.read(64)
            if start[: len(MAGIC)] != MAGIC:
                raise _foreign(path, start)
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except FileNotFoundError:
        raise UnknownModelError(f"there is no file {path}", "", "check the path, or see: forerun models") from None
    except OSError as error:
        raise FileFormatError(f"{path} cannot be read: {error.strerror or error}") from error
    try:
        return GGUFFile(path, data)
    except BaseException:
        data.close()
        raise


def _foreign(path: Path, start: bytes) -> FileFormatError:
    guess = next((what for magic, what in FOREIGN if start.lower().startswith(magic)), None)
    found = "it is empty" if not start else f"it looks like {guess}" if guess else f"it begins with {start[:8]!r}"
    return FileFormatError(f"{path} is not a GGUF file", found, "give a .gguf file or a transformers directory")


def _refuse_shards(path: Path, metadata: Mapping[str, Any]) -> None:
    """A shard alone is not a model; a file split into one piece is."""
    count = metadata.get("split.count", 1)
    if isinstance(count, int) and count > 1:
        raise UnsupportedModelError(
            f"{path} is one of {count} shards",
            "models in several files are not served yet",
            f"join them: llama-gguf-split --merge {path} MERGED.gguf",
        )


def _read_tensors(cursor: Cursor, num_tensors: int, metadata: Mapping[str, Any]) -> dict[str, TensorInfo]:
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
        tensors[name] = TensorInfo(name, shape, type_name, num_bytes, base + offset)
    end = base
    for info in sorted(tensors.values(), key=lambda info: info.offset):
        if info.offset < end:
            raise cursor.broken(f"tensor {info.name} overlaps the tensor before it")
        end = info.offset + info.num_bytes
        if end > cursor.size:
            raise cursor.broken(f"tensor {info.name} ends at byte {end:,}, past the end of the file")
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
