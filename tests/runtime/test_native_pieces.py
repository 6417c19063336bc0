"""Loading in pieces: the same matrices however they are cut, memory that holds no second copy, files that shrink."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.models.tiny_gguf import write_tiny_gguf

from forerun import _native
from forerun.errors import FileFormatError
from forerun.models.gguf import GGUFFile, open_gguf
from forerun.runtime.native import load_native_model, pieces
from forerun.types import Span

ORDERS: dict[str, Any] = {
    "none": None,
    "reversed": np.arange(599, -1, -1),
    "interleaved": np.arange(600).reshape(2, 300).T.reshape(-1),
    "few, far apart": np.arange(0, 600, 37),
    "one": np.array([599]),
    "inside": np.arange(333, 433),
}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_gguf(tmp_path_factory.mktemp("pieces") / "m.gguf", seed=3, tensor_type="Q8_0")


@pytest.mark.parametrize("size", [1, 1 << 12, 1 << 30])
@pytest.mark.parametrize("rounding", ["none", "q4"])
@pytest.mark.parametrize("order", ORDERS)
def test_pieces_make_the_matrix_that_the_whole_tensor_makes(
    order: str, rounding: str, size: int, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pieces, "PIECE_BYTES", size)
    chosen = ORDERS[order]
    with open_gguf(path) as file:
        info = file.tensors["token_embd.weight"]
        rows = None if chosen is None else chosen.astype(np.uint32)
        whole = _native.pack_matrix("Q8_0", file.raw(info.name), info.shape[1], rows, rounding)
        matrix = _native.PackedMatrix("Q8_0", whole.num_outputs, info.shape[1], rounding)
        cut = list(pieces.cut(matrix, info.name, info.row_bytes, chosen))
        for piece, data in pieces.read(file, cut):
            matrix.set_rows(piece.output, data, piece.order)
    for row in range(whole.num_outputs):
        np.testing.assert_array_equal(matrix.row(row), whole.row(row))


def test_models_compute_the_same_whatever_the_pieces(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def rows(**settings: Any) -> np.ndarray:
        model = load_native_model(path, **settings)
        model.begin(0)
        return np.array(model.forward([Span(0, 0, [5, 6, 7], 3)]).matrix)

    cuts: tuple[dict[str, Any], ...] = ({}, {"num_head_rows": 100}, {"head_ids": [3, 300, 599]}, {"requantise": True})
    for settings in cuts:
        expected = rows(**settings)
        with monkeypatch.context() as patch:
            patch.setattr(pieces, "PIECE_BYTES", 3000)
            np.testing.assert_array_equal(rows(**settings), expected)


@pytest.mark.parametrize(
    ("first", "count", "order", "words"),
    [
        (8, 16, None, "not whole panels"),
        (0, 8, None, "not whole panels"),
        (32, 16, None, "has none at 32"),
        (16, 20, None, "has none at 16"),
        (0, 40, None, "has none at 0"),
        (0, 16, [16] * 16, "order names row 16 of 16"),
    ],
)
def test_pieces_that_do_not_fit_are_refused(first: int, count: int, order: Any, words: str) -> None:
    matrix = _native.PackedMatrix("F32", 33, 8)
    rows = None if order is None else np.array(order, np.uint32)
    with pytest.raises(ValueError, match=words):
        matrix.set_rows(first, np.zeros((count, 32), np.uint8), rows)
    with pytest.raises(ValueError, match="rows of 31 bytes"):
        matrix.set_rows(0, np.zeros((16, 31), np.uint8))
    for size in (0, 1 << 40):
        with pytest.raises(ValueError, match=r"is empty|too large"):
            _native.PackedMatrix("F32", size, 8)
    matrix.set_rows(32, np.zeros((1, 32), np.uint8))


@pytest.mark.parametrize("after", ["token_embd.weight", "blk.0.ffn_up.weight", "output_norm.weight"])
def test_a_file_cut_while_it_is_loaded_ends_in_an_error(
    after: str, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing dies of it, and the next load of a whole file works."""
    copy = tmp_path / "cut.gguf"
    copy.write_bytes(path.read_bytes())
    real = GGUFFile.read_into

    def cutting(self: GGUFFile, data: np.ndarray, name: str, first: int = 0) -> None:
        if name == after:
            os.truncate(copy, 30_000)
        real(self, data, name, first)

    with monkeypatch.context() as patch:
        patch.setattr(GGUFFile, "read_into", cutting)
        with pytest.raises(FileFormatError, match=r"cut\.gguf was cut while it was being read"):
            load_native_model(copy)
    copy.write_bytes(path.read_bytes())
    load_native_model(copy)


CHILD = """
import sys
from pathlib import Path
from forerun.runtime.native import load_native_model

def kilobytes(field):
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(field)).split()[1])

load_native_model(Path(sys.argv[1]))  # what is imported and made once
Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
before = kilobytes("VmRSS")
model = load_native_model(Path(sys.argv[2]))
print(kilobytes("VmHWM") - before, kilobytes("VmRSS") - before)
"""


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="asks /proc")
@pytest.mark.parametrize("settings", [{"hidden": 512}, {"hidden": 512, "tied": False, "layers": 6}], ids=str)
def test_loading_holds_the_packed_weights_and_one_piece(settings: dict[str, Any], path: Path, tmp_path: Path) -> None:
    """A mapping, or a reader that keeps what it read, holds the file a second time: 30 MB and more."""
    large = write_tiny_gguf(
        tmp_path / "large.gguf",
        tensor_type="F16",
        num_tokens=900,
        padding=20_000,
        feed_forward=2048,
        heads=8,
        **settings,
    )
    command = [sys.executable, "-c", CHILD, str(path), str(large)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    peak, after = (1024 * int(word) for word in done.stdout.split())
    size = large.stat().st_size
    assert size > 30 << 20
    assert after > 0.9 * size
    assert peak < size + pieces.PIECE_BYTES + (8 << 20)
