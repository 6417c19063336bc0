"""Hub repositories against a stand-in server on the loopback interface: choice, resume, checks and refusals."""

from __future__ import annotations

import errno
import hashlib
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tests.models.fake_hub import COMMIT, FakeHub
from tests.models.fake_wheels import Recorder, model_bytes

from forerun.errors import (
    ChecksumError,
    DiskFullError,
    DownloadError,
    FileFormatError,
    UnknownModelError,
    UnsupportedModelError,
)
from forerun.models.gguf_shards import shard_names
from forerun.models.hub import RemoteFile, Repository, choose_gguf
from forerun.models.pull import resolve
from forerun.models.records import read_record, record_path

DATA = model_bytes(1, 300_000)
SNAPSHOT = {
    "config.json": b'{"model_type": "llama"}',
    "generation_config.json": b"{}",
    "model-00001-of-00002.safetensors": model_bytes(2, 50_000),
    "model-00002-of-00002.safetensors": model_bytes(3, 40_000),
    "model.safetensors.index.json": b"{}",
    "tokenizer.json": b"{}",
    "tokenizer_config.json": b"{}",
    "tokenizer.model": b"sentencepiece",
    "merges.txt": b"a b",
    "vocab.json": b"{}",
    "chat_template.jinja": b"{{ messages }}",
    "additional_chat_templates/rag.jinja": b"{{ documents }}",
}
LEFT = {
    "README.md": b"#",
    "modeling_custom.py": b"import os",
    "pytorch_model.bin": b"pickle",
    "onnx/model.safetensors": b"another format",
    "original/params.json": b"{}",
    "consolidated.safetensors": b"the weights again",
    "../evil.json": b"{}",
    "..\\evil.json": b"{}",
    "training.log": b"",
    ".hidden/tokenizer.json": b"{}",
}


@pytest.fixture
def repository(hub: FakeHub) -> FakeHub:
    """org/name holds exactly one GGUF."""
    hub.repositories["org/name"] = {"README.md": b"#", "tiny.gguf": DATA}
    return hub


@pytest.fixture
def snapshot(hub: FakeHub) -> FakeHub:
    """org/name is a transformers model, with much beside it that is not wanted."""
    hub.repositories["org/name"] = {**SNAPSHOT, **LEFT}
    return hub


def partials(home: Path) -> list[Path]:
    return [path for path in home.rglob("*.partial") if path.is_file()]


def tree(path: Path) -> dict[str, bytes]:
    return {file.relative_to(path).as_posix(): file.read_bytes() for file in path.rglob("*") if file.is_file()}


CHILD = """
from huggingface_hub import constants
constants.DOWNLOAD_CHUNK_SIZE = 10_000
from forerun.models.pull import resolve
resolve("org/name")
"""

# what a name means


def test_the_only_gguf_is_taken(repository: FakeHub, forerun_home: Path) -> None:
    progress = Recorder()
    files = resolve("org/name", progress=progress)
    assert (files.kind, files.source, files.licence) == ("gguf", "hub:org/name", "apache-2.0")
    assert files.path.read_bytes() == DATA
    assert files.path == forerun_home / "models" / "hub" / "org--name" / "gguf" / "tiny.gguf"
    assert progress.num_bytes == progress.starts[-1][0] == len(DATA)
    assert f"from hub:org/name at commit {COMMIT[:12]}, licence apache-2.0" in progress.text
    record = read_record(files.path)
    assert record is not None
    assert record.revision == COMMIT
    assert record.files[0].sha256 == hashlib.sha256(DATA).hexdigest()
    assert partials(forerun_home) == []


SHARDS = [f"sub/c-0000{number}-of-00003.gguf" for number in (1, 2, 3)]
PARTS = [model_bytes(number, 20_000 * number) for number in (4, 5, 6)]


def test_several_ggufs_must_be_named(hub: FakeHub) -> None:
    split = dict(zip(SHARDS, PARTS, strict=True))
    hub.repositories["org/name"] = {"a.gguf": DATA, "sub/b.gguf": DATA[:1000], **split}
    with pytest.raises(UnknownModelError) as caught:
        resolve("org/name")
    assert "has 3 GGUF models" in str(caught.value)
    assert "a.gguf, sub/b.gguf, sub/c-00001-of-00003.gguf (3 shards). name one, such as org/name:a.gguf" in str(
        caught.value
    )
    files = resolve("org/name:sub/b.gguf")
    assert files.path.read_bytes() == DATA[:1000]
    resolve(f"org/name:{SHARDS[1]}")
    with pytest.raises(UnknownModelError, match="has 3"):
        resolve("org/name")  # a file that was named once does not become what the bare name means


