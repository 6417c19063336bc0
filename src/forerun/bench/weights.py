"""How many bytes of weights one pass must read: divided by the memory's speed, the floor under a decoded token."""

from __future__ import annotations

from math import prod
from pathlib import Path

EMBEDDINGS = ("token_embd.weight", "model.embed_tokens.weight")
HEADS = ("output.weight", "lm_head.weight")


def bytes_per_pass(path: Path, kind: str, bytes_per_weight: int, num_head_rows: int | None = None) -> int | None:
    """Bytes of all weights a pass of a dense model multiplies by, at `bytes_per_weight`; None if unknown.

    The embedding is read one row a token, so it counts only where it also serves as the output head.
    `num_head_rows`: a head that was cut short.
    """
    shapes = _gguf_shapes(path) if kind == "gguf" else _safetensors_shapes(path)
    embedding = next((shapes[name] for name in EMBEDDINGS if name in shapes), None)
    if embedding is None or any("exp" in name.lower() for name in shapes):
        return None  # a layout this does not know, or a mixture of experts, which reads only some weights
    head = next((shapes[name] for name in HEADS if name in shapes), None)
    total = sum(prod(shape) for shape in shapes.values())
    if head is not None:
        total -= prod(embedding)
    rows, width = head or embedding
    if num_head_rows is not None:
        total -= (rows - min(num_head_rows, rows)) * width
    return total * bytes_per_weight


def _gguf_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    from forerun.models.gguf import open_gguf

    with open_gguf(path) as file:
        return {name: tensor.shape for name, tensor in file.tensors.items()}


def _safetensors_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    from safetensors import safe_open

    shapes: dict[str, tuple[int, ...]] = {}
    for file in sorted(path.glob("*.safetensors")):
        with safe_open(str(file), framework="numpy") as tensors:
            shapes.update({name: tuple(tensors.get_slice(name).get_shape()) for name in tensors.keys()})  # noqa: SIM118
    return shapes
