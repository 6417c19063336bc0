"""The torch runtime: any decoder-only transformers model, from a directory or a GGUF, on a CPU or CUDA.

cache.py (keys and values per sequence), attention.py and padded.py (a ragged pass attends), support.py (what is
served, found without weights), linear.py, layer.py and strict.py (surgery on a loaded model), model.py (TorchModel),
gguf.py and load.py (files).
"""

from __future__ import annotations

from importlib.util import find_spec

from forerun.errors import MissingDependencyError
from forerun.extras import install_line

for _package in ("torch", "transformers"):
    if find_spec(_package) is None:
        raise MissingDependencyError(
            f"the torch runtime needs {_package}", "it is not installed", install_line("torch")
        )

from forerun.runtime.torch.load import check_torch_model, load_torch_model  # noqa: E402
from forerun.runtime.torch.model import TorchModel  # noqa: E402

__all__ = ["TorchModel", "check_torch_model", "load_torch_model"]
