"""Repacked weights kept on disk: the second start maps them, computes the same bits, and survives whatever happens to
the file."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.models.tiny_gguf import write_tiny_gguf

from forerun import _native
from forerun.errors import InputError, ModelError
from forerun.models.gguf import GGUFFile, open_gguf
from forerun.runtime.native import kept_weights, load_native_model
from forerun.runtime.native.description import Placed
from forerun.runtime.native.model import NativeModel
from forerun.types import Span

TOKENS = (5, 9, 200, 17, 3)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FORERUN_HOME", str(tmp_path / "home"))
    monkeypatch.setenv(kept_weights.VARIABLE, "1")
    return tmp_path / "home" / "weights"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write_tiny_gguf(tmp_path / "model.gguf", tensor_type="Q8_0", hidden=256, feed_forward=512, tied=False)


def rows(model: NativeModel) -> np.ndarray:
    model.begin(0)
    found = np.asarray(model.forward([Span(0, 0, TOKENS, len(TOKENS))]).matrix)
    model.free(0)
    return found


def kept(home: Path) -> list[Path]:
    return sorted(home.glob("*.packed"))


def test_the_second_start_maps_what_the_first_kept(home: Path, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = rows(load_native_model(file))
    [path] = kept(home)
    before, read = path.stat(), dict[str, int]()
    read_into = GGUFFile.read_into

    def counted(self: GGUFFile, data: np.ndarray, name: str, first: int = 0) -> None:
        read[name] = read.get(name, 0) + data.nbytes
        read_into(self, data, name, first)

    monkeypatch.setattr(GGUFFile, "read_into", counted)
    again = load_native_model(file)
    assert np.array_equal(rows(again), first)
    with open_gguf(file) as opened:
        matrices = {name: info for name, info in opened.tensors.items() if len(info.shape) > 1}
    assert {name: read[name] for name in matrices} == {name: info.row_bytes for name, info in matrices.items()}
    assert set(read) > set(matrices), "vectors still come from the model's own file"
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


@pytest.mark.parametrize("value", ["", "0", "off"])
def test_nothing_is_kept_unless_it_is_asked_for(
    home: Path, file: Path, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv(kept_weights.VARIABLE, value)
    load_native_model(file)
    assert not home.exists()


def test_a_value_that_says_neither_yes_nor_no_is_refused(
    home: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(kept_weights.VARIABLE, "perhaps")
    with pytest.raises(InputError, match="FORERUN_WEIGHTS_CACHE=perhaps"):
        load_native_model(file)


def test_other_settings_and_other_weights_are_kept_apart(home: Path, file: Path) -> None:
    settings: list[dict[str, Any]] = [
        {}, {"requantise": True}, {"num_head_rows": 64}, {"head_ids": [1, 2, 3]}, {"head_ids": [1, 2, 4]},
    ]  # fmt: skip
    for setting in settings:
        load_native_model(file, **setting)
    assert len(kept(home)) == len(settings)
    for setting in settings:  # each finds its own
        without = {"FORERUN_WEIGHTS_CACHE": "0"}
        mapped = rows(load_native_model(file, **setting))
        os.environ.update(without)
        assert np.array_equal(mapped, rows(load_native_model(file, **setting)))
        os.environ["FORERUN_WEIGHTS_CACHE"] = "1"
    times = file.stat().st_atime_ns, file.stat().st_mtime_ns
    write_tiny_gguf(file, tensor_type="Q8_0", hidden=256, feed_forward=512, tied=False, seed=7)
    os.utime(file, ns=times)  # the same name, size and time: the weights themselves tell them apart
    changed = rows(load_native_model(file))
    assert len(kept(home)) == len(settings) + 1
    os.environ["FORERUN_WEIGHTS_CACHE"] = "0"
    assert np.array_equal(changed, rows(load_native_model(file)))


FRONT = 48


def header_of(data: bytes) -> dict[str, Any]:
    header: dict[str, Any] = json.loads(data[FRONT : FRONT + int.from_bytes(data[8:16], "little")])
    return header


def with_header(data: bytes, header: dict[str, Any]) -> bytes:
    """`data` with another header, which vouches for itself."""
    text = json.dumps(header).encode()
    front = data[:8] + len(text).to_bytes(8, "little") + hashlib.sha256(text).digest()
    return front + text + data[FRONT + len(text) :]


def damaged(data: bytes) -> dict[str, bytes]:
    """Ways for a kept file to be wrong."""
    header = header_of(data)

    def rewritten(**changes: Any) -> bytes:
        return with_header(data, header | changes)

    def matrix(index: int, value: Any) -> bytes:
        first = list(header["matrices"][0])
        first[index] = value
        return rewritten(matrices=[first, *header["matrices"][1:]])

    return {
        "empty": b"",
        "short": data[:10],
        "cut": data[:-4096],
        "longer": data + b"\0" * 64,
        "magic": b"x" + data[1:],
        "header length": data[:8] + (1 << 62).to_bytes(8, "little") + data[16:],
        "header": data[:60] + bytes([data[60] ^ 1]) + data[61:],
        "no json": data[:8] + (2).to_bytes(8, "little") + hashlib.sha256(b"[[").digest() + b"[[" + data[FRONT + 2 :],
        "a list": data[:8] + (2).to_bytes(8, "little") + hashlib.sha256(b"[]").digest() + b"[]" + data[FRONT + 2 :],
        "no matrices": rewritten(matrices=None),
        "layout": matrix(1, "Q9_9"),
        "outputs": matrix(2, 1 << 40),
        "no inputs": matrix(3, 0),
        "negative": matrix(4, -64),
        "odd offset": matrix(4, header["matrices"][0][4] + 1),
        "past the end": matrix(4, 1 << 50),
        "runs past the end": matrix(4, len(data) // 64 * 64 - 64),
        "bytes": matrix(5, 64),
        "name": matrix(0, "layers.99.q"),
    }


def test_a_kept_file_that_is_damaged_is_made_again(home: Path, file: Path) -> None:
    first = rows(load_native_model(file))
    [path] = kept(home)
    whole = path.read_bytes()
    for how, data in damaged(whole).items():
        path.write_bytes(data)
        assert np.array_equal(rows(load_native_model(file)), first), how
        assert path.read_bytes() == whole, how
    assert kept(home) == [path]
    assert not list(home.glob("*.partial"))


def test_a_kept_file_that_lacks_a_matrix_is_made_again(home: Path, file: Path) -> None:
    """What it does give is not mixed with another file's."""
    first = rows(load_native_model(file))
    [path] = kept(home)
    data = path.read_bytes()
    header = header_of(data)
    path.write_bytes(with_header(data, header | {"matrices": header["matrices"][:-1]}))
    assert np.array_equal(rows(load_native_model(file)), first)
    assert path.read_bytes() == data


