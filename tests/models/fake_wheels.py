"""Tiny wheels and tiny models, built on the fly, and registries that name them."""

from __future__ import annotations

import hashlib
import json
import random
import shutil
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

from forerun.models.registry import Catalogue, Entry, Part, load

GGUF_HEADER = b"GGUF" + (3).to_bytes(4, "little") + bytes(16)


def model_bytes(seed: int, size: int) -> bytes:
    """`size` bytes that begin as a GGUF does and do not compress."""
    return (GGUF_HEADER + random.Random(seed).randbytes(size))[:size]


def make_wheel(folder: Path, distribution: str, version: str, members: dict[str, bytes]) -> Path:
    """A wheel pip accepts. Importing it would fail loudly: nothing may import it."""
    package = distribution.replace("-", "_")
    info = f"{package}-{version}.dist-info"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{package}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(f"{package}/__init__.py", "raise SystemExit('a model wheel was imported')\n")
        for name, data in members.items():
            archive.writestr(name, data)
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return path


class FakeModel:
    """A registered model `name` whose bytes are spread over numbered wheels in `folder`."""

    def __init__(self, folder: Path, name: str = "tiny", sizes: tuple[int, ...] = (70_000, 70_000, 10_000)) -> None:
        self.folder, self.name = folder, name
        self.data = model_bytes(len(name), sum(sizes))
        self.parts, self.wheels, offset = [], [], 0
        for number, size in enumerate(sizes, 1):
            distribution, chunk = f"{name}-part{number}", self.data[offset : offset + size]
            member = f"{name}_part{number}/data/part.bin"
            self.wheels.append(make_wheel(folder, distribution, "1.0", {member: chunk}))
            self.parts.append(
                {
                    "distribution": distribution,
                    "version": "1.0",
                    "member": member,
                    "size": size,
                    "crc32": f"{zlib.crc32(chunk):08x}",
                }
            )
            offset += size
        self.sha256 = hashlib.sha256(self.data).hexdigest()

    def texts(self, **changes: object) -> tuple[str, str]:
        """(registry.json, mirror.json); `changes` go into the entry."""
        item = {
            "name": self.name,
            "description": "made up",
            "file": f"{self.name}.gguf",
            "size": len(self.data),
            "sha256": self.sha256,
            "licence": "Apache-2.0",
            "parameters": 1000,
            "hub": [{"repository": "somebody/tiny-gguf", "file": "tiny.gguf"}],
            **changes,
        }
        return json.dumps({"models": [item]}), json.dumps({"models": {self.name: self.parts}})

    def catalogue(self, **changes: object) -> Catalogue:
        return load(*self.texts(**changes))

    @property
    def entry(self) -> Entry:
        return self.catalogue()[self.name]


class CopyingDownload:
    """A download that copies wheels from a folder, and looks around as it is called."""

    def __init__(self, model: FakeModel) -> None:
        self.model = model
        self.fetched: list[str] = []
        self.most_wheels = 0

    def __call__(self, part: Part, directory: Path, advance: Callable[[int], None]) -> Path:
        self.fetched.append(part.distribution)
        self.most_wheels = max(self.most_wheels, len(list(directory.parent.rglob("*.whl"))))
        source = next(self.model.folder.glob(f"{part.distribution.replace('-', '_')}-{part.version}-*.whl"))
        advance(source.stat().st_size)
        return Path(shutil.copy(source, directory))


class Recorder:
    """A progress that remembers what it was told."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.starts: list[tuple[int, str]] = []
        self.num_bytes = 0
        self.finished = 0

    def start(self, total_bytes: int, label: str) -> None:
        self.starts.append((total_bytes, label))
        self.num_bytes = 0

    def advance(self, num_bytes: int) -> None:
        self.num_bytes += num_bytes

    def note(self, text: str) -> None:
        self.notes.append(text)

    def finish(self) -> None:
        self.finished += 1

    @property
    def text(self) -> str:
        return "\n".join(self.notes)
