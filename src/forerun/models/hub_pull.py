"""Placing what the Hub has: a registered model's file, one GGUF file, or a whole transformers directory."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path, PurePosixPath

from forerun.errors import ChecksumError, FileFormatError
from forerun.models.hub import RemoteFile, Repository, choose_gguf, full_shard_names, inspect
from forerun.models.local import check_gguf
from forerun.models.progress import Progress
from forerun.models.records import (
    FileRecord,
    Record,
    describe,
    find_or_remove,
    find_unlocked,
    place,
    read_record,
)
from forerun.models.registry import Entry, HubFile
from forerun.models.store import (
    ModelFiles,
    disk_errors,
    ensure_space,
    is_safe_relative,
    locked,
    megabytes,
    models_directory,
    not_cached,
    partial_path,
)
from forerun.models.transfer import fetch, matches

SNAPSHOT = "snapshot"


def fetch_registered(entry: Entry, item: HubFile, partial: Path, progress: Progress) -> None:
    """Fetch `entry` from one Hub repository; refused before the first byte if the Hub lists another hash."""
    repository = inspect(item.repository)
    remote = repository.file(item.file)
    if remote.sha256 not in (None, entry.sha256):
        raise ChecksumError(f"the Hub's file has sha256 {remote.sha256} and should have {entry.sha256}", item.file)
    if remote.size not in (None, entry.size):
        raise ChecksumError(f"the Hub's file has {remote.size} bytes and should have {entry.size}", item.file)
    present = partial.stat().st_size if partial.exists() else 0
    ensure_space(partial.parent, entry.size - present, entry.name)
    progress.note(
        f"{entry.name}: {megabytes(entry.size)} from hub:{item.repository}, licence {entry.licence}, "
        f"checked against sha256 {entry.sha256}"
    )
    progress.start(entry.size, entry.name)
    fetch(repository, remote, partial, progress)


def from_hub(name: str, repository: str, file: str | None, offline: bool, progress: Progress) -> ModelFiles:
    """`repository` (org/name), or its `file`, from the cache, else from the Hub at its newest commit.

    What is cached is never refreshed by itself: the same name keeps meaning the same bytes.
    """
    if file is not None and not is_safe_relative(file):
        raise FileFormatError(f"{file!r} is not a path inside a repository", f"in {name}")
    directory = models_directory() / "hub" / repository.replace("/", "--")
    with disk_errors(directory):
        cached = _cached(name, directory, file, lambda path: find_unlocked(path, None, offline=offline))
    if cached is not None:
        return cached
    if offline:
        raise not_cached(name)
    with locked(f"hub/{repository}", progress), disk_errors(directory):
        cached = _cached(name, directory, file, lambda path: find_or_remove(path, None, progress))
        if cached is not None:
            return cached
        directory.mkdir(parents=True, exist_ok=True)
        listed = inspect(repository)
        gguf = choose_gguf(listed, file)
        if gguf is not None:
            pull = _pull_gguf if len(gguf) == 1 else _pull_shards
            return pull(name, listed, gguf, directory, file is None, progress)
        return _pull_snapshot(name, listed, directory, progress)


def _cached(name: str, directory: Path, file: str | None, find: Callable[[Path], Record | None]) -> ModelFiles | None:
    """What the cache has under this name. Without a file, the records say which one the bare name meant."""
    if file is not None:
        candidates = [directory / "gguf" / (full_shard_names(file) or (file,))[0]]
    else:
        placed = [directory / SNAPSHOT, *sorted((directory / "gguf").rglob("*.gguf"))]
        candidates = [path for path in placed if (record := read_record(path)) is not None and record.default]
    for path in candidates:
        record = find(path)
        if record is not None:
            if path.is_dir() and path.name != SNAPSHOT:
                return ModelFiles(name, path / path.name, "gguf", "cache", record.licence)
            return ModelFiles(name, path, "transformers" if path.is_dir() else "gguf", "cache", record.licence)
    return None


def _pull_gguf(
    name: str,
    repository: Repository,
    files: tuple[RemoteFile, ...],
    directory: Path,
    default: bool,
    progress: Progress,
) -> ModelFiles:
    (file,) = files
    final = directory / "gguf" / file.name
    final.parent.mkdir(parents=True, exist_ok=True)
    partial = partial_path(final, file.sha256 or file.blob or repository.revision)
    _announce(name, repository, files, partial.stat().st_size if partial.exists() else 0, directory, progress)
    sha256 = fetch(repository, file, partial, progress)
    _check_pulled(partial, repository, file)
    source = f"hub:{repository.name}"
    records = (describe(partial, final.name, sha256),)
    place(partial, final, Record(source, repository.licence, records, repository.revision, default))
    return ModelFiles(name, final, "gguf", source, repository.licence)


def _pull_shards(
    name: str,
    repository: Repository,
    files: tuple[RemoteFile, ...],
    directory: Path,
    default: bool,
    progress: Progress,
) -> ModelFiles:
    """All shards of a split model, in a directory of their own (called like the first shard) with one record."""
    final = directory / "gguf" / files[0].name
    version = hashlib.sha256("".join(file.sha256 or file.blob or repository.revision for file in files).encode())
    staging = partial_path(final, version.hexdigest())
    records = _gather_all(name, repository, files, staging, directory, progress)
    for file in files:
        _check_pulled(staging / PurePosixPath(file.name).name, repository, file)
    source = f"hub:{repository.name}"
    place(staging, final, Record(source, repository.licence, records, repository.revision, default))
    return ModelFiles(name, final / final.name, "gguf", source, repository.licence)


def _pull_snapshot(name: str, repository: Repository, directory: Path, progress: Progress) -> ModelFiles:
    """All files of one commit, gathered in a directory of their own that appears under its name when whole."""
    wanted = repository.snapshot()
    final = directory / SNAPSHOT
    staging = partial_path(final, repository.revision)
    records = _gather_all(name, repository, wanted, staging, directory, progress)
    names = {file.name for file in records}
    for path in staging.rglob("*"):
        if path.is_file() and path.relative_to(staging).as_posix() not in names:
            path.unlink()
    source = f"hub:{repository.name}"
    place(staging, final, Record(source, repository.licence, records, repository.revision, True))
    for stale in directory.glob(f"{SNAPSHOT}.*.partial"):
        shutil.rmtree(stale, ignore_errors=True)
    return ModelFiles(name, final, "transformers", source, repository.licence)


def _gather_all(
    name: str,
    repository: Repository,
    files: tuple[RemoteFile, ...],
    staging: Path,
    directory: Path,
    progress: Progress,
) -> tuple[FileRecord, ...]:
    """All of `files` in `staging`, under one bar. Shards of one folder lie in it without that folder's name."""
    staging.mkdir(parents=True, exist_ok=True)
    present = sum(path.stat().st_size for path in staging.rglob("*") if path.is_file())
    _announce(name, repository, files, present, directory, progress)
    are_shards = bool(full_shard_names(files[0].name))
    names = [PurePosixPath(file.name).name if are_shards else file.name for file in files]
    return tuple(_gather(repository, file, name, staging, progress) for file, name in zip(files, names, strict=True))


