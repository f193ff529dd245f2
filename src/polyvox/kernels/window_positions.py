# SPDX-License-Identifier: Apache-2.0
"""Positions of the next columns of streams and their rotary angles; advances the streams' positions.

    position [S] int64 · slots [B] int64 · frequencies [D/2] float32 -> positions [B,T] int64, cos and sin [B,T,1,D]

Types: cos and sin float32. sin includes the signs of the rotation (ring_attention.py). Roundings: a position times a
frequency is rounded to float32, then its cosine and sine. Bytes: the results once. Grid: one program per stream.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from polyvox.kernels.lazy_triton import Kernel, power_of_2

if TYPE_CHECKING:
    import triton.language as tl

BLOCK = 8  # columns at once


def next_positions(position: Tensor, slots: Tensor, columns: int, frequencies: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Positions, cos and sin of the next columns; position is advanced in place."""
    batch, half = len(slots), len(frequencies)
    positions = torch.empty(batch, columns, dtype=torch.int64, device=slots.device)
    cos = torch.empty(batch, columns, 1, 2 * half, dtype=torch.float32, device=slots.device)
    sin = torch.empty_like(cos)
    positions_kernel[(batch,)](
        position, slots, frequencies, positions, cos, sin, columns,
        HALF=half, HALF_BLOCK=power_of_2(half), BLOCK=BLOCK, num_warps=2,
    )  # fmt: skip
    return positions, cos, sin


def next_positions_reference(
    position: Tensor, slots: Tensor, columns: int, frequencies: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Reference implementation."""
    positions = position[slots][:, None] + torch.arange(columns, device=slots.device)
    position[slots] = positions[:, -1] + 1
    angles = (positions[..., None].to(frequencies.dtype) * frequencies)[:, :, None]
    return positions, torch.cat([angles, angles], -1).cos(), torch.cat([-angles, angles], -1).sin()


@partial(Kernel, do_not_specialize=("columns",))
def positions_kernel(
    position, slots, frequencies, positions, cos, sin, columns,
    HALF: tl.constexpr, HALF_BLOCK: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    stream = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + stream)
    first = tl.load(position + slot)
    d = tl.arange(0, HALF_BLOCK)
    frequency = tl.load(frequencies + d, mask=d < HALF, other=0.0)
    for begin in range(0, columns, BLOCK):
        column = begin + tl.arange(0, BLOCK)
        tl.store(positions + stream * columns + column, first + column, mask=column < columns)
        angle = (first + column).to(tl.float32)[:, None] * frequency[None, :]
        at = ((stream * columns + column) * 2 * HALF)[:, None] + d[None, :]
        mask = (column < columns)[:, None] & (d < HALF)[None, :]
        cosine, sine = tl.cos(angle), tl.sin(angle)
        tl.store(cos + at, cosine, mask=mask)
        tl.store(cos + at + HALF, cosine, mask=mask)
        tl.store(sin + at, -sine, mask=mask)
        tl.store(sin + at + HALF, sine, mask=mask)
    tl.store(position + slot, first + columns)
