# SPDX-License-Identifier: Apache-2.0
"""Paged attention of prompt rows: tiles of consecutive rows, most of which share a slot.

    the inputs of rotary.py -> [N,H,D] as in attention.py; k and v are in the cache

The rows of a slot are adjacent and at consecutive positions, in order; rows of one unused slot may share a position. A
program has the rows of a tile and one KV head. For every slot in the tile it reads the slot's keys and values once, up
to the last position of the tile's rows, multiplies them with all rows, and stores the results of the slot's rows.

Blocks of positions that are rows of this pass are read from these rows, which are contiguous and not quantised; earlier
ones, of a prompt that needs several passes, from the pages of the cache. Where a GPU would add the terms of the two in
another order (SAME_ORDER), all are read from the cache. attention.py reads keys and values once per row: it is for rows
of different slots.

Types: those of attention.py.
Roundings: those of rotary.py, then those of attention.py, in blocks of 64, 32 or 16 positions by architecture and type.
Rows of the pass have the values and scales of the cache, so a row's bits do not depend on how its prompt is divided. A
block that a row does not see adds exact zeros (if it is finite), so they depend on nothing but the row.
Bytes: those of rotary.py; keys and values of a slot once per tile, from the L2 cache; q and the result once.
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
from polyvox.kernels.rotary import HeadRotation, RotatedRows, rotate_and_store

if TYPE_CHECKING:
    import triton.language as tl

TILE, WIDE_FLOAT32_TILE = 64, 32  # query heads of all rows of a tile
MAX_NARROW_DIM = 128  # larger heads are wide
# Positions per iteration, by architecture: with 64, a thread needs too many registers on others than sm_90. In float32
# with 32 or more, all its values are in local memory, 7 KB; with a quantised cache 5 KB are there even with 16.
BLOCKS, OTHER_BLOCK, FLOAT32_BLOCK = {90: 64}, 32, 16
# Architectures whose products add their terms in an order that does not depend on the type that was loaded. On others a
# thread has other columns of the operands if they were loaded in 8 bits.
SAME_ORDER = (90, 100)
# num_stages of the loop over rows of the pass: STAGES_ALONE if each program has a multiprocessor for itself, or STAGES,
# also for wide heads, whose STAGES_ALONE do not fit into its shared memory. PAST_STAGES: of the loop over pages, which
# also loads their numbers. Chosen by the compiled code, not measured.
STAGES_ALONE, STAGES, PAST_STAGES = 4, 2, 3


def prompt_attention(qkv: Tensor, rotation: HeadRotation, cache: PagedRows) -> Tensor:
    """Normalise and rotate the heads of prompt rows, store k and v in the cache, and attend."""
    if not kernels.active(qkv):
        return rotary_attention_reference(qkv, rotation, cache)
    assert cache.scales is not None or cache.keys.dtype == qkv.dtype, "own keys and cached ones have different types"
    with_kv = cache.scales is None or gpu_of(qkv.device).architecture in SAME_ORDER
    return attend_prompts(rotate_and_store(qkv, rotation, cache, with_kv), cache)


def attend_prompts(rotated: RotatedRows, cache: PagedRows) -> Tensor:
    """Attention of rotated rows, which the cache has, over their slots' positions up to their own: [N,H,D]."""
    given, kv_heads = rotated.heads, cache.kv_heads
    rows, all_heads, dim = given.shape
    heads = all_heads - 2 * kv_heads if rotated.with_kv else all_heads
    group = heads // kv_heads
    out = torch.empty(rows, heads, dim, dtype=given.dtype, device=given.device)
    if not rows:
        return out
    assert given.is_contiguous()
    assert not rotated.with_kv or (rotated.scales is None) == (cache.scales is None)
    group_block = power_of_2(group)
    dim_block = max(MIN_TILE, power_of_2(dim))
    is_wide, is_float32 = dim_block > MAX_NARROW_DIM, out.dtype == torch.float32
    tile_rows = max(1, (WIDE_FLOAT32_TILE if is_wide and is_float32 else TILE) // group_block)
    gpu = gpu_of(out.device)
    block = FLOAT32_BLOCK if is_float32 else BLOCKS.get(gpu.architecture, OTHER_BLOCK)
    tiles = -(-rows // tile_rows)
    is_alone = tiles * kv_heads <= gpu.multiprocessors and not is_wide and not is_float32
    prefill_kernel[(tiles, kv_heads)](
        given, given if rotated.scales is None else rotated.scales, *cache.launch_tensors(given), out, rows,
        *cache.launch_strides(), dim**-0.5 * LOG2_E,
        HEADS=heads, KV_HEADS=kv_heads, GROUP=group, GROUP_BLOCK=group_block, ROWS=tile_rows, DIM=dim,
        DIM_BLOCK=dim_block, PAGE=cache.page, BLOCK=block,
        MAX_BLOCKS=power_of_2(-(-cache.max_positions // block)), STAGES=STAGES_ALONE if is_alone else STAGES,
        OWN=rotated.with_kv, SCALED=cache.scales is not None, **overlap(out.flatten(1)), num_warps=4,
        num_stages=PAST_STAGES,
    )  # fmt: skip
    return out


@partial(Kernel, do_not_specialize=("rows",))
def prefill_kernel(
    rotated, scales, keys, values, key_scales, value_scales, tables, slots, positions, out, rows,
    page_stride, offset_stride, head_stride, table_row, scale,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, GROUP: tl.constexpr, GROUP_BLOCK: tl.constexpr, ROWS: tl.constexpr,
    DIM: tl.constexpr, DIM_BLOCK: tl.constexpr, PAGE: tl.constexpr, BLOCK: tl.constexpr, MAX_BLOCKS: tl.constexpr,
    STAGES: tl.constexpr, OWN: tl.constexpr, SCALED: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    ROW: tl.constexpr = (HEADS + 2 * KV_HEADS if OWN else HEADS) * DIM
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
        own = stop  # positions from here on are rows of this pass
        if OWN:
            # Position p of the slot is row first + p, if that row is one of the slot's.
            first = tl.max(tl.where(is_current, row - last, -(1 << 30)), 0)
            block = tl.arange(0, MAX_BLOCKS) * BLOCK
            in_pass = tl.load(slots + first + block, mask=(block < stop) & (first + block >= 0), other=-1) == current
            own = tl.min(tl.where(in_pass, block, stop), 0)
        if OVERLAP:
            wait()
        query = tl.load(queries + (in_tile * ROW + head * DIM)[:, None] + column[None, :], mask=mask, other=0.0)
        # Finite: rows of other slots subtract it from minus infinity. They are computed, too, but not stored.
        running_max = tl.full([ROWS * GROUP_BLOCK], -1e30, tl.float32)
        denominator = tl.zeros([ROWS * GROUP_BLOCK], tl.float32)
        acc = tl.zeros([ROWS * GROUP_BLOCK, DIM_BLOCK], tl.float32)
        if own > 0:  # without earlier blocks, skip what the loop prepares
            for start in range(0, own, BLOCK):
                key, value = load_kv_block(
                    keys + past, values + past, table, start, stop, page_stride, offset_stride,
                    DIM, DIM_BLOCK, PAGE, BLOCK,
                )  # fmt: skip
                position = start + tl.arange(0, BLOCK)
                written = position < stop
                page = tl.load(table + position // PAGE, mask=written, other=0)
                at_scale = past_scale + page * (KV_HEADS * PAGE) + position % PAGE
                key_scale, value_scale = load_scales(key_scales + at_scale, value_scales + at_scale, written, SCALED)
                visible = position[None, :] <= last[:, None]
                running_max, denominator, acc = attend_block(
                    query, key, value, key_scale, value_scale, visible, scale, running_max, denominator, acc, SCALED
                )
        if OWN:
            own_keys = rotated + first.to(tl.int64) * ROW + (HEADS + kv_head) * DIM
            own_scales = scales + kv_head * rows + first
            for start in tl.range(own, stop, BLOCK, num_stages=STAGES):
                position = start + tl.arange(0, BLOCK)
                written = position < stop
                at = own_keys + position[:, None] * ROW + column[None, :]
                key = tl.load(at, mask=written[:, None] & inside, other=0.0)
                value = tl.load(at + KV_HEADS * DIM, mask=written[:, None] & inside, other=0.0)
                at_scale = own_scales + position
                key_scale, value_scale = load_scales(at_scale, at_scale + KV_HEADS * rows, written, SCALED)
                visible = position[None, :] <= last[:, None]
                running_max, denominator, acc = attend_block(
                    query, key, value, key_scale, value_scale, visible, scale, running_max, denominator, acc, SCALED
                )
        result = results + (in_tile * (HEADS * DIM) + head * DIM)[:, None] + column[None, :]
        tl.store(result, (acc / denominator[:, None]).to(out.dtype.element_ty), mask=mask & is_current[:, None])
        slot = tl.where(is_current, -1, slot)
        current = tl.max(slot, 0)


@Kernel
def load_scales(key_scales, value_scales, mask, SCALED: tl.constexpr):
    """The scales at these addresses, or ones that are not used.

    In one load: of BLOCK elements, fewer than there are threads, Triton would load each in several threads.
    """
    if SCALED:
        pair = tl.where(tl.arange(0, 2)[None, :] == 0, key_scales[:, None], value_scales[:, None])
        key_scale, value_scale = tl.split(tl.load(pair, mask=mask[:, None], other=0.0))
    else:
        key_scale = tl.full([mask.shape[0]], 1.0, tl.float32)
        value_scale = key_scale
    return key_scale, value_scale
