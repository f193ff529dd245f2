# SPDX-License-Identifier: Apache-2.0
"""Between the QKV projection and attention: norm, rotary embedding, KV cache write.

    qkv [N, (H + 2·KVH)·D], heads of q, then k, then v · q_weight, k_weight [D], or none
    cos, sin [M,D], M > positions, or [N,D] if by_row
    keys, values [P,PAGE,KVH,D] · tables [S,W] int64 · slots, positions [N] int64 -> q [N,H,D]; k and v are in the cache

Row i is position positions[i] of slot slots[i] and is rotated by row positions[i] of cos and sin (row i if by_row); the
first half of a head is paired with the second, and sin includes the sign. A row writes its own cache entry and nothing
else.

Types: bfloat16, float16, float32; one type for all tensors, or a quantised cache (kv_quantize.py).
Roundings: those of the separate functions: the norm's two; x·cos and its partner·sin are each rounded, and so is their
sum. Of a quantised cache, k and v are then rounded as kv_quantize.py says.
Bytes: qkv, q, and the rows of k and v once each.
Grid: one program per row and HEADS_AT_ONCE heads, or HEADS_OF_MANY_ROWS for MANY_ROWS rows or more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from polyvox import kernels
from polyvox.kernels.kv_quantize import KVScales, quantize_heads
from polyvox.kernels.launch_overlap import overlap, wait
from polyvox.kernels.lazy_triton import Kernel, power_of_2
from polyvox.kernels.norm import rms_norm_reference
from polyvox.kernels.quantized_rows import LARGEST, quantize_rows

if TYPE_CHECKING:
    import triton.language as tl

HEADS_AT_ONCE = 8
MANY_ROWS, HEADS_OF_MANY_ROWS = 256, 32  # fewer, larger programs: 11.6 instead of 15.3 µs for 2,048 rows on an H200


def rotary_store(
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
    *,
    scales: KVScales | None = None,
    by_row: bool = False,
) -> Tensor:
    """Normalise (with the weights of q and k) and rotate each row's heads, store k and v in the cache, return q."""
    if not kernels.active(qkv):
        return rotary_store_reference(
            qkv, weights, eps, cos, sin, keys, values, tables, slots, positions, scales=scales, by_row=by_row
        )
    rows = len(qkv)
    page, kv_heads, dim = keys.shape[1:]
    heads = qkv.shape[1] // dim - 2 * kv_heads
    q = torch.empty(rows, heads, dim, dtype=qkv.dtype, device=qkv.device)
    if not rows:
        return q
    assert qkv.stride(1) == cos.stride(1) == sin.stride(1) == keys.stride(3) == 1
    assert cos.stride(0) == sin.stride(0) == dim
    assert keys.stride() == values.stride(), (keys.stride(), values.stride())
    assert tables.stride(1) == slots.stride(0) == positions.stride(0) == 1
    assert scales is None or all(pool.is_contiguous() for pool in scales)
    q_weight, k_weight = (qkv, qkv) if weights is None else weights
    key_scales, value_scales = scales or (qkv, qkv)
    heads_at_once = HEADS_AT_ONCE if rows < MANY_ROWS else HEADS_OF_MANY_ROWS
    blocks = -(-(heads + 2 * kv_heads) // heads_at_once)
    rotary_kernel[(rows, blocks)](
        qkv, q_weight, k_weight, cos, sin, keys, values, key_scales, value_scales, tables, slots, positions, q,
        qkv.stride(0), keys.stride(0), keys.stride(1), keys.stride(2), tables.stride(0), eps,
        NORM=weights is not None, BY_ROW=by_row, HEADS=heads, KV_HEADS=kv_heads, DIM=dim, DIM_BLOCK=power_of_2(dim),
        HEADS_AT_ONCE=heads_at_once, PAGE=page, LARGEST=LARGEST.get(keys.dtype), **overlap(qkv), num_warps=4,
    )  # fmt: skip
    return q


def rotary_store_reference(
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
    *,
    scales: KVScales | None = None,
    by_row: bool = False,
) -> Tensor:
    """Reference implementation."""
    page, kv_heads, dim = keys.shape[1:]
    heads = qkv.unflatten(1, (-1, dim))
    q, k, v = heads.split([heads.shape[1] - 2 * kv_heads, kv_heads, kv_heads], dim=1)
    if weights is not None:
        q, k = (rms_norm_reference(part, weight, eps) for part, weight in zip((q, k), weights, strict=True))
    by_cos, by_sin = (angles[:, None] if by_row else angles[positions][:, None] for angles in (cos, sin))
    q, k = (part * by_cos + part.roll(dim // 2, -1) * by_sin for part in (q, k))
    offset = tables[slots, positions // page], positions % page
    if scales is None:
        keys[offset], values[offset] = k, v
        return q
    for pool, of_pool, rows in ((keys, scales.keys, k), (values, scales.values, v)):
        pool[offset], of_pool[offset[0], :, offset[1]] = quantize_rows(rows, pool.dtype)
    return q


@Kernel
def rotary_kernel(
    qkv, q_weight, k_weight, cos, sin, keys, values, key_scales, value_scales, tables, slots, positions, q,
    qkv_row, page_stride, offset_stride, head_stride, table_row, eps,
    NORM: tl.constexpr, BY_ROW: tl.constexpr, HEADS: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr,
    DIM_BLOCK: tl.constexpr, HEADS_AT_ONCE: tl.constexpr, PAGE: tl.constexpr, LARGEST: tl.constexpr,
    OVERLAP: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEADS_AT_ONCE + tl.arange(0, HEADS_AT_ONCE)
    column = tl.arange(0, DIM_BLOCK)
    partner = (column + DIM // 2) % DIM
    inside = column < DIM
    mask = (head < HEADS + 2 * KV_HEADS)[:, None] & inside[None, :]
    dtype = q.dtype.element_ty
    position = tl.load(positions + row)
    page = tl.load(tables + tl.load(slots + row) * table_row + position // PAGE)
    if OVERLAP:
        wait()

    start = qkv + row * qkv_row + head[:, None] * DIM
    given = tl.load(start + column[None, :], mask=mask, other=0.0)
    x = given.to(tl.float32)
    y = tl.load(start + partner[None, :], mask=mask, other=0.0).to(tl.float32)
    if NORM:
        scale = tl.rsqrt(tl.sum(x * x, 1) / DIM + eps)[:, None]
        is_query = (head < HEADS)[:, None]
        factor = tl.where(
            is_query,
            tl.load(q_weight + column, mask=inside, other=0.0)[None, :],
            tl.load(k_weight + column, mask=inside, other=0.0)[None, :],
        ).to(tl.float32)
        partner_factor = tl.where(
            is_query,
            tl.load(q_weight + partner, mask=inside, other=0.0)[None, :],
            tl.load(k_weight + partner, mask=inside, other=0.0)[None, :],
        ).to(tl.float32)
        x = (factor * (x * scale).to(dtype).to(tl.float32)).to(dtype).to(tl.float32)
        y = (partner_factor * (y * scale).to(dtype).to(tl.float32)).to(dtype).to(tl.float32)
    angle = (row if BY_ROW else position) * DIM + column
    by_cos = tl.load(cos + angle, mask=inside, other=0.0).to(tl.float32)[None, :]
    by_sin = tl.load(sin + angle, mask=inside, other=0.0).to(tl.float32)[None, :]
    rotated = ((x * by_cos).to(dtype).to(tl.float32) + (y * by_sin).to(dtype).to(tl.float32)).to(dtype)

    tl.store(q + (row * HEADS + head[:, None]) * DIM + column[None, :], rotated, mask=mask & (head < HEADS)[:, None])
    offset = page * page_stride + (position % PAGE) * offset_stride
    of_key, of_value = head - HEADS, head - HEADS - KV_HEADS
    is_key = (of_key >= 0) & (of_key < KV_HEADS)
    is_value = (of_value >= 0) & (of_value < KV_HEADS)
    key, value = rotated, given
    if LARGEST is not None:
        rows = tl.where(is_value[:, None], given, rotated).to(tl.float32)
        key, scale = quantize_heads(rows, LARGEST, keys.dtype.element_ty)
        value = key
        at_scale = page * KV_HEADS * PAGE + position % PAGE
        tl.store(key_scales + at_scale + of_key * PAGE, scale, mask=is_key)
        tl.store(value_scales + at_scale + of_value * PAGE, scale, mask=is_value)
    tl.store(keys + offset + of_key[:, None] * head_stride + column[None, :], key, mask=mask & is_key[:, None])
    tl.store(values + offset + of_value[:, None] * head_stride + column[None, :], value, mask=mask & is_value[:, None])
