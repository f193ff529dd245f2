# SPDX-License-Identifier: Apache-2.0
"""The first half of an RMS norm that is divided between two products (fused_linear.py).

    rows [..., K] · gain [K] -> rows · gain [..., K], and the sum of squares of each row
    table [V,K] · ids [...] int64 -> the same of the rows table[ids], and these rows
    rows [B,K] · bias [K], or none · table [V,K] · ids [B] int64
    -> the same of the rows [B,2,K]: first row + bias, then table[id], and these rows

The product before the norm computes this where it can; these launches are for rows that no such product made. The
pairs of rows are the input of the code predictor's first pass.

Types: bfloat16, float16, float32; squares are float32.
Roundings: row + bias is rounded; row · gain is rounded; squares are summed in float32.
Bytes: the rows and the result once.
Grid: one program per row of the result; a row is one block.
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


def embed_pre_norm(ids: Tensor, table: Tensor, norm: Norm, starts_early: bool) -> PreNorm:
    """Rows table[ids] before a norm.

    starts_early: the launch before this one waited for all before it, so the next one may start before this one waits.
    Not where PyTorch wrote something before it that a later launch reads before it waits, such as positions.
    """
    if not kernels.active(table):
        return pre_norm_reference(F.embedding(ids, table), norm)
    assert table.is_contiguous()
    return _launch(table, ids, table.new_empty(*ids.shape, table.shape[1]), norm, starts_early)


def pair_pre_norm(rows: Tensor, bias: Tensor | None, table: Tensor, ids: Tensor, norm: Norm) -> PreNorm:
    """Two rows per stream, [B,2,K], before a norm: rows [B,K], plus bias [K] if there is one, and table[ids]."""
    if not kernels.active(rows):
        first = rows if bias is None else rows + bias
        return pre_norm_reference(torch.stack([first, F.embedding(ids, table)], dim=1), norm)
    assert table.is_contiguous()
    assert rows.stride(1) == 1
    batch, size = rows.shape
    made = empty_pre_norm(rows.new_empty(batch, 2, size), norm)
    if batch:
        pair_pre_norm_kernel[(batch, 2)](
            rows, rows if bias is None else bias, table, ids, norm.gain, *made[:3], rows.stride(0), ids.stride(0),
            BIAS=bias is not None, SIZE=size, **_block(size), **overlap(made.rows),
        )  # fmt: skip
    return made


def _launch(source: Tensor, ids: Tensor | None, rows: Tensor, norm: Norm, starts_early: bool = False) -> PreNorm:
    made, size = empty_pre_norm(rows, norm), rows.shape[-1]
    if ids is not None:
        assert ids.numel() == len(ids), ids.shape
    if rows.numel():
        pre_norm_kernel[(rows.numel() // size,)](
            source, source if ids is None else ids, norm.gain, *made[:3], 0 if ids is None else ids.stride(0),
            LOOKUP=ids is not None, EARLY_START=starts_early, SIZE=size, **_block(size), **overlap(rows),
        )  # fmt: skip
    return made


def empty_pre_norm(rows: Tensor, norm: Norm, parts: int = 1) -> PreNorm:
    """These rows, and memory for what a launch stores of them: squares of this many blocks of columns."""
    gained = torch.empty(rows.shape, dtype=rows.dtype, device=rows.device)
    squares = torch.empty(*rows.shape[:-1], parts, dtype=torch.float32, device=rows.device)
    return PreNorm(rows, gained, squares, norm)


def empty_sum(add: Tensor, norm: Norm, parts: int) -> PreNorm:
    """Memory for a product with this residual."""
    return empty_pre_norm(torch.empty(add.shape, dtype=add.dtype, device=add.device), norm, parts)


def _block(size: int) -> dict[str, int]:
    """Launch options for rows of this size."""
    block = power_of_2(size)
    return {"BLOCK": block, "num_warps": max(1, min(8, block // LANES))}


def pre_norm_reference(rows: Tensor, norm: Norm) -> PreNorm:
    """Reference implementation; float64 stays float64 inside."""
    wide = rows.to(torch.promote_types(rows.dtype, torch.float32))
    return PreNorm(rows, rows * norm.gain, wide.square().sum(-1, keepdim=True), norm)


@Kernel
def pre_norm_kernel(
    source, ids, gain, rows, gained, squares, ids_row,
    LOOKUP: tl.constexpr, EARLY_START: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    if OVERLAP and EARLY_START:
        start_next()
    column = tl.arange(0, BLOCK)
    mask = column < SIZE
    row = tl.program_id(0).to(tl.int64)
    factor = tl.load(gain + column, mask=mask, other=0.0).to(tl.float32)
    if OVERLAP:
        if EARLY_START:
            wait_for_previous()
        else:
            wait()
    chosen = row
    if LOOKUP:
        chosen = tl.load(ids + row * ids_row)
    value = tl.load(source + chosen * SIZE + column, mask=mask, other=0.0)
    if LOOKUP:
        tl.store(rows + row * SIZE + column, value, mask=mask)
    store_gained(value, factor, gained, squares, row, column, mask, SIZE)


@Kernel
def pair_pre_norm_kernel(
    given, bias, table, ids, gain, rows, gained, squares, given_row, ids_row,
    BIAS: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    stream = tl.program_id(0).to(tl.int64)
    is_first = tl.program_id(1) == 0
    column = tl.arange(0, BLOCK)
    mask = column < SIZE
    factor = tl.load(gain + column, mask=mask, other=0.0).to(tl.float32)
    if BIAS:
        added = tl.load(bias + column, mask=mask, other=0.0).to(tl.float32)
    if OVERLAP:
        wait()
    value = tl.load(given + stream * given_row + column, mask=mask & is_first, other=0.0)
    if BIAS:
        value = (value.to(tl.float32) + added).to(value.dtype)
    chosen = table + tl.load(ids + stream * ids_row) * SIZE
    value = tl.where(is_first, value, tl.load(chosen + column, mask=mask & (is_first == 0), other=0.0))
    row = stream * 2 + tl.program_id(1)
    tl.store(rows + row * SIZE + column, value, mask=mask)
    store_gained(value, factor, gained, squares, row, column, mask, SIZE)


@Kernel
def store_gained(value, factor, gained, squares, row, column, mask, SIZE: tl.constexpr):
    wide = value.to(tl.float32)
    tl.store(gained + row * SIZE + column, (factor * wide).to(gained.dtype.element_ty), mask=mask)
    tl.store(squares + row, tl.sum(wide * wide, 0))
