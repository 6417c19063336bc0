"""Text under trees in the real runtimes is plain decoding's, bit for bit: native always, torch with strict."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.models.tiny_gguf import write_tiny_gguf
from tests.runtime.tiny import randomised, tiny
from tests.verification.laws import FixedTopology

from forerun.drafting import ModelDrafter
from forerun.llm import LLM
from forerun.runtime.base import Model
from forerun.runtime.cut import CutHead
from forerun.runtime.native import load_native_model
from forerun.runtime.torch import TorchModel
from forerun.topology import by_widths

TREES: dict[str, tuple[int, ...]] = {
    "comb": (-1, -1, -1, 0, 0, 3),
    "full": by_widths((3, 2, 2)),
    "odd": (-1, 0, -1, 2, 0, 3, 3, 5),
}
PARAMS: list[dict[str, Any]] = [
    {"temperature": 0},
    {"seed": 8, "temperature": 0.7, "top_p": 0.9},
    {"seed": 9, "temperature": 0.8, "logprobs": 2},
    {"temperature": 0, "repetition_penalty": 1.3, "frequency_penalty": 0.2},
]


def check(target: Model, drafters: dict[str, Callable[[], Any]], prompts: list[list[int]], num_tokens: int) -> None:
    """Everything at once in one batch, and the tree was worth it: some second child was accepted."""
    plain = LLM(target)
    expected = [plain.generate(prompts, max_tokens=num_tokens, **params) for params in PARAMS]
    ranks: set[int] = set()
    for make_drafter in drafters.values():
        for tree in TREES.values():
            policy = FixedTopology(tree)
            llm = LLM(target, None, make_drafter(), policy)
            for params, results in zip(PARAMS, expected, strict=True):
                found = llm.generate(prompts, max_tokens=num_tokens, **params)
                assert [one.tokens for one in found] == [one.tokens for one in results]
                assert [one.logprobs for one in found] == [one.logprobs for one in results]
            ranks |= {rank for done in policy.rounds for rank in done.ranks}
            llm.generate(prompts, max_tokens=num_tokens, temperature=0.8)  # and sampled trees find their way
    assert ranks >= {0, 1}


def test_native(tmp_path: Path) -> None:
    target = load_native_model(write_tiny_gguf(tmp_path / "target.gguf", seed=3, tensor_type="Q8_0"))
    draft = load_native_model(write_tiny_gguf(tmp_path / "draft.gguf", seed=3, perturb=0.2, tensor_type="Q4_0"))
    size = draft.capabilities.vocabulary_size
    drafters: dict[str, Callable[[], Any]] = {
        "sampled": lambda: ModelDrafter(draft),
        "top": lambda: ModelDrafter(draft, candidates="top"),
        "window": lambda: ModelDrafter(draft, window=20),
        "cut head": lambda: ModelDrafter(CutHead(draft, range(1, size, 2)), min_confidence=0.05),
        "its own": lambda: ModelDrafter(load_native_model(tmp_path / "target.gguf")),
    }
    check(target, drafters, [[5, 6, 7], [9] * 40, [30, 31], list(range(100, 170))], 20)
    assert target.cache_bytes == 0


@pytest.mark.thorough("gemma2")
@pytest.mark.parametrize("name", ["llama", "mistral, windows", "gemma2, soft caps and alternating windows"])
def test_torch(name: str) -> None:
    """The draft model's rows may differ with their company; the target's are strict."""
    import torch

    module = tiny(name)
    target = TorchModel.from_transformers(module, strict=True)
    near = randomised(tiny(name, seed=0))
    with torch.no_grad():
        for index, weight in enumerate(near.parameters()):
            noise = torch.randn(weight.shape, generator=torch.Generator().manual_seed(index))
            weight.add_(0.1 * weight.std().nan_to_num(0.0) * noise)
    draft = TorchModel.from_transformers(near)
    check(target, {"sampled": lambda: ModelDrafter(draft)}, [[5, 6, 7], [9] * 12, [30, 31]], 12)
    assert target.cache.num_bytes == 0
