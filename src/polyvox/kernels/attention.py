# SPDX-License-Identifier: Apache-2.0
"""Paged attention: each row attends to the past of its own slot through the slot's block table.

    q [N,H,D] · keys, values [P,PAGE,KVH,D] · tables [S,W] int64 · slots, positions [N] int64 -> [N,H,D]

Row i attends to positions 0 to positions[i] of slot slots[i] (paged_rows.py). Later positions are not read. The same
launch serves decoding and the code predictor, whose page holds a whole frame; prompt rows, which share their slot's
past, are in prefill_attention.py.

Types: bfloat16, float16, float32; keys and values have the type of q, or are quantised (kv_quantize.py).
Roundings: products and sums in float32 (float32 inputs without TF32); exp(score - running maximum) is rounded to the
type of q before the product, and the quotient is rounded once at the end. Of a quantised cache, keys and values are
converted to the type of q, which is exact; the scores are multiplied by the keys' scales, and the exponentials by those
of the values before they are rounded. The reduction runs over blocks of 64 positions, a size that depends on the
table's width only, so a row's bits depend on nothing but the row.
Bytes: keys and values of all positions once per row, 4·KVH·D a position in bfloat16 and 2·KVH·(D + 4) quantised; q and
the result once.
Grid: one program per row and KV head; the H / KVH query heads that share a KV head are processed together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from polyvox import kernels
from polyvox.kernels.attention_blocks import attend_block, load_kv_block, load_scale_block
from polyvox.kernels.launch_overlap import overlap, wait
from polyvox.kernels.lazy_triton import Kernel, power_of_2
from polyvox.kernels.paged_rows import PagedRows
from polyvox.kernels.quantized_rows import dequantize_rows

if TYPE_CHECKING:
    import triton.language as tl

BLOCK = 64  # positions per iteration
MIN_TILE = 16  # minimum rows and columns of a tensor core operand
LOG2_E = 1.4426950408889634


def paged_attention(q: Tensor, cache: PagedRows) -> Tensor:
    """Attention of rows q [N,H,D] over their slots' positions up to their own; q may have any row stride."""
    if not kernels.active(q):
        return paged_attention_reference(q, cache)
    rows, heads, dim = q.shape
    group = heads // cache.kv_heads
    out = torch.empty(rows, heads, dim, dtype=q.dtype, device=q.device)
    if not rows:
        return out
    assert q.stride()[1:] == (dim, 1), q.stride()
    block = max(MIN_TILE, min(BLOCK, power_of_2(cache.max_positions)))
    attention_kernel[(rows, cache.kv_heads)](
        q, *cache.launch_tensors(q), out, q.stride(0), out.stride(0), *cache.launch_strides(), dim**-0.5 * LOG2_E,
        KV_HEADS=cache.kv_heads, GROUP=group, GROUP_BLOCK=max(MIN_TILE, power_of_2(group)), DIM=dim,
        DIM_BLOCK=max(MIN_TILE, power_of_2(dim)), PAGE=cache.page, BLOCK=block, SCALED=cache.scales is not None,
        **overlap(q), num_warps=4 if block == BLOCK else 1, num_stages=2,
    )  # fmt: skip
    return out


def paged_attention_reference(q: Tensor, cache: PagedRows) -> Tensor:
    """Reference implementation: gathers each row's pages and masks later positions."""
    own = cache.tables[cache.slots]
    columns = torch.arange(cache.max_positions, device=q.device)
    visible = columns <= cache.positions[:, None]
    pages = [pool[own] for pool in (cache.keys, cache.values)]
    if cache.scales is not None:
        pages = [
            dequantize_rows(rows, of_pool[own].transpose(2, 3), q.dtype)
            for rows, of_pool in zip(pages, cache.scales, strict=True)
        ]
    k, v = (rows.flatten(1, 2).masked_fill(~visible[:, :, None, None], 0).transpose(1, 2) for rows in pages)
    return F.scaled_dot_product_attention(q[:, :, None], k, v, attn_mask=visible[:, None, None], enable_gqa=True)[
        :, :, 0
    ]


@Kernel
def attention_kernel(
    q, keys, values, key_scales, value_scales, tables, slots, positions, out,
    q_row, out_row, page_stride, offset_stride, head_stride, table_row,
    scale,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, GROUP_BLOCK: tl.constexpr, DIM: tl.constexpr, DIM_BLOCK: tl.constexpr,
    PAGE: tl.constexpr, BLOCK: tl.constexpr, SCALED: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1)
    last = tl.load(positions + row).to(tl.int32)
    table = tables + tl.load(slots + row) * table_row
    if OVERLAP:
        wait()

    head = tl.arange(0, GROUP_BLOCK)
    column = tl.arange(0, DIM_BLOCK)
    offsets = (kv_head * GROUP + head)[:, None] * DIM + column[None, :]
    mask = (head < GROUP)[:, None] & (column < DIM)[None, :]
    query = tl.load(q + row * q_row + offsets, mask=mask, other=0.0)

    running_max = tl.full([GROUP_BLOCK], float("-inf"), tl.float32)
    denominator = tl.zeros([GROUP_BLOCK], tl.float32)
    acc = tl.zeros([GROUP_BLOCK, DIM_BLOCK], tl.float32)
    past, past_scale = kv_head * head_stride, kv_head * PAGE
    for start in range(0, last + 1, BLOCK):
        key, value = load_kv_block(
            keys + past, values + past, table, start, last + 1, page_stride, offset_stride, DIM, DIM_BLOCK, PAGE, BLOCK
        )
        key_scale, value_scale = load_scale_block(
            key_scales + past_scale, value_scales + past_scale, table, start, last + 1, KV_HEADS, PAGE, BLOCK, SCALED
        )
        running_max, denominator, acc = attend_block(
            query, key, value, key_scale, value_scale, (start + tl.arange(0, BLOCK) <= last)[None, :], scale,
            running_max, denominator, acc, SCALED,
        )  # fmt: skip
    tl.store(out + row * out_row + offsets, (acc / denominator[:, None]).to(out.dtype.element_ty), mask=mask)
