"""Which runtime serves a model: the native one where it can, torch for everything else. Each has the same two verbs.

A runtime's package is imported when a model is checked or loaded with it, so a native pair never imports torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forerun.errors import ForerunError, MissingDependencyError, ParameterError, UnsupportedModelError
from forerun.runtime.limits import check_environment, check_quantisation

if TYPE_CHECKING:
    import numpy as np

    from forerun.models.progress import Progress
    from forerun.runtime.base import Model

RUNTIMES = ("auto", "native", "torch")

_DRIVERS = ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd", "C:/Windows/System32/nvcuda.dll")
"""What is there where a device driver is: without one torch need not be asked (and imported)."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A model's files, and the runtime for them. `settings`: what the runtime's check and load take. `reason`: why the
    native runtime does not serve a model that it might have served (empty otherwise)."""

    path: Path
    kind: str
    runtime: str
    settings: Mapping[str, Any]
    reason: str = ""

    def check(self) -> None:
        """Raise what loading would raise, without reading weights."""
        if self.runtime == "native":
            from forerun.runtime.native import check_native_model

            check_native_model(self.path, **self.settings)
            return
        check_environment()
        try:
            from forerun.runtime.torch import check_torch_model
        except MissingDependencyError as error:
            raise MissingDependencyError(error.fact, self.reason or error.context, error.remedy) from error
        try:
            check_torch_model(self.path, kind=self.kind, **self.settings)
        except UnsupportedModelError as error:
            if not self.reason:
                raise
            context = f"{error.context}; nor is it by the native runtime: {self.reason}"
            raise UnsupportedModelError(error.fact, context, error.remedy) from error

    def load(self, progress: Progress | None = None) -> Model:
        """The model with its weights."""
        if self.runtime == "native":
            from forerun.runtime.native import load_native_model

            return load_native_model(self.path, progress=progress, **self.settings)
        from forerun.runtime.torch import load_torch_model

        return load_torch_model(self.path, kind=self.kind, progress=progress, **self.settings)


def choose(
    path: Path,
    kind: str,
    runtime: str = "auto",
    *,
    device: str = "auto",
    dtype: str = "auto",
    strict: bool = False,
    context_length: int | None = None,
    head_ids: Sequence[int] | np.ndarray | None = None,
    requantise: bool = False,
    quantize: str | None = None,
) -> Choice:
    """The runtime for a model, with the settings it takes.

    "auto" is native for GGUF files of the families and types it serves, on the CPU; a `device` or `dtype` that only
    torch can give chooses torch. A transformers directory goes to torch unless its weights are to be rounded. `strict`
    asks nothing of the native runtime, which always keeps its promise; `requantise` and `quantize` need it.
    """
    if runtime not in RUNTIMES:
        raise ParameterError("runtime", f"{runtime!r} is not allowed", f"one of {', '.join(RUNTIMES)}")
    if quantize is not None:
        check_quantisation(quantize)
    is_torch, reason, rounds = runtime == "torch", "", requantise or quantize is not None
    if runtime == "auto":
        is_torch = (kind != "gguf" and not rounds) or dtype != "auto" or runs_on_accelerator(device)
        reason = "" if is_torch else _why_not_served(path, context_length)
    of_both = {"context_length": context_length, "head_ids": head_ids}
    if not is_torch and not reason:
        return Choice(path, kind, "native", {**of_both, "requantise": requantise, "quantize": quantize})
    if rounds:
        because = f" ({reason})" if reason else ""
        raise ParameterError(
            "requantise" if requantise else "quantize",
            f"needs the native runtime, and torch serves {path.name}{because}",
            "leave it out, or choose a model, device and dtype that the native runtime serves",
        )
    return Choice(path, kind, "torch", {**of_both, "device": device, "dtype": dtype, "strict": strict}, reason)


def runs_on_accelerator(device: str) -> bool:
    """Whether torch would put a model elsewhere than on the CPU. It is imported only where there is a driver."""
    if device != "auto":
        return device != "cpu"
    if not any(Path(driver).exists() for driver in _DRIVERS) or find_spec("torch") is None:
        return False
    import torch

    return bool(torch.cuda.is_available())


def _why_not_served(path: Path, context_length: int | None) -> str:
    """What keeps the native runtime from a model; empty if nothing does, or if no runtime could read the files."""
    try:
        from forerun.runtime.native import check_native_model

        check_native_model(path, context_length=context_length)
    except (UnsupportedModelError, MissingDependencyError) as error:
        return ". ".join(part for part in (error.fact, error.context) if part)
    except ForerunError:
        return ""
    return ""