def _gather(repository: Repository, file: RemoteFile, name: str, staging: Path, progress: Progress) -> FileRecord:
    """One file as `name` in `staging`; one that an interrupted pull finished is only hashed again."""
    path = staging / name
    path.parent.mkdir(parents=True, exist_ok=True)
    sha256 = matches(path, file) if path.is_file() else None
    if sha256 is None:
        partial = partial_path(path, file.sha256 or file.blob or repository.revision)
        sha256 = fetch(repository, file, partial, progress)
        partial.replace(path)
    else:
        progress.advance(path.stat().st_size)
    return describe(path, name, sha256)


def _check_pulled(path: Path, repository: Repository, file: RemoteFile) -> None:
    """Remove what is no GGUF file."""
    try:
        check_gguf(path)
    except FileFormatError as error:
        path.unlink()
        raise FileFormatError(
            f"{file.name} of {repository.name} is not a GGUF file", error.fact, "choose another file"
        ) from error


def _announce(
    name: str,
    repository: Repository,
    files: tuple[RemoteFile, ...],
    present: int,
    directory: Path,
    progress: Progress,
) -> None:
    """Check the room, and say what comes from where under which licence."""
    total = sum(file.size or 0 for file in files)
    ensure_space(directory, max(0, total - present), name)
    kind = "shards" if full_shard_names(files[0].name) else "files"
    what = files[0].name if len(files) == 1 else f"{len(files)} {kind}"
    progress.note(
        f"{name}: {what}, {megabytes(total)} from hub:{repository.name} at commit {repository.revision[:12]}, "
        f"licence {repository.licence or 'not stated'}"
    )
    progress.start(total, name)