@pytest.mark.parametrize("named", ["org/name", *(f"org/name:{shard}" for shard in SHARDS)])
def test_a_split_model_is_pulled_whole(named: str, hub: FakeHub, forerun_home: Path) -> None:
    hub.repositories["org/name"] = dict(zip(reversed(SHARDS), reversed(PARTS), strict=True))
    progress = Recorder()
    files = resolve(named, progress=progress)
    folder = forerun_home / "models" / "hub" / "org--name" / "gguf" / "sub" / "c-00001-of-00003.gguf"
    assert (files.path, files.kind, files.source) == (folder / "c-00001-of-00003.gguf", "gguf", "hub:org/name")
    assert tree(folder) == {Path(shard).name: data for shard, data in zip(SHARDS, PARTS, strict=True)}
    assert progress.num_bytes == progress.starts[-1][0] == sum(map(len, PARTS))
    assert len(progress.starts) == 1
    assert "3 shards, 0.3 MB from hub:org/name" in progress.text
    record = read_record(folder)
    assert record is not None
    assert [item.name for item in record.files] == [Path(shard).name for shard in SHARDS]
    assert list((forerun_home / "models").rglob("*.json")) == [record_path(folder)], "one record"
    assert partials(forerun_home) == []
    num_requests = len(hub.requests)
    for again in (named, *(f"org/name:{shard}" for shard in SHARDS)):
        cached = resolve(again, offline=True)
        assert (cached.path, cached.source, cached.kind) == (files.path, "cache", "gguf")
    assert len(hub.requests) == num_requests
    if named != "org/name":
        with pytest.raises(DownloadError, match="not in the cache"):
            resolve("org/name", offline=True)


def test_an_interrupted_split_model_goes_on_where_it_stopped(hub: FakeHub, forerun_home: Path) -> None:
    hub.repositories["org/name"] = dict(zip(SHARDS, PARTS, strict=True))
    hub.stall_after[SHARDS[1]] = 20_000
    with pytest.raises(KeyboardInterrupt):
        resolve("org/name", progress=interrupt_after(90_000))
    assert list(forerun_home.rglob("c-00001-of-00003.gguf.json")) == []
    with pytest.raises(DownloadError, match="not in the cache"):
        resolve(f"org/name:{SHARDS[0]}", offline=True)
    hub.stall_after.clear()
    progress = Recorder()
    path = resolve("org/name", progress=progress).path
    assert [(path.with_name(Path(shard).name)).read_bytes() for shard in SHARDS] == PARTS
    assert [len(hub.gets(shard)) for shard in SHARDS] == [1, 2, 1]
    assert hub.gets(SHARDS[1])[-1]["range"] != "bytes=0-"
    assert progress.num_bytes == sum(map(len, PARTS))


def test_a_damaged_or_missing_shard_of_the_cache_is_fetched_again(hub: FakeHub) -> None:
    hub.repositories["org/name"] = dict(zip(SHARDS, PARTS, strict=True))
    path = resolve("org/name").path
    path.with_name("c-00002-of-00003.gguf").unlink()
    with pytest.raises(ChecksumError, match="no file and should be"):
        resolve("org/name", offline=True)
    assert resolve("org/name").source == "hub:org/name"
    assert path.with_name("c-00002-of-00003.gguf").read_bytes() == PARTS[1]


def test_a_repository_that_lacks_a_shard(hub: FakeHub) -> None:
    hub.repositories["org/name"] = {SHARDS[0]: PARTS[0], SHARDS[2]: PARTS[2]}
    for name in ("org/name", f"org/name:{SHARDS[2]}"):
        with pytest.raises(UnknownModelError, match=r"lacks 1 of the 3 shards.*sub/c-00002-of-00003\.gguf"):
            resolve(name)
    assert hub.gets(SHARDS[0]) == []


