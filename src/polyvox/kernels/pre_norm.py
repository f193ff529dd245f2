# SPDX-License-Identifier: Apache-2.0
"""The first half of an RMS norm that is divided between two products (small_batch_linear.py).

    rows [..., K] · gain [K] -> rows · gain [..., K], and the sum of squares of each row
    table [V,K] · ids [...] int64 -> the same of the rows table[ids], and these rows

The product before the norm computes this where it can; this launch is for rows that no such product made.

Types: bfloat16, float16, float32; squares are float32.
Roundings: row · gain is rounded; squares are summed in float32.
Bytes: the rows and the result once.
Grid: one program per row; a row is one block.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from polyvox import kernels
from polyvox.kernels.launch_overlap import overlap, start_next, wait, wait_for_previous
from polyvox.kernels.lazy_triton import Kernel, power_of_2

if TYPE_CHECKING:
    import triton.language as tl

LANES = 512  # elements of a row per warp


@dataclass(frozen=True, slots=True, eq=False)
class Norm:
    """The RMS norm between two products."""

    gain: Tensor
    eps: float


class PreNorm(NamedTuple):
    """Rows [..., K] and what the products after an RMS norm read of them."""

    rows: Tensor
    gained: Tensor  # [..., K]: rows · gain of the norm, rounded
    squares: Tensor  # [..., parts] float32: the row's sum of squares, by block of columns
    norm: Norm

    def last(self) -> PreNorm:
        """The last row of each stream."""
        return PreNorm(self.rows[:, -1], self.gained[:, -1], self.squares[:, -1], self.norm)


def flat_rows(x: Tensor) -> Tensor:
    """[..., K] as [rows, K]."""
    return x.flatten(0, -2) if x.dim() > 1 else x[None]


def pre_norm(rows: Tensor, norm: Norm) -> PreNorm:
    """Rows [..., K] before a norm."""
    if not kernels.active(rows):
        return pre_norm_reference(rows, norm)
    rows = rows.contiguous()
    return _launch(rows, None, rows, norm)


def embed_pre_norm(ids: Tensor, table: Tensor, norm: Norm) -> PreNorm:
    """Rows table[ids] before a norm."""
    if not kernels.active(table):
        return pre_norm_reference(F.embedding(ids, table), norm)
    assert table.is_contiguous()
    return _launch(table, ids.contiguous(), table.new_empty(*ids.shape, table.shape[1]), norm)


def _launch(source: Tensor, ids: Tensor | None, rows: Tensor, norm: Norm) -> PreNorm:
    *shape, size = rows.shape
    gained = torch.empty_like(rows)
    squares = torch.empty(*shape, 1, dtype=torch.float32, device=rows.device)
    if rows.numel():
        block = power_of_2(size)
        pre_norm_kernel[(rows.numel() // size,)](
            source, source if ids is None else ids, norm.gain, rows, gained, squares,
            LOOKUP=ids is not None, SIZE=size, BLOCK=block, **overlap(rows), num_warps=max(1, min(8, block // LANES)),
        )  # fmt: skip
    return PreNorm(rows, gained, squares, norm)


def pre_norm_reference(rows: Tensor, norm: Norm) -> PreNorm:
    """Reference implementation; float64 stays float64 inside."""
    wide = rows.to(torch.promote_types(rows.dtype, torch.float32))
    return PreNorm(rows, rows * norm.gain, wide.square().sum(-1, keepdim=True), norm)


@Kernel
def pre_norm_kernel(
    source, ids, gain, rows, gained, squares,
    LOOKUP: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    if OVERLAP and LOOKUP:  # the sampler, which made the ids, waited for all before it
        start_next()
    column = tl.arange(0, BLOCK)
    mask = column < SIZE
    row = tl.program_id(0).to(tl.int64)
    factor = tl.load(gain + column, mask=mask, other=0.0).to(tl.float32)
    if OVERLAP:
        if LOOKUP:
            wait_for_previous()
        else:
            wait()
    chosen = row
    if LOOKUP:
        chosen = tl.load(ids + row)
    value = tl.load(source + chosen * SIZE + column, mask=mask, other=0.0)
    if LOOKUP:
        tl.store(rows + row * SIZE + column, value, mask=mask)
    wide = value.to(tl.float32)
    tl.store(gained + row * SIZE + column, (factor * wide).to(gained.dtype.element_ty), mask=mask)
    tl.store(squares + row, tl.sum(wide * wide, 0))
