# SPDX-License-Identifier: Apache-2.0
"""The gate of an MLP: silu(gate) · up.

    gate_up [..., 2·SIZE], the gate first -> [..., SIZE]

Types: bfloat16, float16, float32.
Roundings: silu is computed in float32 and rounded, then the product is rounded.
Bytes: the input and the output once.
Grid: one program per row and 1,024 columns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from polyvox import kernels
from polyvox.kernels.launch_overlap import overlap, wait
from polyvox.kernels.lazy_triton import Kernel, power_of_2

if TYPE_CHECKING:
    import triton.language as tl

COLUMNS = 1024


def silu_mul(gate_up: Tensor) -> Tensor:
    """silu of the first half of each row times the second half."""
    if not kernels.active(gate_up):
        return silu_mul_reference(gate_up)
    gate_up = gate_up.contiguous()
    *shape, both = gate_up.shape
    size = both // 2
    out = torch.empty(*shape, size, dtype=gate_up.dtype, device=gate_up.device)
    if out.numel():
        block = min(COLUMNS, power_of_2(size))
        silu_mul_kernel[(out.numel() // size, -(-size // block))](
            gate_up, out, SIZE=size, BLOCK=block, **overlap(out), num_warps=4
        )
    return out


def silu_mul_reference(gate_up: Tensor) -> Tensor:
    """Reference implementation."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate) * up


@Kernel
def silu_mul_kernel(gate_up, out, SIZE: tl.constexpr, BLOCK: tl.constexpr, OVERLAP: tl.constexpr):
    if OVERLAP:
        wait()
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = column < SIZE
    dtype = out.dtype.element_ty
    gate = tl.load(gate_up + row * (2 * SIZE) + column, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * (2 * SIZE) + SIZE + column, mask=mask, other=0.0).to(tl.float32)
    opened = (gate / (1.0 + tl.exp(-gate))).to(dtype)
    tl.store(out + row * SIZE + column, (opened.to(tl.float32) * up).to(dtype), mask=mask)