def test_a_split_model_with_a_shard_that_is_none(hub: FakeHub, forerun_home: Path) -> None:
    hub.repositories["org/name"] = dict(zip(SHARDS, [PARTS[0], b"<html>", PARTS[2]], strict=True))
    with pytest.raises(FileFormatError, match=r"c-00002-of-00003\.gguf of org/name is not a GGUF file"):
        resolve("org/name")
    with pytest.raises(DownloadError, match="not in the cache"):
        resolve("org/name", offline=True)


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("a-00001-of-00001.gguf", 0),
        ("a-00001-of-00003.gguf", 3),
        ("a.gguf", 0),
        ("a-1-of-2.gguf", 0),
        ("a-00002-of-00002.GGUF", 2),
    ],
)
def test_what_a_shard_is(name: str, count: int) -> None:
    assert len(shard_names(name)) == count
    assert count == 0 or name in shard_names(name)


def test_named_file_that_is_not_there(repository: FakeHub) -> None:
    with pytest.raises(UnknownModelError, match=r"no file 'other\.gguf'.*it has tiny\.gguf.*org/name:FILE"):
        resolve("org/name:other.gguf")
    with pytest.raises(UnsupportedModelError, match=r"README\.md is not a \.gguf file"):
        resolve("org/name:README.md")
    for unsafe in ("../../evil.gguf", "/etc/evil.gguf", "a\\b.gguf"):
        with pytest.raises(FileFormatError, match="not a path inside a repository"):
            resolve(f"org/name:{unsafe}")
    assert all("evil" not in path for _, path, _ in repository.requests)


def test_gguf_that_is_none(hub: FakeHub, forerun_home: Path) -> None:
    hub.repositories["org/name"] = {"tiny.gguf": b"<html>not a model</html>"}
    with pytest.raises(FileFormatError, match=r"tiny\.gguf of org/name is not a GGUF file"):
        resolve("org/name")
    assert partials(forerun_home) == []


def test_snapshot_takes_only_what_a_model_needs(snapshot: FakeHub, forerun_home: Path, tmp_path: Path) -> None:
    progress = Recorder()
    files = resolve("org/name", progress=progress)
    assert (files.kind, files.source) == ("transformers", "hub:org/name")
    assert tree(files.path) == SNAPSHOT
    assert progress.num_bytes == progress.starts[-1][0] == sum(map(len, SNAPSHOT.values()))
    assert not list(tmp_path.rglob("evil*"))
    record = read_record(files.path)
    assert record is not None
    assert {item.name for item in record.files} == set(SNAPSHOT)
    assert list((forerun_home / "models").rglob("*.partial")) == []


def test_consolidated_weights_alone_are_kept(hub: FakeHub) -> None:
    hub.repositories["org/name"] = {"config.json": b"{}", "consolidated.safetensors": b"weights"}
    assert set(tree(resolve("org/name").path)) == {"config.json", "consolidated.safetensors"}


def test_repositories_that_hold_no_model(hub: FakeHub) -> None:
    hub.repositories["org/pickled"] = {"config.json": b"{}", "pytorch_model.bin": b"x"}
    with pytest.raises(UnsupportedModelError, match=r"no \.safetensors weights"):
        resolve("org/pickled")
    hub.repositories["org/other"] = {"README.md": b"x", "model.safetensors": b"x"}
    with pytest.raises(FileFormatError, match=r"neither a \.gguf file nor a config\.json"):
        resolve("org/other")


def test_choice_is_pure() -> None:
    files = tuple(RemoteFile(name, 1, None, None) for name in ("b.gguf", "config.json"))
    chosen = choose_gguf(Repository("org/name", COMMIT, None, files), None)
    assert chosen == files[:1]
    assert choose_gguf(Repository("org/name", COMMIT, None, files[1:]), None) is None


# reuse


