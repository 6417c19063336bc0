"""From what a person types to files on this machine: look in the cache, else try each source in order.

`resolve` is the one way in. The order is: a registered name; a path that exists; org/name[:file] of the Hub. What is
missing is fetched under the model's lock, checked, and placed; every source that failed is named with its reason.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from forerun.errors import ChecksumError, DiskFullError, DownloadError, ModelError
from forerun.models.hub_pull import fetch_registered, from_hub
from forerun.models.local import local
from forerun.models.mirror import fetch as fetch_wheels
from forerun.models.progress import Progress, RichProgress, SilentProgress
from forerun.models.records import Record, describe, find_or_remove, find_unlocked, place
from forerun.models.registry import Catalogue, Entry, installed, mirror_source
from forerun.models.store import ModelFiles, disk_errors, locked, not_cached, partial_path, sha256_of

_HUB_NAME = re.compile(r"([\w\-][\w.\-]*/[\w\-][\w.\-]*)(?::(.+))?", re.ASCII)

Fetch = Callable[[Path], None]


def resolve(
    name: str | os.PathLike[str],
    *,
    mirror: bool | None = None,
    offline: bool = False,
    progress: Progress | None = None,
    catalogue: Catalogue | None = None,
) -> ModelFiles:
    """The files of the model called `name`, fetched if they are missing.

    `mirror`: allow the package-index overlay; None means as FORERUN_MIRROR says (off if unset). `offline`: fetch
    nothing; HF_HUB_OFFLINE=1 rules out the Hub alone, so a mirror that was asked for still serves. Raises
    UnknownModelError (no such name), DownloadError with every source's reason, ChecksumError, DiskFullError,
    FileFormatError or UnsupportedModelError.
    """
    text = os.fspath(name)
    known = installed() if catalogue is None else catalogue
    report = SilentProgress() if progress is None else progress
    hub_offline = offline or _switch("HF_HUB_OFFLINE") or _switch("TRANSFORMERS_OFFLINE")
    try:
        if text in known:
            entry = known[text]
            wheels = bool(entry.mirror) and not offline and (_switch("FORERUN_MIRROR") if mirror is None else mirror)
            return _registered(entry, not hub_offline, wheels, report)
        found = local(text)
        if found is not None:
            return found
        if match := _HUB_NAME.fullmatch(text):
            return from_hub(text, match[1], match[2], hub_offline, report)
        raise known.unknown(text)
    finally:
        report.finish()


def pull(
    name: str | os.PathLike[str],
    *,
    mirror: bool | None = None,
    offline: bool = False,
    progress: Progress | None = None,
    catalogue: Catalogue | None = None,
) -> ModelFiles:
    """`resolve`, told to a person: a bar on standard error unless `progress` is given, and where the files are."""
    report = RichProgress() if progress is None else progress
    files = resolve(name, mirror=mirror, offline=offline, progress=report, catalogue=catalogue)
    report.note(f"{files.name}: {files.path} ({files.source}; licence: {files.licence or 'not stated'})")
    return files


def _switch(variable: str) -> bool:
    return os.environ.get(variable, "").strip().lower() in ("1", "true", "yes", "on")


def _registered(entry: Entry, hub_allowed: bool, mirror_allowed: bool, progress: Progress) -> ModelFiles:
    """A registered model from the cache, else from its first source that delivers the right bytes."""
    cached = ModelFiles(entry.name, entry.path, "gguf", "cache", entry.licence)
    offline = not (hub_allowed or mirror_allowed)
    with disk_errors(entry.path):
        if find_unlocked(entry.path, entry.sha256, offline=offline) is not None:
            return cached
    if offline:
        raise not_cached(entry.name)
    with locked(entry.name, progress), disk_errors(entry.path):
        if find_or_remove(entry.path, entry.sha256, progress) is not None:
            return cached
        entry.path.parent.mkdir(parents=True, exist_ok=True)
        staged = partial_path(entry.path, entry.sha256)
        failures: list[tuple[str, ModelError]] = []
        sources = list(_sources(entry, hub_allowed, mirror_allowed, progress))
        for index, (source, fetch) in enumerate(sources):
            try:
                fetch(staged)
                _check(staged, entry, source)
                record = Record(source, entry.licence, (describe(staged, entry.file, entry.sha256),))
                place(staged, entry.path, record)
                return ModelFiles(entry.name, entry.path, "gguf", source, entry.licence)
            except DiskFullError:
                raise
            except ModelError as error:
                failures.append((source, error))
                if index + 1 < len(sources):  # the last failure is the error's to tell
                    progress.note(f"{source}: {error.fact}; trying {sources[index + 1][0]}")
        raise _all_failed(entry, failures, mirror_allowed)


def _sources(entry: Entry, hub_allowed: bool, mirror_allowed: bool, progress: Progress) -> Iterator[tuple[str, Fetch]]:
    """(what a person calls it, how to fill the partial file from it), in the order tried."""
    for item in entry.hub if hub_allowed else ():
        yield f"hub:{item.repository}", partial(fetch_registered, entry, item, progress=progress)
    if mirror_allowed:
        yield mirror_source(entry.mirror), partial(fetch_wheels, entry, progress=progress)


def _check(staged: Path, entry: Entry, source: str) -> None:
    """Remove what is not the registered file: its bytes are of no use to a later attempt."""
    actual = sha256_of(staged)
    if actual != entry.sha256:
        staged.unlink()
        raise ChecksumError(
            f"the file's sha256 is {actual} and should be {entry.sha256}",
            f"from {source}; the file was removed",
        )


def _all_failed(entry: Entry, failures: list[tuple[str, ModelError]], mirror_allowed: bool) -> DownloadError:
    kind = ChecksumError if any(isinstance(error, ChecksumError) for _, error in failures) else DownloadError
    remedies = ["check the network (HF_ENDPOINT, HF_HUB_OFFLINE, proxy)"]
    if entry.mirror and not mirror_allowed:
        remedies.append(f"or add --mirror (FORERUN_MIRROR=1) to try {mirror_source(entry.mirror)}")
    remedies.append(f"or give the path of a local .gguf file instead of {entry.name}")
    reasons = "".join(f"\n  {source}: {error}" for source, error in failures)
    return kind(f"{entry.name} could not be fetched:{reasons}\n", "", ", ".join(remedies))
