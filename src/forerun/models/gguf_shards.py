"""Models split over several GGUF files: their names, which files belong together, and what is no such split.

llama.cpp's splitter (llama-gguf-split) makes NAME-00001-of-00003.gguf and so on, each a GGUF file of its own: the first
has the model's metadata, each has some of the tensors, and all have split.count, split.no (from 0) and
split.tensors.count (of all shards). Other tools cut a file at any byte; such pieces mean nothing until they are joined.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from forerun.errors import FileFormatError, UnknownModelError

SHARD = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})(?P<suffix>\.gguf)", re.IGNORECASE | re.DOTALL)
_PIECE = re.compile(
    r".*(?:[.\-_](?:split|part)[.\-_]?(?:\d+(?:[.\-_]?of[.\-_]?\d+)?|[a-z]{1,2})|\.gguf[.\-_](?:\d{1,5}|[a-z]{1,2}))"
    r"(?:\.gguf)?",
    re.IGNORECASE | re.DOTALL,
)
JOIN = "cat PIECE1 PIECE2 ... > WHOLE.gguf"
_SAME = ("split.count", "split.tensors.count", "general.architecture", "general.name", "general.file_type")
"""Keys that shards of one model agree about, where they have them."""


def shard_names(name: str) -> tuple[str, ...]:
    """The names of all shards of the model that `name` is a shard of, in order; none if it is whole (1 of 1 is)."""
    match = SHARD.fullmatch(name)
    if match is None or int(match["count"]) < 2:
        return ()
    return tuple(
        f"{match['stem']}-{number:05}-of-{match['count']}{match['suffix']}"
        for number in range(1, int(match["count"]) + 1)
    )


def shard_paths(path: Path) -> tuple[Path, ...]:
    """All files of the model at `path`, which may be a whole file, any shard, or a directory of one model's shards.

    Nothing is opened. UnknownModelError names a shard that is missing, FileFormatError a directory of something else.
    """
    if path.is_dir():
        path = _first_of_directory(path)
    elif not path.exists():
        raise UnknownModelError(f"there is no file {path}", "", "check the path, or see: forerun models")
    names = shard_names(path.name)
    if not names:
        return (path,)
    paths = tuple(path.with_name(name) for name in names)
    missing = [shard for shard in paths if not shard.is_file()]
    if missing:
        more = f", and {len(missing) - 1} more are" if len(missing) > 1 else " is"
        raise UnknownModelError(
            f"{path.name} is one of {len(paths)} shards, and {missing[0]}{more} missing",
            "a model in several files needs them all, in one directory",
            f"fetch what is missing; if {path.name} is a whole model, give it a name that does not say otherwise",
        )
    return paths


def is_split_model(directory: Path) -> bool:
    """Whether the GGUF files of `directory` are shards of one model (all of them or not), and it is no transformers
    directory."""
    names = _ggufs(directory)
    wanted = set(shard_names(names[0])) if names else set()
    return bool(wanted) and set(names) <= wanted and not (directory / "config.json").exists()


def check_shards(paths: Sequence[Path], headers: Sequence[Mapping[str, Any]], num_tensors: int) -> None:
    """Refuse files that are not the shards of one model, in order, with `num_tensors` in all; or one that is a shard
    and is not named so."""
    first, count = headers[0], len(headers)
    if count == 1:
        if type(said := first.get("split.count", 1)) is int and said > 1:
            raise _renamed(paths[0], first.get("split.no"), said)
        return
    for number, (path, header) in enumerate(zip(paths, headers, strict=True)):
        if header.get("split.count") != count or header.get("split.no") != number:
            raise _stranger(path, count, number, header)
        for key in _SAME:
            if key in header and key in first and header[key] != first[key]:
                raise FileFormatError(
                    f"{paths[0].name} and {path.name} are of different models",
                    f"{key} is {first[key]!r} in the one and {header[key]!r} in the other, in {path.parent}",
                    "fetch both again from one place",
                )
    if first.get("split.tensors.count", num_tensors) != num_tensors:
        raise FileFormatError(
            f"the {count} shards of {paths[0]} have {num_tensors:,} tensors",
            f"split.tensors.count says {first['split.tensors.count']!r}",
            "fetch them again from one place",
        )


def is_piece(path: Path) -> bool:
    """Whether a file's name says that it was cut out of another one (x.gguf.part1of2, x.gguf-split-a, x.gguf.aa)."""
    return _PIECE.fullmatch(path.name) is not None


def piece_error(path: Path, why: str) -> FileFormatError:
    """The error for a piece of a file that was cut at some byte."""
    return FileFormatError(
        f"{path} looks like one piece of a file that was cut up, and cannot be read by itself",
        why,
        f"join all pieces in their order: {JOIN}",
    )


def _ggufs(directory: Path) -> list[str]:
    return sorted(item.name for item in directory.iterdir() if item.name.lower().endswith(".gguf"))


def _first_of_directory(directory: Path) -> Path:
    names = _ggufs(directory)
    if not is_split_model(directory):
        raise FileFormatError(
            f"{directory} cannot be read: it is a directory",
            f"it has {', '.join(names[:5])}" if names else "it has no .gguf file",
            "give a .gguf file in it, or a directory with the shards of one model and no other .gguf file",
        )
    return directory / names[0]


def _renamed(path: Path, number: Any, count: int) -> FileFormatError:
    which = f"shard {number + 1}" if type(number) is int else "one"
    return FileFormatError(
        f"{path} is {which} of {count} shards of a split model, and its name does not say so",
        "the other shards are found by name",
        f"rename all shards to NAME-00001-of-{count:05}.gguf and so on and give one of them; after that, "
        "llama-gguf-split --merge makes one file of them, should you want that",
    )


def _stranger(path: Path, count: int, number: int, header: Mapping[str, Any]) -> FileFormatError:
    said, of = header.get("split.no"), header.get("split.count")
    found = f"shard {said + 1} of {of}" if type(said) is int and type(of) is int and of > 1 else "a whole model"
    return FileFormatError(
        f"{path} is called shard {number + 1} of {count}, and its metadata says that it is {found}",
        f"split.no is {said!r}, split.count is {of!r}",
        "it was renamed, or belongs to another model: fetch the shards again from one place",
    )
