# SPDX-License-Identifier: Apache-2.0
"""Transformer layers as they are trained: with dropout, with fewer passes over memory than the served modules.

A training step of the small talker is limited by memory bandwidth. The work of a layer before and after its attention
is one function each, of plain tensors; compiled, each is one or two kernels beside its matrix products. All layers and
all lengths of sequences share them, because they read rows [N,hidden].
"""

from collections.abc import Callable
from functools import cache, partial

import torch
from torch import Tensor
from torch.nn import functional as F

from polyvox.models.layers.mlp import MLP
from polyvox.models.layers.norm import RMSNorm
from polyvox.models.layers.rotary import RotaryEmbedding
from polyvox.models.layers.transformer import TransformerLayer
from polyvox.models.protocol import Attend
from polyvox.models.qwen3_tts.talker import Talker

DROPOUT = 0.1  # of each residual branch


def replace_layers(model: Talker, compiled: bool = False) -> None:
    """Replace the forward pass of all layers; compiled functions run in training mode only."""
    for stack in (model.model, model.code_predictor.model):
        for layer in stack.layers:
            assert isinstance(layer, TransformerLayer)
            layer.forward = partial(_forward, layer, compiled)  # type: ignore[method-assign]
        norm = stack.layers[0].input_layernorm
        assert isinstance(norm, RMSNorm)
        norm.forward = partial(_first_norm, norm)  # type: ignore[method-assign]


def _forward(
    layer: TransformerLayer,
    compiled: bool,
    x: Tensor,
    normed: Tensor,
    index: int,
    rotary: RotaryEmbedding,
    attend: Attend,
    next_norm: RMSNorm,
) -> tuple[Tensor, Tensor]:
    attention, mlp = layer.self_attn, layer.mlp
    assert isinstance(attention.q_norm, RMSNorm)
    assert isinstance(attention.k_norm, RMSNorm)
    assert isinstance(mlp, MLP)
    assert callable(attend)
    before, after = _compiled() if compiled and layer.training else (heads, residual_branches)
    batch, length = x.shape[:2]
    cos, sin = (part.expand(batch, -1, -1, -1).flatten(0, 1) for part in (rotary.cos, rotary.sin))
    q, k, v = before(
        normed.flatten(0, 1), attention.qkv.weight, attention.q_norm.weight, attention.k_norm.weight, cos, sin,
        attention.qkv.outputs["k_proj"] // attention.head_dim, attention.norm_eps,
    )  # fmt: skip
    attended = attend(index, *(part.unflatten(0, (batch, length)) for part in (q, k, v)))
    x, normed = after(
        attended.flatten(0, 1).flatten(-2), x.flatten(0, 1), attention.o_proj.weight,
        layer.post_attention_layernorm.weight, mlp.gate_up.weight, mlp.down_proj.weight, next_norm.weight,
        next_norm.eps, DROPOUT if layer.training else 0.0,
    )  # fmt: skip
    return x.unflatten(0, (batch, length)), normed.unflatten(0, (batch, length))


def heads(
    normed: Tensor, qkv: Tensor, q_norm: Tensor, k_norm: Tensor, cos: Tensor, sin: Tensor, keys: int, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values [N,heads,dim] of rows [N,hidden], after norm and rotation by angles [N,1,dim].

    keys: number of heads of keys and of values.
    """
    dim = len(q_norm)
    rows = F.linear(normed, qkv).unflatten(-1, (-1, dim))
    q, k, v = rows.split([rows.shape[1] - 2 * keys, keys, keys], 1)
    q, k = (_rotated(_norm(part, norm, eps), cos, sin) for part, norm in ((q, q_norm), (k, k_norm)))
    return q.to(v.dtype), k.to(v.dtype), v


def residual_branches(
    attended: Tensor,
    x: Tensor,
    output: Tensor,
    norm: Tensor,
    gate_up: Tensor,
    down: Tensor,
    next_norm: Tensor,
    eps: float,
    dropout: float,
) -> tuple[Tensor, Tensor]:
    """x with the outputs of attention and MLP, and its norm by the next layer's input norm; rows [N,hidden]."""
    x = x + F.dropout(F.linear(attended, output), dropout)
    gate, up = F.linear(_norm(x, norm, eps), gate_up).chunk(2, -1)
    x = x + F.dropout(F.linear(F.silu(gate) * up, down), dropout)
    return x, _norm(x, next_norm, eps).to(attended.dtype)


def _first_norm(norm: RMSNorm, x: Tensor) -> Tensor:
    """The norm before the first layer, in the type of the others, so that all layers share compiled functions."""
    device = x.device.type
    made = _norm(x, norm.weight, norm.eps)
    return made.to(torch.get_autocast_dtype(device)) if torch.is_autocast_enabled(device) else made


def _norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return F.rms_norm(x.to(weight.dtype), weight.shape, weight, eps)


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return x * cos + x.roll(x.shape[-1] // 2, -1) * sin


@cache
def _compiled() -> tuple[Callable[..., tuple[Tensor, Tensor, Tensor]], Callable[..., tuple[Tensor, Tensor]]]:
    return torch.compile(heads, dynamic=False), torch.compile(residual_branches, dynamic=False)
