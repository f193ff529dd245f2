# SPDX-License-Identifier: Apache-2.0
"""The pre-norm decoder layer that generators and vocoders share. Attributes have the names of checkpoint files."""

from collections.abc import Iterable
from itertools import islice
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from polyvox.kernels import attention_output, cache_attention, register_linear, small_batch_linear
from polyvox.kernels.norm import rms_norm_reference
from polyvox.kernels.pre_norm import Norm, PreNorm, embed_pre_norm, pair_pre_norm, pre_norm
from polyvox.kernels.products import ADD, GATED, PLAIN
from polyvox.kernels.ring_attention import RingAttention
from polyvox.kernels.rotary import HeadRotation, rotary_store
from polyvox.models.layers.linear import Linear, PackedLinear, Projection
from polyvox.models.layers.mlp import MLP
from polyvox.models.layers.moe import SparseMLP
from polyvox.models.layers.norm import LayerScale, RMSNorm
from polyvox.models.layers.rotary import RotaryEmbedding
from polyvox.models.layers.transformer_config import TransformerConfig
from polyvox.models.paged_kv import PagedKVView
from polyvox.models.protocol import Attend


class Attention(nn.Module):
    def __init__(self, config: TransformerConfig, qk_norm: bool) -> None:
        super().__init__()
        queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
        self.head_dim, self.norm_eps = config.head_dim, config.norm_eps
        self.qkv = PackedLinear(config.hidden_size, q_proj=queries, k_proj=keys, v_proj=keys)
        self.o_proj = Linear(queries, config.hidden_size)
        if qk_norm:
            self.q_norm: nn.Module = RMSNorm(config.head_dim, config.norm_eps)
            self.k_norm: nn.Module = RMSNorm(config.head_dim, config.norm_eps)
        else:
            self.q_norm = self.k_norm = nn.Identity()

    def forward(self, x: Tensor, layer: int, rotary: RotaryEmbedding, attend: Attend) -> Tensor:
        return self.o_proj(self.attend(self.qkv(x), layer, rotary, attend))

    def attend(self, qkv: Tensor, layer: int, rotary: RotaryEmbedding, attend: Attend) -> Tensor:
        """Attention of rows [..., q, k and v], before the output projection."""
        if isinstance(attend, PagedKVView):
            return self._attend_paged(qkv, layer, rotary, attend)
        return attend(layer, *self._rotated_heads(qkv, rotary)).flatten(-2)

    def attend_add_fused(
        self,
        qkv: Tensor,
        layer: int,
        rotary: RotaryEmbedding,
        attend: Attend,
        residual: Tensor,
        norm: Norm,
        scale: Tensor | None,
    ) -> PreNorm:
        """residual + the output projection of the attention, times the layer's scale, and what projections need."""
        if isinstance(attend, PagedKVView) and attend.decode_only and scale is None:
            rows, rotation, cache = qkv.flatten(0, -2), self._rotation(rotary), attend.layer(layer)
            weight = self.o_proj.matrix
            if attention_output.supports(rows, rotation, cache, weight):
                assert isinstance(weight, Tensor)
                return attention_output.launch(rows, rotation, cache, weight, residual, norm)
        return self.o_proj.add_fused(self.attend(qkv, layer, rotary, attend), residual, norm, scale)

    def store(self, qkv: Tensor, layer: int, rotary: RotaryEmbedding, attend: Attend) -> None:
        """Stores the keys and values of rows [..., q, k and v] and computes no more than that needs."""
        if isinstance(attend, PagedKVView):
            rotary_store(qkv.flatten(0, -2), self._rotation(rotary), attend.layer(layer))
        else:
            attend(layer, *self._rotated_heads(qkv, rotary))

    def _rotated_heads(self, qkv: Tensor, rotary: RotaryEmbedding) -> tuple[Tensor, Tensor, Tensor]:
        """q, k and v by head, after norm and rotation."""
        heads = qkv.unflatten(-1, (-1, self.head_dim))
        queries, keys, values = (size // self.head_dim for size in self.qkv.outputs.values())
        # Queries and keys are normed and rotated together: on a CPU, the number of operations counts.
        qk, v = heads.split([queries + keys, values], dim=-2)
        q, k = rotary(self._norm_heads(qk, queries, keys)).split([queries, keys], dim=-2)
        return q, k, v

    def _norm_heads(self, qk: Tensor, queries: int, keys: int) -> Tensor:
        q_norm, k_norm = self.q_norm, self.k_norm
        if not isinstance(q_norm, RMSNorm) or not isinstance(k_norm, RMSNorm):
            return qk
        weight = torch.cat([q_norm.weight.expand(queries, -1), k_norm.weight.expand(keys, -1)])
        return rms_norm_reference(qk, weight, self.norm_eps)

    def _rotation(self, rotary: RotaryEmbedding) -> HeadRotation:
        norms = None
        if isinstance(self.q_norm, RMSNorm) and isinstance(self.k_norm, RMSNorm):
            norms = self.q_norm.weight, self.k_norm.weight
        return HeadRotation(*rotary.table, norms, self.norm_eps, rotary.by_row)

    def _attend_paged(self, qkv: Tensor, layer: int, rotary: RotaryEmbedding, view: PagedKVView) -> Tensor:
        """Attention of rows [..., q, k and v] over the paged KV cache; rotary has the angles of all positions."""
        attended = cache_attention.attend(
            qkv.flatten(0, -2), self._rotation(rotary), view.layer(layer), view.decode_only, view.is_first_pair
        )
        return attended.view(*qkv.shape[:-1], -1)


class TransformerLayer(nn.Module):
    """One pre-norm decoder layer, with QK-norm or layer scales."""

    def __init__(self, config: TransformerConfig, qk_norm: bool, layer_scale: bool) -> None:
        super().__init__()
        size = config.hidden_size
        self.self_attn = Attention(config, qk_norm)
        self.mlp = SparseMLP(size, config.experts) if config.experts else MLP(size, config.intermediate_size)
        self.input_layernorm = RMSNorm(size, config.norm_eps)
        self.post_attention_layernorm = RMSNorm(size, config.norm_eps)
        self.self_attn_layer_scale = LayerScale(size) if layer_scale else None
        self.mlp_layer_scale = LayerScale(size) if layer_scale else None

    def forward(
        self, x: Tensor, normed: Tensor, layer: int, rotary: RotaryEmbedding, attend: Attend, next_norm: RMSNorm
    ) -> tuple[Tensor, Tensor]:
        """x and its input norm to this layer's output and its norm by the next layer's input norm."""
        attended = self.self_attn(normed, layer, rotary, attend)
        x, normed = self.post_attention_layernorm.add_and_norm(attended, x, self.self_attn_layer_scale)
        return next_norm.add_and_norm(self.mlp(normed), x, self.mlp_layer_scale)

    def forward_fused(
        self, x: PreNorm, layer: int, rotary: RotaryEmbedding, attend: Attend, next_norm: RMSNorm
    ) -> PreNorm:
        """The same with norms and residuals fused into the projections."""
        attention = self.self_attn
        scale, mlp_scale = (
            None if given is None else given.scale for given in (self.self_attn_layer_scale, self.mlp_layer_scale)
        )
        norm = self.post_attention_layernorm.fused
        x = attention.attend_add_fused(attention.qkv.fused(x), layer, rotary, attend, x.rows, norm, scale)
        return self.mlp.add_fused(x, next_norm.fused, mlp_scale)

    def supports_fused(self, x: Tensor) -> bool:
        """Whether `forward_fused` is faster for these rows."""
        attention, mlp = self.self_attn, self.mlp
        if self.self_attn_layer_scale is None:
            if not isinstance(mlp, MLP):
                return small_batch_linear.supports(x, attention.qkv.matrix)
            return (
                attention.qkv.supports_fused(x)
                and attention.o_proj.supports_fused(x, ADD)
                and mlp.gate_up.supports_fused(x, GATED)
                and mlp.down_proj.supports_fused(x, ADD)
            )
        # Layers with scales have products that only this kernel fuses; one call needs all four.
        return (
            isinstance(mlp, MLP)
            and register_linear.supports(x, attention.qkv.weight, PLAIN)
            and register_linear.supports(x, mlp.gate_up.weight, GATED)
            and all(register_linear.supports(x, each.weight, ADD) for each in (attention.o_proj, mlp.down_proj))
        )


class Transformer(nn.Module):
    """A stack of layers and its final norm. `attend` owns the keys and values of earlier positions."""

    def __init__(self, config: TransformerConfig, qk_norm: bool = True, layer_scale: bool = False) -> None:
        super().__init__()
        self.layers = nn.ModuleList(TransformerLayer(config, qk_norm, layer_scale) for _ in range(config.layers))
        self.norm = RMSNorm(config.hidden_size, config.norm_eps)

    def quantize(self, dtype: torch.dtype) -> None:
        """Stores the matrices of all layers in this type."""
        for layer in cast(Iterable[TransformerLayer], self.layers):
            layer.self_attn.qkv.quantize(dtype)
            layer.self_attn.o_proj.quantize(dtype)
            layer.mlp.quantize(dtype)

    def run(self, x: Tensor, rotary: RotaryEmbedding, attend: Attend) -> Tensor:
        """Rows [B,T,hidden] to rows after the final norm. Each layer computes the input norm of the next one."""
        if self._supports_fused(x, attend):
            return self.norm(self._run_fused(x, rotary, attend, len(self.layers)).rows)
        return self._run_layers(x, rotary, attend, len(self.layers))

    def run_last(self, x: Tensor | PreNorm, rotary: RotaryEmbedding, attend: Attend) -> Tensor | PreNorm:
        """The last row of each stream, [B,hidden]: after the final norm, or before it if products can include it."""
        if isinstance(x, PreNorm) or self._supports_fused(x, attend):
            return self._run_fused(x, rotary, attend, len(self.layers)).last()
        return self.run(x, rotary, attend)[:, -1]

    def store(self, x: Tensor, rotary: RotaryEmbedding, attend: Attend) -> None:
        """Stores the keys and values of rows [B,T,hidden] in all layers, as `run` does.

        No result is needed, so the last layer computes its keys and values only.
        """
        last = len(self.layers) - 1
        attention = cast(TransformerLayer, self.layers[last]).self_attn
        if self._supports_fused(x, attend):
            qkv = attention.qkv.fused(self._run_fused(x, rotary, attend, last))
        else:
            qkv = attention.qkv(self._run_layers(x, rotary, attend, last))
        attention.store(qkv, last, rotary, attend)

    def logits(self, x: Tensor | PreNorm, rotary: RotaryEmbedding, attend: Attend, head: Projection) -> Tensor:
        """The logits [B, vocab] of a head for the last row of each stream."""
        last = self.run_last(x, rotary, attend)
        if not isinstance(last, PreNorm):
            return head(last)
        # The first pass of the code predictor has twice as many rows as its head.
        return head.fused(last) if head.supports_fused(last.gained) else head(self.norm(last.rows))

    def embed(self, ids: Tensor, table: Tensor) -> Tensor | PreNorm:
        """Rows table[ids] as the input of a pass, before the first norm if products include it."""
        if self.reads_pre_norm(table[0].expand(*ids.shape, -1)):
            return embed_pre_norm(ids, table, self.first_norm, starts_early=False)
        return F.embedding(ids, table)

    def reads_pre_norm(self, x: Tensor) -> bool:
        """Whether a pass by kernels over rows [B,T,hidden] reads them before the first norm."""
        return self._first.supports_fused(x)

    @property
    def first_norm(self) -> Norm:
        return self._first.input_layernorm.fused

    def embed_pairs(self, rows: Tensor, bias: Tensor | None, table: Tensor, ids: Tensor) -> Tensor | PreNorm:
        """Rows [B,2,hidden], rows [B,hidden] + bias and table[ids], as the input of such a pass."""
        pairs = pair_pre_norm(rows, bias, table, ids, self.first_norm)
        return pairs if self.reads_pre_norm(pairs.rows) else pairs.rows

    @property
    def _first(self) -> TransformerLayer:
        return cast(TransformerLayer, self.layers[0])

    def _supports_fused(self, x: Tensor, attend: Attend) -> bool:
        """Whether the attention is that of kernels, and fused projections are faster for these rows."""
        is_kernel = isinstance(attend, PagedKVView | RingAttention)
        return is_kernel and self._first.supports_fused(x)

    def _norms(self) -> list[RMSNorm]:
        """The norm before each layer, and the final one."""
        return [*(cast(TransformerLayer, layer).input_layernorm for layer in self.layers), self.norm]

    def _run_layers(self, x: Tensor, rotary: RotaryEmbedding, attend: Attend, num_layers: int) -> Tensor:
        """Rows after the first layers and the norm that follows them."""
        norms = self._norms()
        normed = norms[0](x)
        for index, layer in enumerate(islice(self.layers, num_layers)):
            x, normed = layer(x, normed, index, rotary, attend, norms[index + 1])
        return normed

    def _run_fused(self, x: Tensor | PreNorm, rotary: RotaryEmbedding, attend: Attend, num_layers: int) -> PreNorm:
        """Rows after the first layers, before the norm that follows them: the next projection includes it."""
        norms = self._norms()
        rows = x if isinstance(x, PreNorm) else pre_norm(x, norms[0].fused)
        for index, layer in enumerate(islice(self.layers, num_layers)):
            rows = cast(TransformerLayer, layer).forward_fused(rows, index, rotary, attend, norms[index + 1])
        return rows
