"""GGUF files through everything that reads them: the header, the description, all weights, and one pass.

python fuzz/fuzz_gguf.py [corpus folder] [libFuzzer options]; `make fuzz` builds what it needs.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["forerun"]):
    from forerun.models.gguf import open_gguf
    from forerun.runtime.native import load_native_model
    from forerun.runtime.native.description import describe

sys.path.insert(0, str(Path(__file__).parent.parent))
from tests.models.tiny_gguf import write_tiny_gguf

from fuzz import common, edits

WORDS = """
    general.architecture general.alignment general.name split.count split.no split.tensors.count llama qwen2 qwen3
    gemma2 gemma3 phi3 olmo2 granite mistral3 smollm3 mistral yarn linear none longrope llama3 output.weight
    token_embd.weight
    output_norm.weight rope_freqs.weight rope_factors_long.weight rope_factors_short.weight blk.0.attn_q.bias
    blk.1.attn_q.bias blk.0.attn_q_norm.weight blk.7.attn_q.weight blk.x.attn_q.weight blk. blk.0.ffn_up.weight
    {}.rope.scaling.type {}.rope.scaling.factor {}.rope.scaling.original_context_length {}.attention.key_length
    {}.attention.value_length {}.expert_count {}.attention.sliding_window {}.rope.dimension_count {}.rope.freq_base
    {}.attention.head_count {}.attention.head_count_kv {}.context_length {}.final_logit_softcapping
    {}.attn_logit_softcapping {}.attention.scale {}.logit_scale {}.residual_scale {}.embedding_scale
    {}.attention.sliding_window_pattern {}.rope.scaling.attn_factor {}.rope.scaling.yarn_beta_fast
"""
NAMES = ("qwen2", "llama", "gemma3", "phi3", "granite")
TEXTS = (
    *dict.fromkeys(w.format(n).encode() for w in WORDS.split() for n in NAMES),
    b"",
    b"\xff\xfe",
    b"\0",
    "é".encode(),
)
SMALL = {"num_tokens": 270, "hidden": 64, "heads": 4, "kv_heads": 2, "feed_forward": 64, "context_length": 32}


def bases() -> list[edits.Parts]:
    """What is edited: several types of weights, tied and not, and the families that fuzz/bases.py made."""
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
    return made + [edits.parse(path) for path in sorted(common.BASES.glob("*.gguf"))]


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
    context = (None, 16)[take.ConsumeIntInRange(0, 1)]
    model = load_native_model(PATH, context_length=context, requantise=take.ConsumeIntInRange(0, 3) == 0)
    common.check_mapped(before, len(raw))
    common.use(model, take)
    common.check_mapped(before, len(raw))


if __name__ == "__main__":
    common.main(one, "gguf")
