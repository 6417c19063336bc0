"""The ways of attending agree with the formula and with each other, and no sequence can see another's slot."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.runtime.contract import check_model_contract, feed, text
from tests.runtime.tiny import MODELS, tiny

from forerun.runtime.torch import TorchModel
from forerun.runtime.torch import model as model_module
from forerun.runtime.torch.attention import Attention, EachRow, EachSegment, Segment, attend_rows
from forerun.runtime.torch.cache import Cache, LayerShape
from forerun.runtime.torch.padded import PaddedGroups
from forerun.types import CostCurve, Span

HEADS, KV_HEADS, SIZE, VALUE_SIZE = 6, 2, 8, 12
CPU = torch.device("cpu")
KINDS = ["each segment", "each row", "padded"]


def build(kind: str, segments: list[Segment], shapes: tuple[LayerShape, ...]) -> Attention:
    if kind == "padded":
        return PaddedGroups(segments, shapes, CPU)
    return {"each segment": EachSegment, "each row": EachRow}[kind](segments, shapes)


def formula(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    window: int | None,
    softcap: float | None,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """Attention of one whole sequence, written row by row and head by head: [heads, n, size] -> [n, heads, size]."""
    out = torch.zeros(query.shape[1], HEADS, VALUE_SIZE, dtype=query.dtype)
    for i in range(query.shape[1]):
        low = 0 if window is None else max(0, i + 1 - window)
        for head in range(HEADS):
            shared = head // (HEADS // KV_HEADS)
            scores = (key[shared, low : i + 1] @ query[head, i]) * 0.3
            if softcap is not None:
                scores = softcap * torch.tanh(scores / softcap)
            weights = torch.exp(scores - scores.max())
            extra = 0 if sinks is None else torch.exp(sinks[head] - scores.max())
            out[i, head] = (weights / (weights.sum() + extra)) @ value[shared, low : i + 1]
    return out


@pytest.mark.parametrize("sinks", [False, True])
@pytest.mark.parametrize("softcap", [None, 1.5])
@pytest.mark.parametrize("window", [None, 1, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_ragged_passes_follow_the_formula(kind: str, window: int | None, softcap: float | None, sinks: bool) -> None:
    generator = torch.Generator().manual_seed(1)
    shapes = (LayerShape(1, 4, 4), LayerShape(KV_HEADS, SIZE, VALUE_SIZE, window))
    cache = Cache(shapes, torch.float64, CPU)
    extra = torch.randn(HEADS, generator=generator, dtype=torch.float64) if sinks else None
    lengths = [70, 9, 23]
    draw = lambda heads, size: torch.randn(heads, size[0], size[1], generator=generator, dtype=torch.float64)  # noqa: E731
    whole = [(draw(HEADS, (n, SIZE)), draw(KV_HEADS, (n, SIZE)), draw(KV_HEADS, (n, VALUE_SIZE))) for n in lengths]
    expected = [formula(q, k, v, window, softcap, extra) for q, k, v in whole]
    for key in range(3):
        cache.begin(key)
    done = [0, 0, 0]
    for sizes in ([5, 1, 20], [60, 1, 1], [2, 7, 0], [3, 0, 2]):
        segments, row = [], 0
        for key, size in enumerate(sizes):
            cache.reserve(key, done[key] + size)
        for key, size in enumerate(sizes):
            if size:
                segments.append(Segment(*cache.place(key), done[key], size, row))
                row += size
        parts = [
            [whole[key][part][:, done[key] : done[key] + size] for key, size in enumerate(sizes)] for part in range(3)
        ]
        query, key_rows, values = (torch.cat(part, dim=1) for part in parts)
        found = build(kind, segments, shapes).attend(1, query, key_rows, values, 0.3, softcap, extra)
        wanted = torch.cat([expected[key][done[key] : done[key] + size] for key, size in enumerate(sizes)])
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-6 if softcap or sinks else 1e-12)
        for key, size in enumerate(sizes):
            done[key] += size
            cache.extend(key, done[key])
    assert done == lengths


def test_nothing_of_another_slot_is_read() -> None:
    """NaN in every slot but one's own, and beyond one's own length, must not reach a row."""
    shapes = (LayerShape(KV_HEADS, SIZE, SIZE),)
    for kind in ("each segment", "each row"):
        cache = Cache(shapes, torch.float32, CPU)
        for key in (0, 1, 2):
            cache.begin(key)
            cache.reserve(key, 5)
        slab, slot = cache.place(1)
        for tensor in (*slab.keys, *slab.values):
            tensor.fill_(torch.nan)
        pieces = [torch.randn(heads, 4, SIZE) for heads in (HEADS, KV_HEADS, KV_HEADS)]
        out = build(kind, [Segment(slab, slot, 0, 4, 0)], shapes).attend(0, *pieces, 0.3)
        assert torch.isfinite(out).all()


def test_padding_never_meets_what_a_freed_sequence_left() -> None:
    """Padded attention multiplies rows beyond the length by 0: a slot must not come back with another's NaN."""
    shapes = (LayerShape(KV_HEADS, SIZE, SIZE),)
    cache = Cache(shapes, torch.float32, CPU)
    for key in (0, 1):
        cache.begin(key)
        cache.reserve(key, 8)
    slab, slot = cache.place(1)
    slab.values[0][slot].fill_(torch.nan)
    cache.free(1)
    cache.begin(2)
    cache.reserve(2, 3)
    assert cache.place(2) == (slab, slot)
    pieces = [torch.randn(heads, 3, SIZE) for heads in (HEADS, KV_HEADS, KV_HEADS)]
    out = PaddedGroups([Segment(slab, slot, 0, 3, 0)], shapes, CPU).attend(0, *pieces, 0.3)
    assert torch.isfinite(out).all()


