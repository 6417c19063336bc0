"""The native runtime: GGUF files and transformers directories on a CPU, without torch.

Weights are quantised as they are stored, or rounded at load. description.py (what a model's files become, as data) and
rotary.py, load.py (checks, then weights) with pieces.py and kept_weights.py, model.py (NativeModel). The work is done
by forerun._native, compiled from csrc/.
"""

from __future__ import annotations

from importlib.util import find_spec

from forerun.errors import MissingDependencyError

if find_spec("forerun._native") is None:
    raise MissingDependencyError(
        "the native runtime is not built", "forerun._native is missing", "install forerun with pip: it is compiled then"
    )

from forerun.runtime.native.load import check_native_model, load_native_model
from forerun.runtime.native.model import NativeModel

__all__ = ["NativeModel", "check_native_model", "load_native_model"]
