"""Attention over pages: each row attends to its own past, however long, through its slot's list of pages.

    q [N,H,D] · keys, values [P,PAGE,KVH,D] · tables [S,W] int64 · slots, positions [N] int64 -> [N,H,D]

Row i attends to positions 0 to positions[i] of slot slots[i]; position p is row p % PAGE of page
tables[slot, p // PAGE]. Nothing behind its position is read. The same launch serves a decoding step, packed prompts
(each row of a prompt is a row here) and the predictor's frame, whose page holds all of it.

Types: bfloat16, float16, float32; keys, values and q have one type.
Roundings: products and sums in float32 (float32 inputs without TF32); exp(score - running maximum) is rounded to the
type of the values before it multiplies them, and the quotient is rounded once at the end. The sum goes in blocks of 64
positions, which depends on the table's width alone, so a row's bits depend on nothing but the row.
Bytes: keys and values of all positions once for each row, 4·KVH·D a position in bfloat16; q and the result once.
One program a row and kv head: the H / KVH heads that share keys are loaded for together.
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

BLOCK = 64  # positions that are read at a time
LEAST = 16  # rows and columns of a tensor core's operands
LOG2_E = 1.4426950408889634


def paged_attention(
    q: Tensor, keys: Tensor, values: Tensor, tables: Tensor, slots: Tensor, positions: Tensor
) -> Tensor:
    """Rows q [N,H,D], each over its slot's positions up to its own; q may have any row stride."""
    if not kernels.active(q):
        return paged_attention_plain(q, keys, values, tables, slots, positions)
    rows, heads, dim = q.shape
    page, kv_heads = keys.shape[1:3]
    group = heads // kv_heads
    out = torch.empty(rows, heads, dim, dtype=q.dtype, device=q.device)
    if not rows:
        return out
    assert q.stride()[1:] == (dim, 1), q.stride()
    assert keys.stride() == values.stride(), (keys.stride(), values.stride())
    assert tables.stride(1) == slots.stride(0) == positions.stride(0) == 1
    block = max(LEAST, min(BLOCK, power_of_2(tables.shape[1] * page)))
    attention_kernel[(rows, kv_heads)](
        q, keys, values, tables, slots, positions, out,
        q.stride(0), out.stride(0), keys.stride(0), keys.stride(1), keys.stride(2), tables.stride(0),
        dim**-0.5 * LOG2_E,
        GROUP=group, GROUP_BLOCK=max(LEAST, power_of_2(group)), DIM=dim, DIM_BLOCK=max(LEAST, power_of_2(dim)),
        PAGE=page, BLOCK=block, **overlap(q),
        num_warps=4 if block == BLOCK else 1, num_stages=2,
    )  # fmt: skip
    return out


def paged_attention_plain(
    q: Tensor, keys: Tensor, values: Tensor, tables: Tensor, slots: Tensor, positions: Tensor
) -> Tensor:
    """The twin: gathers each row's whole table and masks what lies behind its position."""
    own = tables[slots]
    columns = torch.arange(own.shape[1] * keys.shape[1], device=q.device)
    seen = columns <= positions[:, None]
    k, v = (pool[own].flatten(1, 2).masked_fill(~seen[:, :, None, None], 0).transpose(1, 2) for pool in (keys, values))
    return F.scaled_dot_product_attention(q[:, :, None], k, v, attn_mask=seen[:, None, None], enable_gqa=True)[:, :, 0]


@Kernel
def attention_kernel(
    q, keys, values, tables, slots, positions, out,
    q_row, out_row, page_stride, offset_stride, head_stride, table_row,
    scale,
    GROUP: tl.constexpr, GROUP_BLOCK: tl.constexpr, DIM: tl.constexpr, DIM_BLOCK: tl.constexpr,
    PAGE: tl.constexpr, BLOCK: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1)
    last = tl.load(positions + row).to(tl.int32)
    table = tables + tl.load(slots + row) * table_row
    if OVERLAP:
        wait()

    head = tl.arange(0, GROUP_BLOCK)
    column = tl.arange(0, DIM_BLOCK)
    place = (kv_head * GROUP + head)[:, None] * DIM + column[None, :]
    there = (head < GROUP)[:, None] & (column < DIM)[None, :]
    query = tl.load(q + row * q_row + place, mask=there, other=0.0)

    highest = tl.full([GROUP_BLOCK], float("-inf"), tl.float32)
    total = tl.zeros([GROUP_BLOCK], tl.float32)
    sums = tl.zeros([GROUP_BLOCK, DIM_BLOCK], tl.float32)
    for start in range(0, last + 1, BLOCK):
        position = start + tl.arange(0, BLOCK)
        seen = position <= last
        page = tl.load(table + position // PAGE, mask=seen, other=0)
        at = page * page_stride + (position % PAGE) * offset_stride + kv_head * head_stride
        at = at[:, None] + column[None, :]
        readable = seen[:, None] & (column < DIM)[None, :]
        key = tl.load(keys + at, mask=readable, other=0.0)
        value = tl.load(values + at, mask=readable, other=0.0)
        score = tl.dot(query, tl.trans(key), input_precision="ieee") * scale
        score = tl.where(seen[None, :], score, float("-inf"))
        higher = tl.maximum(highest, tl.max(score, 1))
        shrink = tl.exp2(highest - higher)
        weight = tl.exp2(score - higher[:, None])
        total = total * shrink + tl.sum(weight, 1)
        sums = tl.dot(weight.to(value.dtype), value, sums * shrink[:, None], input_precision="ieee")
        highest = higher
    tl.store(out + row * out_row + place, (sums / total[:, None]).to(out.dtype.element_ty), mask=there)