@pytest.mark.parametrize("name", MODELS)
def test_padded_groups_keep_the_contract(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The path of a GPU, run here: same contract, same rows."""
    monkeypatch.setattr(model_module, "measure_cost", lambda model: CostCurve(1, {1: 1.0}))
    expected_model = TorchModel.from_transformers(tiny(name))
    monkeypatch.setattr(TorchModel, "_attention", lambda self, segments: PaddedGroups(segments, self._shapes, CPU))
    made = TorchModel.from_transformers(tiny(name))
    check_model_contract(lambda: made, tolerance=2e-4)
    tokens = text(made, 40)
    monkeypatch.undo()
    expected_model.begin(0)
    expected = feed(expected_model, 0, tokens)
    monkeypatch.setattr(TorchModel, "_attention", lambda self, segments: PaddedGroups(segments, self._shapes, CPU))
    for key in range(3):
        made.begin(key)
    out = made.forward([Span(0, 0, tokens[:17], 17), Span(1, 0, tokens, 40), Span(2, 0, tokens[:3], 3)])
    np.testing.assert_allclose(out.matrix[17:57], expected, atol=2e-4)
    np.testing.assert_allclose(out.matrix[:17], expected[:17], atol=2e-4)
    np.testing.assert_allclose(out.matrix[57:], expected[:3], atol=2e-4)


@given(st.floats(0.1, 3.0), st.integers(1, 6), st.integers(0, 2**31))
def test_the_written_out_path_is_the_kernels_path(scaling: float, rows: int, seed: int) -> None:
    """Soft caps so large that they do nothing, and sinks so low that they take nothing, change nothing."""
    generator = torch.Generator().manual_seed(seed)
    query = torch.randn(1, 2, rows, 8, generator=generator)
    key, value = torch.randn(2, 1, 2, 9, 8, generator=generator)
    kernel = attend_rows(query, key, value, None, scaling, None, None)
    capped = attend_rows(query, key, value, None, scaling, 1e6, None)
    sunk = attend_rows(query, key, value, None, scaling, None, torch.full((2, rows, 1), -1e9))
    torch.testing.assert_close(capped, kernel, rtol=0, atol=1e-3)
    torch.testing.assert_close(sunk, kernel, rtol=0, atol=1e-5)
