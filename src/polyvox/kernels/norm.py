# SPDX-License-Identifier: Apache-2.0
"""RMS norm of rows, alone or fused with the residual addition before it.

    x, residual [..., SIZE] · weight, scale [SIZE] -> normed [..., SIZE], and the sum residual + scale · x

Types: bfloat16, float16, float32; one type for all tensors.
Roundings: scale · x, if there is a scale, and the sum are rounded to the type, and the norm reads the rounded sum;
x / sqrt(mean(x²) + eps) is computed in float32 and rounded, then multiplied by the weight and rounded again.
Bytes: each input and each output once.
Grid: one program per row; a row is one block.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from polyvox import kernels
from polyvox.kernels.launch_overlap import overlap, wait
from polyvox.kernels.lazy_triton import Kernel, power_of_2

if TYPE_CHECKING:
    import triton.language as tl

LANES = 512  # elements of a row per warp


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Rows x [..., size] divided by their root mean square, times weight [size]."""
    if not kernels.active(x):
        return rms_norm_reference(x, weight, eps)
    x = x.contiguous()
    normed = torch.empty_like(x)
    _launch(x, None, None, weight, x, normed, eps)
    return normed


def add_rms_norm(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float, scale: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return residual + x, or residual + scale · x, and its norm."""
    if not kernels.active(x):
        return add_rms_norm_reference(x, residual, weight, eps, scale)
    x, residual = x.contiguous(), residual.contiguous()
    total, normed = torch.empty_like(x), torch.empty_like(x)
    _launch(x, residual, scale, weight, total, normed, eps)
    return total, normed


def rms_norm_reference(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Reference implementation; float64 stays float64 inside."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return weight * wide.to(x.dtype)


def add_rms_norm_reference(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float, scale: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Reference implementation."""
    total = residual + (x if scale is None else scale * x)
    return total, rms_norm_reference(total, weight, eps)


def _launch(
    x: Tensor, residual: Tensor | None, scale: Tensor | None, weight: Tensor, total: Tensor, normed: Tensor, eps: float
) -> None:
    size = x.shape[-1]
    if not x.numel():
        return
    block = power_of_2(size)
    norm_kernel[(x.numel() // size,)](
        x, x if residual is None else residual, weight if scale is None else scale, weight, total, normed, eps,
        ADD=residual is not None, SCALE=scale is not None, SIZE=size, BLOCK=block, **overlap(x),
        num_warps=max(1, min(8, block // LANES)),
    )  # fmt: skip


@partial(Kernel, fuse=False)
def norm_kernel(
    x, residual, scale, weight, total, normed, eps,
    ADD: tl.constexpr, SCALE: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    column = tl.arange(0, BLOCK)
    mask = column < SIZE
    at = tl.program_id(0).to(tl.int64) * SIZE + column
    dtype = normed.dtype.element_ty
    factor = tl.load(weight + column, mask=mask, other=0.0).to(tl.float32)
    if OVERLAP:
        wait()
    wide = tl.load(x + at, mask=mask, other=0.0).to(tl.float32)
    if SCALE:
        wide = (wide * tl.load(scale + column, mask=mask, other=0.0).to(tl.float32)).to(dtype).to(tl.float32)
    if ADD:
        rounded = (tl.load(residual + at, mask=mask, other=0.0).to(tl.float32) + wide).to(dtype)
        tl.store(total + at, rounded, mask=mask)
        wide = rounded.to(tl.float32)
    wide = wide * tl.rsqrt(tl.sum(wide * wide, 0) / SIZE + eps)
    tl.store(normed + at, (factor * wide.to(dtype).to(tl.float32)).to(dtype), mask=mask)
