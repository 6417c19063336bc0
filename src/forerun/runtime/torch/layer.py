"""One decoder layer of the llama kind as a dozen operations instead of sixty.

At a few rows a pass is half memory traffic, half the overhead of small operations. Where a decoder layer is exactly
of a known class, its three input projections become one linear layer and so do gate and up; the rest calls torch
directly. The formula, with N rows:

    y = rms(x) ;  q, k, v = y W_qkv + b ;  [q, k = rms(q), rms(k)] ;  q, k = rotate(q), rotate(k)
    x = x + attention(q, k, v) W_o ;  g, u = rms(x) W_gu ;  x = x + (act(g) * u) W_d

Each replacement is compared with the layer it replaces on random rows, and dropped if they differ by more than
rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from forerun.runtime.torch.attention import Attention, EachSegment, Segment, attending, current
from forerun.runtime.torch.cache import LayerShape, Slab
from forerun.runtime.torch.linear import joined

KNOWN = {
    f"transformers.models.{family}.modeling_{family}.{name}DecoderLayer"
    for family, name in (("llama", "Llama"), ("mistral", "Mistral"), ("qwen2", "Qwen2"), ("qwen3", "Qwen3"))
}
"""Layer classes whose forward was read and is the formula above, at every position."""

_PARTS = {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"}
_MLP = {"gate_proj", "up_proj", "down_proj", "act_fn"}
_PROJECTIONS = {"q_proj", "k_proj", "v_proj", "o_proj"}


class FusedLayer(nn.Module):  # type: ignore[misc]
    """Takes the place of a decoder layer; `layer` must have passed `recognised`."""

    def __init__(self, layer: Any, shape: LayerShape) -> None:
        super().__init__()
        for name, plain in vars(layer).items():  # what the model around it may read, such as `attention_type`
            if not name.startswith("_"):
                setattr(self, name, plain)
        attention, mlp = layer.self_attn, layer.mlp
        self.index = attention.layer_idx
        self.size, self.num_kv_heads, self.scaling = shape.key_size, shape.num_kv_heads, attention.scaling
        self.num_heads = attention.o_proj.in_features // shape.key_size
        self.qkv = joined([attention.q_proj, attention.k_proj, attention.v_proj])
        self.output = joined([attention.o_proj])
        self.gate_up = joined([mlp.gate_proj, mlp.up_proj])
        self.down = joined([mlp.down_proj])
        self.act = mlp.act_fn
        # Plain attributes from here on: looking a submodule up and calling it costs more than some of these operations.
        self._calls = (self.qkv.forward, self.output.forward, self.gate_up.forward, self.down.forward)
        self._norm_in, self._norm_mlp = rms_norm(layer.input_layernorm), rms_norm(layer.post_attention_layernorm)
        q_norm, k_norm = getattr(attention, "q_norm", None), getattr(attention, "k_norm", None)
        self._norms_qk = None if q_norm is None else (rms_norm(q_norm), rms_norm(k_norm))

    def forward(
        self, hidden_states: torch.Tensor, *_: Any, position_embeddings: tuple[torch.Tensor, torch.Tensor], **__: Any
    ) -> torch.Tensor:
        """[1, N, hidden] -> [1, N, hidden], attending through the pass that runs."""
        qkv, output, gate_up, down = self._calls
        attention = current()
        x, heads, num_qk = hidden_states[0], self.num_heads, self.num_heads + self.num_kv_heads
        rows = qkv(self._norm_in(x)).view(x.shape[0], -1, self.size)  # [N, heads + 2 kv_heads, size]
        qk = rows[:, :num_qk]
        if self._norms_qk is not None:
            norm_q, norm_k = self._norms_qk
            qk = torch.cat([norm_q(qk[:, :heads]), norm_k(qk[:, heads:])], dim=1)
        cos, sin = _rotation(attention, position_embeddings)
        first, second = qk.split(self.size // 2, dim=-1)
        qk = (qk * cos + torch.cat((second, first), dim=-1) * sin).transpose(0, 1)  # [heads + kv_heads, N, size]
        value = rows[:, num_qk:].transpose(0, 1)
        attended = attention.attend(self.index, qk[:heads], qk[heads:], value, self.scaling)
        x = x + output(attended.reshape(x.shape[0], -1))
        gate, up = gate_up(self._norm_mlp(x)).chunk(2, dim=-1)
        return (x + down(self.act(gate).mul_(up))).unsqueeze(0)


def _rotation(
    attention: Attention, position_embeddings: tuple[torch.Tensor, torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin as [N, 1, size], the first half of sin negated: the minus of (-second, first). All layers of a pass
    share them."""
    if attention.rotation is None or attention.rotation[0] is not position_embeddings:
        cos, sin = position_embeddings[0][0, :, None], position_embeddings[1][0, :, None]
        first, second = sin.chunk(2, dim=-1)
        attention.rotation = (position_embeddings, cos, torch.cat((-first, second), dim=-1))
    return attention.rotation[1], attention.rotation[2]


