# SPDX-License-Identifier: Apache-2.0
"""The sum of the table rows of a frame's codes.

    table [Q · size, D] · codes [..., Q] int64 -> [..., D] = Σ_q table[q · size + codes[q]] / divisor

Types: table float32, bfloat16 or float16; the result has any of these. Roundings: sum and quotient in float32, one
rounding at the end. Bytes: Q rows of the table and the result once. Grid: one program per frame.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from polyvox import kernels
from polyvox.kernels.lazy_triton import Kernel, power_of_2

if TYPE_CHECKING:
    import triton.language as tl


def sum_codes(table: Tensor, codes: Tensor, dtype: torch.dtype, divisor: int = 1) -> Tensor:
    """The sum for each frame, divided by divisor, in this type."""
    if not kernels.active(table):
        return sum_codes_reference(table, codes, dtype, divisor)
    assert table.is_contiguous()
    *shape, books = codes.shape
    codes = codes.contiguous()
    out = torch.empty(*shape, table.shape[1], dtype=dtype, device=table.device)
    sum_codes_kernel[(codes.numel() // books,)](
        table, codes, out, len(table) // books, divisor,
        BOOKS=books, SIZE=table.shape[1], BLOCK=power_of_2(table.shape[1]), num_warps=4,
    )  # fmt: skip
    return out


def sum_codes_reference(table: Tensor, codes: Tensor, dtype: torch.dtype, divisor: int = 1) -> Tensor:
    """Reference implementation."""
    books = codes.shape[-1]
    offsets = torch.arange(0, len(table), len(table) // books, device=codes.device)
    return (F.embedding(codes + offsets, table).sum(-2) / divisor).to(dtype)


@Kernel
def sum_codes_kernel(
    table, codes, out, entries, divisor, BOOKS: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    frame = tl.program_id(0).to(tl.int64)
    d = tl.arange(0, BLOCK)
    sums = tl.zeros([BLOCK], tl.float32)
    for book in tl.static_range(BOOKS):
        row = book * entries + tl.load(codes + frame * BOOKS + book)
        sums += tl.load(table + row * SIZE + d, mask=d < SIZE, other=0.0).to(tl.float32)
    tl.store(out + frame * SIZE + d, (sums / divisor).to(out.dtype.element_ty), mask=d < SIZE)
