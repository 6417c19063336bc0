"""Built tokenizers, kept as tokenizer.json in the cache directory so that the next load skips the building.

The cache is a convenience: whatever goes wrong with it (no room, no permission, a damaged file) means building again.
A file's name is a digest of what it was made from, so nothing is ever out of date, only unused.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import tokenizers

from forerun.models.gguf import GGUFFile
from forerun.models.store import home

LAYOUT = 1
"""Raised when the same file would be converted differently."""


def cached(file: GGUFFile, build: Callable[[], tokenizers.Tokenizer]) -> tokenizers.Tokenizer:
    """The kept tokenizer of `file`, or the one `build` makes, which is then kept."""
    with contextlib.suppress(Exception):
        path = cache_path(file)
        return tokenizers.Tokenizer.from_file(str(path))
    backend = build()
    with contextlib.suppress(OSError):
        _write(cache_path(file), backend.to_str())
    return backend


def cache_path(file: GGUFFile) -> Path:
    """Where the tokenizer of `file` is kept; the name covers size, modification time, header and converter."""
    status = file.path.stat()
    identity = (LAYOUT, tokenizers.__version__, status.st_size, status.st_mtime_ns, file.header_digest)
    return home() / "tokenizers" / f"{hashlib.sha256(repr(identity).encode()).hexdigest()[:32]}.json"


def _write(path: Path, text: str) -> None:
    """Place the whole file at once: a reader sees the old state or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.stem, suffix=".partial")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as out:
            out.write(text)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
