# SPDX-License-Identifier: Apache-2.0
"""Sliding-window attention with the keys and values of the past in ring buffers; q and k are rotated in the kernel.

    q [B,T,H,D] · k, v [B,T,KVH,D] · keys, values [S,layers,KVH,R,D] · slots, first [B] int64 · cos, sin [B,T,1,D]
    -> [B,T,H,D]

The rotation is x · cos + x' · sin, where x' is x with its halves exchanged; sin includes the signs.
Column t of stream b is at position first[b] + t; it attends to itself and the R positions before it. Position p of a
slot is stored at index p % R. After a call the rings hold the last R positions; unwritten entries are not read.

Types: bfloat16, float16, float32; one type for all but cos and sin, which are float32.
Roundings: q and k once after rotation; scores and sums in float32; a weight is rounded to the type of v before the
product, the quotient once at the end.
Bytes: the rings once, 4·R·KVH·D per stream and layer in bfloat16; q, k, v and the result once; k and v once more where
they are stored. Grid: one program per stream and KV head, the only one to read and write that part of the rings.
"""

from __future__ import annotations

from functools import cached_property, partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from polyvox import kernels
from polyvox.kernels.lazy_triton import Kernel, power_of_2

if TYPE_CHECKING:
    import triton.language as tl

MIN_TILE = 16  # minimum rows and columns of a tensor core operand
# Positions of the ring per iteration and warps, measured on an H200: with few programs each should be fast (5.4 instead
# of 8.4 µs at 8 streams), with many each should be small (87 instead of 193 µs at 512).
FEW_PROGRAMS, MANY_PROGRAMS = (128, 4), (32, 1)
MIN_MANY_PROGRAMS = 512
LOG2_E = 1.4426950408889634


