"""The decoder layer that talker, predictor and codec share, and how its parts are named in a checkpoint."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from polyvox.models.protocol import Attend
from polyvox.models.qwen3_tts.shapes import TransformerConfig


def widened(dtype: torch.dtype) -> torch.dtype:
    """The type of what the reference computes in float32 whatever the model's type; float64 stays as it is."""
    return torch.promote_types(dtype, torch.float32)


class Fused(nn.Module):
    """Several linear maps of one input, kept as one matrix; a checkpoint names them one by one."""

    def __init__(self, inputs: int, **outputs: int) -> None:
        super().__init__()
        self.outputs = outputs
        self.weight = nn.Parameter(torch.empty(sum(outputs.values()), inputs))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return F.linear(x, self.weight).split(list(self.outputs.values()), dim=-1)


class Stacked(nn.Module):
    """Matrices of one shape, kept as one tensor [count, rows, columns]; a checkpoint numbers them."""

    def __init__(self, count: int, rows: int, columns: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(count, rows, columns))

    def lookup(self, ids: Tensor) -> Tensor:
        """Row ids[..., i] of matrix i: [..., count] -> [..., count, columns]."""
        count, rows, columns = self.weight.shape
        offsets = torch.arange(count, device=ids.device) * rows
        return F.embedding(ids + offsets, self.weight.view(count * rows, columns))


def file_tensors(module: nn.Module, prefix: str = "") -> dict[str, Tensor]:
    """Each tensor under its name in a checkpoint file, as a view of the parameter that holds it.

    Module attributes are named as the files name them; only fused and stacked weights need a translation.
    Loading, random weights and export all go through this one map.
    """
    found = {prefix + name: parameter.detach() for name, parameter in module.named_parameters(recurse=False)}
    for name, child in module.named_children():
        if isinstance(child, Fused):
            pieces = child.weight.detach().split(list(child.outputs.values()))
            found |= {f"{prefix}{part}.weight": piece for part, piece in zip(child.outputs, pieces, strict=True)}
        elif isinstance(child, Stacked):
            found |= {f"{prefix}{name}.{i}.weight": piece for i, piece in enumerate(child.weight.detach())}
        else:
            found |= file_tensors(child, f"{prefix}{name}.")
    return found


class RMSNorm(nn.Module):
    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        wide = x.to(widened(x.dtype))
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return self.weight * wide.to(x.dtype)


class LayerScale(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.empty(size))

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * x


class Rotation:
    """The rotary angles of some positions, [B,T]; made once a pass and used by all of its layers."""

    def __init__(self, positions: Tensor, config: TransformerConfig, dtype: torch.dtype) -> None:
        wide = widened(dtype)
        exponents = torch.arange(0, config.head_dim, 2, device=positions.device).to(wide) / config.head_dim
        angles = positions.to(wide)[..., None] * (1.0 / config.rope_theta**exponents)
        self.cos = torch.cat([angles, angles], dim=-1).cos().to(dtype)[:, :, None]
        self.sin = torch.cat([-angles, angles], dim=-1).sin().to(dtype)[:, :, None]

    def rows(self, start: int, stop: int) -> "Rotation":
        part = object.__new__(Rotation)
        part.cos, part.sin = self.cos[:, start:stop], self.sin[:, start:stop]
        return part

    def __call__(self, x: Tensor) -> Tensor:
        """Rotates [B,T,heads,dim], the first half of dim paired with the second."""
        return x * self.cos + x.roll(x.shape[-1] // 2, -1) * self.sin


class Attention(nn.Module):
    def __init__(self, config: TransformerConfig, qk_norm: bool) -> None:
        super().__init__()
        queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
        self.head_dim = config.head_dim
        self.qkv = Fused(config.hidden_size, q_proj=queries, k_proj=keys, v_proj=keys)
        self.o_proj = nn.Linear(queries, config.hidden_size, bias=False)
        if qk_norm:
            self.q_norm: nn.Module = RMSNorm(config.head_dim, config.norm_eps)
            self.k_norm: nn.Module = RMSNorm(config.head_dim, config.norm_eps)
        else:
            self.q_norm = self.k_norm = nn.Identity()

    def forward(self, x: Tensor, layer: int, rotate: Rotation, attend: Attend) -> Tensor:
        q, k, v = (part.unflatten(-1, (-1, self.head_dim)) for part in self.qkv(x))
        return self.o_proj(attend(layer, rotate(self.q_norm(q)), rotate(self.k_norm(k)), v).flatten(-2))


class MLP(nn.Module):
    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        size = config.intermediate_size
        self.gate_up = Fused(config.hidden_size, gate_proj=size, up_proj=size)
        self.down_proj = nn.Linear(size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up(x)
        return self.down_proj(F.silu(gate) * up)


class Layer(nn.Module):
    """One pre-norm decoder layer: the talker's with QK-norm, the codec's with layer scales instead."""

    def __init__(self, config: TransformerConfig, qk_norm: bool, layer_scale: bool) -> None:
        super().__init__()
        size = config.hidden_size
        self.self_attn = Attention(config, qk_norm)
        self.mlp = MLP(config)
        self.input_layernorm = RMSNorm(size, config.norm_eps)
        self.post_attention_layernorm = RMSNorm(size, config.norm_eps)
        self.self_attn_layer_scale = LayerScale(size) if layer_scale else nn.Identity()
        self.mlp_layer_scale = LayerScale(size) if layer_scale else nn.Identity()

    def forward(self, x: Tensor, layer: int, rotate: Rotation, attend: Attend) -> Tensor:
        x = x + self.self_attn_layer_scale(self.self_attn(self.input_layernorm(x), layer, rotate, attend))
        return x + self.mlp_layer_scale(self.mlp(self.post_attention_layernorm(x)))


class Transformer(nn.Module):
    """A stack of layers and its last norm: rows [B,T,hidden] at rotated positions, the past behind `attend`."""

    def __init__(self, config: TransformerConfig, qk_norm: bool = True, layer_scale: bool = False) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(config, qk_norm, layer_scale) for _ in range(config.layers))
        self.norm = RMSNorm(config.hidden_size, config.norm_eps)

    def run(self, x: Tensor, rotate: Rotation, attend: Attend) -> Tensor:
        for index, layer in enumerate(self.layers):
            x = layer(x, index, rotate, attend)
        return self.norm(x)
