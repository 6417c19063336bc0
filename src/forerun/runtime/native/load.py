"""From a GGUF file to a NativeModel. Everything that can be refused is refused before any weight is read.

Matrices are read and repacked a few megabytes at a time, a thread reading ahead: memory holds the packed weights and
two such pieces, never a second copy of the model or of a large tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from forerun import _native
from forerun.errors import FileFormatError, ModelError, ParameterError
from forerun.models.gguf import GGUFFile, open_gguf
from forerun.models.gguf_model import EMBEDDING, HEAD, unsupported
from forerun.runtime.limits import check_environment, check_head_ids, check_head_rows, chosen_context
from forerun.runtime.native.description import SERVED, Description, describe
from forerun.runtime.native.model import NativeModel
from forerun.runtime.native.pieces import Piece, cut, read_ahead
from forerun.types import Capabilities

if TYPE_CHECKING:
    from forerun.models.progress import Progress


def check_native_model(
    path: Path,
    *,
    context_length: int | None = None,
    num_head_rows: int | None = None,
    head_ids: Sequence[int] | np.ndarray | None = None,
    requantise: bool = False,
) -> None:
    """Raise what `load_native_model` would raise, without reading weights: environment, file, tensors, limits."""
    with open_gguf(path) as file:
        _Checked.of(file, context_length, num_head_rows, head_ids, requantise)


def load_native_model(
    path: Path,
    *,
    context_length: int | None = None,
    num_head_rows: int | None = None,
    head_ids: Sequence[int] | np.ndarray | None = None,
    requantise: bool = False,
    progress: Progress | None = None,
) -> NativeModel:
    """A model from a GGUF file, for the CPU.

    `num_head_rows` computes only the first N rows of the output head, `head_ids` only those of the ids given (the rest
    of a row is -inf); `requantise` rounds every weight matrix anew to 4 bits in groups of 32. All three are for cheap
    drafts: q changes, text does not.

    FileFormatError or UnsupportedModelError for a file that is broken or not served, ParameterError for a limit that
    the model does not have, InputError for an environment variable that does not fit this machine.
    """
    with open_gguf(path) as file:
        checked = _Checked.of(file, context_length, num_head_rows, head_ids, requantise)
        num_bytes = sum(tensor.num_bytes for tensor in file.tensors.values())
        if progress is not None:
            progress.start(num_bytes, f"loading {path.name}")
        try:
            checked.fill(progress.advance if progress is not None else lambda _: None)
        except MemoryError as error:
            fact = f"{path} does not fit into memory"
            raise ModelError(
                fact, f"it has {num_bytes:,} bytes of weights", "take fewer bits or a smaller model"
            ) from error
        finally:
            if progress is not None:
                progress.finish()
    return NativeModel(checked.decoder, checked.capabilities, checked.head_ids)


@dataclass(slots=True)
class _Checked:
    """A checked file and an empty decoder for it. `head_ids`: ascending ids [N] of the head's rows, None for all or the
    first `num_head_rows`."""

    file: GGUFFile
    description: Description
    decoder: _native.Decoder
    capabilities: Capabilities
    num_head_rows: int
    head_ids: np.ndarray | None
    requantise: bool

    @classmethod
    def of(
        cls,
        file: GGUFFile,
        context_length: int | None,
        num_head_rows: int | None,
        head_ids: Sequence[int] | np.ndarray | None,
        requantise: bool,
    ) -> _Checked:
        """Check everything that can be checked without weights."""
        check_environment()
        description = describe(file)
        if requantise:
            _check_widths(file, description)
        model = description.model
        limit = chosen_context(model.context_length, context_length) or model.context_length
        check_head_rows(num_head_rows, model.num_embeddings)
        ids = None if head_ids is None else check_head_ids(head_ids, model.num_embeddings)
        if ids is not None and num_head_rows is not None:
            raise ParameterError("head_ids", "given beside num_head_rows", "give one of the two")
        num_rows = len(ids) if ids is not None else num_head_rows or model.num_embeddings
        try:
            decoder = _native.Decoder(description.fields(num_rows, limit))
        except ValueError as error:
            raise unsupported(file, "a size", str(error), SERVED) from error
        width = model.num_embeddings if ids is not None else num_rows
        capabilities = Capabilities(limit, width, model.num_embeddings, trees=True)
        return cls(file, description, decoder, capabilities, num_rows, ids, requantise)

    def fill(self, advance: Callable[[int], None]) -> None:
        """Give the decoder its weights; `advance` hears of bytes read."""
        file, is_tied = self.file, self.description.model.is_tied
        matrices: list[tuple[str, str, np.ndarray | None, int]] = []  # file name, decoder's name, order, outputs
        for name, place in self.description.tensors.items():
            if len(place.shape) == 1:
                values = file.dequantise(name)
                self.decoder.set_vector(place.name, values if place.order is None else values[place.order])
                advance(file.tensors[name].num_bytes)
                continue
            if name != HEAD:
                matrices.append((name, place.name, place.order, place.shape[0]))
            if name == HEAD or (name == EMBEDDING and is_tied and self.head_ids is not None):
                matrices.append((name, "head", self.head_ids, self.num_head_rows))
        self._set_matrices(matrices, advance)
        try:
            self.decoder.finish()
        except ValueError as error:
            raise FileFormatError(f"{file.path} cannot be decoded with", str(error)) from error

    def _set_matrices(
        self, wanted: Sequence[tuple[str, str, np.ndarray | None, int]], advance: Callable[[int], None]
    ) -> None:
        """Read and pack matrices, given as (name in the file, name in the decoder, stored row of each output or None,
        number of outputs)."""
        file, pieces, heard = self.file, list[Piece](), set[str]()
        for stored_name, name, order, num_outputs in wanted:
            info = file.tensors[stored_name]
            try:
                matrix = _native.PackedMatrix(info.type_name, num_outputs, info.shape[-1], self.requantise)
                self.decoder.set_matrix(name, matrix)
            except ValueError as error:
                raise unsupported(file, f"tensor {stored_name}", str(error), SERVED) from error
            pieces += cut(matrix, file, stored_name, order, 0 if stored_name in heard else info.num_bytes)
            heard.add(stored_name)
        for piece, data in read_ahead(file, pieces):
            piece.matrix.set_rows(piece.output, data, piece.order)
            advance(piece.share)


def _check_widths(file: GGUFFile, description: Description) -> None:
    """Weights are rounded anew by 32: refuse a matrix whose rows are no multiple of that."""
    for name, place in description.tensors.items():
        if len(place.shape) == 2 and place.shape[1] % 32:
            fact = f"weights are rounded anew by 32, and tensor {name} of {file.path} has rows of {place.shape[1]}"
            raise ParameterError("requantise", fact, "leave it out")
