"""The decoder layer that talker, predictor and codec share, and how its parts are named in a checkpoint."""

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from polyvox.kernels.attention import paged_attention
from polyvox.kernels.decode_attention import rotary_attention
from polyvox.kernels.norm import add_rms_norm, rms_norm
from polyvox.kernels.paged_kv import PagedKVView
from polyvox.kernels.rotary import rotary_store
from polyvox.kernels.silu_mul import silu_mul
from polyvox.kernels.small_batch_linear import Norm, is_small_batch, project
from polyvox.models.protocol import Attend
from polyvox.models.qwen3_tts.shapes import TransformerConfig

# Rows of a call up to which one launch for rotation, cache and attention is faster than two (H200: 3 % of a frame step
# at 64 rows gained, 6 % at 512 lost).
ONE_LAUNCH_ROWS = 128


def widened(dtype: torch.dtype) -> torch.dtype:
    """The type of what the reference computes in float32 whatever the model's type; float64 stays as it is."""
    return torch.promote_types(dtype, torch.float32)


class Fused(nn.Module):
    """Several linear maps of one input, kept as one matrix; a checkpoint names them one by one."""

    def __init__(self, inputs: int, **outputs: int) -> None:
        super().__init__()
        self.outputs = outputs
        self.weight = nn.Parameter(torch.empty(sum(outputs.values()), inputs))

    def forward(self, x: Tensor) -> Tensor:
        """The outputs behind one another."""
        return F.linear(x, self.weight)


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
        return rms_norm(x, self.weight, self.eps)

    def of_sum(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        """residual + x and its norm."""
        return add_rms_norm(x, residual, self.weight, self.eps)

    @property
    def before(self) -> Norm:
        """The same as a part of the product that follows it."""
        return Norm(self.weight, self.eps)


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
        # [T,dim] of the first row, for kernels, which look angles up by position: there the row is all positions.
        self.table = self.cos[0, :, 0], self.sin[0, :, 0]

    def rows(self, start: int, stop: int) -> "Rotation":
        part = object.__new__(Rotation)
        part.cos, part.sin, part.table = self.cos[:, start:stop], self.sin[:, start:stop], self.table
        return part

    def __call__(self, x: Tensor) -> Tensor:
        """Rotates [B,T,heads,dim], the first half of dim paired with the second."""
        return x * self.cos + x.roll(x.shape[-1] // 2, -1) * self.sin


class Attention(nn.Module):
    def __init__(self, config: TransformerConfig, qk_norm: bool) -> None:
        super().__init__()
        queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
        self.head_dim, self.norm_eps = config.head_dim, config.norm_eps
        self.qkv = Fused(config.hidden_size, q_proj=queries, k_proj=keys, v_proj=keys)
        self.o_proj = nn.Linear(queries, config.hidden_size, bias=False)
        if qk_norm:
            self.q_norm: nn.Module = RMSNorm(config.head_dim, config.norm_eps)
            self.k_norm: nn.Module = RMSNorm(config.head_dim, config.norm_eps)
        else:
            self.q_norm = self.k_norm = nn.Identity()

    def forward(self, x: Tensor, layer: int, rotate: Rotation, attend: Attend) -> Tensor:
        qkv = self.qkv(x)
        if isinstance(attend, PagedKVView):
            return self.o_proj(self.over_pages(qkv, layer, rotate, attend))
        parts = qkv.split(list(self.qkv.outputs.values()), dim=-1)
        q, k, v = (part.unflatten(-1, (-1, self.head_dim)) for part in parts)
        return self.o_proj(attend(layer, rotate(self.q_norm(q)), rotate(self.k_norm(k)), v).flatten(-2))

    def over_pages(self, qkv: Tensor, layer: int, rotate: Rotation, pages: PagedKVView) -> Tensor:
        """What rows [..., q, k and v] hear of their past in pages; rotate has the angles of all positions."""
        rows = qkv.flatten(0, -2)
        norms = None
        if isinstance(self.q_norm, RMSNorm) and isinstance(self.k_norm, RMSNorm):
            norms = self.q_norm.weight, self.k_norm.weight
        keys, values = pages.keys[layer], pages.values[layer]
        where = pages.tables, pages.slots, pages.positions
        if pages.decode_only and len(rows) <= ONE_LAUNCH_ROWS:
            heard = rotary_attention(rows, norms, self.norm_eps, *rotate.table, keys, values, *where)
        else:
            q = rotary_store(rows, norms, self.norm_eps, *rotate.table, keys, values, *where)
            heard = paged_attention(q, keys, values, *where)
        return heard.view(*qkv.shape[:-1], -1)


class MLP(nn.Module):
    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        size = config.intermediate_size
        self.gate_up = Fused(config.hidden_size, gate_proj=size, up_proj=size)
        self.down_proj = nn.Linear(size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(silu_mul(self.gate_up(x)))


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

    def forward(
        self, x: Tensor, normed: Tensor, layer: int, rotate: Rotation, attend: Attend, after: RMSNorm
    ) -> tuple[Tensor, Tensor]:
        """x, of which normed is the input norm, to this layer's x and its norm by whatever comes after."""
        heard = self.self_attn_layer_scale(self.self_attn(normed, layer, rotate, attend))
        x, normed = self.post_attention_layernorm.of_sum(heard, x)
        return after.of_sum(self.mlp_layer_scale(self.mlp(normed)), x)

    def of_few(self, x: Tensor, layer: int, rotate: Rotation, pages: PagedKVView) -> Tensor:
        """The same for few rows, x to this layer's x: norms and sums are parts of products. Without layer scales."""
        attention, mlp = self.self_attn, self.mlp
        qkv = project(x, attention.qkv.weight, self.input_layernorm.before)
        x = project(attention.over_pages(qkv, layer, rotate, pages), attention.o_proj.weight, add=x)
        opened = project(x, mlp.gate_up.weight, self.post_attention_layernorm.before, gated=True)
        return project(opened, mlp.down_proj.weight, add=x)


class Transformer(nn.Module):
    """A stack of layers and its last norm: rows [B,T,hidden] at rotated positions, the past behind `attend`."""

    def __init__(self, config: TransformerConfig, qk_norm: bool = True, layer_scale: bool = False) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(config, qk_norm, layer_scale) for _ in range(config.layers))
        self.norm = RMSNorm(config.hidden_size, config.norm_eps)

    def run(self, x: Tensor, rotate: Rotation, attend: Attend) -> Tensor:
        """Rows after the last norm. A norm is computed with the sum it is of, so each layer is given the next one's."""
        if isinstance(attend, PagedKVView) and is_small_batch(x):
            return self.norm(self.of_few(x, rotate, attend))
        norms = [*(cast(Layer, layer).input_layernorm for layer in self.layers), self.norm]
        normed = norms[0](x)
        for index, layer in enumerate(self.layers):
            x, normed = layer(x, normed, index, rotate, attend, norms[index + 1])
        return normed

    def of_few(self, x: Tensor, rotate: Rotation, pages: PagedKVView) -> Tensor:
        """Few rows before the last norm, which belongs to the product that follows."""
        for index, layer in enumerate(self.layers):
            x = cast(Layer, layer).of_few(x, index, rotate, pages)
        return x

    def read(self, x: Tensor, rotate: Rotation, attend: Attend, head: Tensor) -> Tensor:
        """The logits [B, vocab] that a head has for the last of each stream's rows."""
        if isinstance(attend, PagedKVView) and is_small_batch(x):
            return project(self.of_few(x, rotate, attend)[:, -1], head, self.norm.before)
        return F.linear(self.run(x, rotate, attend)[:, -1], head)
