# SPDX-License-Identifier: Apache-2.0
"""Linear layers for small batches: norm before the product, gate or residual after it, in one launch.

    x [M,K], any row stride · weight [N,K] · gain [K] of a norm, or none · add [M,N], or none -> [M,N]; gated: [M,N/2]

    norm(x) @ weightᵀ (+ add), or silu(first half) · second half

Decoding a few streams is bound by reading weights. A program owns a few outputs and reads their matrix rows once, the
first part before the previous launch has ended (launch_overlap.py); x is small and every program normalises it again.
Up to VECTOR_ROWS rows are multiplied and summed row by row, which keeps all threads loading; more rows use tensor
cores, with K split over the warps.

Types: bfloat16, float16; float32 up to VECTOR_ROWS rows.
Roundings: the norm's two (norm.py); products summed in float32, in an order that depends only on N, K and whether M is
above VECTOR_ROWS; the sum is rounded, then residual or gate as add_rms_norm and silu_mul round.
Bytes: weight once; x, add and the result once from memory.
Predicted for one H200, bfloat16, M = 1, in overlapping launches: bytes at 3.6 TB/s plus 1 µs; talker qkv 5.7, o 3.3,
gate and up 15.0, down 8.0; predictor qkv 3.3, o 2.2, gate and up 4.5, down 2.7, head 2.2 µs: 1.9 ms a frame.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from polyvox import kernels
from polyvox.kernels.launch_overlap import overlap, wait
from polyvox.kernels.lazy_triton import Kernel, power_of_2
from polyvox.kernels.norm import rms_norm_reference
from polyvox.kernels.silu_mul import silu_mul_reference

if TYPE_CHECKING:
    import triton.language as tl

MAX_ROWS = 16
VECTOR_ROWS = 4
LANES = 256  # matrix columns per warp and load: 32 threads of 16 bytes, in a 16-bit type
MIN_TILE = 16  # minimum rows and depth of a tensor core operand


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """How a product is partitioned."""

    height: int  # matrix rows per program; a gated product takes half of them from each half
    depth: int  # columns per iteration
    warps: int


# (minimum matrix rows, plan): the first match is used. Chosen for sm_90: nearly every multiprocessor has a program with
# at least 32 KB of loads in flight. benchmarks/small_batch_linear.py --tune measures others.
VECTOR_PLANS = ((4096, LaunchPlan(16, 1024, 8)), (0, LaunchPlan(8, 2048, 8)))
MATRIX_PLANS = ((2048, LaunchPlan(16, 512, 4)), (0, LaunchPlan(8, 512, 4)))


@dataclass(frozen=True, slots=True, eq=False)
class Norm:
    """The RMS norm applied to the rows before the product."""

    gain: Tensor
    eps: float


def is_small_batch(x: Tensor) -> bool:
    """Whether rows x [..., K] are few enough for `project` to be faster than separate launches."""
    rows = x.numel() // x.shape[-1]
    return kernels.active(x) and 0 < rows <= (VECTOR_ROWS if x.dtype == torch.float32 else MAX_ROWS)


def project(
    x: Tensor, weight: Tensor, norm: Norm | None = None, add: Tensor | None = None, gated: bool = False
) -> Tensor:
    """Compute norm(x) @ weightᵀ, plus add or gated, for rows x [..., K]."""
    if not is_small_batch(x):
        return project_reference(x, weight, norm, add, gated)
    *shape, inputs = x.shape
    given = x.flatten(0, -2) if x.dim() > 1 else x[None]
    rows, outputs = len(given), len(weight) // (2 if gated else 1)
    return launch(given, weight, norm, add, gated, choose_plan(rows, len(weight), inputs)).view(*shape, outputs)


def project_reference(
    x: Tensor, weight: Tensor, norm: Norm | None = None, add: Tensor | None = None, gated: bool = False
) -> Tensor:
    """Reference implementation."""
    made = F.linear(x if norm is None else rms_norm_reference(x, norm.gain, norm.eps), weight)
    if gated:
        return silu_mul_reference(made)
    return made if add is None else add + made


def choose_plan(rows: int, height: int, inputs: int) -> LaunchPlan:
    """The launch plan, from the shapes of rows and matrix only."""
    plans = VECTOR_PLANS if rows <= VECTOR_ROWS else MATRIX_PLANS
    plan = next(plan for min_height, plan in plans if height >= min_height)
    return replace(plan, depth=min(plan.depth, max(LANES, power_of_2(inputs))))


def launch(x: Tensor, weight: Tensor, norm: Norm | None, add: Tensor | None, gated: bool, plan: LaunchPlan) -> Tensor:
    """Launch the kernel for rows x [M,K] with this plan."""
    rows, inputs = x.shape
    halves = 2 if gated else 1
    outputs, block = len(weight) // halves, plan.height // halves
    out = torch.empty(rows, outputs, dtype=x.dtype, device=x.device)
    added = out if add is None else add.reshape(rows, outputs)
    assert x.stride(1) == added.stride(1) == 1
    assert weight.is_contiguous()
    assert weight.numel() < 1 << 31, weight.shape
    gain, eps = (weight, 0.0) if norm is None else (norm.gain, norm.eps)
    given = x, gain, weight, added, out, x.stride(0), added.stride(0), eps
    shape = {"INPUTS": inputs, "OUTPUTS": outputs, "BLOCK": block}
    around = {"NORM": norm is not None, "ADD": add is not None, "GATED": gated, **overlap(x)}
    grid = (-(-outputs // block),)
    if rows <= VECTOR_ROWS:
        vector_kernel[grid](
            *given, ROWS=rows, ROW_BLOCK=power_of_2(rows), **shape, **around,
            PARTS=plan.depth // LANES, DEPTH=LANES, num_warps=plan.warps,
        )  # fmt: skip
    else:
        matrix_kernel[grid](
            *given, rows, ROW_BLOCK=max(MIN_TILE, power_of_2(rows)), **shape, **around,
            PARTS=plan.warps, DEPTH=plan.depth // plan.warps, num_warps=plan.warps,
        )  # fmt: skip
    return out


@Kernel
def vector_kernel(
    x, gain, weight, add, out, x_row, add_row, eps,
    ROWS: tl.constexpr, ROW_BLOCK: tl.constexpr, INPUTS: tl.constexpr, OUTPUTS: tl.constexpr,
    NORM: tl.constexpr, ADD: tl.constexpr, GATED: tl.constexpr,
    BLOCK: tl.constexpr, PARTS: tl.constexpr, DEPTH: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """A warp owns whole matrix rows, PARTS · DEPTH columns per iteration: [BLOCK, PARTS, DEPTH]."""
    STEPS: tl.constexpr = (INPUTS + PARTS * DEPTH - 1) // (PARTS * DEPTH)
    EVEN: tl.constexpr = INPUTS % (PARTS * DEPTH) == 0
    output = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    in_range = (output < OUTPUTS)[:, None, None]
    part = tl.arange(0, PARTS)[:, None] * DEPTH + tl.arange(0, DEPTH)[None, :]
    start = weight + output[:, None, None] * INPUTS
    gate = load_weights(start, part[None, :, :], in_range, INPUTS, EVEN)
    if GATED:
        up = load_weights(start + OUTPUTS * INPUTS, part[None, :, :], in_range, INPUTS, EVEN)
    if OVERLAP:
        wait()

    row = tl.arange(0, ROW_BLOCK)
    scale = tl.zeros([ROW_BLOCK], tl.float32)
    if NORM:
        for i in tl.static_range(ROWS):
            squares = tl.zeros([PARTS, DEPTH], tl.float32)
            for step in tl.static_range(STEPS):
                at = step * PARTS * DEPTH + part
                wide = tl.load(x + i * x_row + at, mask=at < INPUTS, other=0.0).to(tl.float32)
                squares += wide * wide
            scale = tl.where(row == i, tl.rsqrt(tl.sum(tl.sum(squares, 1), 0) / INPUTS + eps), scale)

    sums = tl.zeros([ROW_BLOCK, BLOCK], tl.float32)
    ups = tl.zeros([ROW_BLOCK, BLOCK], tl.float32)
    for step in tl.static_range(STEPS):
        at = step * PARTS * DEPTH + part
        next_at = at[None, :, :] + PARTS * DEPTH
        if step + 1 < STEPS:
            next_gate = load_weights(start, next_at, in_range, INPUTS, EVEN)
            if GATED:
                next_up = load_weights(start + OUTPUTS * INPUTS, next_at, in_range, INPUTS, EVEN)
        for i in tl.static_range(ROWS):
            mine = (row == i)[:, None]
            value = tl.load(x + i * x_row + at, mask=at < INPUTS, other=0.0)
            if NORM:
                value = apply_norm(value, gain + at, at < INPUTS, tl.sum(tl.where(row == i, scale, 0.0), 0))
            value = value.to(tl.float32)[None, :, :]
            sums = tl.where(mine, sums + tl.sum(tl.sum(gate.to(tl.float32) * value, 1), 1)[None, :], sums)
            if GATED:
                ups = tl.where(mine, ups + tl.sum(tl.sum(up.to(tl.float32) * value, 1), 1)[None, :], ups)
        if step + 1 < STEPS:
            gate = next_gate
            if GATED:
                up = next_up
    store_output(sums, ups, add, out, add_row, row, output, ROWS, OUTPUTS, ADD, GATED)


@partial(Kernel, do_not_specialize=("rows",))
def matrix_kernel(
    x, gain, weight, add, out, x_row, add_row, eps, rows,
    ROW_BLOCK: tl.constexpr, INPUTS: tl.constexpr, OUTPUTS: tl.constexpr,
    NORM: tl.constexpr, ADD: tl.constexpr, GATED: tl.constexpr,
    BLOCK: tl.constexpr, PARTS: tl.constexpr, DEPTH: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """PARTS independent products, one per warp, of DEPTH columns per iteration: [PARTS, DEPTH, BLOCK]."""
    STEPS: tl.constexpr = (INPUTS + PARTS * DEPTH - 1) // (PARTS * DEPTH)
    EVEN: tl.constexpr = INPUTS % (PARTS * DEPTH) == 0
    output = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    in_range = (output < OUTPUTS)[None, None, :]
    part = tl.arange(0, PARTS)[:, None] * DEPTH + tl.arange(0, DEPTH)[None, :]
    start = weight + output[None, None, :] * INPUTS
    gate = load_weights(start, part[:, :, None], in_range, INPUTS, EVEN)
    if GATED:
        up = load_weights(start + OUTPUTS * INPUTS, part[:, :, None], in_range, INPUTS, EVEN)
    if OVERLAP:
        wait()

    row = tl.arange(0, ROW_BLOCK)
    mask = (row < rows)[None, :, None]
    begin = x + row[None, :, None] * x_row
    scale = tl.zeros([1, ROW_BLOCK, 1], tl.float32)
    if NORM:
        column = tl.arange(0, PARTS * DEPTH)[None, :]
        squares = tl.zeros([ROW_BLOCK], tl.float32)
        for step in tl.static_range(STEPS):
            inside = (row < rows)[:, None] & (step * PARTS * DEPTH + column < INPUTS)
            wide = tl.load(x + row[:, None] * x_row + step * PARTS * DEPTH + column, mask=inside, other=0.0)
            squares += tl.sum(wide.to(tl.float32) * wide.to(tl.float32), 1)
        scale = tl.rsqrt(squares / INPUTS + eps)[None, :, None]

    sums = tl.zeros([PARTS, ROW_BLOCK, BLOCK], tl.float32)
    ups = tl.zeros([PARTS, ROW_BLOCK, BLOCK], tl.float32)
    for step in tl.static_range(STEPS):
        at = (step * PARTS * DEPTH + part)[:, None, :]
        next_at = (step * PARTS * DEPTH + part)[:, :, None] + PARTS * DEPTH
        if step + 1 < STEPS:
            next_gate = load_weights(start, next_at, in_range, INPUTS, EVEN)
            if GATED:
                next_up = load_weights(start + OUTPUTS * INPUTS, next_at, in_range, INPUTS, EVEN)
        value = tl.load(begin + at, mask=mask & (at < INPUTS), other=0.0)
        if NORM:
            value = apply_norm(value, gain + at, at < INPUTS, scale)
        sums = tl.dot(value, gate, sums, input_precision="ieee")
        if GATED:
            ups = tl.dot(value, up, ups, input_precision="ieee")
        if step + 1 < STEPS:
            gate = next_gate
            if GATED:
                up = next_up
    store_output(tl.sum(sums, 0), tl.sum(ups, 0), add, out, add_row, row, output, rows, OUTPUTS, ADD, GATED)


@Kernel
def load_weights(start, at, in_range, INPUTS: tl.constexpr, EVEN: tl.constexpr):
    """Load a part of the matrix; it is not reused, so it is evicted first."""
    return tl.load(
        start + at, mask=in_range if EVEN else in_range & (at < INPUTS), other=0.0, eviction_policy="evict_first"
    )


@Kernel
def apply_norm(value, gain, inside, scale):
    """Normalise rows with the roundings of norm.py."""
    dtype = value.dtype
    factor = tl.load(gain, mask=inside, other=0.0).to(tl.float32)
    return (factor * (value.to(tl.float32) * scale).to(dtype).to(tl.float32)).to(dtype)


@Kernel
def store_output(
    sums, ups, add, out, add_row, row, output, rows,
    OUTPUTS: tl.constexpr, ADD: tl.constexpr, GATED: tl.constexpr,
):  # fmt: skip
    """Round the sums [ROW_BLOCK, BLOCK], apply the residual or gate, and store them."""
    dtype = out.dtype.element_ty
    mask = (row < rows)[:, None] & (output < OUTPUTS)[None, :]
    made = sums.to(dtype)
    if GATED:
        wide = made.to(tl.float32)
        opened = (wide / (1.0 + tl.exp(-wide))).to(dtype)
        made = (opened.to(tl.float32) * ups.to(dtype).to(tl.float32)).to(dtype)
    if ADD:
        residual = tl.load(add + row[:, None] * add_row + output[None, :], mask=mask, other=0.0)
        made = (residual.to(tl.float32) + made.to(tl.float32)).to(dtype)
    tl.store(out + row[:, None] * OUTPUTS + output[None, :], made, mask=mask)
