# SPDX-License-Identifier: Apache-2.0
"""The gated MLP of a transformer layer."""

import torch
from torch import Tensor, nn

from polyvox.kernels.pre_norm import Norm, PreNorm
from polyvox.kernels.silu_mul import silu_mul
from polyvox.models.layers.linear import Linear, PackedLinear


class MLP(nn.Module):
    def __init__(self, hidden_size: int, intermediate_size: int) -> None:
        super().__init__()
        self.gate_up = PackedLinear(hidden_size, gate_proj=intermediate_size, up_proj=intermediate_size)
        self.down_proj = Linear(intermediate_size, hidden_size)

    def quantize(self, dtype: torch.dtype) -> None:
        """Stores the weights in this type."""
        self.gate_up.quantize(dtype)
        self.down_proj.quantize(dtype)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(silu_mul(self.gate_up(x)))

    def add_fused(self, x: PreNorm, norm: Norm, scale: Tensor | None = None) -> PreNorm:
        """The rows of x + the output for norm(x), times the layer's scale if it has one, before the next norm."""
        return self.down_proj.add_fused(self.gate_up.fused(x, gated=True), x.rows, norm, scale)
