"""Kept weights: repacked matrices on disk, which the next start maps instead of packing anew.

Off unless FORERUN_WEIGHTS_CACHE is set. FORERUN_HOME/weights/KEY.packed: magic, length of the header, its sha256, the
header (JSON: source, build, size, matrices), then each matrix from a multiple of 64 bytes on. KEY covers size and
modification time of the model's files, the first row of every matrix, how matrices were packed, and the compiled
module: what does not fit any more is not found. A file appears whole or not at all. One that is cut while it is mapped
reads as zeros, and the pass that met them fails. Weights themselves are not checked when they are mapped: that would
read them all.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from forerun import _native
from forerun.errors import InputError
from forerun.models.store import disk_errors, ensure_space, home

if TYPE_CHECKING:
    from forerun._native import Decoder
    from forerun.models.gguf import GGUFFile
    from forerun.models.transformers_files import TransformersFiles
    from forerun.runtime.native.description import Placed

VARIABLE = "FORERUN_WEIGHTS_CACHE"

Wanted: TypeAlias = tuple[str, "Placed"]
"""A matrix of the decoder, and before it the tensor that it comes from."""

_MAGIC = b"forerun1"
_FRONT = len(_MAGIC) + 8 + hashlib.sha256().digest_size
_LINE, _PAGE = 64, 4096
_MAX_HEADER = 64 << 20
_ABANDONED_S = 3600.0
"""Nobody writes any more to a file that did not change for so long."""


def is_wanted() -> bool:
    """Whether the environment asks for kept weights; InputError for a value that says neither yes nor no."""
    text = os.environ.get(VARIABLE, "").strip().lower()
    if text in ("", "0", "false", "no", "off"):
        return False
    if text in ("1", "true", "yes", "on"):
        return True
    raise InputError(f"{VARIABLE}={text} is not understood", "it was set in the environment", "set it to 1 or 0")


@dataclass(frozen=True, slots=True)
class KeptWeights:
    """Where a model's matrices, packed one certain way, are kept; `names` are the decoder's."""

    path: Path
    source: Path
    names: tuple[str, ...]

    @classmethod
    def of(
        cls, files: GGUFFile | TransformersFiles, wanted: Sequence[Wanted], settings: Mapping[str, Any]
    ) -> KeptWeights:
        """The place for the matrices `wanted` of `files`, rounded as `settings` say."""
        digest = hashlib.sha256(f"{_build()} {sorted(settings.items())}".encode())
        for size, changed_ns in files.stamps:
            digest.update(f"{size} {changed_ns}".encode())
        for name, part in wanted:
            info = files.tensors[name]
            digest.update(f"{name} {info.type_name} {info.shape} {part.name} {part.shape}".encode())
            if part.order is not None:
                digest.update(part.order.tobytes())
            row = np.empty(info.row_bytes, np.uint8)
            files.read_into(row, name, 0)
            digest.update(row.tobytes())
        path = home() / "weights" / f"{digest.hexdigest()[:32]}.packed"
        return cls(path, files.path.absolute(), tuple(part.name for _, part in wanted))

    def attach(self, decoder: Decoder) -> bool:
        """Give `decoder` its matrices as they are kept; False where not just these are there, or where the file is
        damaged (all of them must then be set)."""
        try:
            kept = _native.Mapping(str(self.path))
            size = int.from_bytes(kept.read(len(_MAGIC), 8), "little")
            text = kept.read(_FRONT, size)
            if kept.read(0, _FRONT) != _front(text):
                return False
            header = json.loads(text)
            names = sorted(row[0] for row in header["matrices"])
            if kept.num_bytes != header["size"] or names != sorted(self.names):
                return False
            for name, layout, outputs, inputs, offset, num_bytes in header["matrices"]:
                decoder.map_matrix(name, kept, offset, num_bytes, layout, outputs, inputs)
        except (RuntimeError, ValueError, TypeError, KeyError, OverflowError):
            return False
        return True

    def keep(self, decoder: Decoder) -> None:
        """Write the decoder's matrices, and remove what other builds kept of the same model. DownloadError and
        DiskFullError where the disk refuses."""
        packed, path = decoder.packed(), self.path
        with disk_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            num_bytes = sum(data.nbytes for *_, data in packed)
            ensure_space(path.parent, num_bytes + _MAX_HEADER, "keeping repacked weights")
            header, offsets = _header(packed, self.source)
            handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.stem, suffix=".partial")
            try:
                with os.fdopen(handle, "wb") as out:
                    out.write(header)
                    for (*_, data), offset in zip(packed, offsets, strict=True):
                        out.seek(offset)
                        out.write(data.data)
                    out.truncate(-(-out.tell() // _LINE) * _LINE)
                    out.flush()
                    os.fsync(out.fileno())
                Path(name).replace(path)
            except BaseException:
                Path(name).unlink(missing_ok=True)
                raise
            _remove_outdated(path, self.source)


def _header(packed: list[tuple[str, str, int, int, Any]], source: Path) -> tuple[bytes, list[int]]:
    """The file's beginning, and where each matrix goes. Offsets do not depend on the header's own length, which is
    bounded first."""
    bound = _PAGE + 256 * len(packed) + len(json.dumps(str(source)))
    at = -(-bound // _PAGE) * _PAGE
    offsets, rows = [], []
    for name, layout, outputs, inputs, data in packed:
        offsets.append(at)
        rows.append([name, layout, outputs, inputs, at, data.nbytes])
        at += -(-data.nbytes // _LINE) * _LINE
    text = json.dumps({"source": str(source), "build": _build(), "size": at, "matrices": rows}).encode()
    return _front(text) + text, offsets


def _front(header: bytes) -> bytes:
    """What stands before the header, and vouches for it."""
    return _MAGIC + len(header).to_bytes(8, "little") + hashlib.sha256(header).digest()


def _remove_outdated(path: Path, source: Path) -> None:
    """Remove what other builds of forerun kept of the same source, and what processes that were killed began to write:
    a gigabyte each that nobody will read again."""
    for begun in path.parent.glob("*.partial"):
        with contextlib.suppress(OSError):
            if time.time() - begun.stat().st_mtime > _ABANDONED_S:
                begun.unlink()
    for other in path.parent.glob("*.packed"):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            with other.open("rb") as file:
                start = file.read(_FRONT)
                header = json.loads(
                    file.read(min(int.from_bytes(start[len(_MAGIC) : len(_MAGIC) + 8], "little"), _MAX_HEADER))
                )
            if other != path and header["source"] == str(source) and header["build"] != _build():
                other.unlink()


@cache
def _build() -> str:
    """The compiled module's identity: another build may pack otherwise."""
    return hashlib.sha256(Path(str(_native.__file__)).read_bytes()).hexdigest()[:16]
