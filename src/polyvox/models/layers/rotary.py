# SPDX-License-Identifier: Apache-2.0
"""Rotary position embedding."""

import torch
from torch import Tensor

from polyvox.models.layers.transformer_config import TransformerConfig


def at_least_float32(dtype: torch.dtype) -> torch.dtype:
    """The type in which the reference implementation computes some values: float32, or float64 for float64."""
    return torch.promote_types(dtype, torch.float32)


class RotaryEmbedding:
    """The rotary angles of positions [B,T], computed once per pass and used by all layers.

    Positions [B,T,dim / 2] have one position for each pair of dimensions.
    """

    def __init__(self, positions: Tensor, config: TransformerConfig, dtype: torch.dtype, by_row: bool = False) -> None:
        wide = at_least_float32(dtype)
        exponents = torch.arange(0, config.head_dim, 2, device=positions.device).to(wide) / config.head_dim
        if positions.dim() == 2:
            positions = positions[..., None]
        angles = positions.to(wide) * (1.0 / config.rope_theta**exponents)
        self.cos = torch.cat([angles, angles], dim=-1).cos().to(dtype)[:, :, None]
        self.sin = torch.cat([-angles, angles], dim=-1).sin().to(dtype)[:, :, None]
        # [T,dim] of the first row. Kernels look angles up by position, so for them the row holds all positions, unless
        # `by_row` says that it holds the angles of the rows of the pass.
        self.table = self.cos[0, :, 0], self.sin[0, :, 0]
        self.by_row = by_row

    def rows(self, start: int, stop: int) -> "RotaryEmbedding":
        part = object.__new__(RotaryEmbedding)
        part.cos, part.sin, part.table = self.cos[:, start:stop], self.sin[:, start:stop], self.table
        part.by_row = self.by_row
        return part

    def __call__(self, x: Tensor) -> Tensor:
        """Rotates [B,T,heads,dim]; the first half of dim is paired with the second."""
        return x * self.cos + x.roll(x.shape[-1] // 2, -1) * self.sin


class NoRotation(RotaryEmbedding):
    """For layers whose attention function rotates."""

    def __init__(self) -> None:
        pass

    def __call__(self, x: Tensor) -> Tensor:
        return x
