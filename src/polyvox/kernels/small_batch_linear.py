"""Products of few rows with a large matrix: norm before it, gate or residual behind it, in one launch.

    x [M,K], any row stride · weight [N,K] · gain [K] of a norm, or none · add [M,N], or none -> [M,N]; gated: [M,N/2]

    norm(x) @ weightᵀ (+ add), or silu(first half) · second half

A decoding step of few streams is nothing but reading weights. A program owns a few outputs and reads their rows of the
matrix once, the first part of them before the launch in front of it has ended (overlap.py); x is small and every
program norms it anew. Up to VECTOR_ROWS rows are multiplied and summed row by row, which keeps all threads loading;
more go through tensor cores, a part of K for each warp.

Types: bfloat16, float16; float32 up to VECTOR_ROWS rows.
Roundings: the norm's two (norm.py); products summed in float32, in an order that depends on N, K and whether M is above
VECTOR_ROWS alone; the sum rounded, then residual or gate as add_rms_norm and silu_mul round.
Bytes: weight once; x, add and the result once from memory.
Predicted for one H200, bfloat16, M = 1, in a row of overlapping launches: bytes at 3.6 TB/s and 1 µs; talker qkv 5.7,
o 3.3, gate and up 15.0, down 8.0; predictor qkv 3.3, o 2.2, gate and up 4.5, down 2.7, head 2.2 µs: 1.9 ms a frame.
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
from polyvox.kernels.norm import rms_norm_plain
from polyvox.kernels.silu_mul import silu_mul_plain

if TYPE_CHECKING:
    import triton.language as tl

MAX_ROWS = 16
VECTOR_ROWS = 4
LANES = 256  # columns of a matrix row that one warp reads at a time: 32 threads, 16 bytes of 16 bits each
LEAST = 16  # rows and depth of a tensor core's operands


@dataclass(frozen=True, slots=True)
class Plan:
    """How a product is cut up."""

    height: int  # rows of the matrix that a program has; of a gated product half of them are of the second half
    depth: int  # columns of them that are read at a time
    warps: int


# The first line that the matrix has rows enough for. By arithmetic for sm_90, so that nearly every multiprocessor has a
# program and 32 KB or more on the way; benchmarks/skinny.py --tune measures others.
VECTOR_PLANS = ((4096, Plan(16, 1024, 8)), (0, Plan(8, 2048, 8)))
MATRIX_PLANS = ((2048, Plan(16, 512, 4)), (0, Plan(8, 512, 4)))


@dataclass(frozen=True, slots=True, eq=False)
class Norm:
    """Of the rows before they are multiplied."""

    gain: Tensor
    eps: float


def few(x: Tensor) -> bool:
    """Whether rows x [..., K] are so few that `project` is faster than one launch for each of its parts."""
    rows = x.numel() // x.shape[-1]
    return kernels.active(x) and 0 < rows <= (VECTOR_ROWS if x.dtype == torch.float32 else MAX_ROWS)


def project(
    x: Tensor, weight: Tensor, norm: Norm | None = None, add: Tensor | None = None, gated: bool = False
) -> Tensor:
    """norm(x) @ weightᵀ, plus add or gated, for rows x [..., K]."""
    if not few(x):
        return project_plain(x, weight, norm, add, gated)
    *shape, inputs = x.shape
    given = x.flatten(0, -2) if x.dim() > 1 else x[None]
    rows, outputs = len(given), len(weight) // (2 if gated else 1)
    return launch(given, weight, norm, add, gated, plan_of(rows, len(weight), inputs)).view(*shape, outputs)


def project_plain(
    x: Tensor, weight: Tensor, norm: Norm | None = None, add: Tensor | None = None, gated: bool = False
) -> Tensor:
    """The twin."""
    made = F.linear(x if norm is None else rms_norm_plain(x, norm.gain, norm.eps), weight)
    if gated:
        return silu_mul_plain(made)
    return made if add is None else add + made


def plan_of(rows: int, height: int, inputs: int) -> Plan:
    """By the shapes of rows and matrix alone."""
    plans = VECTOR_PLANS if rows <= VECTOR_ROWS else MATRIX_PLANS
    plan = next(plan for least, plan in plans if height >= least)
    return replace(plan, depth=min(plan.depth, max(LANES, power_of_2(inputs))))


def launch(x: Tensor, weight: Tensor, norm: Norm | None, add: Tensor | None, gated: bool, plan: Plan) -> Tensor:
    """Rows x [M,K] by this plan."""
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
            *given, rows, ROW_BLOCK=max(LEAST, power_of_2(rows)), **shape, **around,
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
    """A warp has whole rows of the matrix, PARTS · DEPTH columns of them at a time: [BLOCK, PARTS, DEPTH]."""
    STEPS: tl.constexpr = (INPUTS + PARTS * DEPTH - 1) // (PARTS * DEPTH)
    EVEN: tl.constexpr = INPUTS % (PARTS * DEPTH) == 0
    output = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    owned = (output < OUTPUTS)[:, None, None]
    part = tl.arange(0, PARTS)[:, None] * DEPTH + tl.arange(0, DEPTH)[None, :]
    start = weight + output[:, None, None] * INPUTS
    gate = weights(start, part[None, :, :], owned, INPUTS, EVEN)
    if GATED:
        up = weights(start + OUTPUTS * INPUTS, part[None, :, :], owned, INPUTS, EVEN)
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
        ahead = at[None, :, :] + PARTS * DEPTH
        if step + 1 < STEPS:
            next_gate = weights(start, ahead, owned, INPUTS, EVEN)
            if GATED:
                next_up = weights(start + OUTPUTS * INPUTS, ahead, owned, INPUTS, EVEN)
        for i in tl.static_range(ROWS):
            mine = (row == i)[:, None]
            value = tl.load(x + i * x_row + at, mask=at < INPUTS, other=0.0)
            if NORM:
                value = normed(value, gain + at, at < INPUTS, tl.sum(tl.where(row == i, scale, 0.0), 0))
            value = value.to(tl.float32)[None, :, :]
            sums = tl.where(mine, sums + tl.sum(tl.sum(gate.to(tl.float32) * value, 1), 1)[None, :], sums)
            if GATED:
                ups = tl.where(mine, ups + tl.sum(tl.sum(up.to(tl.float32) * value, 1), 1)[None, :], ups)
        if step + 1 < STEPS:
            gate = next_gate
            if GATED:
                up = next_up
    finish(sums, ups, add, out, add_row, row, output, ROWS, OUTPUTS, ADD, GATED)


@partial(Kernel, plain=("rows",))
def matrix_kernel(
    x, gain, weight, add, out, x_row, add_row, eps, rows,
    ROW_BLOCK: tl.constexpr, INPUTS: tl.constexpr, OUTPUTS: tl.constexpr,
    NORM: tl.constexpr, ADD: tl.constexpr, GATED: tl.constexpr,
    BLOCK: tl.constexpr, PARTS: tl.constexpr, DEPTH: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """PARTS products beside each other, one a warp, each of DEPTH columns at a time: [PARTS, DEPTH, BLOCK]."""
    STEPS: tl.constexpr = (INPUTS + PARTS * DEPTH - 1) // (PARTS * DEPTH)
    EVEN: tl.constexpr = INPUTS % (PARTS * DEPTH) == 0
    output = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    owned = (output < OUTPUTS)[None, None, :]
    part = tl.arange(0, PARTS)[:, None] * DEPTH + tl.arange(0, DEPTH)[None, :]
    start = weight + output[None, None, :] * INPUTS
    gate = weights(start, part[:, :, None], owned, INPUTS, EVEN)
    if GATED:
        up = weights(start + OUTPUTS * INPUTS, part[:, :, None], owned, INPUTS, EVEN)
    if OVERLAP:
        wait()

    row = tl.arange(0, ROW_BLOCK)
    there = (row < rows)[None, :, None]
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
        ahead = (step * PARTS * DEPTH + part)[:, :, None] + PARTS * DEPTH
        if step + 1 < STEPS:
            next_gate = weights(start, ahead, owned, INPUTS, EVEN)
            if GATED:
                next_up = weights(start + OUTPUTS * INPUTS, ahead, owned, INPUTS, EVEN)
        value = tl.load(begin + at, mask=there & (at < INPUTS), other=0.0)
        if NORM:
            value = normed(value, gain + at, at < INPUTS, scale)
        sums = tl.dot(value, gate, sums, input_precision="ieee")
        if GATED:
            ups = tl.dot(value, up, ups, input_precision="ieee")
        if step + 1 < STEPS:
            gate = next_gate
            if GATED:
                up = next_up
    finish(tl.sum(sums, 0), tl.sum(ups, 0), add, out, add_row, row, output, rows, OUTPUTS, ADD, GATED)


@Kernel
def weights(start, at, owned, INPUTS: tl.constexpr, EVEN: tl.constexpr):
    """A part of the matrix, which nobody reads again before all of it was read."""
    return tl.load(start + at, mask=owned if EVEN else owned & (at < INPUTS), other=0.0, eviction_policy="evict_first")


@Kernel
def normed(value, gain, inside, scale):
    """Rows as norm.py rounds them."""
    kind = value.dtype
    factor = tl.load(gain, mask=inside, other=0.0).to(tl.float32)
    return (factor * (value.to(tl.float32) * scale).to(kind).to(tl.float32)).to(kind)


@Kernel
def finish(
    sums, ups, add, out, add_row, row, output, rows,
    OUTPUTS: tl.constexpr, ADD: tl.constexpr, GATED: tl.constexpr,
):  # fmt: skip
    """Rounds what was summed, [ROW_BLOCK, BLOCK], with residual or gate, and stores it."""
    kind = out.dtype.element_ty
    there = (row < rows)[:, None] & (output < OUTPUTS)[None, :]
    made = sums.to(kind)
    if GATED:
        wide = made.to(tl.float32)
        opened = (wide / (1.0 + tl.exp(-wide))).to(kind)
        made = (opened.to(tl.float32) * ups.to(kind).to(tl.float32)).to(kind)
    if ADD:
        residual = tl.load(add + row[:, None] * add_row + output[None, :], mask=there, other=0.0)
        made = (residual.to(tl.float32) + made.to(tl.float32)).to(kind)
    tl.store(out + row[:, None] * OUTPUTS + output[None, :], made, mask=there)