class RingAttention:
    """The attention function of one call: positions [B,T] and their rotation angles for slots [B]."""

    def __init__(
        self, keys: Tensor, values: Tensor, slots: Tensor, positions: Tensor, cos: Tensor, sin: Tensor
    ) -> None:
        self.keys, self.values, self.slots, self.positions = keys, values, slots, positions
        self.cos, self.sin = cos, sin

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        attend = self.attend if kernels.active(q) else self.attend_reference
        return attend(self.keys[:, layer], self.values[:, layer], q, k, v)

    def attend(self, keys: Tensor, values: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """One layer, with ring buffers keys, values [S,KVH,R,D]."""
        batch, columns, heads, dim = q.shape
        kv_heads, size = keys.shape[1:3]
        group = heads // kv_heads
        out = torch.empty(batch, columns, heads, dim, dtype=q.dtype, device=q.device)
        q, k, v = (rows.flatten(0, 1) for rows in (q, k, v))
        assert all(rows.stride()[1:] == (dim, 1) for rows in (q, k, v))
        assert self.cos.is_contiguous()
        assert self.sin.is_contiguous()
        assert keys.stride() == values.stride() == (keys.stride(0), size * dim, dim, 1)
        block, warps = MANY_PROGRAMS if batch * kv_heads >= MIN_MANY_PROGRAMS else FEW_PROGRAMS
        ring_kernel[(batch, kv_heads)](
            q, k, v, self.cos, self.sin, keys, values, self.slots, self.positions, out,
            q.stride(0), k.stride(0), v.stride(0), keys.stride(0), self.positions.stride(0), columns,
            dim**-0.5 * LOG2_E,
            SIZE=size, GROUP=group, DIM=dim, DIM_BLOCK=max(MIN_TILE, power_of_2(dim)), ROWS=MIN_TILE, BLOCK=block,
            NEW_BLOCK=MIN_TILE, num_warps=warps, num_stages=2,
        )  # fmt: skip
        return out

    def attend_reference(self, keys: Tensor, values: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Reference implementation."""
        q, k = self._rotated(q), self._rotated(k)
        visible, rows, at = self._mask_and_targets
        count = at.shape[1]
        all_keys = torch.cat([keys[self.slots], k.transpose(1, 2)], dim=2)
        all_values = torch.cat([values[self.slots], v.transpose(1, 2)], dim=2)
        # No gradient flows through the history.
        keys[rows, :, at] = k[:, -count:].detach()
        values[rows, :, at] = v[:, -count:].detach()
        return F.scaled_dot_product_attention(
            q.transpose(1, 2), all_keys, all_values, attn_mask=visible, enable_gqa=True
        ).transpose(1, 2)

    def _rotated(self, x: Tensor) -> Tensor:
        return (x * self.cos + x.roll(x.shape[-1] // 2, -1) * self.sin).to(x.dtype)

    @cached_property
    def _mask_and_targets(self) -> tuple[Tensor, Tensor, Tensor]:
        """The mask over ring and columns [B,1,T,R+T], and where the last columns are stored."""
        size, positions = self.keys.shape[3], self.positions
        last = positions[:, :1] - 1
        ring = last - (last - torch.arange(size, device=positions.device)) % size
        positions_seen = torch.cat([ring, positions], dim=1)
        age = positions[:, :, None] - positions_seen[:, None, :]
        visible = (age >= 0) & (age <= size) & (positions_seen >= 0)[:, None, :]
        return visible[:, None], self.slots[:, None], positions[:, -size:] % size


@partial(Kernel, do_not_specialize=("columns", "position_row"))
def ring_kernel(
    q, k, v, cos, sin, keys, values, slots, positions, out,
    q_row, k_row, v_row, slot_stride, position_row, columns,
    scale,
    SIZE: tl.constexpr, GROUP: tl.constexpr, DIM: tl.constexpr, DIM_BLOCK: tl.constexpr, ROWS: tl.constexpr,
    BLOCK: tl.constexpr, NEW_BLOCK: tl.constexpr,
):  # fmt: skip
    stream = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    first = tl.load(positions + stream * position_row).to(tl.int32)
    ring = tl.load(slots + stream) * slot_stride + head * (SIZE * DIM)
    d = tl.arange(0, DIM_BLOCK)
    inside = (d < DIM)[None, :]
    new_k = k + stream * columns * k_row + head * DIM
    new_v = v + stream * columns * v_row + head * DIM
    cos += stream * columns * DIM
    sin += stream * columns * DIM

    for start in range(0, columns * GROUP, ROWS):
        row = start + tl.arange(0, ROWS)
        column = row // GROUP
        member = head * GROUP + row % GROUP
        mask = (row < columns * GROUP)[:, None] & inside
        query_at = q + ((stream * columns + column) * q_row + member * DIM)[:, None]
        query = rotated(query_at, cos, sin, column, d, mask, DIM)
        position = (first + column)[:, None]
        running_max = tl.full([ROWS], -1e30, tl.float32)
        denominator = tl.zeros([ROWS], tl.float32)
        acc = tl.zeros([ROWS, DIM_BLOCK], tl.float32)
        for begin in range(0, SIZE, BLOCK):
            i = begin + tl.arange(0, BLOCK)
            # The last position before first that maps to index i; 2·SIZE keeps the operand of % positive.
            offsets = first - 1 - (first - 1 - i + 2 * SIZE) % SIZE
            written = (i < SIZE) & (offsets >= 0)
            at = ring + i[:, None] * DIM + d[None, :]
            kv_mask = written[:, None] & inside
            key = tl.load(keys + at, mask=kv_mask, other=0.0)
            value = tl.load(values + at, mask=kv_mask, other=0.0)
            visible = written[None, :] & (position - offsets[None, :] <= SIZE)
            running_max, denominator, acc = attend_block(
                query, key, value, visible, running_max, denominator, acc, scale
            )
        oldest = tl.maximum(0, start // GROUP - SIZE)
        for begin in range(oldest, tl.minimum(columns, (start + ROWS - 1) // GROUP + 1), NEW_BLOCK):
            i = begin + tl.arange(0, NEW_BLOCK)
            kv_mask = (i < columns)[:, None] & inside
            key = rotated(new_k + i[:, None] * k_row, cos, sin, i, d, kv_mask, DIM)
            value = tl.load(new_v + i[:, None] * v_row + d[None, :], mask=kv_mask, other=0.0)
            age = column[:, None] - i[None, :]
            visible = (i < columns)[None, :] & (age >= 0) & (age <= SIZE)
            running_max, denominator, acc = attend_block(
                query, key, value, visible, running_max, denominator, acc, scale
            )
        out_at = (stream * columns + column)[:, None] * (tl.num_programs(1) * GROUP * DIM) + (member * DIM)[:, None]
        tl.store(
            out + out_at + d[None, :],
            (acc / tl.maximum(denominator, 1e-30)[:, None]).to(out.dtype.element_ty),
            mask=mask,
        )

    # All loads from the rings precede the stores.
    tl.debug_barrier()
    for begin in range(tl.maximum(0, columns - SIZE), columns, NEW_BLOCK):
        i = begin + tl.arange(0, NEW_BLOCK)
        at = ring + ((first + i) % SIZE)[:, None] * DIM + d[None, :]
        kv_mask = (i < columns)[:, None] & inside
        tl.store(keys + at, rotated(new_k + i[:, None] * k_row, cos, sin, i, d, kv_mask, DIM), mask=kv_mask)
        tl.store(values + at, tl.load(new_v + i[:, None] * v_row + d[None, :], mask=kv_mask), mask=kv_mask)


@Kernel
def rotated(line, cos, sin, column, d, mask, DIM: tl.constexpr):
    """Load rows from pointers [N,1] and rotate them by the angles of their columns [N]."""
    x = tl.load(line + d[None, :], mask=mask, other=0.0)
    other = tl.load(line + ((d + DIM // 2) % DIM)[None, :], mask=mask, other=0.0).to(tl.float32)
    at = column[:, None] * DIM + d[None, :]
    turned = x.to(tl.float32) * tl.load(cos + at, mask=mask, other=0.0)
    return (turned + other * tl.load(sin + at, mask=mask, other=0.0)).to(x.dtype)


@Kernel
def attend_block(query, key, value, visible, running_max, denominator, acc, scale):
    """Add a block of keys to the running softmax."""
    score = tl.where(visible, tl.dot(query, tl.trans(key), input_precision="ieee") * scale, -1e30)
    new_max = tl.maximum(running_max, tl.max(score, 1))
    rescale = tl.exp2(running_max - new_max)
    weight = tl.where(visible, tl.exp2(score - new_max[:, None]), 0.0)
    denominator = denominator * rescale + tl.sum(weight, 1)
    acc = tl.dot(weight.to(value.dtype), value, acc * rescale[:, None], input_precision="ieee")
    return new_max, denominator, acc
