# SPDX-License-Identifier: Apache-2.0
"""Normalisation and scaling layers."""

import torch
from torch import Tensor, nn

from polyvox.kernels.norm import add_rms_norm, rms_norm
from polyvox.kernels.small_batch_linear import Norm


class RMSNorm(nn.Module):
    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, self.eps)

    def add_and_norm(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        """residual + x and its norm."""
        return add_rms_norm(x, residual, self.weight, self.eps)

    @property
    def fused(self) -> Norm:
        """This norm as a part of the projection that follows it."""
        return Norm(self.weight, self.eps)


class LayerScale(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.empty(size))

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * x
