# SPDX-License-Identifier: Apache-2.0
"""Paged attention of prompt rows: tiles of consecutive rows, most of which share a slot.

    the inputs of rotary.py -> [N,H,D] as in attention.py; k and v are in the cache

The rows of a slot are adjacent and at consecutive positions, in order. A program has the rows of a tile and one KV
head. For every slot in the tile it reads the slot's keys and values once, up to the last position of the tile's rows,
multiplies them with all rows, and stores the results of the slot's rows. Blocks of positions that are rows of this pass
are read from these rows, which are contiguous and not quantised; earlier ones, of a prompt that needs several passes,
from the pages of the cache. attention.py reads them once per row: it is for rows of different slots.

Types: those of attention.py.
Roundings: those of rotary.py, then those of attention.py, in blocks of 64 or 32 positions, by architecture. Rows of the
pass have the values and scales of the cache, so that a row's bits do not depend on the division of its prompt; and a
block that a row does not see adds exact zeros, so they depend on nothing but the row.
Bytes: those of rotary.py; keys and values of a slot once per tile, from the cache of the GPU; q and the result once.
Grid: one program per tile and KV head.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from polyvox import kernels
from polyvox.kernels.attention import LOG2_E, MIN_TILE
from polyvox.kernels.attention_blocks import attend_block, load_kv_block
from polyvox.kernels.decode_attention import rotary_attention_reference
from polyvox.kernels.gpu import gpu_of
from polyvox.kernels.launch_overlap import overlap, wait
from polyvox.kernels.lazy_triton import Kernel, power_of_2
from polyvox.kernels.paged_rows import PagedRows
from polyvox.kernels.rotary import HeadRotation, RotatedRows, rotary_store_prompts

if TYPE_CHECKING:
    import triton.language as tl

TILE = 64  # query heads of all rows of a tile
# Positions per iteration, by architecture. sm_90 multiplies from shared memory; on others, blocks of 64 do not fit the
# registers.
BLOCKS, OTHER_BLOCK = {90: 64}, 32
# Stages of the loops over the rows of the pass, if each program has a multiprocessor for itself or not, and over the
# pages of the cache, whose lookup takes one. Copies for STAGES - 2 later blocks overlap with all that is computed.
STAGES_ALONE, STAGES, PAST_STAGES = 4, 2, 3


def prompt_attention(qkv: Tensor, rotation: HeadRotation, cache: PagedRows) -> Tensor:
    """Normalise and rotate the heads of prompt rows, store k and v in the cache, and attend."""
    if not kernels.active(qkv):
        return rotary_attention_reference(qkv, rotation, cache)
    return attend_prompts(rotary_store_prompts(qkv, rotation, cache), cache)


def attend_prompts(rotated: RotatedRows, cache: PagedRows) -> Tensor:
    """Attention of rotated rows, which the cache has, over their slots' positions up to their own: [N,H,D]."""
    rows, all_heads, dim = rotated.heads.shape
    kv_heads = cache.kv_heads
    heads = all_heads - 2 * kv_heads
    group = heads // kv_heads
    out = torch.empty(rows, heads, dim, dtype=rotated.heads.dtype, device=rotated.heads.device)
    if not rows:
        return out
    assert rotated.heads.is_contiguous()
    assert (rotated.scales is None) == (cache.scales is None)
    group_block = power_of_2(group)
    tile_rows = max(1, TILE // group_block)
    gpu = gpu_of(out.device)
    block = BLOCKS.get(gpu.architecture, OTHER_BLOCK)
    tiles = -(-rows // tile_rows)
    is_alone = tiles * kv_heads <= gpu.multiprocessors and out.dtype != torch.float32
    prefill_kernel[(tiles, kv_heads)](
        rotated.heads, out if rotated.scales is None else rotated.scales, *cache.launch_tensors(out), out, rows,
        *cache.launch_strides(), dim**-0.5 * LOG2_E,
        HEADS=heads, KV_HEADS=kv_heads, GROUP=group, GROUP_BLOCK=group_block, ROWS=tile_rows, DIM=dim,
        DIM_BLOCK=max(MIN_TILE, power_of_2(dim)), PAGE=cache.page, BLOCK=block,
        MAX_BLOCKS=power_of_2(-(-cache.max_positions // block)), STAGES=STAGES_ALONE if is_alone else STAGES,
        SCALED=cache.scales is not None, **overlap(out.flatten(1)), num_warps=4, num_stages=PAST_STAGES,
    )  # fmt: skip
    return out


@partial(Kernel, do_not_specialize=("rows",))
def prefill_kernel(
    rotated, scales, keys, values, key_scales, value_scales, tables, slots, positions, out, rows,
    page_stride, offset_stride, head_stride, table_row, scale,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, GROUP: tl.constexpr, GROUP_BLOCK: tl.constexpr, ROWS: tl.constexpr,
    DIM: tl.constexpr, DIM_BLOCK: tl.constexpr, PAGE: tl.constexpr, BLOCK: tl.constexpr, MAX_BLOCKS: tl.constexpr,
    STAGES: tl.constexpr, SCALED: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    ROW: tl.constexpr = (HEADS + 2 * KV_HEADS) * DIM
    kv_head = tl.program_id(1)
    first_row = tl.program_id(0) * ROWS
    index = tl.arange(0, ROWS * GROUP_BLOCK)
    in_tile, head = index // GROUP_BLOCK, index % GROUP_BLOCK
    row = first_row + in_tile
    column = tl.arange(0, DIM_BLOCK)
    inside = (column < DIM)[None, :]
    is_row = (row < rows) & (head < GROUP)
    slot = tl.load(slots + row, mask=is_row, other=-1).to(tl.int32)
    last = tl.load(positions + row, mask=is_row, other=0).to(tl.int32)
    mask = is_row[:, None] & inside
    queries = rotated + first_row.to(tl.int64) * ROW + kv_head * (GROUP * DIM)
    results = out + first_row.to(tl.int64) * (HEADS * DIM) + kv_head * (GROUP * DIM)
    past, past_scale = kv_head * head_stride, kv_head * PAGE

    current = tl.max(slot, 0)
    while current >= 0:
        is_current = slot == current
        table = tables + current.to(tl.int64) * table_row
        stop = tl.max(tl.where(is_current, last, -1), 0) + 1
        # Position p of the slot is row first + p, if that row is one of the slot's.
        first = tl.max(tl.where(is_current, row - last, -(1 << 30)), 0)
        block = tl.arange(0, MAX_BLOCKS) * BLOCK
        in_pass = tl.load(slots + first + block, mask=(block < stop) & (first + block >= 0), other=-1) == current
        own = tl.min(tl.where(in_pass, block, stop), 0)  # positions from here on are rows of this pass
        if OVERLAP:
            wait()
        query = tl.load(queries + (in_tile * ROW + head * DIM)[:, None] + column[None, :], mask=mask, other=0.0)
        own_keys = rotated + first.to(tl.int64) * ROW + (HEADS + kv_head) * DIM
        own_scales = scales + kv_head * rows + first
        # Finite: rows of other slots subtract it from minus infinity. They are computed, too, but not stored.
        running_max = tl.full([ROWS * GROUP_BLOCK], -1e30, tl.float32)
        denominator = tl.zeros([ROWS * GROUP_BLOCK], tl.float32)
        acc = tl.zeros([ROWS * GROUP_BLOCK, DIM_BLOCK], tl.float32)
        if own > 0:
            for start in range(0, own, BLOCK):
                key, value = load_kv_block(
                    keys + past, values + past, table, start, stop, page_stride, offset_stride,
                    DIM, DIM_BLOCK, PAGE, BLOCK,
                )  # fmt: skip
                position = start + tl.arange(0, BLOCK)
                page = tl.load(table + position // PAGE, mask=position < stop, other=0)
                at_scale = page * (KV_HEADS * PAGE) + position % PAGE
                key_scale, value_scale = load_scales(
                    key_scales + past_scale + at_scale, value_scales + past_scale + at_scale, position < stop, SCALED
                )
                running_max, denominator, acc = attend_block(
                    query, key, value, key_scale, value_scale, position[None, :] <= last[:, None], scale,
                    running_max, denominator, acc, SCALED,
                )  # fmt: skip
        for start in tl.range(own, stop, BLOCK, num_stages=STAGES):
            position = start + tl.arange(0, BLOCK)
            written = position < stop
            at = own_keys + position[:, None] * ROW + column[None, :]
            key = tl.load(at, mask=written[:, None] & inside, other=0.0)
            value = tl.load(at + KV_HEADS * DIM, mask=written[:, None] & inside, other=0.0)
            at_scale = own_scales + position
            key_scale, value_scale = load_scales(at_scale, at_scale + KV_HEADS * rows, written, SCALED)
            running_max, denominator, acc = attend_block(
                query, key, value, key_scale, value_scale, position[None, :] <= last[:, None], scale,
                running_max, denominator, acc, SCALED,
            )  # fmt: skip
        result = results + (in_tile * (HEADS * DIM) + head * DIM)[:, None] + column[None, :]
        tl.store(result, (acc / denominator[:, None]).to(out.dtype.element_ty), mask=mask & is_current[:, None])
        slot = tl.where(is_current, -1, slot)
        current = tl.max(slot, 0)


@Kernel
def load_scales(key_scales, value_scales, mask, SCALED: tl.constexpr):
    """The scales at these addresses, or ones that are not used.

    In one load: if it had fewer elements than there are threads, Triton would load each by several threads.
    """
    if SCALED:
        pair = tl.where(tl.arange(0, 2)[None, :] == 0, key_scales[:, None], value_scales[:, None])
        key_scale, value_scale = tl.split(tl.load(pair, mask=mask[:, None], other=0.0))
    else:
        key_scale = tl.full([mask.shape[0]], 1.0, tl.float32)
        value_scale = key_scale
    return key_scale, value_scale
