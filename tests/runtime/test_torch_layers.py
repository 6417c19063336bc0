"""Packed linear layers and fused decoder layers give the rows of what they replace, and are used only where they do."""

from __future__ import annotations

import copy
import weakref
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from tests.runtime.tiny import MODELS, tiny
from torch import nn

from forerun.runtime.torch import TorchModel
from forerun.runtime.torch import layer as layer_module
from forerun.runtime.torch.cache import LayerShape
from forerun.runtime.torch.layer import KNOWN, FusedLayer, fuse_layers, recognised, rms_norm
from forerun.runtime.torch.linear import PackedLinear, can_pack, joined, pack_linears, plain_linear

SHAPES = (LayerShape(2, 16, 16),) * 2
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}

needs_packing = pytest.mark.skipif(not can_pack(torch.float32), reason="this build of torch has no packed linear")


def dtypes() -> list[torch.dtype]:
    return [dtype for dtype in TOLERANCE if can_pack(dtype)]


@needs_packing
@given(
    st.sampled_from(dtypes() or [torch.float32]),
    st.integers(0, 20),
    st.integers(1, 150),
    st.integers(1, 150),
    st.booleans(),
    st.integers(0, 2**31),
)
def test_packed_linear_is_linear(
    dtype: torch.dtype, rows: int, inputs: int, outputs: int, biased: bool, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn((outputs, inputs), generator=generator).to(dtype)
    bias = torch.randn(outputs, generator=generator).to(dtype) if biased else None
    x = torch.randn((1, rows, inputs), generator=generator).to(dtype)
    packed = PackedLinear(weight, bias)
    found, expected = packed(x), F.linear(x, weight, bias)
    assert found.dtype == dtype
    assert found.shape == expected.shape
    torch.testing.assert_close(found, expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype] * inputs**0.5)
    torch.testing.assert_close(packed.weight, weight, rtol=0, atol=0)


@needs_packing
def test_packing_keeps_what_is_shared_and_what_is_special() -> None:
    class Special(nn.Linear):
        pass

    model = nn.Module()
    model.embedding = nn.Embedding(7, 4)
    model.head = nn.Linear(4, 7, bias=False)
    model.head.weight = model.embedding.weight
    model.first = model.second = nn.Linear(4, 4)
    model.special, model.hooked, model.narrow = Special(4, 4), nn.Linear(4, 4), nn.Linear(4, 4, dtype=torch.float16)
    model.hooked.register_forward_hook(lambda *_: None)
    table = model.embedding.weight.clone()
    assert pack_linears(model) == 2
    assert type(model.head) is PackedLinear
    assert model.first is model.second
    assert [type(part) for part in (model.special, model.hooked, model.narrow)] == [Special, nn.Linear, nn.Linear]
    torch.testing.assert_close(model.embedding.weight.detach(), table.detach())


def test_without_packing_linear_layers_stay_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forerun.runtime.torch.linear.can_pack", lambda dtype: False)
    first, second = nn.Linear(5, 3), nn.Linear(5, 4)
    both = joined([first, second])
    assert type(both) is nn.Linear
    x = torch.randn(2, 5)
    torch.testing.assert_close(both(x), torch.cat([first(x), second(x)], dim=-1))
    assert pack_linears(nn.Sequential(first)) == 0
    model = TorchModel.from_transformers(tiny("qwen2"))
    assert not any(isinstance(module, PackedLinear) for module in model._module.modules())


def test_can_pack_says_no_where_the_kernel_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PackedLinear, "forward", lambda self, rows: rows @ self.weight.T + 1)
    assert not can_pack.__wrapped__(torch.float32)
    assert not can_pack.__wrapped__(torch.float16)


@given(
    st.sampled_from(list(TOLERANCE)),
    st.integers(1, 9),
    st.integers(1, 300),
    st.sampled_from([1e-4, 1.0, 300.0]),
    st.sampled_from([1e-6, 1e-5]),
    st.integers(0, 2**31),
)
def test_rms_norm_is_the_formula(
    dtype: torch.dtype, rows: int, size: int, scale: float, epsilon: float, seed: int
) -> None:
    """Against float64, with inputs around which epsilon counts for everything and for nothing, and off their mean."""
    generator = torch.Generator().manual_seed(seed)
    norm = nn.Module()
    norm.weight, norm.variance_epsilon = nn.Parameter(torch.randn(size, generator=generator).to(dtype)), epsilon
    x = ((torch.randn((rows, 2, size), generator=generator) + 3) * scale).to(dtype)
    exact = x.double() / (x.double().square().mean(-1, keepdim=True) + epsilon).sqrt() * norm.weight.double()
    found = rms_norm(norm)(x)
    assert found.dtype == dtype
    bound = 2**-8 if dtype is torch.bfloat16 else 1e-6
    assert ((found.double() - exact).abs() <= bound * exact.abs().clamp(min=1e-3)).all()


