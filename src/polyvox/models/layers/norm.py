# SPDX-License-Identifier: Apache-2.0
"""Normalisation and scaling layers."""

import torch
from torch import Tensor, nn

from polyvox.kernels.norm import add_rms_norm, rms_norm
from polyvox.kernels.pre_norm import Norm


class RMSNorm(nn.Module):
    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, self.eps)

    def add_and_norm(self, x: Tensor, residual: Tensor, scale: "LayerScale | None") -> tuple[Tensor, Tensor]:
        """residual + scale(x) and its norm."""
        return add_rms_norm(x, residual, self.weight, self.eps, None if scale is None else scale.scale)

    @property
    def fused(self) -> Norm:
        """This norm as a part of the projections before and after it."""
        return Norm(self.weight, self.eps)


class LayerScale(nn.Module):
    """A factor for each channel of a layer's output; `RMSNorm.add_and_norm` applies it, too."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.empty(size))

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * x
