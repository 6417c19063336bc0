"""From files to a TorchModel. Everything that can be refused is refused before any weight is read."""

from __future__ import annotations

import contextlib
import json
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from forerun.errors import (
    FileFormatError,
    ForerunError,
    MissingDependencyError,
    ParameterError,
    UnknownModelError,
    UnsupportedModelError,
)
from forerun.models.gguf import GGUFFile, open_gguf
from forerun.runtime.limits import check_head_ids, chosen_context
from forerun.runtime.torch import gguf
from forerun.runtime.torch.cache import LayerShape
from forerun.runtime.torch.linear import has_fast_bfloat16
from forerun.runtime.torch.model import TorchModel
from forerun.runtime.torch.registry import PROBE, register
from forerun.runtime.torch.strict import check_strict
from forerun.runtime.torch.support import check_config, context_length_of, probe

if TYPE_CHECKING:
    from forerun.models.progress import Progress

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def check_torch_model(
    path: Path,
    *,
    kind: str,
    device: str = "auto",
    dtype: str = "auto",
    strict: bool = False,
    context_length: int | None = None,
    head_ids: Sequence[int] | np.ndarray | None = None,
) -> None:
    """Raise what `load_torch_model` would raise, without reading weights: device, dtype, file, architecture, layers,
    context length, head."""
    with _quiet():
        source = _Source(Path(path), kind, device, dtype)
        source.check(strict)
        chosen_context(context_length_of(source.config), context_length)
        if head_ids is not None:
            check_head_ids(head_ids, source.config.get_text_config().vocab_size)


def load_torch_model(
    path: Path,
    *,
    kind: str,
    device: str = "auto",
    dtype: str = "auto",
    strict: bool = False,
    context_length: int | None = None,
    head_ids: Sequence[int] | np.ndarray | None = None,
    progress: Progress | None = None,
) -> TorchModel:
    """A model from a GGUF file (`kind` "gguf") or a transformers directory ("transformers").

    `device` "auto" is CUDA where there is one. `dtype` "auto" is the directory's own, or bfloat16 for a GGUF, unless
    the device is slow at it. `head_ids` computes only these rows of the output head, for a cheap draft: the rest of a
    row is minus infinity.
    """
    with _quiet():
        source = _Source(Path(path), kind, device, dtype)
        shapes = source.check(strict)
        limit = chosen_context(context_length_of(source.config), context_length)
        model = source.read(progress).to(source.device)
        settings: dict[str, Any] = {"strict": strict, "context_length": limit, "head_ids": head_ids}
        if shapes is None:
            return TorchModel.from_transformers(model, **settings | {"context_length": context_length})
        return TorchModel.assemble(model, shapes, **settings)


class _Source:
    """A model's files, device and dtype; `config` is known before any weight is."""

    def __init__(self, path: Path, kind: str, device: str, dtype: str) -> None:
        if kind not in ("gguf", "transformers"):
            raise ParameterError("kind", f"{kind!r} is not allowed", "one of gguf, transformers")
        register()
        self.path, self.device = path, choose_device(device)
        self._gguf: GGUFFile | None = open_gguf(path) if kind == "gguf" else None
        self._ours = self._gguf is not None and gguf.is_read(self._gguf)
        if self._gguf is None:
            self.config = _directory_config(path)
        elif self._ours:
            self.config = gguf.config_of(self._gguf)
        else:
            self.config = _foreign_gguf_config(self._gguf)
        self.dtype = choose_dtype(dtype, None if self._gguf else self.config.dtype, self.device)

    def check(self, strict: bool) -> tuple[LayerShape, ...] | None:
        """How each layer attends, found without weights; None if only the real model can tell."""
        model_class = check_config(self.config)
        if strict:
            check_strict(self.config)
        try:
            return probe(_hollow(model_class, self.config))
        except ForerunError:
            raise
        except Exception:  # a model that looks at numbers cannot run on meta: it is probed once it has some
            return None

    def read(self, progress: Progress | None) -> Any:
        """The transformers model with its weights, on the CPU or on the device."""
        if not (self._gguf and self._ours):
            return _read_by_transformers(self.path, self._gguf, self.dtype)
        model = _hollow(check_config(self.config), self.config)
        if progress is not None:
            progress.start(sum(t.num_bytes for t in self._gguf.tensors.values()), f"loading {self.path.name}")
        try:
            gguf.fill(model, self._gguf, self.dtype, progress.advance if progress is not None else lambda _: None)
        finally:
            if progress is not None:
                progress.finish()
        return model


def choose_device(device: str) -> torch.device:
    """ "auto", "cpu", "cuda" or "cuda:N"."""
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    name, _, index = device.partition(":")
    if name not in ("cpu", "cuda") or (index and not index.isdecimal()):
        raise ParameterError("device", f"{device!r} is not allowed", "one of auto, cpu, cuda, cuda:N")
    if name == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available() or int(index or 0) >= torch.cuda.device_count():
        raise ParameterError("device", f"{device!r} was asked for and is not there", "use device='cpu'")
    return torch.device("cuda", int(index or 0))


