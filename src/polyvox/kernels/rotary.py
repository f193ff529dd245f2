# SPDX-License-Identifier: Apache-2.0
"""Between the QKV projection and attention: norm, rotary embedding, KV cache write.

    qkv [N, (H + 2·KVH)·D], heads of q, then k, then v · q_weight, k_weight [D], or none
    cos, sin [M,D], M > positions, or [N,D] if by_row
    keys, values [P,PAGE,KVH,D] · tables [S,W] int64 · slots, positions [N] int64
    -> q [N,H,D]; k and v are in the cache. On request also k and v, in [N, H + 2·KVH, D], and their scales [2·KVH, N]

Row i is position positions[i] of slot slots[i] and is rotated by row positions[i] of cos and sin (row i if by_row); the
first half of a head is paired with the second, and sin includes the sign. A row writes its own cache entry and nothing
else.

Types: bfloat16, float16, float32; one type for all tensors, or a quantised cache (kv_quantize.py).
Roundings: those of the separate functions: the norm's two; x·cos and its partner·sin are each rounded, and so is their
sum. Of a quantised cache, k and v are then rounded as kv_quantize.py says; those that are returned are its values in
the type of q, which is exact.
Bytes: qkv, q, and the rows of k and v once each; those of k and v once more if they are returned.
Grid: one program per row and HEADS_AT_ONCE heads, or HEADS_OF_MANY_ROWS for MANY_ROWS rows or more and for a quantised
cache, over which the compiler adds the squares of the norm in an order that depends on the number of heads.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from polyvox import kernels
from polyvox.kernels.kv_quantize import quantize_heads
from polyvox.kernels.launch_overlap import overlap, wait
from polyvox.kernels.lazy_triton import Kernel, power_of_2
from polyvox.kernels.norm import rms_norm_reference
from polyvox.kernels.paged_rows import PagedRows
from polyvox.kernels.quantized_rows import LARGEST, SCALE_TYPE, quantize_rows

if TYPE_CHECKING:
    import triton.language as tl

HEADS_AT_ONCE = 8
MANY_ROWS, HEADS_OF_MANY_ROWS = 256, 32  # fewer, larger programs: 11.6 instead of 15.3 µs for 2,048 rows on an H200


@dataclass(frozen=True, slots=True, eq=False)
class HeadRotation:
    """The norm of the heads of q and k, and the rotary angles."""

    cos: Tensor  # [M,D], M > positions, or [N,D] if by_row
    sin: Tensor  # the same, with the sign
    norms: tuple[Tensor, Tensor] | None  # weights [D] for q and for k
    eps: float
    by_row: bool = False  # row i of cos and sin belongs to row i of the pass, not to position i

    def launch_tensors(self, unused: Tensor) -> tuple[Tensor, ...]:
        """The weights of the norms, cos and sin; `unused` in place of weights that do not exist."""
        assert self.cos.stride() == self.sin.stride() == (self.cos.shape[1], 1), (self.cos.stride(), self.sin.stride())
        return *(self.norms or (unused, unused)), self.cos, self.sin


@dataclass(frozen=True, slots=True, eq=False)
class RotatedRows:
    """Rows of a pass after norm and rotation: q, and with_kv also the keys and values that the cache has of them."""

    heads: Tensor  # [N,H,D], or [N, H + 2·KVH, D]: q, k and v; those of a quantised cache are its values in q's type
    scales: Tensor | None  # [2·KVH, N] of k and v, if they are quantised
    with_kv: bool


def rotary_store(qkv: Tensor, rotation: HeadRotation, cache: PagedRows) -> Tensor:
    """Normalise and rotate each row's heads, store k and v in the cache, return q."""
    if not kernels.active(qkv):
        return rotary_store_reference(qkv, rotation, cache)
    return rotate_and_store(qkv, rotation, cache, with_kv=False).heads