FUSED = ["llama", "llama, biased and tied", "llama, llama3 rope", "qwen2", "qwen2, windows above a layer", "qwen3"]


@pytest.mark.parametrize("name", MODELS)
def test_which_models_are_fused(name: str) -> None:
    model = TorchModel.from_transformers(tiny(name))
    fused = sum(isinstance(module, FusedLayer) for module in model._module.modules())
    assert fused == (2 if name in [*FUSED, "mistral, windows"] else 0)


def test_known_layers_still_exist() -> None:
    import importlib

    for name in KNOWN:
        module, _, layer = name.rpartition(".")
        assert isinstance(getattr(importlib.import_module(module), layer), type)


def test_bfloat16_layers_are_fused_too() -> None:
    model = TorchModel.from_transformers(tiny("qwen2", torch.bfloat16))
    assert sum(isinstance(module, FusedLayer) for module in model._module.modules()) == 2


def change_epsilon(layer: Any) -> None:
    layer.post_attention_layernorm.variance_epsilon = 1e-2
    forward = layer.post_attention_layernorm.forward

    def with_own_epsilon(x: torch.Tensor) -> torch.Tensor:
        layer.post_attention_layernorm.variance_epsilon = 1e-6
        out = forward(x)
        layer.post_attention_layernorm.variance_epsilon = 1e-2
        return out

    layer.post_attention_layernorm.forward = with_own_epsilon


def change_activation(layer: Any) -> None:
    forward = layer.mlp.forward
    layer.mlp.forward = lambda x: 1.01 * forward(x)


def change_attention(layer: Any) -> None:
    layer.self_attn.scaling *= 1.0
    forward = layer.self_attn.forward
    layer.self_attn.forward = lambda *a, **k: tuple(None if o is None else o * 0.97 for o in forward(*a, **k))


def change_class(layer: Any) -> None:
    layer.__class__ = type("Other", (type(layer),), {})


def add_part(layer: Any) -> None:
    layer.self_attn.gate = nn.Linear(3, 3)


def hook_linear(layer: Any) -> None:
    layer.mlp.down_proj.register_forward_hook(lambda _, __, out: out)


@pytest.mark.parametrize(
    "change", [change_epsilon, change_activation, change_attention, change_class, add_part, hook_linear]
)
def test_a_layer_that_is_not_quite_the_formula_is_kept(change: Any) -> None:
    """Each of these is a layer of a known class that does something else."""
    module = tiny("llama")
    module.config._attn_implementation = "forerun"
    control = copy.deepcopy(module)
    assert fuse_layers(control, SHAPES) == 2
    change(module.model.layers[1])
    assert fuse_layers(module, SHAPES) == 1
    assert isinstance(module.model.layers[0], FusedLayer)
    assert not isinstance(module.model.layers[1], FusedLayer)


def test_layers_that_were_replaced_are_let_go_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading must not hold the plain and the packed weights of all layers at once."""
    module = tiny("llama", num_hidden_layers=4)
    module.config._attn_implementation = "forerun"
    alive = [weakref.ref(layer.mlp.up_proj.weight) for layer in module.model.layers]
    held: list[int] = []
    real = layer_module._same
    monkeypatch.setattr(
        layer_module, "_same", lambda *a: (held.append(sum(ref() is not None for ref in alive)), real(*a))[1]
    )
    assert fuse_layers(module, (SHAPES[0],) * 4) == 4
    assert held == [4, 3, 2, 1]


def test_recognition_needs_the_shape_too() -> None:
    layer = tiny("llama").model.layers[0]
    assert recognised(layer, LayerShape(2, 16, 16))
    assert not recognised(layer, LayerShape(2, 16, 8))


def test_plain_linear_shares_its_tensors() -> None:
    weight, bias = torch.randn(3, 5), torch.randn(3)
    linear = plain_linear(weight, bias)
    assert linear.weight.data_ptr() == weight.data_ptr()
    torch.testing.assert_close(linear(torch.ones(2, 5)), F.linear(torch.ones(2, 5), weight, bias))