def choose_dtype(dtype: str, stored: torch.dtype | None, device: torch.device) -> torch.dtype:
    """ "auto": what the files say (bfloat16 for a GGUF), or the nearest the device computes fast."""
    if dtype != "auto":
        if dtype not in DTYPES:
            raise ParameterError("dtype", f"{dtype!r} is not allowed", f"one of auto, {', '.join(DTYPES)}")
        return DTYPES[dtype]
    wanted = stored if stored in DTYPES.values() else torch.bfloat16
    if device.type == "cuda":
        slow = wanted is torch.bfloat16 and not torch.cuda.is_bf16_supported(including_emulation=False)
        return torch.float16 if slow else wanted
    if wanted is torch.float32:
        return wanted
    return torch.bfloat16 if has_fast_bfloat16() else torch.float32


def _hollow(model_class: type[Any], config: Any) -> Any:
    """The model on the meta device, set up for a probe. In bfloat16, which every kernel's shape function knows."""
    register()
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device("meta"):
            model = model_class(config)
    finally:
        torch.set_default_dtype(before)
    model.config._attn_implementation = PROBE
    return model.eval()


def _directory_config(path: Path) -> Any:
    from transformers import AutoConfig
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    file = path / "config.json"
    if not file.is_file():
        fact = f"{path} is not a transformers model" if path.is_dir() else f"there is no directory {path}"
        raise (FileFormatError if path.is_dir() else UnknownModelError)(fact, "it has no config.json")
    try:
        settings = json.loads(file.read_text(encoding="utf-8"))
        model_type = settings["model_type"]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise FileFormatError(f"{file} cannot be read", f"{type(error).__name__}: {error}") from error
    if model_type not in CONFIG_MAPPING:
        why = (
            "it brings its own code, which is not run"
            if "auto_map" in settings
            else "this transformers has no such model"
        )
        raise UnsupportedModelError(
            f"model type {model_type!r} is not served", why, "update transformers, or use a GGUF"
        )
    try:
        return AutoConfig.from_pretrained(path, local_files_only=True, trust_remote_code=False)
    except Exception as error:
        raise FileFormatError(f"{file} is not a valid configuration", _first_line(error)) from error


def _foreign_gguf_config(file: GGUFFile) -> Any:
    """The configuration that transformers reads from a GGUF outside our table."""
    from transformers import AutoConfig
    from transformers.modeling_gguf_pytorch_utils import GGUF_SUPPORTED_ARCHITECTURES

    arch = file.architecture
    served = f"served: {', '.join(gguf.READ)}; through transformers: {', '.join(GGUF_SUPPORTED_ARCHITECTURES)}"
    if file.metadata.get("split.count", 1) != 1:
        raise UnsupportedModelError(
            f"{file.path} is one of several shards of the architecture {arch!r}",
            f"transformers, which would read it, reads whole files only; {served}",
            f"join the shards: llama-gguf-split --merge {file.path} WHOLE.gguf",
        )
    scaling = file.metadata.get(f"{arch}.rope.scaling.type", "none")
    factors = [name for name in file.tensors if name.startswith("rope_f")]
    if (scaling != "none" or factors) and arch != "gpt-oss":
        raise UnsupportedModelError(
            f"{file.path} scales its rotary positions", "transformers would ignore that", served
        )
    try:
        return AutoConfig.from_pretrained(file.path.parent, gguf_file=file.path.name, local_files_only=True)
    except Exception as error:
        raise UnsupportedModelError(f"GGUF architecture {arch!r} is not served", _first_line(error), served) from error


def _read_by_transformers(path: Path, file: GGUFFile | None, dtype: torch.dtype) -> Any:
    from transformers import AutoModelForCausalLM

    settings: dict[str, Any] = {"dtype": dtype, "attn_implementation": PROBE, "local_files_only": True}
    if file is not None:
        path, settings["gguf_file"] = file.path.parent, file.path.name
    try:
        model, info = AutoModelForCausalLM.from_pretrained(
            path, trust_remote_code=False, output_loading_info=True, **settings
        )
    except ImportError as error:
        raise MissingDependencyError(f"{path} needs a package that is not installed", _first_line(error)) from error
    except Exception as error:
        raise FileFormatError(f"the weights in {path} cannot be read", _first_line(error)) from error
    for what in ("missing_keys", "mismatched_keys"):
        if info.get(what):
            names = sorted(str(key) for key in info[what])
            raise FileFormatError(
                f"{path} has {len(names)} {what.replace('_keys', '')} tensors", f"the first is {names[0]}"
            )
    return model


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"[:300]


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """transformers without progress bars and remarks, as it was afterwards."""
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
