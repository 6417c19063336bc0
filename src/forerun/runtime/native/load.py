"""From a GGUF file to a NativeModel. Everything that can be refused is refused before any weight is read.

Each matrix is repacked straight out of the mapped file, and its pages are let go of behind it: memory holds the packed
weights and the tensor at hand, never two copies of the model.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from forerun import _native
from forerun.errors import FileFormatError, ModelError, ParameterError
from forerun.models.gguf import GGUFFile, open_gguf
from forerun.models.gguf_model import EMBEDDING, HEAD, unsupported
from forerun.runtime.limits import check_environment, check_head_ids, check_head_rows, chosen_context
from forerun.runtime.native import kept_weights
from forerun.runtime.native.description import SERVED, Description, describe
from forerun.runtime.native.model import NativeModel
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
        kept_weights.is_wanted()  # refuses nonsense
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

    def fill(self, progress: Progress | None) -> None:
        """Give the decoder its weights: matrices that were kept packed are mapped, all else is read."""
        kept = kept_weights.kept_path(self.file, self._packing()) if kept_weights.is_wanted() else None
        is_kept = kept is not None and kept_weights.attach(self.decoder, kept, self._matrix_names())
        self._read(progress.advance if progress is not None else lambda _: None, only_vectors=is_kept)
        try:
            self.decoder.finish()
        except ValueError as error:
            raise FileFormatError(f"{self.file.path} cannot be decoded with", str(error)) from error
        if kept is None or is_kept:
            return
        try:
            kept_weights.keep(self.decoder, kept, self.file.path)
        except ModelError as error:  # kept weights are a convenience
            if progress is not None:
                progress.note(f"repacked weights were not kept: {error.fact}")

    def _matrix_names(self) -> list[str]:
        """The decoder's names of all matrices that this model is made of."""
        names = [place.name for place in self.description.tensors.values() if len(place.shape) > 1]
        has_own_head = self.description.model.is_tied and self.head_ids is not None
        return [*names, "head"] if has_own_head else names

    def _packing(self) -> dict[str, Any]:
        """All that decides how this file's matrices are packed."""
        ids = None if self.head_ids is None else hashlib.sha256(self.head_ids.tobytes()).hexdigest()
        return {"rows": self.num_head_rows, "ids": ids, "requantise": self.requantise}

    def _read(self, advance: Callable[[int], None], only_vectors: bool) -> None:
        file, is_tied = self.file, self.description.model.is_tied
        for name, place in self.description.tensors.items():
            if len(place.shape) > 1 and only_vectors:
                pass
            elif len(place.shape) == 1:
                values = file.dequantise(name)
                self.decoder.set_vector(place.name, values if place.order is None else values[place.order])
            elif name == HEAD:
                self._set_head(name)
            else:
                self._set_matrix(name, place.name, file.raw(name), place.order)
                if name == EMBEDDING and is_tied and self.head_ids is not None:
                    self._set_head(name)
            file.forget(name)
            advance(file.tensors[name].num_bytes)

    def _set_head(self, name: str) -> None:
        """The rows of `name` that the output head computes, as a matrix of their own."""
        if self.head_ids is None:
            self._set_matrix(name, "head", self.file.raw(name)[: self.num_head_rows], None)
        else:
            self._set_matrix(name, "head", self.file.raw(name), self.head_ids.astype(np.uint32))

    def _set_matrix(self, stored_name: str, name: str, data: np.ndarray, order: np.ndarray | None) -> None:
        info = self.file.tensors[stored_name]
        try:
            self.decoder.set_matrix(name, info.type_name, data, info.shape[-1], order, self.requantise)
        except ValueError as error:
            raise unsupported(self.file, f"tensor {stored_name}", str(error), SERVED) from error


def _check_widths(file: GGUFFile, description: Description) -> None:
    """Weights are rounded anew by 32: refuse a matrix whose rows are no multiple of that."""
    for name, place in description.tensors.items():
        if len(place.shape) == 2 and place.shape[1] % 32:
            fact = f"weights are rounded anew by 32, and tensor {name} of {file.path} has rows of {place.shape[1]}"
            raise ParameterError("requantise", fact, "leave it out")