def test_what_other_builds_kept_of_the_same_file_is_removed(
    home: Path, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = write_tiny_gguf(tmp_path / "other.gguf", seed=2)
    monkeypatch.setattr(kept_weights, "_build", lambda: "earlier")
    load_native_model(file)
    load_native_model(other)
    earlier = set(kept(home))
    monkeypatch.setattr(kept_weights, "_build", lambda: "now")
    load_native_model(file)
    left = set(kept(home))
    assert len(left) == 2
    assert len(left & earlier) == 1


def test_what_a_killed_process_began_to_write_is_removed(home: Path, file: Path) -> None:
    """Not what another process may still be writing."""
    home.mkdir(parents=True)
    for name, age_s in (("abandoned.partial", 7200), ("fresh.partial", 60)):
        (home / name).write_bytes(b"x")
        changed = time.time() - age_s
        os.utime(home / name, (changed, changed))
    load_native_model(file)
    assert [path.name for path in home.glob("*.partial")] == ["fresh.partial"]


def test_a_file_replaced_after_it_was_opened_is_kept_as_what_was_opened(home: Path, file: Path, tmp_path: Path) -> None:
    """Else the old weights would be kept under the new file's time."""
    wanted: list[kept_weights.Wanted] = [("output.weight", Placed("head", (600, 256)))]
    with open_gguf(file) as opened:
        before = kept_weights.KeptWeights.of(opened, wanted, {})
        other = tmp_path / "other.gguf"
        other.write_bytes(file.read_bytes() + bytes(32))
        other.replace(file)
        assert kept_weights.KeptWeights.of(opened, wanted, {}).path == before.path
    with open_gguf(file) as opened:
        assert kept_weights.KeptWeights.of(opened, wanted, {}).path != before.path


def test_sources_of_relative_paths_are_noted_in_full(home: Path, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that another build finds what to remove, wherever it is started."""
    monkeypatch.chdir(file.parent)
    load_native_model(Path(file.name))
    [path] = kept(home)
    assert header_of(path.read_bytes())["source"] == str(file)


def test_a_disk_that_refuses_costs_a_note_and_nothing_else(home: Path, file: Path) -> None:
    notes: list[str] = []

    class Notes:
        def start(self, total_bytes: int, label: str) -> None: ...
        def advance(self, num_bytes: int) -> None: ...
        def finish(self) -> None: ...
        def note(self, text: str) -> None:
            notes.append(text)

    home.parent.mkdir()
    home.write_text("a file where the directory should be")
    rows(load_native_model(file, progress=Notes()))
    assert len(notes) == 1
    assert "were not kept" in notes[0]


def test_a_disk_that_refuses_in_the_end_leaves_nothing_behind(
    home: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(self: Path, target: Path) -> Path:
        raise OSError(28, "No space left on device", str(target))

    monkeypatch.setattr(Path, "replace", refuses)
    rows(load_native_model(file))
    assert list(home.iterdir()) == []


# -- files that are cut while they are mapped --------------------------------------------------------------------------

CUT_WHILE_MAPPED = """
import os, sys
from pathlib import Path
from forerun.errors import ModelError
from forerun.runtime.native import load_native_model
from forerun.types import Span
file, home = Path(sys.argv[1]), Path(os.environ["FORERUN_HOME"]) / "weights"
load_native_model(file)
[path] = home.glob("*.packed")
model = load_native_model(file)
model.begin(0)
model.forward([Span(0, 0, (1, 2, 3), 1)])
os.truncate(path, 8192)
for _ in range(2):
    try:
        model.forward([Span(0, 3, (4,), 1)])
    except ModelError as error:
        print(error.fact, model.length(0))
again = load_native_model(file)
again.begin(0)
again.forward([Span(0, 0, (1, 2, 3), 1)])
print("alive")
"""

FOREIGN_FAULT = """
import mmap, os, sys
from pathlib import Path
from forerun import _native
kept = _native.Mapping(sys.argv[1])
other = Path(sys.argv[1] + ".other")
other.write_bytes(bytes(8192))
with other.open("r+b") as opened:
    data = mmap.mmap(opened.fileno(), 8192)
    if len(sys.argv) > 2:
        del kept
    os.truncate(other, 0)
    print("before", flush=True)
    data[5000]
    print("after")
"""


DIGEST = """
import hashlib, sys
from pathlib import Path
import numpy as np
from forerun.runtime.native import load_native_model
from forerun.types import Span
model = load_native_model(Path(sys.argv[1]))
model.begin(0)
print(hashlib.sha256(np.asarray(model.forward([Span(0, 0, (5, 9, 200, 17, 3), 5)]).matrix).tobytes()).hexdigest())
"""


def test_weights_kept_under_one_instruction_set_serve_all(home: Path, file: Path) -> None:
    """And under any number of threads, in one file."""
    ways = [{"FORERUN_ISA": isa, "FORERUN_THREADS": number} for isa in _native.usable_isas() for number in "12"]
    done = [run(DIGEST, str(file), **way) for way in reversed(ways)]
    assert all(one.returncode == 0 for one in done), done[0].stderr
    found = {one.stdout for one in done} | {run(DIGEST, str(file), FORERUN_WEIGHTS_CACHE="0").stdout}
    assert len(found) == len(kept(home)) == 1


def test_processes_that_keep_the_same_weights_at_once(home: Path, file: Path) -> None:
    command = [sys.executable, "-c", DIGEST, str(file)]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    told = {process.communicate(timeout=300)[0] for process in started} | {run(DIGEST, str(file)).stdout}
    assert len(told) == len(kept(home)) == 1
    assert all(process.returncode == 0 for process in started)
    assert not list(home.glob("*.partial"))


@pytest.mark.skipif(sys.platform == "win32", reason="files are not mapped there")
def test_a_pipe_in_the_place_of_kept_weights_is_not_waited_for(home: Path, file: Path) -> None:
    first = rows(load_native_model(file))
    [path] = kept(home)
    path.unlink()
    os.mkfifo(path)
    assert run(DIGEST, str(file)).returncode == 0
    assert path.is_file()
    assert np.array_equal(rows(load_native_model(file)), first)


def run(code: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True, text=True, timeout=120, env=os.environ | environment,
    )  # fmt: skip


@pytest.mark.skipif(sys.platform == "win32", reason="files are not mapped there")
def test_weights_that_are_cut_while_they_are_mapped_fail_a_pass_and_not_the_process(home: Path, file: Path) -> None:
    done = run(CUT_WHILE_MAPPED, str(file))
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[:3] == ["the model's weights are gone 3"] * 2 + ["alive"]


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGBUS")
@pytest.mark.parametrize("arguments", [(), ("mapping closed",)])
def test_faults_in_files_that_are_not_ours_are_left_to_the_system(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    path = tmp_path / "kept"
    path.write_bytes(bytes(100))
    done = run(FOREIGN_FAULT, str(path), *arguments)
    assert done.returncode < 0
    assert done.stdout == "before\n"
    told = run(FOREIGN_FAULT, str(path), *arguments, PYTHONFAULTHANDLER="1")
    assert told.returncode < 0
    assert "Bus error" in told.stderr, "whoever handled the signal before still does"


def test_a_model_whose_weights_are_gone_says_so(home: Path, file: Path) -> None:
    load_native_model(file)
    [path] = kept(home)
    model = load_native_model(file)
    model.begin(0)
    os.truncate(path, 4096)
    with pytest.raises(ModelError, match=r"weights are gone.*was cut while its weights were in use.*load the model"):
        model.forward([Span(0, 0, TOKENS, 1)])
    assert model.length(0) == 0
