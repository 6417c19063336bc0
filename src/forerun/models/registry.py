"""The models forerun knows by name, read from two data files.

`registry.json` says what a model is (size, licence, sha256) and where the Hub has it. `mirror.json`, the overlay, says
which wheels of the user's Python package index hold the same bytes. They are apart because they age differently: the
first is a fact about the file, the second about somebody's upload, which can vanish; so the second is opt-in.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from forerun.errors import FileFormatError, UnknownModelError
from forerun.models.records import read_record
from forerun.models.store import is_safe_relative, models_directory

_NAME = re.compile(r"[a-z0-9][a-z0-9.\-]*")
_DISTRIBUTION = re.compile(r"[A-Za-z0-9][A-Za-z0-9.\-_]*")
_REPOSITORY = re.compile(r"[\w.\-]+/[\w.\-]+", re.ASCII)


@dataclass(frozen=True, slots=True)
class HubFile:
    """One file of one Hub repository."""

    repository: str
    file: str

    def __post_init__(self) -> None:
        if not _REPOSITORY.fullmatch(self.repository) or not is_safe_relative(self.file):
            raise ValueError(f"not a Hub repository and file: {self.repository}:{self.file}")


@dataclass(frozen=True, slots=True)
class Part:
    """One member of one wheel: `size` bytes whose zip checksum is `crc32` (eight hexadecimal digits)."""

    distribution: str
    version: str
    member: str
    size: int
    crc32: str

    def __post_init__(self) -> None:
        if not is_safe_relative(self.member):
            raise ValueError(f"not a path inside a wheel: {self.member!r}")
        if not (_DISTRIBUTION.fullmatch(self.distribution) and _DISTRIBUTION.fullmatch(self.version)):
            raise ValueError(f"not a distribution and version: {self.distribution!r} {self.version!r}")
        if self.size <= 0 or not re.fullmatch(r"[0-9a-f]{8}", self.crc32):
            raise ValueError(f"a part needs a size above 0 and a crc32: {self.size}, {self.crc32!r}")


@dataclass(frozen=True, slots=True)
class Entry:
    """One registered model: `size` in bytes, `parameters` with tied embeddings counted once. `vocabulary`: a name that
    all models share whose vocabulary is the same; empty: not told."""

    name: str
    description: str
    file: str
    size: int
    sha256: str
    licence: str
    parameters: int
    hub: tuple[HubFile, ...]
    mirror: tuple[Part, ...] = ()
    vocabulary: str = ""

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name) or not is_safe_relative(self.file) or "/" in self.file:
            raise ValueError(f"not a model name and file: {self.name!r}, {self.file!r}")
        if self.size <= 0 or not re.fullmatch(r"[0-9a-f]{64}", self.sha256):
            raise ValueError(f"{self.name} needs a size above 0 and a sha256")
        if self.mirror and sum(part.size for part in self.mirror) != self.size:
            raise ValueError(f"the mirror's parts of {self.name} do not add up to {self.size} bytes")

    @property
    def path(self) -> Path:
        """Where the file is, or will be, in the cache directory."""
        return models_directory() / self.name / self.file

    @property
    def sources(self) -> tuple[str, ...]:
        """Where it can be had, in the order tried; the mirror only when it is switched on."""
        hub = tuple(f"hub:{item.repository}" for item in self.hub)
        return (*hub, mirror_source(self.mirror)) if self.mirror else hub

    @property
    def cached(self) -> bool:
        """Whether a complete file with this sha256 is in the cache, as its record says (nothing is hashed)."""
        record = read_record(self.path)
        return (
            record is not None
            and [item.sha256 for item in record.files] == [self.sha256]
            and self.path.is_file()
            and self.path.stat().st_size == self.size
        )


@dataclass(frozen=True, slots=True)
class Catalogue:
    """All registered models, by name."""

    by_name: dict[str, Entry]

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.by_name.values())

    def __contains__(self, name: object) -> bool:
        return name in self.by_name

    def __getitem__(self, name: str) -> Entry:
        return self.by_name[name]

    def unknown(self, name: str) -> UnknownModelError:
        """The error for a name that is in no registry: near matches, then everything there is."""
        near = difflib.get_close_matches(name.lower(), self.by_name, n=3, cutoff=0.5)
        return UnknownModelError(
            f"no model is called {name!r}",
            f"did you mean {' or '.join(near)}? " * bool(near) + f"known names: {', '.join(self.by_name)}",
            "use one of them, the path of a .gguf file or of a transformers directory, or org/name[:file] of the Hub",
        )


def mirror_source(parts: tuple[Part, ...]) -> str:
    """`mirror:` and the wheels' names; numbered wheels (x-part1, x-part2, …) are written x-part1..N."""
    names = [part.distribution for part in parts]
    stem = names[0].rstrip("0123456789")
    if len(names) > 1 and names == [f"{stem}{number}" for number in range(1, len(names) + 1)]:
        names = [f"{stem}1..{len(names)}"]
    return f"mirror:{','.join(names)}=={','.join(dict.fromkeys(part.version for part in parts))}"


def load(registry: str, overlay: str = '{"models": {}}') -> Catalogue:
    """A catalogue from the text of the two data files; FileFormatError says what is wrong with them."""
    try:
        parts: dict[str, list[dict[str, Any]]] = json.loads(overlay)["models"]
        entries = {}
        for item in json.loads(registry)["models"]:
            hub = tuple(HubFile(**source) for source in item.pop("hub"))
            mirror = tuple(Part(**part) for part in parts.pop(item["name"], ()))
            entries[item["name"]] = Entry(**item, hub=hub, mirror=mirror)
        if parts:
            raise ValueError(f"the overlay names unregistered models: {', '.join(parts)}")
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise FileFormatError(
            f"the model registry cannot be read: {error}", "registry.json or mirror.json", "reinstall forerun"
        ) from error
    return Catalogue(entries)


@cache
def installed() -> Catalogue:
    """The catalogue that ships with forerun."""
    data = files("forerun.models")
    return load(
        (data / "registry.json").read_text(encoding="utf-8"),
        (data / "mirror.json").read_text(encoding="utf-8"),
    )


def entries() -> list[Entry]:
    """Every registered model, for `forerun models`."""
    return list(installed())
