"""What was placed in the cache, how it is found again, and how little it takes to trust it.

A file under its final name is complete: it grows beside it as `.partial`, is synced, and is renamed, its record first.
A crash at any point leaves the old state or the new one. Later uses compare size and mtime with the record, and hash
only where they differ.
"""

from __future__ import annotations

import json
import os
import shutil
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from forerun.errors import ChecksumError
from forerun.models.progress import Progress
from forerun.models.store import disk_errors, sha256_of


@dataclass(frozen=True, slots=True)
class FileRecord:
    """What one placed file was when it was placed; `name` is relative to the directory, or the file's own name."""

    name: str
    size: int
    mtime_ns: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Record:
    """A placed model's sidecar. `default`: this is what the bare repository name means."""

    source: str
    licence: str | None
    files: tuple[FileRecord, ...]
    revision: str | None = None
    default: bool = False


def record_path(path: Path) -> Path:
    """Where the record of a placed file or directory is kept: beside it, never inside."""
    return path.with_name(path.name + ".json")


def read_record(path: Path) -> Record | None:
    """The record of a placed model; None if there is none or it cannot be read (then the bytes are hashed)."""
    try:
        data = json.loads(record_path(path).read_text(encoding="utf-8"))
        files = tuple(FileRecord(**item) for item in data.pop("files"))
        return Record(files=files, **data)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def write_record(path: Path, record: Record) -> None:
    """Write a record atomically."""
    final = record_path(path)
    partial = final.with_name(f"{final.name}.{os.getpid()}.tmp")
    with partial.open("w", encoding="utf-8") as file:
        json.dump(asdict(record), file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(final)


def describe(path: Path, name: str, sha256: str) -> FileRecord:
    """The record of the file at `path`, whose sha256 is already known."""
    status = path.stat()
    return FileRecord(name, status.st_size, status.st_mtime_ns, sha256)


def place(staged: Path, final: Path, record: Record) -> None:
    """Make `staged` (a file or a directory on the same file system) appear at `final`, complete or not at all.

    The record goes first: it describes bytes that are about to appear, and says nothing while they are absent.
    """
    with disk_errors(final):
        for item in record.files:
            with (staged / item.name if staged.is_dir() else staged).open("rb+") as file:
                os.fsync(file.fileno())
        if final.is_dir():
            shutil.rmtree(final)
        write_record(final, record)
        staged.replace(final)
        sync_directory(final.parent)


def sync_directory(directory: Path) -> None:
    """Make a rename durable, where the platform lets a directory be synced."""
    if hasattr(os, "O_DIRECTORY"):
        with suppress(OSError):
            descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


def find(path: Path, sha256: str | None = None) -> Record | None:
    """The record of the complete model at `path`, or None if nothing usable is there.

    `sha256` is what a registered file must be; without it the record is the only witness, and bytes without a
    record count as absent. Raises ChecksumError if the bytes are not what they were (both hashes are named);
    nothing is removed here.
    """
    if not path.exists():
        return None
    record = read_record(path)
    if record is None:
        if sha256 is None or not path.is_file():
            return None
        record = Record("cache", None, (FileRecord(path.name, path.stat().st_size, -1, sha256),))
    changed = False
    files = []
    for item in record.files:
        target = path / item.name if path.is_dir() else path
        expected = sha256 if sha256 is not None else item.sha256
        status = target.stat() if target.is_file() else None
        fresh = status is not None and (status.st_size, status.st_mtime_ns) == (item.size, item.mtime_ns)
        if status is None or not (fresh and item.sha256 == expected):
            actual = sha256_of(target) if status is not None else "no file"
            if actual != expected:
                raise ChecksumError(
                    f"the cached file is damaged: its sha256 is {actual} and should be {expected}",
                    str(target),
                    "pull it again while online",
                )
            item = describe(target, item.name, expected)
            changed = True
        files.append(item)
    record = Record(record.source, record.licence, tuple(files), record.revision, record.default)
    if changed:
        with suppress(OSError):  # a read-only cache still serves; it only hashes again next time
            write_record(path, record)
    return record


def find_unlocked(path: Path, sha256: str | None, *, offline: bool) -> Record | None:
    """`find` before the lock is held: damage raises only where nothing can be done about it."""
    try:
        return find(path, sha256)
    except ChecksumError:
        if offline:
            raise
        return None


def find_or_remove(path: Path, sha256: str | None, progress: Progress) -> Record | None:
    """`find` under the lock: damaged bytes are removed, with a note, so that they are fetched again."""
    try:
        return find(path, sha256)
    except ChecksumError as damage:
        progress.note(f"{damage.fact}: fetching it again")
        remove(path)
        return None


def remove(path: Path) -> None:
    """Remove a placed model and its record; a missing one is fine."""
    with disk_errors(path):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
        record_path(path).unlink(missing_ok=True)