def rotate_and_store(qkv: Tensor, rotation: HeadRotation, cache: PagedRows, with_kv: bool) -> RotatedRows:
    """rotary_store by the kernel; with_kv if keys and values are read again at once."""
    rows, heads, kv_heads, dim = len(qkv), cache.num_heads(qkv), cache.kv_heads, cache.dim
    all_heads = heads + 2 * kv_heads
    out = torch.empty(rows, all_heads if with_kv else heads, dim, dtype=qkv.dtype, device=qkv.device)
    scales = None
    if with_kv and cache.scales is not None:
        scales = torch.empty(2 * kv_heads, rows, dtype=SCALE_TYPE, device=qkv.device)
    rotated = RotatedRows(out, scales, with_kv)
    if not rows:
        return rotated
    assert qkv.stride(1) == 1
    heads_at_once = HEADS_AT_ONCE if rows < MANY_ROWS and cache.scales is None else HEADS_OF_MANY_ROWS
    rotary_kernel[(rows, -(-all_heads // heads_at_once))](
        qkv, *rotation.launch_tensors(qkv), *cache.launch_tensors(qkv), out, qkv if scales is None else scales,
        qkv.stride(0), *cache.launch_strides(), rotation.eps,
        NORM=rotation.norms is not None, BY_ROW=rotation.by_row, HEADS=heads, KV_HEADS=kv_heads, DIM=dim,
        DIM_BLOCK=power_of_2(dim), HEADS_AT_ONCE=heads_at_once, PAGE=cache.page, LARGEST=LARGEST.get(cache.keys.dtype),
        WITH_KV=with_kv, **overlap(qkv), num_warps=4,
    )  # fmt: skip
    return rotated


def rotary_store_reference(qkv: Tensor, rotation: HeadRotation, cache: PagedRows) -> Tensor:
    """Reference implementation."""
    dim, positions = cache.dim, cache.positions
    q, k, v = qkv.unflatten(1, (-1, dim)).split([cache.num_heads(qkv), cache.kv_heads, cache.kv_heads], dim=1)
    if rotation.norms is not None:
        q, k = (
            rms_norm_reference(part, weight, rotation.eps) for part, weight in zip((q, k), rotation.norms, strict=True)
        )
    angles = (rotation.cos, rotation.sin) if rotation.by_row else (rotation.cos[positions], rotation.sin[positions])
    by_cos, by_sin = (rows[:, None] for rows in angles)
    q, k = (part * by_cos + part.roll(dim // 2, -1) * by_sin for part in (q, k))
    page, offset = cache.tables[cache.slots, positions // cache.page], positions % cache.page
    if cache.scales is None:
        cache.keys[page, offset], cache.values[page, offset] = k, v
        return q
    for pool, scales, rows in ((cache.keys, cache.scales.keys, k), (cache.values, cache.scales.values, v)):
        pool[page, offset], scales[page, :, offset] = quantize_rows(rows, pool.dtype)
    return q


@partial(Kernel, fuse=False)
def rotary_kernel(
    qkv, q_weight, k_weight, cos, sin, keys, values, key_scales, value_scales, tables, slots, positions,
    out, out_scales, qkv_row, page_stride, offset_stride, head_stride, table_row, eps,
    NORM: tl.constexpr, BY_ROW: tl.constexpr, HEADS: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr,
    DIM_BLOCK: tl.constexpr, HEADS_AT_ONCE: tl.constexpr, PAGE: tl.constexpr, LARGEST: tl.constexpr,
    WITH_KV: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEADS_AT_ONCE + tl.arange(0, HEADS_AT_ONCE)
    column = tl.arange(0, DIM_BLOCK)
    partner = (column + DIM // 2) % DIM
    inside = column < DIM
    mask = (head < HEADS + 2 * KV_HEADS)[:, None] & inside[None, :]
    dtype = out.dtype.element_ty
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

    offset = page * page_stride + (position % PAGE) * offset_stride
    of_key, of_value = head - HEADS, head - HEADS - KV_HEADS
    is_key = (of_key >= 0) & (of_key < KV_HEADS)
    is_value = (of_value >= 0) & (of_value < KV_HEADS)
    key, value = rotated, given
    turned = tl.where(is_value[:, None], given, rotated)
    if LARGEST is not None:
        key, scale = quantize_heads(turned.to(tl.float32), LARGEST, keys.dtype.element_ty)
        value = key
        at_scale = page * KV_HEADS * PAGE + position % PAGE
        tl.store(key_scales + at_scale + of_key * PAGE, scale, mask=is_key)
        tl.store(value_scales + at_scale + of_value * PAGE, scale, mask=is_value)
        if WITH_KV:
            turned = tl.where((head < HEADS)[:, None], rotated, key.to(dtype))
            tl.store(out_scales + of_key * tl.num_programs(0) + row, scale, mask=is_key | is_value)
    tl.store(keys + offset + of_key[:, None] * head_stride + column[None, :], key, mask=mask & is_key[:, None])
    tl.store(values + offset + of_value[:, None] * head_stride + column[None, :], value, mask=mask & is_value[:, None])
    if WITH_KV:
        rows = out + (row * (HEADS + 2 * KV_HEADS) + head[:, None]) * DIM
        tl.store(rows + column[None, :], turned, mask=mask)
    else:
        rows = out + (row * HEADS + head[:, None]) * DIM
        tl.store(rows + column[None, :], rotated, mask=mask & (head < HEADS)[:, None])
