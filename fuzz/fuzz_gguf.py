"""GGUF files through everything that reads them: the header, the description, all weights, and one pass.

python fuzz/fuzz_gguf.py [corpus folder] [libFuzzer options]; `make fuzz` builds what it needs.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["forerun"]):
    import forerun.models.gguf
    import forerun.runtime.native.load

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))
from tests.models.tiny_gguf import write_tiny_gguf

from forerun.models.gguf import open_gguf
from forerun.runtime.native import load_native_model
from forerun.runtime.native.description import describe
from forerun.types import Span
from fuzz import common, edits

TEXTS = tuple(
    b"general.architecture general.alignment split.count split.no split.tensors.count general.name llama qwen2 qwen3 gemma2 "
    b"mistral yarn linear none longrope output.weight token_embd.weight rope_freqs.weight blk.0.attn_q.bias blk.1.attn_q.bias "
    b"blk.0.attn_q_norm.weight blk.7.attn_q.weight blk.x.attn_q.weight blk. qwen2.rope.scaling.type qwen2.rope.scaling.factor "
    b"qwen2.rope.scaling.original_context_length qwen2.attention.key_length qwen2.attention.value_length qwen2.expert_count "
    b"qwen2.attention.sliding_window llama.rope.scaling.type llama.attention.key_length".split()
) + (b"", b"\xff\xfe", b"\0", "é".encode())
SMALL = {"num_tokens": 270, "layers": 2, "hidden": 64, "heads": 4, "kv_heads": 2, "feed_forward": 64, "context_length": 32}


def bases() -> list[edits.Parts]:
    """What is edited: both tokenizer kinds, several types of weights, tied and not, with and without scaling."""
    made = []
    with tempfile.TemporaryDirectory() as folder:
        yarn = {"qwen2.rope.scaling.type": "yarn", "qwen2.rope.scaling.factor": 4.0}
        yarn["qwen2.rope.scaling.original_context_length"] = 8
        for i, settings in enumerate(
            (
                {"tensor_type": "Q8_0", "metadata": yarn},
                {"tensor_type": "Q4_0", "tied": False},
                {"tensor_type": "F16", "architecture": "llama", "kind": "llama", "num_tokens": 380},
                {"tensor_type": "BF16", "architecture": "llama", "kind": "llama", "num_tokens": 380, "tied": False},
            )
        ):
            made.append(edits.parse(write_tiny_gguf(Path(folder, f"{i}.gguf"), **{**SMALL, **settings})))
    return made


BASES = bases()
PATH = common.scratch("m.gguf")


def one(data: bytes) -> None:
    """Edit a base as `data` says, then read it all."""
    take = atheris.FuzzedDataProvider(data)
    parts = edits.copy(BASES[take.ConsumeIntInRange(0, len(BASES) - 1)])
    for _ in range(take.ConsumeIntInRange(0, 4)):
        edits.edit(parts, take, TEXTS)
    raw = parts.write()
    for _ in range(take.ConsumeIntInRange(0, 3) // 2):
        raw = edits.damage(raw, take)
    PATH.write_bytes(raw)
    before = common.mapped()
    with open_gguf(PATH) as file:
        for key in file.metadata:
            file.metadata[key]
        file.header_digest  # noqa: B018
        for name in list(file.tensors)[:64]:
            assert file.raw(name).nbytes == file.tensors[name].num_bytes <= len(raw)
        describe(file)
    model = load_native_model(PATH, requantise=take.ConsumeBool())
    common.check_mapped(before, len(raw))
    limit = model.capabilities.context_length
    tokens = [take.ConsumeIntInRange(0, model.capabilities.vocabulary_size - 1) for _ in range(min(5, limit))]
    model.begin(0)
    rows = model.forward([Span(0, 0, tokens, min(2, len(tokens)))]).matrix
    assert np.asarray(rows).shape[1] == model.capabilities.vocabulary_size
    model.keep(0, 1)
    model.free(0)
    common.check_mapped(before, len(raw))


if __name__ == "__main__":
    common.main(one, "gguf")
