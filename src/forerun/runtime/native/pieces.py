"""Matrices read from a file and repacked in pieces.

A piece is small enough to stay in the processor's cache between reading and repacking, which is why this is as fast as
repacking a mapped file (a thread that reads ahead makes it slower: docs/log.md). Memory holds one piece beside the
packed weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from forerun import _native
from forerun.models.gguf import GGUFFile
from forerun.models.transformers_files import TransformersFiles

PIECE_BYTES = 1 << 23
PANEL = 16
"""Outputs that are repacked together: pieces hold whole panels."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows first..last - 1 of tensor `name`, which become the outputs of `matrix` from `output` on: in their order, or
    output i from row order[i] of the piece."""

    matrix: _native.PackedMatrix
    name: str
    first: int
    last: int
    output: int
    order: np.ndarray | None


def cut(matrix: _native.PackedMatrix, name: str, row_bytes: int, order: np.ndarray | None = None) -> Iterator[Piece]:
    """The pieces of a matrix whose output i is row order[i] (i without an order) of tensor `name`."""
    most = max(PIECE_BYTES // row_bytes // PANEL, 1) * PANEL
    begin, num_outputs = 0, matrix.num_outputs
    while begin < num_outputs:
        end = min(begin + most, num_outputs)
        first, last, rows = begin, end, None
        if order is not None:
            while end - begin > PANEL and np.ptp(order[begin:end]) > 2 * most:  # rows that lie far apart
                end = begin + max((end - begin) // 2 // PANEL, 1) * PANEL
            chosen = order[begin:end]
            first, last = int(chosen.min()), int(chosen.max()) + 1
            rows = np.ascontiguousarray(chosen - first, np.uint32)
        yield Piece(matrix, name, first, last, begin, rows)
        begin = end


def read(files: GGUFFile | TransformersFiles, pieces: Sequence[Piece]) -> Iterator[tuple[Piece, np.ndarray]]:
    """Each piece with its rows (uint8 [last - first, bytes of a row], good until the next one is asked for)."""
    widths = [files.tensors[piece.name].row_bytes for piece in pieces]
    sizes = [(piece.last - piece.first) * width for piece, width in zip(pieces, widths, strict=True)]
    buffer = np.empty(max(sizes, default=0), np.uint8)
    for piece, width, size in zip(pieces, widths, sizes, strict=True):
        data = buffer[:size]
        files.read_into(data, piece.name, piece.first)
        yield piece, data.reshape(-1, width)
