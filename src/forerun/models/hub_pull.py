"""Placing what the Hub has: a registered model's file, one GGUF file, or a whole transformers directory."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from forerun.errors import ChecksumError, FileFormatError
from forerun.models.hub import RemoteFile, Repository, choose_gguf, inspect, refuse_shard
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
    if file is not None:
        refuse_shard(file)
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
            return _pull_gguf(name, listed, gguf, directory, file is None, progress)
        return _pull_snapshot(name, listed, directory, progress)


def _cached(name: str, directory: Path, file: str | None, find: Callable[[Path], Record | None]) -> ModelFiles | None:
    """What the cache has under this name. Without a file, the records say which one the bare name meant."""
    if file is not None:
        candidates = [directory / "gguf" / file]
    else:
        placed = [directory / "snapshot", *sorted((directory / "gguf").rglob("*.gguf"))]
        candidates = [path for path in placed if (record := read_record(path)) is not None and record.default]
    for path in candidates:
        record = find(path)
        if record is not None:
            return ModelFiles(name, path, "transformers" if path.is_dir() else "gguf", "cache", record.licence)
    return None


def _pull_gguf(
    name: str, repository: Repository, file: RemoteFile, directory: Path, default: bool, progress: Progress
) -> ModelFiles:
    final = directory / "gguf" / file.name
    final.parent.mkdir(parents=True, exist_ok=True)
    partial = partial_path(final, file.sha256 or file.blob or repository.revision)
    _announce(name, repository, (file,), partial.stat().st_size if partial.exists() else 0, directory, progress)
    sha256 = fetch(repository, file, partial, progress)
    try:
        check_gguf(partial)
    except FileFormatError as error:
        partial.unlink()
        raise FileFormatError(
            f"{file.name} of {repository.name} is not a GGUF file", error.fact, "choose another file"
        ) from error
    source = f"hub:{repository.name}"
    files = (describe(partial, final.name, sha256),)
    place(partial, final, Record(source, repository.licence, files, repository.revision, default))
    return ModelFiles(name, final, "gguf", source, repository.licence)


def _pull_snapshot(name: str, repository: Repository, directory: Path, progress: Progress) -> ModelFiles:
    """All files of one commit, gathered in a directory of their own that appears under its name when whole."""
    wanted = repository.snapshot()
    final = directory / "snapshot"
    staging = partial_path(final, repository.revision)
    staging.mkdir(parents=True, exist_ok=True)
    present = sum(path.stat().st_size for path in staging.rglob("*") if path.is_file())
    _announce(name, repository, wanted, present, directory, progress)
    records = tuple(_gather(repository, file, staging, progress) for file in wanted)
    names = {file.name for file in wanted}
    for path in staging.rglob("*"):
        if path.is_file() and path.relative_to(staging).as_posix() not in names:
            path.unlink()
    source = f"hub:{repository.name}"
    place(staging, final, Record(source, repository.licence, records, repository.revision, True))
    for stale in directory.glob("snapshot.*.partial"):
        shutil.rmtree(stale, ignore_errors=True)
    return ModelFiles(name, final, "transformers", source, repository.licence)


def _gather(repository: Repository, file: RemoteFile, staging: Path, progress: Progress) -> FileRecord:
    """One file of a snapshot in `staging`; one that an interrupted pull finished is only hashed again."""
    path = staging / file.name
    path.parent.mkdir(parents=True, exist_ok=True)
    sha256 = matches(path, file) if path.is_file() else None
    if sha256 is None:
        partial = partial_path(path, file.sha256 or file.blob or repository.revision)
        sha256 = fetch(repository, file, partial, progress)
        partial.replace(path)
    else:
        progress.advance(path.stat().st_size)
    return describe(path, file.name, sha256)


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
    what = files[0].name if len(files) == 1 else f"{len(files)} files"
    progress.note(
        f"{name}: {what}, {megabytes(total)} from hub:{repository.name} at commit {repository.revision[:12]}, "
        f"licence {repository.licence or 'not stated'}"
    )
    progress.start(total, name)