def test_cached_repository_is_not_asked_again(repository: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    path = resolve("org/name").path
    num_requests = len(repository.requests)
    for name in ("org/name", "org/name:tiny.gguf"):
        files = resolve(name)
        assert (files.path, files.source, files.licence) == (path, "cache", "apache-2.0")
        assert resolve(name, offline=True).path == path
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert resolve("org/name").path == path
    assert len(repository.requests) == num_requests


def test_cached_snapshot_is_reused_offline_and_repaired_online(snapshot: FakeHub) -> None:
    path = resolve("org/name").path
    assert resolve("org/name", offline=True).source == "cache"
    (path / "config.json").write_bytes(b"{}")
    with pytest.raises(ChecksumError, match=r"damaged.*config\.json"):
        resolve("org/name", offline=True)
    assert resolve("org/name").source == "hub:org/name"
    assert tree(path) == SNAPSHOT
    (path / "tokenizer.json").unlink()
    with pytest.raises(ChecksumError, match=r"no file and should be"):
        resolve("org/name", offline=True)
    record_path(path).unlink()
    with pytest.raises(DownloadError, match="not in the cache"):
        resolve("org/name", offline=True)
    assert resolve("org/name").source == "hub:org/name"
    assert tree(path) == SNAPSHOT


def test_offline_names_what_is_missing(repository: FakeHub) -> None:
    for name in ("org/name", "org/name:tiny.gguf"):
        with pytest.raises(DownloadError, match=f"{name} is not in the cache.*offline"):
            resolve(name, offline=True)
    assert repository.requests == []


# tokens and refusals


def test_token_is_sent(repository: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    resolve("org/name")
    assert {headers.get("authorization") for _, _, headers in repository.requests} == {"Bearer hf_secret"}


def test_gated_repository(repository: FakeHub, forerun_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repository.refuse_files["org/name"] = (401, "GatedRepo")
    with pytest.raises(DownloadError, match=r"gated.*without a token.*/org/name.*HF_TOKEN"):
        resolve("org/name")
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    repository.refuse_files["org/name"] = (403, "GatedRepo")
    with pytest.raises(DownloadError, match=r"gated.*refused the token") as caught:
        resolve("org/name")
    assert "hf_secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("status", "code", "kind", "said"),
    [
        (401, "RepoNotFound", UnknownModelError, "no repository org/name, or it is private.*HF_TOKEN"),
        (404, "RepoNotFound", UnknownModelError, "no repository org/name, or it is private"),
        (403, "", DownloadError, "forbids access.*the stand-in says 403"),
        (429, "", DownloadError, "slow down.*429"),
        (500, "", DownloadError, "answered 500"),
        (503, "", DownloadError, "answered 503"),
    ],
)
def test_refusals(hub: FakeHub, status: int, code: str, kind: type[Exception], said: str) -> None:
    hub.refuse["org/name"] = (status, code)
    with pytest.raises(kind, match=said) as caught:
        resolve("org/name")
    assert type(caught.value) is kind


def test_file_that_vanished_after_the_listing(repository: FakeHub) -> None:
    repository.refuse_files["org/name"] = (404, "EntryNotFound")
    with pytest.raises(UnknownModelError, match="does not have this file"):
        resolve("org/name")


def test_no_network(forerun_home: Path) -> None:
    with pytest.raises(DownloadError, match=r"connection to http://127\.0\.0\.1:9 failed.*check the network"):
        resolve("org/name")


def test_names_that_are_no_repository(hub: FakeHub) -> None:
    with pytest.raises(UnknownModelError):
        resolve("a--b/c..d")


# resume and checks


def interrupt_after(num_bytes: int) -> Recorder:
    class Impatient(Recorder):
        def advance(self, num: int) -> None:
            super().advance(num)
            if self.num_bytes >= num_bytes:
                raise KeyboardInterrupt

    return Impatient()


def leave_partial(hub: FakeHub, home: Path) -> Path:
    """Interrupt a pull after its first bytes; the partial file that is left."""
    hub.stall_after["tiny.gguf"] = 100_000
    with pytest.raises(KeyboardInterrupt):
        resolve("org/name", progress=interrupt_after(1))
    del hub.stall_after["tiny.gguf"]
    (partial,) = partials(home)
    assert 0 < partial.stat().st_size < len(DATA)
    assert DATA.startswith(partial.read_bytes())
    return partial


def test_interrupted_download_goes_on_where_it_stopped(repository: FakeHub, forerun_home: Path) -> None:
    size = leave_partial(repository, forerun_home).stat().st_size
    progress = Recorder()
    assert resolve("org/name", progress=progress).path.read_bytes() == DATA
    assert repository.gets("tiny.gguf")[-1]["range"] == f"bytes={size}-"
    assert progress.num_bytes == len(DATA)
    assert partials(forerun_home) == []


def test_server_without_ranges(repository: FakeHub, forerun_home: Path) -> None:
    leave_partial(repository, forerun_home)
    repository.ignore_ranges = True
    progress = Recorder()
    assert resolve("org/name", progress=progress).path.read_bytes() == DATA
    assert progress.num_bytes == len(DATA), "what was thrown away is taken off the bar"


def test_damaged_partial_is_thrown_away_and_fetched_once_more(repository: FakeHub, forerun_home: Path) -> None:
    partial = leave_partial(repository, forerun_home)
    partial.write_bytes(bytes(partial.stat().st_size))
    progress = Recorder()
    assert resolve("org/name", progress=progress).path.read_bytes() == DATA
    assert [headers.get("range") is None for headers in repository.gets("tiny.gguf")] == [True, False, True]
    assert progress.num_bytes == len(DATA)


def test_partial_that_is_too_long(repository: FakeHub, forerun_home: Path) -> None:
    partial = leave_partial(repository, forerun_home)
    partial.write_bytes(DATA + b"more")
    assert resolve("org/name").path.read_bytes() == DATA


def test_complete_partial_is_not_fetched_again(repository: FakeHub, forerun_home: Path) -> None:
    partial = leave_partial(repository, forerun_home)
    partial.write_bytes(DATA)
    num_gets = len(repository.gets("tiny.gguf"))
    assert resolve("org/name").path.read_bytes() == DATA
    assert len(repository.gets("tiny.gguf")) == num_gets


def test_transfer_that_gives_up_is_taken_up_again(repository: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    """Older versions of huggingface_hub raise at the first broken connection."""
    begins: list[int] = []

    def breaking(url: str, stream: Any, *, resume_size: int, **settings: Any) -> None:
        begins.append(resume_size)
        stream.write(DATA[resume_size : resume_size + 90_000])
        if resume_size + 90_000 < len(DATA):
            raise ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")

    monkeypatch.setattr("huggingface_hub.file_download.http_get", breaking)
    assert resolve("org/name").path.read_bytes() == DATA
    assert begins == [0, 90_000, 180_000, 270_000]


def test_connection_that_always_drops_is_given_up(repository: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.file_download.time.sleep", lambda seconds: None)
    repository.cut["tiny.gguf"] = [0] * 1000
    with pytest.raises(DownloadError, match=r"connection to .* failed"):
        resolve("org/name")
    assert 1 <= len(repository.gets("tiny.gguf")) < 10


def test_dropped_connection_is_taken_up_again(repository: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.file_download.time.sleep", lambda seconds: None)
    repository.cut["tiny.gguf"] = [100_000, 100_000]
    progress = Recorder()
    assert resolve("org/name", progress=progress).path.read_bytes() == DATA
    ranges = [headers.get("range") for headers in repository.gets("tiny.gguf")]
    assert ranges == [None, "bytes=100000-", "bytes=200000-"]
    assert progress.num_bytes == len(DATA)


def test_bytes_other_than_listed_are_refused(repository: FakeHub, forerun_home: Path) -> None:
    listed = "ab" * 32
    repository.listed_sha256["tiny.gguf"] = listed
    actual = hashlib.sha256(DATA).hexdigest()
    with pytest.raises(ChecksumError, match=f"its sha256 is {actual} and should be {listed}"):
        resolve("org/name")
    assert partials(forerun_home) == []
    with pytest.raises(DownloadError, match="not in the cache"):
        resolve("org/name", offline=True)


def test_small_files_are_checked_by_their_git_hash(snapshot: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = snapshot.listing

    def lying(name: str) -> dict[str, Any]:
        data: dict[str, Any] = honest(name)
        for item in data["siblings"]:
            if item["rfilename"] == "config.json":
                item["blobId"] = "ab" * 20
        return data

    monkeypatch.setattr(snapshot, "listing", lying)
    git_hash = hashlib.sha1(b"blob 23\0" + SNAPSHOT["config.json"]).hexdigest()
    with pytest.raises(ChecksumError, match=f"config.json.*its git hash is {git_hash} and should be {'ab' * 20}"):
        resolve("org/name")


def test_interrupted_snapshot_keeps_its_finished_files(snapshot: FakeHub, forerun_home: Path) -> None:
    snapshot.stall_after["model-00002-of-00002.safetensors"] = 10_000
    with pytest.raises(KeyboardInterrupt):
        resolve("org/name", progress=interrupt_after(60_000))
    assert not (forerun_home / "models" / "hub" / "org--name" / "snapshot").exists()
    with pytest.raises(DownloadError, match="not in the cache"):
        resolve("org/name", offline=True)
    snapshot.stall_after.clear()
    (staging,) = (forerun_home / "models" / "hub" / "org--name").glob("snapshot.*.partial")
    (staging / "stray.json").write_text("of an older commit, where a Hub names none")
    progress = Recorder()
    assert tree(resolve("org/name", progress=progress).path) == SNAPSHOT
    assert len(snapshot.gets("model-00001-of-00002.safetensors")) == 1
    assert snapshot.gets("model-00002-of-00002.safetensors")[-1]["range"] == "bytes=10000-"
    assert progress.num_bytes == sum(map(len, SNAPSHOT.values()))


def test_new_commit_between_attempts_mixes_nothing(snapshot: FakeHub, forerun_home: Path) -> None:
    snapshot.stall_after["model-00002-of-00002.safetensors"] = 10_000
    with pytest.raises(KeyboardInterrupt):
        resolve("org/name", progress=interrupt_after(60_000))
    snapshot.stall_after.clear()
    snapshot.commit = "f" * 40
    newer = {**SNAPSHOT, "config.json": b"newer", "model-00002-of-00002.safetensors": model_bytes(9, 40_000)}
    del newer["merges.txt"]
    snapshot.repositories["org/name"] = newer
    assert tree(resolve("org/name").path) == newer
    assert list((forerun_home / "models").rglob("*.partial")) == []


def test_no_room_is_refused_before_the_download(repository: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": 1_200_000})())
    with pytest.raises(DiskFullError, match=r"org/name needs 1\.3 MB and 1\.2 MB are free"):
        resolve("org/name")
    assert repository.gets("tiny.gguf") == []


def test_disk_that_fills_up(repository: FakeHub, forerun_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from forerun.models.transfer import _Meter

    real_write = _Meter.write

    def write(self: _Meter, data: bytes) -> int:
        if self.tell() + len(data) > 150_000:
            real_write(self, data[: 150_000 - self.tell()])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real_write(self, data)

    with monkeypatch.context() as patch:
        patch.setattr(_Meter, "write", write)
        with pytest.raises(DiskFullError, match="what arrived so far is kept"):
            resolve("org/name")
    (partial,) = partials(forerun_home)
    assert partial.read_bytes() == DATA[:150_000]
    assert resolve("org/name").path.read_bytes() == DATA
    assert repository.gets("tiny.gguf")[-1]["range"] == "bytes=150000-"


def test_killed_while_downloading(repository: FakeHub, forerun_home: Path) -> None:
    repository.stall_after["tiny.gguf"] = 200_000
    process = subprocess.Popen([sys.executable, "-c", CHILD])
    for _ in range(6000):
        if any(path.stat().st_size == 200_000 for path in partials(forerun_home)):
            break
        assert process.poll() is None
        time.sleep(0.01)
    process.kill()
    process.wait()
    del repository.stall_after["tiny.gguf"]
    assert list(forerun_home.rglob("*.gguf")) == []
    with pytest.raises(DownloadError, match="not in the cache"):
        resolve("org/name", offline=True)
    assert resolve("org/name").path.read_bytes() == DATA
    assert repository.gets("tiny.gguf")[-1]["range"] == "bytes=200000-"


def test_repository_without_hashes_or_licence(hub: FakeHub, forerun_home: Path) -> None:
    """A Hub-compatible mirror may list names only; what is left of an earlier attempt then cannot be trusted."""
    hub.repositories["org/name"] = {"tiny.gguf": DATA}
    hub.no_hashes, hub.tags = True, []
    leave_partial(hub, forerun_home).write_bytes(DATA)
    files = resolve("org/name")
    assert files.path.read_bytes() == DATA
    assert files.licence is None
    assert resolve("org/name", offline=True).source == "cache"
