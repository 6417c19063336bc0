"""Models the user already has: a GGUF file (or its shards), or a transformers directory. Looked at, never changed."""

from __future__ import annotations

import re
from pathlib import Path

from forerun.errors import FileFormatError, ForerunError, ModelError, UnknownModelError
from forerun.models.gguf_shards import is_piece, is_split_model, piece_error, shard_paths
from forerun.models.store import ModelFiles

MAGIC = b"GGUF"
HEADER_BYTES = 24
"""Magic, version, and the two counts every GGUF begins with."""


def local(name: str) -> ModelFiles | None:
    """The model at path `name`, or None if `name` is no path: neither there nor written like one."""
    try:
        path = Path(name).expanduser()
        if path.is_dir() and not is_split_model(path):
            return ModelFiles(name, _transformers_directory(path), "transformers", "local", None)
        if path.exists():
            shards = shard_paths(path)
            for shard in shards:
                check_gguf(shard)
            return ModelFiles(name, shards[0], "gguf", "local", None)
    except ForerunError:
        raise
    except PermissionError as error:
        raise ModelError(f"{name} cannot be read: permission denied", "", "fix its permissions") from error
    except (OSError, ValueError, RuntimeError) as error:  # too long, a NUL, or an unknown ~user
        raise UnknownModelError(f"{name[:200]!r} is no usable path", str(error)[:200]) from error
    if re.match(r"[./~\\]|[A-Za-z]:[/\\]", name) or (":" not in name and re.search(r"\.gguf$|/.*/", name, re.I)):
        raise UnknownModelError(
            f"no file or directory {name}",
            f"looked from {Path.cwd()}",
            "give the path of a .gguf file or of a transformers directory, a registered name, or org/name[:file]",
        )
    return None


def check_gguf(path: Path) -> None:
    """Refuse what is certainly not a GGUF file: FileFormatError for foreign or beheaded, ModelError if unreadable."""
    if not path.is_file():
        raise FileFormatError(f"{path} is neither a file nor a directory", "", "give the path of a .gguf file")
    try:
        with path.open("rb") as file:
            header = file.read(HEADER_BYTES)
    except PermissionError as error:
        raise ModelError(f"{path} cannot be read: permission denied", "", "fix its permissions") from error
    if not header:
        raise FileFormatError(f"{path} is empty", "it was truncated to nothing", "fetch the file again")
    if not MAGIC.startswith(header[:4]):
        if is_piece(path):
            raise piece_error(path, f"it begins with {header[:4]!r} where a GGUF file begins with {MAGIC!r}")
        raise FileFormatError(
            f"{path} is not a GGUF file",
            f"it begins with {header[:4]!r} where a GGUF file begins with {MAGIC!r}",
            "give a .gguf file, or the directory of a transformers model",
        )
    if len(header) < HEADER_BYTES:
        raise FileFormatError(
            f"{path} is truncated",
            f"it has {len(header)} bytes and a header alone has {HEADER_BYTES}",
            "fetch the file again",
        )


def _transformers_directory(path: Path) -> Path:
    if (path / "config.json").is_file():
        return path
    ggufs = sorted(item.name for item in path.glob("*.gguf"))
    raise FileFormatError(
        f"the directory {path} has no config.json, so it is not a transformers model",
        f"it has {', '.join(ggufs[:5])}" if ggufs else "",
        f"give one of its files, such as {path / ggufs[0]}"
        if ggufs
        else "give a transformers directory or a .gguf file",
    )
