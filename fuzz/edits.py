"""GGUF files as parts that can be edited: a header is taken apart, changed as an input's bytes say, and written again.

Most edits keep the file well-formed, so that they get past the first check; some damage the bytes themselves.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
STRING, ARRAY = 8, 9
SIZES = (0, 1, 2, 3, 5, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 96, 127, 128, 255, 256, 257, 600, 1023, 4096, 65535)
NUMBERS = (*SIZES, *(1 << n for n in (16, 20, 31, 32, 40, 63)), *((1 << n) - 1 for n in (24, 31, 32, 63, 64)))
REALS = (
    0.0,
    -0.0,
    1.0,
    -1.0,
    1e-5,
    0.5,
    2.0,
    10000.0,
    1e30,
    -1e30,
    3e38,
    1e-40,
    float("inf"),
    float("-inf"),
    float("nan"),
)


@dataclass
class Parts:
    """Keys as (name, type, value bytes), tensors as [name, dimensions, type, offset], and the tensors' bytes."""

    keys: list[tuple[bytes, int, bytes]] = field(default_factory=list)
    tensors: list[list[Any]] = field(default_factory=list)
    data: bytes = b""

    def write(self) -> bytes:
        """The file."""
        out = [b"GGUF", struct.pack("<IQQ", 3, len(self.tensors), len(self.keys))]
        for name, kind, value in self.keys:
            out += [struct.pack("<Q", len(name)), name, struct.pack("<I", kind), value]
        for name, dims, kind, offset in self.tensors:
            out += [
                struct.pack("<Q", len(name)),
                name,
                struct.pack("<I", len(dims)),
                struct.pack(f"<{len(dims)}Q", *dims),
            ]
            out.append(struct.pack("<IQ", kind, offset))
        head = b"".join(out)
        return head + bytes(-len(head) % 32) + self.data


def parse(path: Path) -> Parts:
    """A well-formed file, taken apart."""
    raw, at, parts = path.read_bytes(), 24, Parts()

    def text() -> bytes:
        nonlocal at
        (length,) = struct.unpack_from("<Q", raw, at)
        at += 8 + length
        return raw[at - length : at]

    def number(code: str) -> int:
        nonlocal at
        (value,) = struct.unpack_from(code, raw, at)
        at += struct.calcsize(code)
        return int(value)

    num_tensors, num_keys = struct.unpack_from("<QQ", raw, 8)
    for _ in range(num_keys):
        name, kind = text(), number("<I")
        start = at
        if kind == STRING:
            text()
        elif kind == ARRAY:
            item, count = number("<I"), number("<Q")
            for _ in range(count):
                at = (
                    at + struct.calcsize(SCALARS[item])
                    if item != STRING
                    else at + 8 + struct.unpack_from("<Q", raw, at)[0]
                )
        else:
            number(SCALARS[kind])
        parts.keys.append((name, kind, raw[start:at]))
    for _ in range(num_tensors):
        name, num_dims = text(), number("<I")
        dims = [number("<Q") for _ in range(num_dims)]
        parts.tensors.append([name, dims, number("<I"), number("<Q")])
    parts.data = raw[at + (-at % 32) :]
    return parts


def copy(parts: Parts) -> Parts:
    """Parts to be edited."""
    return Parts(list(parts.keys), [[name, list(dims), *rest] for name, dims, *rest in parts.tensors], parts.data)


def edit(parts: Parts, take: Any, texts: tuple[bytes, ...], keys: tuple[bytes, ...] = ()) -> None:
    """One edit, chosen by `take` (an atheris.FuzzedDataProvider). `keys`: prefixes of the keys that are preferred."""
    what = take.ConsumeIntInRange(0, 11)
    wanted = [i for i, (name, *_) in enumerate(parts.keys) if not keys or name.startswith(keys)] or [0]
    at = wanted[take.ConsumeIntInRange(0, len(wanted) - 1)] if parts.keys else -1
    if what <= 4 and at >= 0:
        name, kind, value = parts.keys[at]
        parts.keys[at] = (name, *_value(kind, value, take, texts))
    elif what == 5 and at >= 0:
        del parts.keys[at]
    elif what == 6 and at >= 0:  # a known name with the value of another key, or a new name
        name = texts[take.ConsumeIntInRange(0, len(texts) - 1)] if take.ConsumeBool() else parts.keys[at][0]
        other = parts.keys[take.ConsumeIntInRange(0, len(parts.keys) - 1)]
        parts.keys.append((name + b"x" * take.ConsumeIntInRange(0, 1), other[1], other[2]))
    elif what <= 9 and parts.tensors:
        _edit_tensor(parts, take, texts)
    elif what == 10:
        cut = take.ConsumeIntInRange(0, len(parts.data))
        parts.data = parts.data[:cut] if take.ConsumeBool() else parts.data + bytes(min(cut, 4096))
    elif parts.data:  # weights: NaN, infinities, scales out of range
        place = take.ConsumeIntInRange(0, len(parts.data) - 1)
        with_ = take.ConsumeBytes(take.ConsumeIntInRange(1, 16))
        parts.data = parts.data[:place] + with_ + parts.data[place + len(with_) :]


