# SPDX-License-Identifier: Apache-2.0
"""Paged attention of prompt rows: tiles of consecutive rows, most of which share a slot.

    the inputs and the result of attention.py

A program has the rows of a tile and one KV head. For every slot in the tile it reads the slot's keys and values once,
up to the last position of the tile's rows, multiplies them with all rows, and stores the results of the slot's rows.
attention.py reads them once per row: it is for rows of different slots.

Types: those of attention.py.
Roundings: those of attention.py, in blocks of 64 or 32 positions, by architecture. A block that a row does not see adds
exact zeros, so a row's bits depend on nothing but the row.
Bytes: keys and values of a slot once per tile, from the cache of the GPU; q and the result once.
Grid: one program per tile and KV head.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from polyvox import kernels
from polyvox.kernels.attention import LOG2_E, MIN_TILE, paged_attention_reference
from polyvox.kernels.gpu import gpu_of
from polyvox.kernels.lazy_triton import Kernel, power_of_2
from polyvox.kernels.paged_rows import PagedRows

if TYPE_CHECKING:
    import triton.language as tl

TILE = 64  # query heads of all rows of a tile
# Positions per iteration, by architecture. sm_90 and sm_100 multiply from shared memory; on others, blocks of 64 do not
# fit the registers.
BLOCKS, OTHER_BLOCK = {90: 64, 100: 64}, 32


def prompt_attention(q: Tensor, cache: PagedRows) -> Tensor:
    """Attention of rows q [N,H,D] over their slots' positions up to their own; those of a slot are adjacent."""
    if not kernels.active(q):
        return paged_attention_reference(q, cache)
    rows, heads, dim = q.shape
    group = heads // cache.kv_heads
    out = torch.empty(rows, heads, dim, dtype=q.dtype, device=q.device)
    if not rows:
        return out
    assert q.stride()[1:] == (dim, 1), q.stride()
    group_block = power_of_2(group)
    tile_rows = max(1, TILE // group_block)
    block = BLOCKS.get(gpu_of(q.device).architecture, OTHER_BLOCK)
    prefill_kernel[(-(-rows // tile_rows), cache.kv_heads)](
        q, *cache.launch_tensors(q), out, rows, q.stride(0), *cache.launch_strides(), dim**-0.5 * LOG2_E,
        HEADS=heads, GROUP=group, GROUP_BLOCK=group_block, ROWS=tile_rows, DIM=dim,
        DIM_BLOCK=max(MIN_TILE, power_of_2(dim)), PAGE=cache.page, BLOCK=block, SCALED=cache.scales is not None,
        num_warps=4, num_stages=3,
    )  # fmt: skip
    return out


@partial(Kernel, do_not_specialize=("rows",))
def prefill_kernel(
    q, keys, values, key_scales, value_scales, tables, slots, positions, out, rows,
    q_row, page_stride, offset_stride, head_stride, table_row, scale,
    HEADS: tl.constexpr, GROUP: tl.constexpr, GROUP_BLOCK: tl.constexpr, ROWS: tl.constexpr, DIM: tl.constexpr,
    DIM_BLOCK: tl.constexpr, PAGE: tl.constexpr, BLOCK: tl.constexpr, SCALED: tl.constexpr,
):  # fmt: skip
    kv_head = tl.program_id(1)
    kv_heads = tl.num_programs(1)
    index = tl.arange(0, ROWS * GROUP_BLOCK)
    row = tl.program_id(0) * ROWS + index // GROUP_BLOCK
    head = index % GROUP_BLOCK
    column = tl.arange(0, DIM_BLOCK)
    is_row = (row < rows) & (head < GROUP)
    slot = tl.load(slots + row, mask=is_row, other=-1).to(tl.int32)
    last = tl.load(positions + row, mask=is_row, other=0).to(tl.int32)
    mask = is_row[:, None] & (column < DIM)[None, :]
    heads = (kv_head * GROUP + head)[:, None] * DIM + column[None, :]
    query = tl.load(q + row.to(tl.int64)[:, None] * q_row + heads, mask=mask, other=0.0)
    result = out + row.to(tl.int64)[:, None] * (HEADS * DIM) + heads

    current = tl.max(slot, 0)
    while current >= 0:
        is_current = slot == current
        table = tables + current.to(tl.int64) * table_row
        stop = tl.max(tl.where(is_current, last, -1), 0) + 1
        # Finite: rows of other slots subtract it from minus infinity. They are computed, too, but not stored.
        running_max = tl.full([ROWS * GROUP_BLOCK], -1e30, tl.float32)
        denominator = tl.zeros([ROWS * GROUP_BLOCK], tl.float32)
        acc = tl.zeros([ROWS * GROUP_BLOCK, DIM_BLOCK], tl.float32)
        for start in range(0, stop, BLOCK):
            position = start + tl.arange(0, BLOCK)
            written = position < stop
            page = tl.load(table + position // PAGE, mask=written, other=0)
            at = page * page_stride + (position % PAGE) * offset_stride + kv_head * head_stride
            kv_mask = written[:, None] & (column < DIM)[None, :]
            key = tl.load(keys + at[:, None] + column[None, :], mask=kv_mask, other=0.0).to(query.dtype)
            value = tl.load(values + at[:, None] + column[None, :], mask=kv_mask, other=0.0).to(query.dtype)
            score = tl.dot(query, tl.trans(key), input_precision="ieee") * scale
            if SCALED:
                at_scale = (page * kv_heads + kv_head) * PAGE + position % PAGE
                score *= tl.load(key_scales + at_scale, mask=written, other=0.0)[None, :]
            score = tl.where(position[None, :] <= last[:, None], score, float("-inf"))
            new_max = tl.maximum(running_max, tl.max(score, 1))
            rescale = tl.exp2(running_max - new_max)
            weight = tl.exp2(score - new_max[:, None])
            denominator = denominator * rescale + tl.sum(weight, 1)
            if SCALED:
                weight *= tl.load(value_scales + at_scale, mask=written, other=0.0)[None, :]
            acc = tl.dot(weight.to(query.dtype), value, acc * rescale[:, None], input_precision="ieee")
            running_max = new_max
        tl.store(result, (acc / denominator[:, None]).to(out.dtype.element_ty), mask=mask & is_current[:, None])
        slot = tl.where(is_current, -1, slot)
        current = tl.max(slot, 0)
