"""The cache directory: its layout, its locks, its room, and what it says when it refuses.

FORERUN_HOME/
  locks/KEY.lock                            one pull per model at a time, across processes
  models/NAME/FILE.gguf                     a registered model
  models/hub/ORG--REPO/gguf/FILE.gguf       one file of a Hub repository
  models/hub/ORG--REPO/gguf/FIRST.gguf/     all shards of a split one, under the first one's name
  models/hub/ORG--REPO/snapshot/            a transformers directory
  …/FILE.json                               its record (records.py): size, mtime, sha256, source, licence
  …/FILE.HASH.partial                       the beginning of the bytes whose hash begins with HASH
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Literal

from forerun.errors import DiskFullError, DownloadError, ForerunError
from forerun.models.progress import Progress

CHUNK = 1 << 20
"""Bytes per read or write."""

MARGIN = 1 << 20
"""Bytes kept free beyond a file's size: its record, directory entries, the lock."""


_FULL = {errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC), errno.EFBIG}
_REFUSED = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST, errno.EISDIR}
DISK_ERRNOS = _FULL | _REFUSED | {errno.EIO, errno.ENOENT}
"""What a local disk says, as opposed to a network."""


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """A model on this machine. `source` is "cache", "local", "hub:org/name" or "mirror:<wheels>"."""

    name: str
    path: Path
    kind: Literal["gguf", "transformers"]
    source: str
    licence: str | None


def home() -> Path:
    """The cache directory: FORERUN_HOME, else the platform's (such as ~/.cache/forerun)."""
    chosen = os.environ.get("FORERUN_HOME", "").strip()
    if chosen:
        return Path(os.path.abspath(Path(chosen).expanduser()))  # noqa: PTH100 - resolve() would follow links
    from platformdirs import user_cache_path

    return user_cache_path("forerun", appauthor=False)


def models_directory() -> Path:
    """Where models live inside the cache directory."""
    return home() / "models"


def is_safe_relative(name: str) -> bool:
    """Whether `name` stays inside the directory it is joined to, read as a POSIX or as a Windows path."""
    parts = name.split("/")
    plain = all(part not in ("", ".", "..") and not part.startswith("~") for part in parts)
    return (
        plain
        and not any(ord(char) < 32 or char in '\\:*?"<>|' for char in name)
        and not (PurePosixPath(name).is_absolute() or PureWindowsPath(name).anchor)
    )


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn the operating system's refusals around `path` into errors that say what to do."""
    try:
        yield
    except ForerunError:
        raise
    except OSError as error:
        if error.errno in _FULL:
            raise DiskFullError(
                f"the disk is full: {error.strerror}",
                f"while writing {path}; what arrived so far is kept and the next pull goes on from there",
                "free some space, or set FORERUN_HOME to a directory on a larger disk",
            ) from error
        if error.errno in _REFUSED:
            raise DownloadError(
                f"cannot write in the cache directory: {error.strerror}",
                str(error.filename or path),
                "fix its permissions, or set FORERUN_HOME to a directory you can write to",
            ) from error
        raise DownloadError(f"cannot write the model file: {error.strerror or error}", str(path)) from error


def ensure_space(directory: Path, num_bytes: int, what: str) -> None:
    """Refuse before the first byte if `num_bytes` do not fit; quotas and races are caught while writing."""
    free = shutil.disk_usage(directory).free
    if num_bytes + MARGIN > free:
        raise DiskFullError(
            f"{what} needs {megabytes(num_bytes + MARGIN)} and {megabytes(free)} are free",
            f"in {directory}",
            "free some space, or set FORERUN_HOME to a directory on a larger disk",
        )


def megabytes(num_bytes: int) -> str:
    """`num_bytes` in decimal units, as shops and `df -H` count."""
    return f"{num_bytes / 1e9:.2f} GB" if num_bytes >= 1e9 else f"{num_bytes / 1e6:.1f} MB"


@contextmanager
def locked(key: str, progress: Progress) -> Iterator[None]:
    """Hold the lock of one model. A second process waits here, and then finds the file."""
    from filelock import FileLock, Timeout

    directory = home() / "locks"
    with disk_errors(directory):
        directory.mkdir(parents=True, exist_ok=True)
        lock = FileLock(directory / f"{key.replace('/', '--')}.lock")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            progress.note(f"another process is fetching {key}: waiting for it")
            lock.acquire()
    try:
        yield
    finally:
        lock.release()


def sha256_of(path: Path, advance: Callable[[int], None] | None = None) -> str:
    """Hexadecimal sha256 of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
            if advance is not None:
                advance(len(chunk))
    return digest.hexdigest()


def partial_path(final: Path, digest: str) -> Path:
    """Where the beginning of a file is kept until it is whole; another version of the file has another name."""
    return final.with_name(f"{final.name}.{digest[:12]}.partial")


def not_cached(name: str) -> DownloadError:
    """The error of offline mode for a model that is not there."""
    return DownloadError(
        f"{name} is not in the cache, and nothing may be fetched: offline mode is on",
        f"the cache directory is {home()}",
        "unset HF_HUB_OFFLINE (or drop offline=True) to fetch it, or give the path of a local model",
    )