def damage(raw: bytes, take: Any) -> bytes:
    """The file's own bytes changed: somewhere in the header, or cut off."""
    data = bytearray(raw)
    at = take.ConsumeIntInRange(0, max(0, min(len(data), 1 << 15) - 9))
    how = take.ConsumeIntInRange(0, 3)
    if how == 0:
        return bytes(data[: take.ConsumeIntInRange(0, len(data))])
    new = struct.pack("<Q", NUMBERS[take.ConsumeIntInRange(0, len(NUMBERS) - 1)]) if how == 1 else take.ConsumeBytes(8)
    data[at : at + len(new)] = new
    return bytes(data)


def _edit_tensor(parts: Parts, take: Any, texts: tuple[bytes, ...]) -> None:
    at = take.ConsumeIntInRange(0, len(parts.tensors) - 1)
    tensor, how = parts.tensors[at], take.ConsumeIntInRange(0, 6)
    if how == 0:
        del parts.tensors[at]
    elif how == 1:
        tensor[0] = parts.tensors[take.ConsumeIntInRange(0, len(parts.tensors) - 1)][0]
    elif how == 2:
        tensor[0] = texts[take.ConsumeIntInRange(0, len(texts) - 1)]
    elif how == 3:
        tensor[1] = [_number(take) for _ in range(take.ConsumeIntInRange(0, 5))]
    elif how == 4 and tensor[1]:
        tensor[1][take.ConsumeIntInRange(0, len(tensor[1]) - 1)] = _number(take)
    elif how == 5:
        tensor[2] = take.ConsumeIntInRange(0, 45)
    else:
        tensor[3] = _number(take)


def _number(take: Any) -> int:
    if take.ConsumeBool():
        return NUMBERS[take.ConsumeIntInRange(0, len(NUMBERS) - 1)]
    return int(take.ConsumeIntInRange(0, 512))


def _value(kind: int, value: bytes, take: Any, texts: tuple[bytes, ...]) -> tuple[int, bytes]:
    """Another value: of the same type or of another one."""
    how = take.ConsumeIntInRange(0, 9)
    if how == 0:
        kind = (*SCALARS, STRING)[take.ConsumeIntInRange(0, len(SCALARS))]
    if kind == ARRAY and how < 8:
        item, count = struct.unpack_from("<IQ", value)
        return ARRAY, _array(item, count, value[12:], take, texts)
    if how >= 8:
        item = (*SCALARS, STRING)[take.ConsumeIntInRange(0, len(SCALARS))]
        count = take.ConsumeIntInRange(0, 4)
        return ARRAY, struct.pack("<IQ", item, count) + b"".join(_one(item, take, texts) for _ in range(count))
    return kind, _one(kind, take, texts)


def _one(kind: int, take: Any, texts: tuple[bytes, ...]) -> bytes:
    if kind == STRING:
        text = texts[take.ConsumeIntInRange(0, len(texts) - 1)] if take.ConsumeBool() else _text(take)
        return struct.pack("<Q", len(text)) + text
    code = SCALARS.get(kind, "<I")
    if code in ("<f", "<d"):
        return struct.pack(code, REALS[take.ConsumeIntInRange(0, len(REALS) - 1)])
    size = struct.calcsize(code)
    return (_number(take) & ((1 << 8 * size) - 1)).to_bytes(size, "little")


def _text(take: Any) -> bytes:
    text = take.ConsumeUnicodeNoSurrogates(take.ConsumeIntInRange(0, 24)).encode()
    return text if isinstance(text, bytes) else b""


def _array(item: int, count: int, body: bytes, take: Any, texts: tuple[bytes, ...]) -> bytes:
    """One item changed, dropped or doubled; the count kept honest."""
    items = _split(item, count, body)
    if not items:
        return struct.pack("<IQ", item, 0)
    at, how = take.ConsumeIntInRange(0, len(items) - 1), take.ConsumeIntInRange(0, 4)
    if how == 0:
        del items[at]
    elif how == 1:
        items.insert(at, items[take.ConsumeIntInRange(0, len(items) - 1)])
    elif how == 2:
        other = take.ConsumeIntInRange(0, len(items) - 1)
        items[at], items[other] = items[other], items[at]
    elif how == 3:
        items = items[:at]
    else:
        items[at] = _one(item, take, texts)
    return struct.pack("<IQ", item, len(items)) + b"".join(items)


def _split(item: int, count: int, body: bytes) -> list[bytes]:
    if item != STRING:
        size = struct.calcsize(SCALARS[item])
        return [body[i * size : (i + 1) * size] for i in range(count)]
    items, at = [], 0
    for _ in range(count):
        end = at + 8 + struct.unpack_from("<Q", body, at)[0]
        items.append(body[at:end])
        at = end
    return items
