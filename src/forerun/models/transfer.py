"""Fetching one file of a Hub repository into a partial file, from wherever it ends.

huggingface_hub's own download functions are not used: they keep no partial file between runs, so an interrupted
gigabyte would start again. Its `http_get` (ranges, retries, tokens, proxies) writes into the store's partial file
instead, and the bytes are checked against the hash that the Hub lists for the file.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

from forerun.errors import ChecksumError, DiskFullError, DownloadError
from forerun.models.hub import RemoteFile, Repository
from forerun.models.hub_errors import endpoint, hub_errors
from forerun.models.progress import Progress
from forerun.models.store import CHUNK, disk_errors, sha256_of

_ATTEMPTS = 10


def fetch(repository: Repository, file: RemoteFile, partial: Path, progress: Progress) -> str:
    """Complete `partial`, from where it ends, to the bytes of `file`, and return their sha256.

    A transfer that breaks off is taken up again as long as each attempt brings something. Bytes of an earlier pull
    that turn out to be wrong are thrown away and fetched once more; ChecksumError if what arrived here still is not
    what the Hub lists, and the file is removed.
    """
    resumed = _size(partial) > 0
    progress.advance(_size(partial))
    for attempt in range(_ATTEMPTS):
        before = _size(partial)
        try:
            _append(repository, file, partial, progress)
        except DiskFullError:
            raise
        except DownloadError:
            if attempt + 1 == _ATTEMPTS or _size(partial) <= before:
                raise
            continue
        sha256 = sha256_of(partial)
        problem = _difference(partial, file, sha256)
        if problem is None:
            return sha256
        progress.advance(-_size(partial))
        partial.unlink()
        if not resumed:
            break
        resumed = False
    raise ChecksumError(
        f"{file.name} arrived damaged: {problem}", f"from {repository.name} at {endpoint()}", "pull again"
    )


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _append(repository: Repository, file: RemoteFile, partial: Path, progress: Progress) -> None:
    """One transfer, from the end of `partial` to the end of `file`; one that has grown too long begins again."""
    from huggingface_hub import hf_hub_url
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

    url = hf_hub_url(repository.name, file.name, revision=repository.revision, endpoint=endpoint())
    with disk_errors(partial), partial.open("ab+") as stream:
        meter = _Meter(stream, progress)
        if file.size is None or meter.tell() > file.size:  # of unknown size: whether it is whole cannot be told
            meter.truncate(0)
        begin = meter.tell()
        if file.size is None or begin < file.size:
            with hub_errors(repository.name), _no_bars():
                http_get(
                    url,
                    cast(BinaryIO, meter),
                    resume_size=begin,
                    headers=build_hf_headers(library_name="forerun"),
                    expected_size=file.size,
                    displayed_filename=file.name,
                )
        stream.flush()
        os.fsync(stream.fileno())


def matches(path: Path, file: RemoteFile) -> str | None:
    """The sha256 of `path` if its bytes are those the Hub lists for `file`, else None."""
    sha256 = sha256_of(path)
    return sha256 if _difference(path, file, sha256) is None else None


def _difference(path: Path, file: RemoteFile, sha256: str) -> str | None:
    """How the bytes at `path` differ from what the Hub lists, or None."""
    size = path.stat().st_size
    if file.size is not None and size != file.size:
        return f"it has {size} bytes and should have {file.size}"
    if file.sha256 is not None:
        return None if sha256 == file.sha256 else f"its sha256 is {sha256} and should be {file.sha256}"
    if file.blob is not None:
        digest = hashlib.sha1(f"blob {size}\0".encode(), usedforsecurity=False)
        with path.open("rb") as stream:
            while chunk := stream.read(CHUNK):
                digest.update(chunk)
        blob = digest.hexdigest()
        return None if blob == file.blob else f"its git hash is {blob} and should be {file.blob}"
    return None


class _Meter:
    """The partial file as `http_get` sees it: what is written moves the bar, what is taken back moves it back."""

    def __init__(self, stream: BinaryIO, progress: Progress) -> None:
        self._stream, self._progress = stream, progress

    def write(self, data: bytes) -> int:
        written = self._stream.write(data)
        self._progress.advance(written)
        return written

    def tell(self) -> int:
        return self._stream.seek(0, os.SEEK_END)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        return self._stream.seek(offset, whence)

    def truncate(self, size: int | None = None) -> int:
        size = self._stream.tell() if size is None else size
        self._progress.advance(size - self.tell())
        return self._stream.truncate(size)


@contextmanager
def _no_bars() -> Iterator[None]:
    """Keep huggingface_hub from drawing a second bar."""
    from huggingface_hub.utils.tqdm import (
        are_progress_bars_disabled,
        disable_progress_bars,
        enable_progress_bars,
    )

    name = "huggingface_hub.http_get"
    if are_progress_bars_disabled(name):
        yield
        return
    disable_progress_bars(name)
    try:
        yield
    finally:
        enable_progress_bars(name)
