"""A decoding step between two projections: norm, rotation, cache and attention of one row a slot, by one launch.

    the inputs of rotary.py, where no two rows are of one slot -> [N,H,D], as of attention.py; k and v are in the cache

It is rotary.py and attention.py in one: a row attends to itself from registers and to its past in the cache, so nothing
that a launch writes is read in it. For few rows, the first block of the past is read before the launch in front has
ended (overlap.py): it is of earlier steps. With many, all blocks are read alike, each while one is worked on. Rows of
one slot that follow each other (a prompt) must take the two launches.

Types: bfloat16, float16, float32, one for all.
Roundings: those of rotary.py, then those of attention.py; the row's own position comes first in the sums. Up to
FEW_ROWS rows of 16 bits go in blocks of FEW_BLOCK positions: the order depends on the table's width and on that alone.
Bytes: keys and values of all positions once for each row; qkv and the result once.
One program a row and kv head.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from polyvox import kernels
from polyvox.kernels.attention import BLOCK, LEAST, LOG2_E, paged_attention_plain
from polyvox.kernels.launch_overlap import overlap, wait
from polyvox.kernels.lazy_triton import Kernel, power_of_2
from polyvox.kernels.rotary import rotary_store_plain

if TYPE_CHECKING:
    import triton.language as tl

# Few rows leave the card idle, and what counts is how often a program waits for a block.
FEW_ROWS, FEW_BLOCK = 16, 128


def rotary_attention(
    qkv: Tensor,
    weights: tuple[Tensor, Tensor] | None,
    eps: float,
    cos: Tensor,
    sin: Tensor,
    keys: Tensor,
    values: Tensor,
    tables: Tensor,
    slots: Tensor,
    positions: Tensor,
) -> Tensor:
    """Norms (with weights of q and k) and turns the heads of each row, writes k and v to the cache, and attends."""
    if not kernels.active(qkv):
        return rotary_attention_plain(qkv, weights, eps, cos, sin, keys, values, tables, slots, positions)
    rows = len(qkv)
    page, kv_heads, dim = keys.shape[1:]
    heads = qkv.shape[1] // dim - 2 * kv_heads
    group = heads // kv_heads
    out = torch.empty(rows, heads, dim, dtype=qkv.dtype, device=qkv.device)
    if not rows:
        return out
    assert qkv.stride(1) == cos.stride(1) == sin.stride(1) == keys.stride(3) == 1
    assert cos.stride(0) == sin.stride(0) == dim
    assert keys.stride() == values.stride(), (keys.stride(), values.stride())
    assert tables.stride(1) == slots.stride(0) == positions.stride(0) == 1
    q_weight, k_weight = (qkv, qkv) if weights is None else weights
    few = rows <= FEW_ROWS
    most = FEW_BLOCK if few and qkv.dtype != torch.float32 else BLOCK
    block = max(LEAST, min(most, power_of_2(tables.shape[1] * page)))
    decode_kernel[(rows, kv_heads)](
        qkv, q_weight, k_weight, cos, sin, keys, values, tables, slots, positions, out,
        qkv.stride(0), keys.stride(0), keys.stride(1), keys.stride(2), tables.stride(0), eps, dim**-0.5 * LOG2_E,
        NORM=weights is not None, HEADS=heads, KV_HEADS=kv_heads,
        GROUP=group, GROUP_BLOCK=max(LEAST, power_of_2(group)),
        DIM=dim, DIM_BLOCK=max(LEAST, power_of_2(dim)), PAGE=page, BLOCK=block,
        EARLY=few, WHOLE=block >= tables.shape[1] * page, **overlap(out),
        num_warps=max(2, block // 16), num_stages=2,
    )  # fmt: skip
    return out


def rotary_attention_plain(
    qkv: Tensor,
    weights: tuple[Tensor, Tensor] | None,
    eps: float,
    cos: Tensor,
    sin: Tensor,
    keys: Tensor,
    values: Tensor,
    tables: Tensor,
    slots: Tensor,
    positions: Tensor,
) -> Tensor:
    """The twin: the two twins one after the other."""
    where = tables, slots, positions
    q = rotary_store_plain(qkv, weights, eps, cos, sin, keys, values, *where)
    return paged_attention_plain(q, keys, values, *where)


@Kernel
def decode_kernel(
    qkv, q_weight, k_weight, cos, sin, keys, values, tables, slots, positions, out,
    qkv_row, page_stride, offset_stride, head_stride, table_row, eps, scale,
    NORM: tl.constexpr, HEADS: tl.constexpr, KV_HEADS: tl.constexpr, GROUP: tl.constexpr, GROUP_BLOCK: tl.constexpr,
    DIM: tl.constexpr, DIM_BLOCK: tl.constexpr, PAGE: tl.constexpr, BLOCK: tl.constexpr,
    EARLY: tl.constexpr, WHOLE: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1)
    kind = out.dtype.element_ty
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
    if EARLY:
        past_key, past_value = block_of(
            keys + past, values + past, table, 0, last, page_stride, offset_stride, DIM, DIM_BLOCK, PAGE, BLOCK
        )
    if OVERLAP:
        wait()

    # The row's own key and value: into the cache, and first in the sums.
    start = qkv + row * qkv_row
    own = (HEADS + kv_head) * DIM
    key = turned(
        start + own, k_weight, column[None, :], partner[None, :], inside[None, :], by_cos, by_sin, eps, NORM, DIM
    )
    value = tl.load(start + own + KV_HEADS * DIM + column, mask=inside, other=0.0)[None, :]
    place = own_page * page_stride + (last % PAGE) * offset_stride + kv_head * head_stride + column[None, :]
    tl.store(keys + place, key, mask=inside[None, :])
    tl.store(values + place, value, mask=inside[None, :])

    head = tl.arange(0, GROUP_BLOCK)
    there = (head < GROUP)[:, None] & inside[None, :]
    heads = (kv_head * GROUP + head)[:, None] * DIM
    query = turned(
        start, q_weight, heads + column[None, :], heads + partner[None, :], there, by_cos, by_sin, eps, NORM, DIM
    )
    highest = tl.sum(query.to(tl.float32) * key.to(tl.float32), 1) * scale
    total = tl.full([GROUP_BLOCK], 1.0, tl.float32)
    sums = tl.zeros([GROUP_BLOCK, DIM_BLOCK], tl.float32) + value.to(tl.float32)
    if EARLY:
        highest, total, sums = hear(query, past_key, past_value, 0, last, scale, highest, total, sums, BLOCK)
    if not (EARLY and WHOLE):
        for begin in range(BLOCK if EARLY else 0, last, BLOCK):
            past_key, past_value = block_of(
                keys + past, values + past, table, begin, last, page_stride, offset_stride, DIM, DIM_BLOCK, PAGE, BLOCK
            )
            highest, total, sums = hear(query, past_key, past_value, begin, last, scale, highest, total, sums, BLOCK)
    tl.store(out + row * HEADS * DIM + heads + column[None, :], (sums / total[:, None]).to(kind), mask=there)


@Kernel
def block_of(
    keys, values, table, begin, last, page_stride, offset_stride,
    DIM: tl.constexpr, DIM_BLOCK: tl.constexpr, PAGE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Keys and values of the positions from begin on, a block of them, zero from last on."""
    position = begin + tl.arange(0, BLOCK)
    column = tl.arange(0, DIM_BLOCK)
    seen = position < last
    page = tl.load(table + position // PAGE, mask=seen, other=0)
    at = (page * page_stride + (position % PAGE) * offset_stride)[:, None] + column[None, :]
    readable = seen[:, None] & (column < DIM)[None, :]
    return tl.load(keys + at, mask=readable, other=0.0), tl.load(values + at, mask=readable, other=0.0)


@Kernel
def hear(query, key, value, begin, last, scale, highest, total, sums, BLOCK: tl.constexpr):
    """Adds a block to what was heard: the highest score, the weights' total and the weighted sums."""
    score = tl.dot(query, tl.trans(key), input_precision="ieee") * scale
    score = tl.where((begin + tl.arange(0, BLOCK) < last)[None, :], score, float("-inf"))
    higher = tl.maximum(highest, tl.max(score, 1))
    shrink = tl.exp2(highest - higher)
    weight = tl.exp2(score - higher[:, None])
    total = total * shrink + tl.sum(weight, 1)
    sums = tl.dot(weight.to(value.dtype), value, sums * shrink[:, None], input_precision="ieee")
    return higher, total, sums


@Kernel
def turned(
    start, weight, at, partner, there, by_cos, by_sin, eps, NORM: tl.constexpr, DIM: tl.constexpr
):  # fmt: skip
    """Heads at these places, normed and turned, in their own type; a head's weights repeat with DIM."""
    given = tl.load(start + at, mask=there, other=0.0)
    kind = given.dtype
    x = given.to(tl.float32)
    y = tl.load(start + partner, mask=there, other=0.0).to(tl.float32)
    if NORM:
        scale = tl.rsqrt(tl.sum(x * x, 1) / DIM + eps)[:, None]
        factor = tl.load(weight + at % DIM, mask=there, other=0.0).to(tl.float32)
        partner_factor = tl.load(weight + partner % DIM, mask=there, other=0.0).to(tl.float32)
        x = (factor * (x * scale).to(kind).to(tl.float32)).to(kind).to(tl.float32)
        y = (partner_factor * (y * scale).to(kind).to(tl.float32)).to(kind).to(tl.float32)
    return ((x * by_cos).to(kind).to(tl.float32) + (y * by_sin).to(kind).to(tl.float32)).to(kind)
