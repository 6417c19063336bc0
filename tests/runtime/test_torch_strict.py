"""strict: a row's bits are a function of the row's own tokens, whatever shares its passes."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.runtime.contract import feed, split, text
from tests.runtime.real import pulled
from tests.runtime.tiny import MODELS, tiny
from torch import nn

from forerun.errors import UnsupportedModelError
from forerun.runtime.torch import TorchModel, load_torch_model
from forerun.runtime.torch.strict import STRICT_ROWS, Rowwise, make_rowwise
from forerun.types import Span

DENSE = [name for name in MODELS if "experts" not in name]
DTYPES = [torch.float32, torch.bfloat16]


def compositions(total: int) -> Iterator[list[int]]:
    """Every way to write `total` as an ordered sum."""
    for cuts in product([False, True], repeat=total - 1):
        sizes = [1]
        for cut in cuts:
            if cut:
                sizes.append(1)
            else:
                sizes[-1] += 1
        yield sizes


def in_company(model: TorchModel, tokens: list[int], seed: int) -> np.ndarray:
    """The rows of `tokens`, fed in random pieces beside two other sequences that come, grow, shrink and go."""
    generator = random.Random(seed)
    size = model.capabilities.num_inputs
    model.begin(0)
    others = [1, 2]
    for key in others:
        model.begin(key)
    rows, at = [], 0
    while at < len(tokens):
        count = min(generator.randint(1, STRICT_ROWS + 3), len(tokens) - at)
        spans = [Span(0, at, tokens[at : at + count], count)]
        for key in others:
            if model.length(key) > 30:
                model.keep(key, generator.randint(0, 5))
            if extra := generator.randint(0, STRICT_ROWS + 1):
                noise = [generator.randrange(size) for _ in range(extra)]
                spans.append(Span(key, model.length(key), noise, generator.randint(0, extra)))
        generator.shuffle(spans)
        place = next(i for i, span in enumerate(spans) if span.sequence_id == 0)
        rows.append(split(model.forward(spans), [span.num_rows for span in spans])[place])
        at += count
    for key in (0, *others):
        model.free(key)
    return np.concatenate(rows)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", DENSE)
def test_bits_do_not_depend_on_company(name: str, dtype: torch.dtype) -> None:
    model = TorchModel.from_transformers(tiny(name, dtype), strict=True)
    tokens = text(model, 30)
    expected = in_company(model, tokens, 0)
    for seed in (1, 2):
        np.testing.assert_array_equal(in_company(model, tokens, seed), expected)
    model.begin(0)
    np.testing.assert_array_equal(feed(model, 0, tokens), expected)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_way_of_cutting_a_sequence(dtype: torch.dtype) -> None:
    """All 128 ways to feed 8 tokens after a prompt: every offset inside a pass, every split over passes."""
    model = TorchModel.from_transformers(tiny("qwen2, windows above a layer", dtype), strict=True)
    tokens = text(model, 11)
    model.begin(0)
    expected = feed(model, 0, tokens)
    for sizes in compositions(8):
        model.keep(0, 3)
        np.testing.assert_array_equal(feed(model, 0, tokens[3:], sizes), expected[3:])


@pytest.mark.parametrize("offset", range(STRICT_ROWS))
def test_every_offset_of_a_pass(offset: int) -> None:
    model = TorchModel.from_transformers(tiny("llama"), strict=True)
    tokens, other = text(model, 6), text(model, 20, 1)
    model.begin(0)
    expected = feed(model, 0, tokens)
    model.begin(1)
    model.begin(2)
    spans = [Span(2, 0, tokens, 6)]
    if offset:
        spans.insert(0, Span(1, 0, other[:offset], 0))
    np.testing.assert_array_equal(model.forward(spans).matrix, expected)


def test_without_strict_bits_do_depend() -> None:
    """The control: the tests above could not fail if every kernel were invariant anyway."""
    model = TorchModel.from_transformers(tiny("llama"))
    tokens = text(model, 30)
    runs = [in_company(model, tokens, seed) for seed in range(4)]
    assert any((run != runs[0]).any() for run in runs)
    np.testing.assert_allclose(runs[1], runs[0], atol=1e-4)


def test_every_pass_has_the_same_shape() -> None:
    model = TorchModel.from_transformers(tiny("llama"), strict=True)
    shapes: set[tuple[int, ...]] = set()
    for part in (model._module.model.embed_tokens, model._module.get_output_embeddings()):
        part.register_forward_hook(lambda _, inputs, out: shapes.add(tuple(out.shape[:-1])))
    model.begin(0)
    model.begin(1)
    model.forward([Span(0, 0, [5] * 19, 1)])
    model.forward([Span(0, 19, [5], 1), Span(1, 0, [6, 7, 8], 3)])
    assert shapes == {(1, STRICT_ROWS)}


def test_padding_touches_no_cache() -> None:
    model = TorchModel.from_transformers(tiny("llama"), strict=True)
    model.begin(0)
    model.forward([Span(0, 0, [5, 6, 7], 1)])
    slab, slot = model.cache.place(0)
    for tensor in (*slab.keys, *slab.values):
        assert (tensor[slot, :, :3] != 0).any()
        assert (tensor[slot, :, 3:] == 0).all()
        assert tensor.shape[0] == 1


@pytest.mark.parametrize("threads", [1, 2, 3, 5])
@given(st.integers(0, 2**31), st.integers(1, 9000))
@settings(max_examples=15)
def test_activations_are_the_same_at_every_row(threads: int, seed: int, size: int) -> None:
    """torch splits 8 rows among threads anywhere, and rounds a vector's tail differently than its body."""
    torch.set_num_threads(threads)
    model = nn.Sequential(nn.SiLU(), nn.GELU())
    make_rowwise(model)
    assert all(type(child) is Rowwise for child in model)
    row = torch.randn(1, 2 * size, generator=torch.Generator().manual_seed(seed))
    for function in model:
        out = function(row.repeat(STRICT_ROWS, 1)[:, :size])  # a strided view, as of a joined gate and up
        assert (out == out[0]).all()
        torch.testing.assert_close(out[:1], function.function(row[:, :size]))


def test_mixtures_of_experts_are_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="strict is not served for mixtures of experts"):
        TorchModel.from_transformers(tiny("gpt_oss, sinks and experts"), strict=True)


def test_a_machine_that_cannot_keep_the_promise_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel whose result depends on the row's index: loading says so instead of promising."""
    module = tiny("llama")
    module.model.norm.register_forward_hook(
        lambda _, __, out: out * (1 + 1e-6 * torch.arange(out.shape[1])[None, :, None])
    )
    with pytest.raises(UnsupportedModelError, match="strict cannot be promised"):
        TorchModel.from_transformers(module, strict=True)


@pytest.mark.slow
@pytest.mark.thorough("qwen2.5-coder-0.5b", "float32", "bfloat16-2")
@pytest.mark.parametrize("threads", [2, 3])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["smollm2-135m", "qwen2.5-coder-0.5b"])
def test_real_weights(name: str, dtype: str, threads: int) -> None:
    settings: dict[str, Any] = {"kind": "gguf", "device": "cpu", "dtype": dtype, "strict": True}
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        model = load_torch_model(pulled(name), **settings)
        tokens = text(model, 40)
        expected = in_company(model, tokens, 0)
        for seed in (1, 2, 3):
            np.testing.assert_array_equal(in_company(model, tokens, seed), expected)
    finally:
        torch.set_num_threads(before)
