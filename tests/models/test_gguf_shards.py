"""Split GGUF files: every way to open them gives one model, and what does not belong together is refused by name.
cases.md C38 a."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from tests.models.tiny_gguf import write_tiny_gguf

from forerun.errors import FileFormatError, UnknownModelError
from forerun.loading import load
from forerun.models.gguf import open_gguf
from forerun.models.gguf_shards import is_piece, shard_names
from forerun.models.tokenizer import load_tokenizer
from forerun.runtime.native import check_native_model, load_native_model

TINY: dict[str, Any] = {"num_tokens": 400, "layers": 1, "hidden": 32, "heads": 2, "feed_forward": 64}


@pytest.fixture(scope="module", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FORERUN_HOME", str(tmp_path_factory.mktemp("home")))
        yield


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_gguf(tmp_path_factory.mktemp("whole") / "m.gguf", seed=5, **TINY)


@pytest.fixture
def shards(tmp_path: Path) -> list[Path]:
    """The same model in three files, written by the `gguf` package."""
    folder = tmp_path / "split"
    folder.mkdir()
    first = write_tiny_gguf(folder / "m.gguf", seed=5, tensors_per_shard=5, **TINY)
    return [first.with_name(name) for name in shard_names(first.name)]


def edit(path: Path, key: str, value: int) -> None:
    """Overwrite a number in the metadata of a file."""
    field = gguf.GGUFReader(path, "r+").fields[key]
    field.parts[field.data[0]][0] = value


def test_the_writer_splits_as_llama_cpp_does(shards: list[Path]) -> None:
    assert len(shards) == 3
    for number, shard in enumerate(shards):
        fields = gguf.GGUFReader(shard).fields
        assert (fields["split.no"].contents(), fields["split.count"].contents()) == (number, 3)
        assert ("general.architecture" in fields) is (number == 0)


def test_every_shard_and_the_directory_open_the_whole_model(
    whole: Path, shards: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (shards[0].parent / "README.md").write_text("not a model")
    monkeypatch.chdir(tmp_path)
    relative = Path(shards[0].parent.name)
    ways = [*shards, shards[0].parent, relative, relative / shards[2].name]
    with open_gguf(whole) as expected:
        for way in ways:
            with open_gguf(way) as file:
                assert file.path == way.parent / shards[0].name if way.suffix else way / shards[0].name
                assert file.tensors.keys() == expected.tensors.keys()
                assert {info.shard for info in file.tensors.values()} == {0, 1, 2}
                assert file.metadata["tokenizer.ggml.tokens"] == expected.metadata["tokenizer.ggml.tokens"]
                for name, info in expected.tensors.items():
                    assert file.tensors[name].shape == info.shape
                    np.testing.assert_array_equal(file.raw(name), expected.raw(name))
    assert load_tokenizer(shards[2]).encode("the people") == load_tokenizer(whole).encode("the people")
    monkeypatch.chdir(shards[0].parent)
    with open_gguf(shards[2].name) as file:
        assert len(file.tensors) == 14


def test_all_ways_write_the_same_text(whole: Path, shards: list[Path]) -> None:
    with load(whole) as llm:
        expected = llm.generate("the people", seed=3, max_tokens=12, ignore_eos=True).tokens
    for way in (shards[0], shards[2], shards[0].parent):
        for runtime in ("native", "torch"):
            with load(way, runtime=runtime, **({} if runtime == "native" else {"dtype": "float32"})) as llm:
                found = llm.generate("the people", seed=3, max_tokens=12, ignore_eos=True).tokens
                assert len(found) == 12
                if runtime == "native":
                    assert found == expected


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_a_missing_shard_is_named_before_anything_is_loaded(
    lost: int, shards: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    shards[lost].unlink()
    monkeypatch.setattr("forerun.models.gguf.FileBytes", None)  # nothing may be opened
    for way in [shards[i] for i in range(3) if i != lost] + [shards[0].parent]:
        for use in (open_gguf, load_tokenizer, check_native_model, load_native_model, load):
            with pytest.raises(UnknownModelError, match=f"{re.escape(str(shards[lost]))} is missing"):
                use(way)
    with pytest.raises(UnknownModelError, match="there is no file"):
        open_gguf(shards[lost])


def test_two_missing_shards(shards: list[Path]) -> None:
    shards[1].unlink()
    shards[2].unlink()
    with pytest.raises(UnknownModelError, match=r"m-00002-of-00003\.gguf, and 1 more are missing"):
        open_gguf(shards[0])


def test_a_directory_of_several_models_is_none(shards: list[Path], whole: Path) -> None:
    shutil.copy(whole, shards[0].parent / "other.gguf")
    with pytest.raises(FileFormatError, match=r"it is a directory.*m-00001-of-00003\.gguf"):
        open_gguf(shards[0].parent)
    with pytest.raises(FileFormatError, match=r"it is a directory.*m\.gguf"):
        open_gguf(whole.parent)


@pytest.mark.parametrize(
    ("shard", "key", "value", "words"),
    [
        (1, "split.count", 4, "shard 2 of 3, and its metadata says that it is shard 2 of 4"),
        (1, "split.no", 2, "shard 2 of 3, and its metadata says that it is shard 3 of 3"),
        (0, "split.count", 0, "its metadata says that it is a whole model"),
        (2, "split.tensors.count", 99, "different models"),
    ],
)
def test_shards_that_contradict_their_names(shard: int, key: str, value: int, words: str, shards: list[Path]) -> None:
    edit(shards[shard], key, value)
    for way in shards:
        with pytest.raises(FileFormatError, match=words):
            open_gguf(way)


def test_a_wrong_number_of_tensors(shards: list[Path]) -> None:
    for shard in shards:
        edit(shard, "split.tensors.count", 13)
    with pytest.raises(FileFormatError, match=r"have 14 tensors\. split\.tensors\.count says 13"):
        open_gguf(shards[0])


def test_shards_of_two_models_are_refused(shards: list[Path], tmp_path: Path) -> None:
    more = {**TINY, "layers": 2}
    other = write_tiny_gguf(tmp_path / "o.gguf", seed=5, tensors_per_shard=9, **more)
    assert other.name == "o-00001-of-00003.gguf"
    shutil.copy(other.with_name("o-00002-of-00003.gguf"), shards[1])
    with pytest.raises(FileFormatError, match=r"of different models.*split\.tensors\.count is 14 in the one and 26"):
        open_gguf(shards[0])


def test_a_named_architecture_must_be_the_same(tmp_path: Path) -> None:
    paths = []
    for number, architecture in enumerate(("qwen2", "llama")):
        path = tmp_path / f"m-0000{number + 1}-of-00002.gguf"
        writer = gguf.GGUFWriter(path, architecture)
        writer.add_uint16("split.no", number)
        writer.add_uint16("split.count", 2)
        writer.add_int32("split.tensors.count", 1)
        if number:
            writer.add_tensor("w", np.ones(4, np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        paths.append(path)
    with pytest.raises(FileFormatError, match=r"general\.architecture is 'qwen2' in the one and 'llama' in the other"):
        open_gguf(paths[1])


def test_a_tensor_in_two_shards(shards: list[Path]) -> None:
    data = shards[1].read_bytes()
    with open_gguf(shards[0]) as file:
        names = [name for name, info in file.tensors.items() if info.shard == 1]
        pairs = [(a, b) for a in names for b, info in file.tensors.items() if info.shard == 0 and len(a) == len(b)]
    old, twin = pairs[0]
    shards[1].write_bytes(data.replace(old.encode(), twin.encode()))
    with pytest.raises(FileFormatError, match=f"tensor {re.escape(twin)} is in two shards"):
        open_gguf(shards[0])


def test_one_of_one_is_whole(whole: Path, tmp_path: Path) -> None:
    path = tmp_path / "m-00001-of-00001.gguf"
    shutil.copy(whole, path)
    with open_gguf(path) as file:
        assert len(file.tensors) == 14
    with open_gguf(write_tiny_gguf(tmp_path / "s.gguf", metadata={"split.count": 1}, **TINY)) as file:
        assert file.architecture == "qwen2"


@pytest.mark.parametrize("name", ["x.part1of2", "x.gguf", "x.gguf.part2of2", "x-1-of-3.gguf"])
def test_a_renamed_shard_says_what_it_is(name: str, shards: list[Path]) -> None:
    path = shards[1].rename(shards[1].with_name(name))
    with pytest.raises(FileFormatError, match=r"shard 2 of 3 shards of a split.*rename.*NAME-00001-of-00003\.gguf"):
        open_gguf(path)


@pytest.mark.parametrize(
    "names", [("x.part1of2", "x.part2of2"), ("m.gguf-split-a", "m.gguf-split-b"), ("m.gguf.aa", "m.gguf.ab")]
)
def test_pieces_of_a_cut_file_say_how_to_join_them(names: tuple[str, str], whole: Path, tmp_path: Path) -> None:
    data = whole.read_bytes()
    half = len(data) * 2 // 3
    for name, piece in zip(names, (data[:half], data[half:]), strict=True):
        (tmp_path / name).write_bytes(piece)
        with pytest.raises(FileFormatError, match=r"one piece of a file that was cut up.*cat PIECE1 PIECE2"):
            open_gguf(tmp_path / name)
    (tmp_path / "x.gguf").write_bytes(data[:half])
    with pytest.raises(FileFormatError, match=r"past the end of the file.*cat PIECE1 PIECE2"):
        open_gguf(tmp_path / "x.gguf")


@pytest.mark.parametrize(
    ("name", "piece"),
    [
        ("x.gguf.part1of2", True), ("x.part1of2.gguf", True), ("x.gguf.part-01", True), ("x.gguf-part-a", True),
        ("x-split-b.gguf", True), ("x.gguf.001", True), ("x.gguf", False), ("apart1.gguf", False),
        ("x-00001-of-00002.gguf", False), ("counterpart-v2.gguf", False), ("x", False),
    ],
)  # fmt: skip
def test_what_a_piece_is_called(name: str, piece: bool) -> None:
    assert is_piece(Path(name)) is piece


def test_the_header_digest_covers_all_shards(shards: list[Path]) -> None:
    def digest() -> str:
        with open_gguf(shards[0]) as file:
            return file.header_digest

    first = digest()
    assert digest() == first
    data = bytearray(shards[2].read_bytes())
    shards[2].write_bytes(data.replace(b"output_norm.weight", b"output_norn.weight"))
    assert digest() != first


def test_no_half_initialised_model_stays(shards: list[Path]) -> None:
    """A shard cut short is refused by the header check, whichever is opened."""
    data = shards[2].read_bytes()
    shards[2].write_bytes(data[:-100])
    for way in (*shards, shards[0].parent):
        with pytest.raises(FileFormatError, match=r"m-00003-of-00003\.gguf is damaged or truncated"):
            load(way)