def rms_norm(norm: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    """x / sqrt(mean(x^2) + eps) * weight over the last axis.

    torch has no such kernel on a CPU: it runs nine operations. But (x, -x) has mean 0 and the variance mean(x^2), so
    the first half of its layer norm, which is one kernel, is the answer. Its running mean cancels to about 1e-4 of
    the result at worst: nothing beside bfloat16's own 4e-3, too much for float32.
    """
    weight, epsilon = norm.weight.detach(), norm.variance_epsilon
    size = weight.shape[0]
    if weight.device.type != "cpu" or weight.dtype is not torch.bfloat16:
        return lambda x: torch.rms_norm(x, (size,), weight, epsilon)
    twice = torch.cat([weight, weight])
    return lambda x: torch.layer_norm(torch.cat((x, -x), dim=-1), (2 * size,), twice, None, epsilon)[..., :size]


def recognised(layer: Any, shape: LayerShape) -> bool:
    """Whether `layer` is of a known class and has the parts of it, and no others."""
    if f"{type(layer).__module__}.{type(layer).__qualname__}" not in KNOWN or _names(layer) != _PARTS:
        return False
    attention, mlp = layer.self_attn, layer.mlp
    norms = _names(attention) - _PROJECTIONS
    if _names(mlp) != _MLP or not _names(attention) >= _PROJECTIONS or norms not in (set(), {"q_norm", "k_norm"}):
        return False
    linears = [getattr(attention, name) for name in ("q_proj", "k_proj", "v_proj", "o_proj")]
    linears += [mlp.gate_proj, mlp.up_proj, mlp.down_proj]
    if any(type(linear) is not nn.Linear or linear._forward_hooks or linear._forward_pre_hooks for linear in linears):
        return False
    q, k, v, _, gate, up, _ = ((linear.bias is not None) for linear in linears)
    return q == k == v and gate == up and shape.key_size == shape.value_size and shape.key_size % 2 == 0


def _names(module: nn.Module) -> set[str]:
    return {name for name, _ in module.named_children()}


def fuse_layers(model: Any, shapes: tuple[LayerShape, ...]) -> int:
    """Replace every recognised decoder layer whose fused form gives the same rows, in place; returns how many."""
    decoder = getattr(model, "model", None)
    layers, rotary = getattr(decoder, "layers", None), getattr(decoder, "rotary_emb", None)
    if not isinstance(layers, nn.ModuleList) or rotary is None or len(layers) != len(shapes):
        return 0
    num_fused = 0
    for index, shape in enumerate(shapes):
        layer = layers[index]  # one at a time: the layers replaced before are gone, and their weights with them
        if not recognised(layer, shape) or layer.self_attn.layer_idx != index:
            continue
        fused = FusedLayer(layer, shape)
        if _same(layer, fused, rotary, shapes):
            layers[index] = fused
            num_fused += 1
    return num_fused


def _same(layer: Any, fused: FusedLayer, rotary: Any, shapes: tuple[LayerShape, ...]) -> bool:
    """Whether both give the same rows, up to rounding. The first row is so small that the norm's epsilon counts."""
    weight = layer.input_layernorm.weight
    generator = torch.Generator().manual_seed(0)
    x = torch.randn((1, 3, weight.shape[0]), generator=generator)
    x[:, 0] *= layer.input_layernorm.variance_epsilon**0.5
    x = x.to(weight)
    positions = rotary(x, torch.tensor([[3, 4, 5]], device=x.device))

    def run(which: Callable[..., Any]) -> Any:
        slab = Slab(shapes, 8, x.dtype, x.device)
        segment = Segment(slab, slab.take(), start=0, count=3, row=0)
        with torch.inference_mode(), attending(EachSegment([segment], shapes)):
            return which(x, position_embeddings=positions, attention_mask=None)

    expected, found = run(layer), run(fused)
    if not isinstance(expected, torch.Tensor) or expected.shape != found.shape:
        return False
    # What the layer adds is compared, not the residual stream, which would hide it.
    expected, found = (expected - x).float(), (found - x).float()
    difference = (found - expected).norm(dim=-1) / expected.norm(dim=-1).clamp(min=1e-20)
    return bool(difference.max() < (5e-2 if x.dtype != torch.float32 else 1e-3))
