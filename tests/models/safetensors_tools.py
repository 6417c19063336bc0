"""Safetensors files written by hand, so that any part of one can be wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np


def entry(dtype: str, shape: list[int], start: int, end: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


def write_safetensors(path: Path, header: Any, data: bytes = b"", length: int | None = None) -> Path:
    """`header`: an object, or its text. `length`: what the first 8 bytes say, if not the truth."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    size = len(text) if length is None else length
    path.write_bytes(size.to_bytes(8, "little") + text + data)
    return path


def write_tensors(path: Path, tensors: dict[str, np.ndarray]) -> Path:
    """float32 and float16 arrays as a whole file."""
    header, data = {}, b""
    for name, values in tensors.items():
        raw = values.tobytes()
        header[name] = entry({4: "F32", 2: "F16"}[values.itemsize], list(values.shape), len(data), len(data) + len(raw))
        data += raw
    return write_safetensors(path, header, data)
