"""A file of weights read by position: what a large file is asked for, and what it says when it shrinks meanwhile.

Files are not mapped. A mapped file that somebody cuts or overwrites kills the process with SIGBUS at the next touch;
a read of what is no longer there comes back short, and is an error like any other. Reads may come from several threads.
"""

from __future__ import annotations

import os
import stat
import threading
from dataclasses import dataclass
from pathlib import Path

from forerun.errors import FileFormatError, ModelError, UnknownModelError

STEP = 1 << 26
"""Bytes of one system call: some systems refuse 2 GiB and more."""


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor's place in the file. `shape` is in numpy order (slowest dimension first), `type_name` is GGML's
    name of the quantisation or a dtype ("Q4_K", "BF16"), `offset` counts from the start of the file, `shard` is that
    file's number from 0 on where a GGUF model is split."""

    name: str
    shape: tuple[int, ...]
    type_name: str
    num_bytes: int
    offset: int
    shard: int = 0

    @property
    def num_rows(self) -> int:
        """Length of the slowest dimension; a vector is one row."""
        return self.shape[0] if len(self.shape) > 1 else 1

    @property
    def row_bytes(self) -> int:
        """Bytes of one step along the slowest dimension."""
        return self.num_bytes // self.num_rows

    def place(self, first: int, num_bytes: int) -> int:
        """Where in the file `num_bytes` from row `first` on begin. ValueError if the tensor has not so many."""
        start = first * self.row_bytes
        if not 0 <= start <= self.num_bytes - num_bytes:
            raise ValueError(f"{num_bytes} bytes from row {first} on are more than tensor {self.name} has")
        return self.offset + start


class FileBytes:
    """An open regular file. `size` is its size when it was opened, `stamp` that and the time of its last change (ns).

    Opening raises UnknownModelError (no such file), ModelError (no permission) or FileFormatError (a directory, a
    device, an unreadable disk).
    """

    def __init__(self, path: Path) -> None:
        self.path, self._handle, self._turn = path, -1, threading.Lock()
        flags = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0)
        try:
            self._handle = os.open(path, flags)  # a pipe without O_NONBLOCK would wait for its writer
            status = os.fstat(self._handle)
        except FileNotFoundError:
            raise UnknownModelError(f"there is no file {path}", "", "check the path, or see: forerun models") from None
        except PermissionError as error:
            if path.is_dir():  # what Windows says of directories
                raise FileFormatError(f"{path} cannot be read: it is a directory", "", "give a file in it") from error
            raise ModelError(f"{path} cannot be read: permission denied", "", "fix its permissions") from error
        except (OSError, ValueError) as error:
            raise self._unreadable(error) from error
        if not stat.S_ISREG(status.st_mode):
            what = "it is a directory" if stat.S_ISDIR(status.st_mode) else "it is a device or a pipe"
            raise FileFormatError(f"{path} cannot be read: {what}", "", "give a regular file")
        self.size, self.stamp = status.st_size, (status.st_size, status.st_mtime_ns)

    @property
    def closed(self) -> bool:
        """Whether nothing can be read any more."""
        return self._handle < 0

    def read(self, offset: int, num_bytes: int) -> bytes:
        """`num_bytes` from `offset` on. FileFormatError if they are no longer there."""
        buffer = bytearray(num_bytes)
        self.read_into(memoryview(buffer), offset)
        return bytes(buffer)

    def read_into(self, buffer: memoryview, offset: int) -> None:
        """Fill `buffer` (bytes) with what begins at `offset`. FileFormatError if that much is no longer there."""
        done = 0
        while done < len(buffer):
            count = self._read_some(buffer[done : done + STEP], offset + done)
            if count == 0:
                raise FileFormatError(
                    f"{self.path} was cut while it was being read",
                    f"it had {self.size:,} bytes when it was opened, and now ends before byte {offset + done + 1:,}",
                    "load it again once nothing writes to it; if that fails, fetch it again",
                )
            done += count

    def close(self) -> None:
        """Let go of the file; reading it afterwards is a ValueError."""
        handle, self._handle = self._handle, -1
        if handle >= 0:
            os.close(handle)

    def __del__(self) -> None:
        self.close()

    def _read_some(self, buffer: memoryview, offset: int) -> int:
        """One read of at most len(buffer) bytes; 0 at the file's end."""
        if self._handle < 0:
            raise ValueError(f"{self.path} was closed")
        try:
            if hasattr(os, "preadv"):
                return os.preadv(self._handle, [buffer], offset)
            if hasattr(os, "pread"):
                piece = os.pread(self._handle, len(buffer), offset)
            else:  # Windows: the position belongs to the file, so readers take turns
                with self._turn:
                    os.lseek(self._handle, offset, os.SEEK_SET)
                    piece = os.read(self._handle, len(buffer))
        except OSError as error:
            raise self._unreadable(error) from error
        buffer[: len(piece)] = piece
        return len(piece)

    def _unreadable(self, error: OSError | ValueError) -> FileFormatError:
        fact = f"{self.path} cannot be read: {getattr(error, 'strerror', None) or error}"
        return FileFormatError(fact, "", "check the path and the disk")
