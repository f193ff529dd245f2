# SPDX-License-Identifier: Apache-2.0
"""Decode attention: norm, rotary embedding, KV cache write and attention for one row per slot in one launch.

    the inputs of rotary.py, where no two rows share a slot -> [N,H,D] as in attention.py; k and v are in the cache

Fuses rotary.py and attention.py. A row attends to itself from registers and to its past in the cache, so a launch never
reads what it writes. For small batches the first block of the past is prefetched before the previous launch has ended
(launch_overlap.py), which is safe because earlier steps wrote it. A few rows leave most multiprocessors idle: several
programs divide the blocks of positions of a row, and a second launch combines their results. Otherwise all blocks go
through one pipelined loop. Consecutive rows of one slot (a prompt) need the two separate launches.

Types: bfloat16, float16, float32; one type for all tensors, or a quantised cache (kv_quantize.py).
Roundings: those of rotary.py, then those of attention.py; the row's own position comes first in the reduction, with the
key and value that the cache has after it. Up to SMALL_BATCH_ROWS rows of 16-bit types use blocks of SMALL_BATCH_BLOCK
positions. The order depends on the number of rows, the table's width and the number of multiprocessors only.
Bytes: keys and values of all positions once per row; qkv and the result once.
Grid: one program per row and KV head; for a few rows a power of 2 of them, so that all run at once.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from polyvox.kernels.attention import BLOCK, LOG2_E, MIN_TILE, paged_attention_reference
from polyvox.kernels.attention_blocks import attend_block, load_kv_block, load_scale_block
from polyvox.kernels.gpu import gpu_of
from polyvox.kernels.kv_quantize import quantize_heads
from polyvox.kernels.launch_overlap import overlap, wait
from polyvox.kernels.lazy_triton import Kernel, largest_power_of_2, power_of_2
from polyvox.kernels.paged_rows import PagedRows
from polyvox.kernels.quantized_rows import LARGEST
from polyvox.kernels.rotary import HeadRotation, rotary_store_reference

if TYPE_CHECKING:
    import triton.language as tl

# Small batches leave the GPU mostly idle; the time is the number of blocks a program waits for.
SMALL_BATCH_ROWS, SMALL_BATCH_BLOCK = 16, 128
MAX_ROWS = 128  # above, two launches are faster than decode_kernel (H200: 6 % of a frame step at 512 rows)


def supports(qkv: Tensor, _rotation: HeadRotation, _cache: PagedRows) -> bool:
    """Whether one launch is faster for these rows than rotary.py and attention.py."""
    return len(qkv) <= MAX_ROWS


def launch(qkv: Tensor, rotation: HeadRotation, cache: PagedRows) -> Tensor:
    """Normalise and rotate the heads of one or more rows, store k and v in the cache, and attend."""
    rows, heads, kv_heads, dim = len(qkv), cache.num_heads(qkv), cache.kv_heads, cache.dim
    group = heads // kv_heads
    out = torch.empty(rows, heads, dim, dtype=qkv.dtype, device=qkv.device)
    small_batch = rows <= SMALL_BATCH_ROWS
    max_block = SMALL_BATCH_BLOCK if small_batch and qkv.dtype != torch.float32 else BLOCK
    block = max(MIN_TILE, min(max_block, power_of_2(cache.max_positions)))
    blocks = -(-cache.max_positions // block)
    splits = 1
    if small_batch:
        splits = min(blocks, largest_power_of_2(gpu_of(qkv.device).multiprocessors // (rows * kv_heads)))
    sums, stats = (
        torch.empty(rows, heads, splits, size, dtype=torch.float32, device=qkv.device) if splits > 1 else out
        for size in (dim, 2)
    )
    decode_kernel[(rows, kv_heads, splits)](
        qkv, *rotation.launch_tensors(qkv), *cache.launch_tensors(qkv), out, sums, stats,
        qkv.stride(0), *cache.launch_strides(), rotation.eps, dim**-0.5 * LOG2_E,
        NORM=rotation.norms is not None, HEADS=heads, KV_HEADS=kv_heads,
        GROUP=group, GROUP_BLOCK=max(MIN_TILE, power_of_2(group)),
        DIM=dim, DIM_BLOCK=max(MIN_TILE, power_of_2(dim)), PAGE=cache.page, BLOCK=block,
        PREFETCH=small_batch, SINGLE_BLOCK=splits == blocks, SPLITS=splits,
        LARGEST=LARGEST.get(cache.keys.dtype), **overlap(qkv),
        num_warps=max(2, block // 16), num_stages=2,
    )  # fmt: skip
    if splits > 1:
        combine_splits_kernel[(rows * heads,)](
            sums, stats, out, SPLITS=splits, SPLITS_BLOCK=power_of_2(splits), DIM=dim, DIM_BLOCK=power_of_2(dim),
            **overlap(qkv), num_warps=4,
        )  # fmt: skip
    return out


def rotary_attention_reference(qkv: Tensor, rotation: HeadRotation, cache: PagedRows) -> Tensor:
    """Reference implementation, also of prompts: the two separate reference implementations in sequence."""
    return paged_attention_reference(rotary_store_reference(qkv, rotation, cache), cache)


@partial(Kernel, fuse=False)
def decode_kernel(
    qkv, q_weight, k_weight, cos, sin, keys, values, key_scales, value_scales, tables, slots, positions, out,
    sums, stats, qkv_row, page_stride, offset_stride, head_stride, table_row, eps, scale,
    NORM: tl.constexpr, HEADS: tl.constexpr, KV_HEADS: tl.constexpr, GROUP: tl.constexpr, GROUP_BLOCK: tl.constexpr,
    DIM: tl.constexpr, DIM_BLOCK: tl.constexpr, PAGE: tl.constexpr, BLOCK: tl.constexpr,
    PREFETCH: tl.constexpr, SINGLE_BLOCK: tl.constexpr, SPLITS: tl.constexpr, LARGEST: tl.constexpr,
    OVERLAP: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1)
    split = 0
    if SPLITS > 1:
        split = tl.program_id(2)
    first = split * BLOCK
    dtype = out.dtype.element_ty
    SCALED: tl.constexpr = LARGEST is not None
    last = tl.load(positions + row).to(tl.int32)
    table = tables + tl.load(slots + row) * table_row
    column = tl.arange(0, DIM_BLOCK)
    partner = (column + DIM // 2) % DIM
    inside = column < DIM
    turn = last.to(tl.int64) * DIM + column
    by_cos = tl.load(cos + turn, mask=inside, other=0.0).to(tl.float32)[None, :]
    by_sin = tl.load(sin + turn, mask=inside, other=0.0).to(tl.float32)[None, :]
    own_page = tl.load(table + last // PAGE)
    past = kv_head * head_stride
    past_scale = kv_head * PAGE
    if PREFETCH:
        past_key, past_value = load_kv_block(
            keys + past, values + past, table, first, last, page_stride, offset_stride, DIM, DIM_BLOCK, PAGE, BLOCK
        )
        key_scale, value_scale = load_scale_block(
            key_scales + past_scale, value_scales + past_scale, table, first, last, KV_HEADS, PAGE, BLOCK, SCALED
        )
    if OVERLAP:
        wait()

    # The row's own key and value: stored in the cache, and first in the reduction.
    start = qkv + row * qkv_row
    own = (HEADS + kv_head) * DIM
    key = norm_and_rotate(
        start + own, k_weight, column[None, :], partner[None, :], inside[None, :], by_cos, by_sin, eps, NORM, DIM
    )
    value = tl.load(start + own + KV_HEADS * DIM + column, mask=inside, other=0.0)[None, :]
    offsets = own_page * page_stride + (last % PAGE) * offset_stride + kv_head * head_stride + column[None, :]
    own_key, own_value = key, value
    if LARGEST is not None:
        key, own_key_scale = quantize_heads(key.to(tl.float32), LARGEST, keys.dtype.element_ty)
        value, own_value_scale = quantize_heads(value.to(tl.float32), LARGEST, keys.dtype.element_ty)
        own_key = key.to(tl.float32) * own_key_scale[:, None]
        own_value = value.to(tl.float32) * own_value_scale[:, None]
        own_scale = (own_page * KV_HEADS + kv_head) * PAGE + last % PAGE + tl.arange(0, 1)
        tl.store(key_scales + own_scale, own_key_scale, mask=split == 0)
        tl.store(value_scales + own_scale, own_value_scale, mask=split == 0)
    stored = inside[None, :]
    if SPLITS > 1:
        stored &= split == 0
    tl.store(keys + offsets, key, mask=stored)
    tl.store(values + offsets, value, mask=stored)

    head = tl.arange(0, GROUP_BLOCK)
    mask = (head < GROUP)[:, None] & inside[None, :]
    heads = (kv_head * GROUP + head)[:, None] * DIM
    query = norm_and_rotate(
        start, q_weight, heads + column[None, :], heads + partner[None, :], mask, by_cos, by_sin, eps, NORM, DIM
    )
    running_max = tl.sum(query.to(tl.float32) * own_key.to(tl.float32), 1) * scale
    denominator = tl.full([GROUP_BLOCK], 1.0, tl.float32)
    acc = tl.zeros([GROUP_BLOCK, DIM_BLOCK], tl.float32) + own_value.to(tl.float32)
    if SPLITS > 1:
        # Only the first split has the row's own position. The lowest maximum is finite: the split may be empty.
        running_max = tl.where(split == 0, running_max, -1e30)
        denominator = tl.where(split == 0, denominator, 0.0)
        acc = tl.where(split == 0, acc, 0.0)
    if PREFETCH:
        running_max, denominator, acc = attend_block(
            query, past_key, past_value, key_scale, value_scale, (first + tl.arange(0, BLOCK) < last)[None, :], scale,
            running_max, denominator, acc, SCALED,
        )  # fmt: skip
    if not (PREFETCH and SINGLE_BLOCK):
        for begin in range(first + SPLITS * BLOCK if PREFETCH else 0, last, SPLITS * BLOCK):
            past_key, past_value = load_kv_block(
                keys + past, values + past, table, begin, last, page_stride, offset_stride, DIM, DIM_BLOCK, PAGE, BLOCK
            )
            key_scale, value_scale = load_scale_block(
                key_scales + past_scale, value_scales + past_scale, table, begin, last, KV_HEADS, PAGE, BLOCK, SCALED
            )
            running_max, denominator, acc = attend_block(
                query, past_key, past_value, key_scale, value_scale, (begin + tl.arange(0, BLOCK) < last)[None, :],
                scale, running_max, denominator, acc, SCALED,
            )  # fmt: skip
    if SPLITS > 1:
        at = (row * HEADS + kv_head * GROUP + head) * SPLITS + split
        tl.store(sums + at[:, None] * DIM + column[None, :], acc, mask=mask)
        tl.store(stats + at * 2, running_max, mask=head < GROUP)
        tl.store(stats + at * 2 + 1, denominator, mask=head < GROUP)
    else:
        tl.store(out + row * HEADS * DIM + heads + column[None, :], (acc / denominator[:, None]).to(dtype), mask=mask)


@Kernel
def combine_splits_kernel(
    sums, stats, out, SPLITS: tl.constexpr, SPLITS_BLOCK: tl.constexpr, DIM: tl.constexpr, DIM_BLOCK: tl.constexpr,
    OVERLAP: tl.constexpr,
):  # fmt: skip
    """The softmax over all positions of one row and head, from the running softmax of each split."""
    row_head = tl.program_id(0)
    split = tl.arange(0, SPLITS_BLOCK)
    column = tl.arange(0, DIM_BLOCK)
    mask = (split < SPLITS)[:, None] & (column < DIM)[None, :]
    at = row_head * SPLITS + split
    if OVERLAP:
        wait()
    maximum = tl.load(stats + at * 2, mask=split < SPLITS, other=-1e30)
    denominator = tl.load(stats + at * 2 + 1, mask=split < SPLITS, other=0.0)
    acc = tl.load(sums + at[:, None] * DIM + column[None, :], mask=mask, other=0.0)
    rescale = tl.exp2(maximum - tl.max(maximum, 0))
    made = tl.sum(acc * rescale[:, None], 0) / tl.sum(denominator * rescale, 0)
    tl.store(out + row_head * DIM + column, made.to(out.dtype.element_ty), mask=column < DIM)


@Kernel
def norm_and_rotate(
    start, weight, at, partner, mask, by_cos, by_sin, eps, NORM: tl.constexpr, DIM: tl.constexpr
):  # fmt: skip
    """Load heads at these offsets, normalise and rotate them; a head's norm weights repeat every DIM."""
    given = tl.load(start + at, mask=mask, other=0.0)
    dtype = given.dtype
    x = given.to(tl.float32)
    y = tl.load(start + partner, mask=mask, other=0.0).to(tl.float32)
    if NORM:
        scale = tl.rsqrt(tl.sum(x * x, 1) / DIM + eps)[:, None]
        factor = tl.load(weight + at % DIM, mask=mask, other=0.0).to(tl.float32)
        partner_factor = tl.load(weight + partner % DIM, mask=mask, other=0.0).to(tl.float32)
        x = (factor * (x * scale).to(dtype).to(tl.float32)).to(dtype).to(tl.float32)
        y = (partner_factor * (y * scale).to(dtype).to(tl.float32)).to(dtype).to(tl.float32)
    return ((x * by_cos).to(dtype).to(tl.float32) + (y * by_sin).to(dtype).to(tl.float32)).to(dtype)
