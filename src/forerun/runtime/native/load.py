"""From a GGUF file or a transformers directory to a NativeModel.

Everything that can be refused is refused before any weight is read. Matrices are read and repacked a few megabytes at
a time: memory holds the packed weights and one such piece, never a second copy of the model or of a large tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from forerun import _native
from forerun.errors import FileFormatError, ModelError, ParameterError
from forerun.models.decoder_model import ANOTHER_FILE, unsupported
from forerun.models.gguf import GGUFFile, open_gguf
from forerun.models.gguf_shards import is_split_model
from forerun.models.transformers_files import TransformersFiles
from forerun.runtime.limits import (
    check_environment,
    check_head_ids,
    check_head_rows,
    check_quantisation,
    chosen_context,
)
from forerun.runtime.native import kept_weights
from forerun.runtime.native.description import FLOAT_TYPES, SERVED, Description, Placed, describe
from forerun.runtime.native.model import NativeModel
from forerun.runtime.native.pieces import Piece, cut, read
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
    quantize: str | None = None,
) -> None:
    """Raise what `load_native_model` would raise, without reading weights: environment, files, tensors, limits."""
    with open_model(path) as files:
        _Checked.of(files, context_length, num_head_rows, head_ids, requantise, quantize)


def load_native_model(
    path: Path,
    *,
    context_length: int | None = None,
    num_head_rows: int | None = None,
    head_ids: Sequence[int] | np.ndarray | None = None,
    requantise: bool = False,
    quantize: str | None = None,
    progress: Progress | None = None,
) -> NativeModel:
    """A model from a GGUF file or a transformers directory, for the CPU.

    `quantize` rounds matrices of floats (F32, F16, BF16) while they are loaded: "q4" (4 bits in groups of 32), "q8_0"
    (8 bits in groups of 32) or "bf16"; what is quantised already stays as it is stored. The rest is for cheap drafts:
    q changes, text does not. `num_head_rows` computes only the first N rows of the output head, `head_ids` only those
    of the ids given (the rest of a row is -inf); `requantise` rounds every matrix anew to 4 bits in groups of 32.

    FileFormatError or UnsupportedModelError for files that are broken or not served, ParameterError for a setting that
    the model cannot follow, InputError for an environment variable that does not fit this machine.
    """
    with open_model(path) as files:
        checked = _Checked.of(files, context_length, num_head_rows, head_ids, requantise, quantize)
        num_bytes = sum(tensor.num_bytes for tensor in files.tensors.values())
        if progress is not None:
            progress.start(num_bytes, f"loading {path.name}")
        try:
            checked.fill(progress)
        except MemoryError as error:
            fact = f"{path} does not fit into memory"
            raise ModelError(
                fact, f"it has {num_bytes:,} bytes of weights", "take fewer bits or a smaller model"
            ) from error
        finally:
            if progress is not None:
                progress.finish()
    return NativeModel(checked.decoder, checked.capabilities, checked.head_ids)


def open_model(path: Path) -> GGUFFile | TransformersFiles:
    """The files of a model; a directory is one of transformers, unless it holds the shards of a GGUF model."""
    return TransformersFiles(path) if path.is_dir() and not is_split_model(path) else open_gguf(path)


@dataclass(slots=True)
class _Checked:
    """Checked files and an empty decoder for them. `head_ids`: ascending ids [N] of the head's rows, None for all or
    the first `num_head_rows`."""

    files: GGUFFile | TransformersFiles
    description: Description
    decoder: _native.Decoder
    capabilities: Capabilities
    num_head_rows: int
    head_ids: np.ndarray | None
    requantise: bool
    quantize: str | None

    @classmethod
    def of(
        cls,
        files: GGUFFile | TransformersFiles,
        context_length: int | None,
        num_head_rows: int | None,
        head_ids: Sequence[int] | np.ndarray | None,
        requantise: bool,
        quantize: str | None,
    ) -> _Checked:
        """Check everything that can be checked without weights."""
        check_environment()
        kept_weights.is_wanted()  # refuses nonsense
        description = describe(files)
        if requantise or quantize is not None:
            _check_rounding(files, description, requantise, quantize)
        model = description.model
        limit = chosen_context(model.context_length, context_length) or model.context_length
        if model.longest_exact and limit > model.longest_exact:
            fact, remedy = f"a context of {limit} tokens", f"give context_length={model.longest_exact} or less"
            raise unsupported(files, fact, f"beyond {model.longest_exact} {model.beyond}", remedy)
        check_head_rows(num_head_rows, model.num_embeddings)
        ids = None if head_ids is None else check_head_ids(head_ids, model.num_embeddings).astype(np.uint32)
        if ids is not None and num_head_rows is not None:
            raise ParameterError("head_ids", "given beside num_head_rows", "give one of the two")
        num_rows = len(ids) if ids is not None else num_head_rows or model.num_embeddings
        try:
            decoder = _native.Decoder(description.fields(num_rows, limit))
        except ValueError as error:
            raise unsupported(files, "a size", str(error), SERVED) from error
        width = model.num_embeddings if ids is not None else num_rows
        capabilities = Capabilities(limit, width, model.num_embeddings, trees=True)
        return cls(files, description, decoder, capabilities, num_rows, ids, requantise, quantize)

    def fill(self, progress: Progress | None) -> None:
        """Give the decoder its weights: matrices that were kept packed are mapped, all else is read."""
        advance: Callable[[int], None] = progress.advance if progress is not None else lambda _: None
        wanted = self._wanted()
        kept = self._kept(wanted) if kept_weights.is_wanted() else None
        is_kept = kept is not None and kept.attach(self.decoder)
        for name, parts in self.description.tensors.items():
            if not parts[0].is_matrix:
                self._set_vectors(name, parts)
            if is_kept or not parts[0].is_matrix:
                advance(self.files.tensors[name].num_bytes)
        if not is_kept:
            self._read([piece for stored_name, part in wanted for piece in self._pieces(stored_name, part)], advance)
        try:
            self.decoder.finish()
        except ValueError as error:
            raise FileFormatError(
                f"the weights of {self.files.path} are no decoder", str(error), ANOTHER_FILE
            ) from error
        if kept is None or is_kept:
            return
        try:
            kept.keep(self.decoder)
        except ModelError as error:  # kept weights are a convenience
            if progress is not None:
                progress.note(f"repacked weights were not kept: {error.fact}")

    def _wanted(self) -> list[kept_weights.Wanted]:
        """Every matrix of the decoder, the head cut to what was asked for."""
        width, wanted = self.description.model.hidden_size, list[kept_weights.Wanted]()
        for name, parts in self.description.tensors.items():
            if not parts[0].is_matrix:
                continue
            wanted += [(name, part) for part in parts if part.name != "head"]
            has_own_head = self.description.model.is_tied and self.head_ids is not None
            if parts[0].name == "head" or (parts[0].name == "embedding" and has_own_head):
                wanted.append((name, Placed("head", (self.num_head_rows, width), self.head_ids)))
        return wanted

    def _kept(self, wanted: Sequence[kept_weights.Wanted]) -> kept_weights.KeptWeights:
        """Where these matrices are kept, or would be."""
        rounding = {"requantise": self.requantise, "quantize": self.quantize}
        return kept_weights.KeptWeights.of(self.files, wanted, rounding)

    def _set_vectors(self, name: str, parts: Sequence[Placed]) -> None:
        values, offset = self.files.dequantise(name), np.float32(self.description.model.norm_offset)
        for part in parts:
            own = values[: part.shape[0]] if part.order is None else values[part.order]
            self.decoder.set_vector(part.name, own + offset if part.name.endswith("norm") else own)

    def _pieces(self, stored_name: str, part: Placed) -> Iterator[Piece]:
        """Room for a matrix in the decoder, and what to read for it."""
        info = self.files.tensors[stored_name]
        rounding = "q4" if self.requantise else "none"
        if self.quantize is not None and info.type_name in FLOAT_TYPES:
            rounding = self.quantize
        try:
            matrix = _native.PackedMatrix(info.type_name, part.shape[0], part.shape[1], rounding)
            self.decoder.set_matrix(part.name, matrix)
        except ValueError as error:
            raise unsupported(self.files, f"tensor {stored_name}", str(error), SERVED) from error
        return cut(matrix, stored_name, info.row_bytes, part.order)

    def _read(self, pieces: Sequence[Piece], advance: Callable[[int], None]) -> None:
        """Read and pack all pieces; `advance` hears of every byte of a tensor once."""
        ends = {piece.name: index for index, piece in enumerate(pieces)}
        left = {name: self.files.tensors[name].num_bytes for name in ends}
        for index, (piece, data) in enumerate(read(self.files, pieces)):
            piece.matrix.set_rows(piece.output, data, piece.order)
            done = left[piece.name] if index == ends[piece.name] else min(data.nbytes, left[piece.name])
            left[piece.name] -= done
            advance(done)


def _check_rounding(
    files: GGUFFile | TransformersFiles, description: Description, requantise: bool, quantize: str | None
) -> None:
    """Refuse what cannot be rounded: no such type, nothing to round, rows that groups of 32 do not divide."""
    name = "requantise" if requantise else "quantize"
    matrices = [stored for stored, parts in description.tensors.items() if parts[0].is_matrix]
    if quantize is not None:
        check_quantisation(quantize)
        matrices = [stored for stored in matrices if files.tensors[stored].type_name in FLOAT_TYPES]
        if not matrices:
            fact = f"{files.path} holds no matrix of floats: its weights are quantised already"
            raise ParameterError("quantize", fact, "leave it out, or give an F16, BF16 or F32 file of the model")
    for stored in matrices if quantize != "bf16" else ():
        width = files.tensors[stored].shape[-1]
        if width % 32:
            fact = f"weights are rounded anew by 32, and tensor {stored} of {files.path} has rows of {width}"
            raise ParameterError(name, fact, "leave it out" if requantise else "leave it out, or give bf16")
