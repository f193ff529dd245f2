# SPDX-License-Identifier: Apache-2.0
"""Linear layers for small batches in Triton: norm before the product, gate or residual after it.

    the inputs and results of fused_linear.py

Decoding a few streams is bound by reading weights and by the latency of launches that depend on each other. A program
owns a few outputs and reads their matrix rows once. One row is multiplied without tensor cores; a program loads its
first matrix columns before the previous launch has ended (launch_overlap.py). More rows use tensor cores (in bfloat16
on an H200, two rows take 2.20 instead of 2.27 ms of a frame step; other types and architectures were not measured),
with the matrix as left operand, so that few rows waste little. A matrix with few rows is also divided by columns
(`splits`), so that every multiprocessor reads a part of it, and a second launch adds up the splits.

Quantised weights are converted to the type of x after they are loaded, which is exact, and the sum of a channel is
multiplied by its scale. Each byte costs less than two of bfloat16 and a large product needs its matrix in 16 bits, so
batches of up to MAX_QUANTIZED_ROWS rows are computed here, in tiles of MAX_ROWS.

Types: bfloat16, float16; float32 for one row.
Roundings: those of fused_linear.py. The order of a sum depends only on N, K, weight's type, `row_block(M)` and the
number of tiles of rows.
Bytes: weight once, from cache for all tiles but the first; x, add and the result once from memory.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from polyvox import kernels
from polyvox.kernels.gpu import gpu_of
from polyvox.kernels.launch_overlap import overlap, start_next, wait, wait_for_previous
from polyvox.kernels.lazy_triton import Kernel, power_of_2
from polyvox.kernels.linear_plan import MAX_ROWS, LaunchPlan, choose_plan, lanes, row_block, stored_values
from polyvox.kernels.pre_norm import Norm, PreNorm, empty_sum, flat_rows
from polyvox.kernels.products import PLAIN
from polyvox.kernels.quantized_matrix import Matrix, QuantizedMatrix, convert

if TYPE_CHECKING:
    import triton.language as tl

MAX_QUANTIZED_ROWS = 256  # estimated, not measured
EARLY_START_ROWS = 33  # from here on, tensor core products let the next launch start before they wait


def supports(x: Tensor, weight: Matrix, _kind: int = PLAIN) -> bool:
    """Whether rows x [..., K] are few enough for these kernels, of any kind, to be faster than separate launches."""
    max_rows = MAX_QUANTIZED_ROWS if isinstance(weight, QuantizedMatrix) else MAX_ROWS
    rows = x.numel() // x.shape[-1]
    return kernels.active(x) and 0 < rows <= (1 if x.dtype == torch.float32 else max_rows)


def launch(x: Tensor | PreNorm, weight: Matrix, gated: bool) -> Tensor:
    """x @ weightᵀ, or norm(x) @ weightᵀ, gated or not, for rows that `supports` accepts: rows [M, outputs]."""
    given = x.gained if isinstance(x, PreNorm) else x
    plan = choose_plan(given.numel() // given.shape[-1], weight, gpu=gpu_of(given.device))
    return launch_plan(x, weight, gated, plan)


def launch_add(x: Tensor, weight: Matrix, add: Tensor, norm: Norm) -> PreNorm:
    """add + x @ weightᵀ, and what the products after the norm read of it; the result has the shape of `add`."""
    plan = choose_plan(x.numel() // x.shape[-1], weight, add=True, gpu=gpu_of(x.device))
    return launch_add_plan(x, weight, add, norm, plan)


def launch_plan(x: Tensor | PreNorm, weight: Matrix, gated: bool, plan: LaunchPlan) -> Tensor:
    """`launch` with this plan."""
    given = flat_rows(x.gained if isinstance(x, PreNorm) else x)
    out = given.new_empty(len(given), len(stored_values(weight)) // (2 if gated else 1))
    if isinstance(x, PreNorm):
        _launch(given, weight, out, plan, squares=flat_rows(x.squares), eps=x.norm.eps, gated=gated)
    else:
        _launch(given, weight, out, plan, gated=gated)
    return out


def launch_add_plan(x: Tensor, weight: Matrix, add: Tensor, norm: Norm, plan: LaunchPlan) -> PreNorm:
    """`launch_add` with this plan."""
    given, added, size = flat_rows(x), flat_rows(add), add.shape[-1]
    made = empty_sum(add, norm, parts=1 if plan.splits > 1 else -(-size // plan.height))
    if plan.splits > 1:
        sums = torch.empty(plan.splits, *added.shape, dtype=torch.float32, device=x.device)
        _launch(given, weight, sums[0], plan)
        add_splits_kernel[(len(added),)](
            sums, added, norm.gain, *made[:3], added.stride(0), len(added), SPLITS=plan.splits,
            SPLITS_BLOCK=power_of_2(plan.splits), SIZE=size, BLOCK=power_of_2(size), **overlap(given),
            num_warps=8,
        )  # fmt: skip
    else:
        _launch(given, weight, made.rows, plan, add=(added, norm.gain, made.gained, made.squares))
    return made


def _launch(
    x: Tensor,
    weight: Matrix,
    out: Tensor,
    plan: LaunchPlan,
    squares: Tensor | None = None,
    eps: float = 0.0,
    add: tuple[Tensor, Tensor, Tensor, Tensor] | None = None,
    gated: bool = False,
) -> None:
    (rows, inputs), outputs = x.shape, out.shape[-1]
    block = plan.height // (2 if gated else 1)
    added, gain, gained, out_squares = add or (out, out, out, out)
    parts, parts_row = (0, 0) if squares is None else (squares.shape[1], squares.stride(0))
    assert x.stride(1) == added.stride(1) == 1
    assert squares is None or parts == 1 or squares.stride(1) == 1
    values = stored_values(weight)
    scales = weight.scales if isinstance(weight, QuantizedMatrix) else None
    assert values.is_contiguous()
    assert scales is None or scales.is_contiguous()
    assert values.numel() < 1 << 31, values.shape
    given = (
        x, values, out if scales is None else scales, out if squares is None else squares, added, gain, out,
        gained, out_squares,
    )  # fmt: skip
    settings = parts_row, added.stride(0), eps
    shape = {
        "INPUTS": inputs, "OUTPUTS": outputs, "BLOCK": block, "SQUARES": parts,
        "SQUARES_BLOCK": power_of_2(max(1, parts)), "QUANTIZED": scales is not None, "ADD": add is not None,
        "GATED": gated,
    }  # fmt: skip
    grid = (-(-outputs // block), plan.splits, -(-rows // row_block(rows)))
    if rows == 1:
        vector_kernel[grid](
            *given, *settings, **shape, PARTS=plan.depth // lanes(weight), DEPTH=lanes(weight), **overlap(x),
            num_warps=plan.warps,
        )  # fmt: skip
    else:
        matrix_kernel[grid](
            *given, x.stride(0), *settings, rows, **shape, ROW_BLOCK=row_block(rows), DEPTH=plan.depth,
            STAGES=plan.stages, SPLITS=plan.splits, EARLY_START=rows >= EARLY_START_ROWS, **overlap(x),
            num_warps=plan.warps,
        )  # fmt: skip


@Kernel
def vector_kernel(
    x, weight, scales, squares, add, gain, out, gained, out_squares, squares_row, add_row, eps,
    INPUTS: tl.constexpr, OUTPUTS: tl.constexpr, SQUARES: tl.constexpr, SQUARES_BLOCK: tl.constexpr,
    QUANTIZED: tl.constexpr, ADD: tl.constexpr, GATED: tl.constexpr, BLOCK: tl.constexpr, PARTS: tl.constexpr,
    DEPTH: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """One row. A warp owns whole matrix rows, PARTS · DEPTH columns per iteration: [BLOCK, PARTS, DEPTH]."""
    if OVERLAP:
        start_next()
    STEPS: tl.constexpr = (INPUTS + PARTS * DEPTH - 1) // (PARTS * DEPTH)
    EVEN: tl.constexpr = INPUTS % (PARTS * DEPTH) == 0
    output = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    in_range = (output < OUTPUTS)[:, None, None]
    part = tl.arange(0, PARTS)[:, None] * DEPTH + tl.arange(0, DEPTH)[None, :]
    start = weight + output[:, None, None] * INPUTS
    gate = load_weights(start, part[None, :, :], in_range, INPUTS, EVEN)
    if GATED:
        up = load_weights(start + OUTPUTS * INPUTS, part[None, :, :], in_range, INPUTS, EVEN)
    factor = load_gain(gain, output, OUTPUTS, ADD)
    scale, up_scale = load_scales(scales, output, OUTPUTS, QUANTIZED, GATED)
    if OVERLAP:
        wait_for_previous()

    row = tl.arange(0, 1)
    norm_scale = load_norm_scale(squares, squares_row, row, 1, eps, INPUTS, SQUARES, SQUARES_BLOCK, 1)
    residual = load_residual(add, add_row, row, output, 1, OUTPUTS, ADD)
    sums = tl.zeros([1, BLOCK], tl.float32)
    ups = tl.zeros([1, BLOCK], tl.float32)
    for step in tl.static_range(STEPS):
        at = step * PARTS * DEPTH + part
        next_at = at[None, :, :] + PARTS * DEPTH
        if step + 1 < STEPS:
            next_gate = load_weights(start, next_at, in_range, INPUTS, EVEN)
            if GATED:
                next_up = load_weights(start + OUTPUTS * INPUTS, next_at, in_range, INPUTS, EVEN)
        value = tl.load(x + at, mask=at < INPUTS, other=0.0).to(tl.float32)[None, :, :]
        sums += tl.sum(tl.sum(gate.to(tl.float32) * value, 1), 1)[None, :]
        if GATED:
            ups += tl.sum(tl.sum(up.to(tl.float32) * value, 1), 1)[None, :]
        if step + 1 < STEPS:
            gate = next_gate
            if GATED:
                up = next_up
    if QUANTIZED:
        sums *= scale
        ups *= up_scale
    store_output(
        sums * norm_scale, ups * norm_scale, residual, factor, out, gained, out_squares, row, output, 1,
        OUTPUTS, BLOCK, ADD, GATED,
    )  # fmt: skip


@partial(Kernel, do_not_specialize=("rows",))
def matrix_kernel(
    x, weight, scales, squares, add, gain, out, gained, out_squares, x_row, squares_row, add_row, eps, rows,
    ROW_BLOCK: tl.constexpr, INPUTS: tl.constexpr, OUTPUTS: tl.constexpr, SQUARES: tl.constexpr,
    SQUARES_BLOCK: tl.constexpr, QUANTIZED: tl.constexpr, ADD: tl.constexpr, GATED: tl.constexpr,
    BLOCK: tl.constexpr, DEPTH: tl.constexpr, STAGES: tl.constexpr, SPLITS: tl.constexpr,
    EARLY_START: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """DEPTH columns per iteration: [HEIGHT, DEPTH] @ [DEPTH, ROW_BLOCK]; gated, half of HEIGHT is from each half.

    The matrix of a single iteration is loaded before the previous launch has ended.
    """
    if OVERLAP and EARLY_START:
        start_next()
    HEIGHT: tl.constexpr = 2 * BLOCK if GATED else BLOCK
    STEPS: tl.constexpr = (INPUTS + DEPTH * SPLITS - 1) // (DEPTH * SPLITS)
    EVEN: tl.constexpr = INPUTS % (DEPTH * SPLITS) == 0
    output = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    index = tl.arange(0, HEIGHT)
    line = tl.minimum(tl.program_id(0) * BLOCK + index % BLOCK, OUTPUTS - 1) + (index // BLOCK) * OUTPUTS
    column = tl.program_id(1) * (STEPS * DEPTH) + tl.arange(0, DEPTH)
    start = weight + line[:, None] * INPUTS
    factor = load_gain(gain, output, OUTPUTS, ADD)
    scale, up_scale = load_scales(scales, output, OUTPUTS, QUANTIZED, GATED)
    if STEPS == 1:
        only = tl.load(start + column[None, :], mask=(column < INPUTS)[None, :], other=0.0)
    if OVERLAP:
        if EARLY_START:
            wait_for_previous()
        else:
            wait()

    row = tl.program_id(2) * ROW_BLOCK + tl.arange(0, ROW_BLOCK)
    in_range = (row < rows)[:, None]
    begin = x + row[:, None] * x_row
    norm_scale = load_norm_scale(squares, squares_row, row, rows, eps, INPUTS, SQUARES, SQUARES_BLOCK, ROW_BLOCK)
    residual = load_residual(add, add_row, row, output, rows, OUTPUTS, ADD)
    sums = tl.zeros([HEIGHT, ROW_BLOCK], tl.float32)
    if STEPS == 1:
        value = tl.load(begin + column[None, :], mask=in_range & (column < INPUTS)[None, :], other=0.0)
        sums = tl.dot(convert(only, value.dtype), tl.trans(value), sums, input_precision="ieee")
    else:
        for step in tl.range(0, STEPS, num_stages=STAGES):
            at = (column + step * DEPTH)[None, :]
            inside = in_range if EVEN else in_range & (at < INPUTS)
            matrix = tl.load(start + at, mask=None if EVEN else at < INPUTS, other=None if EVEN else 0.0)
            value = tl.load(begin + at, mask=inside, other=0.0)
            sums = tl.dot(convert(matrix, value.dtype), tl.trans(value), sums, input_precision="ieee")
    if SPLITS > 1:
        at = (tl.program_id(1) * rows + row[:, None]) * OUTPUTS + output[None, :]
        made = tl.trans(sums)
        if QUANTIZED:
            made *= scale
        tl.store(out + at, made, mask=in_range & (output < OUTPUTS)[None, :])
    else:
        if GATED:
            made, up = tl.split(tl.permute(tl.reshape(sums, [2, BLOCK, ROW_BLOCK]), [2, 1, 0]))
        else:
            made = tl.trans(sums)
            up = made
        if QUANTIZED:
            made *= scale
            up *= up_scale
        store_output(
            made * norm_scale, up * norm_scale, residual, factor, out, gained, out_squares, row, output, rows,
            OUTPUTS, BLOCK, ADD, GATED,
        )  # fmt: skip


@Kernel
def add_splits_kernel(
    sums, add, gain, out, gained, squares, add_row, rows,
    SPLITS: tl.constexpr, SPLITS_BLOCK: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """Add up the splits of one row of products, and store what store_output stores."""
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    split = tl.arange(0, SPLITS_BLOCK)
    inside = column < SIZE
    dtype = out.dtype.element_ty
    factor = tl.load(gain + column, mask=inside, other=0.0).to(tl.float32)
    if OVERLAP:
        wait()
    parts = tl.load(
        sums + (split[:, None] * rows + row) * SIZE + column[None, :],
        mask=(split < SPLITS)[:, None] & inside[None, :],
        other=0.0,
    )
    residual = tl.load(add + row * add_row + column, mask=inside, other=0.0).to(tl.float32)
    made = (residual + tl.sum(parts, 0).to(dtype).to(tl.float32)).to(dtype)
    wide = made.to(tl.float32)
    tl.store(gained + row * SIZE + column, (factor * wide).to(dtype), mask=inside)
    tl.store(squares + row, tl.sum(wide * wide, 0))
    tl.store(out + row * SIZE + column, made, mask=inside)


@Kernel
def load_weights(start, at, in_range, INPUTS: tl.constexpr, EVEN: tl.constexpr):
    """Load a part of the matrix; it is not reused, so it is evicted first."""
    return tl.load(
        start + at, mask=in_range if EVEN else in_range & (at < INPUTS), other=0.0, eviction_policy="evict_first"
    )


@Kernel
def load_norm_scale(
    squares, squares_row, row, rows, eps,
    INPUTS: tl.constexpr, SQUARES: tl.constexpr, SQUARES_BLOCK: tl.constexpr, ROW_BLOCK: tl.constexpr,
):  # fmt: skip
    """1 / sqrt(mean of squares + eps) of each row; ones for rows without a norm."""
    scale = tl.full([ROW_BLOCK, 1], 1.0, tl.float32)
    if SQUARES > 0:
        part = tl.arange(0, SQUARES_BLOCK)
        mask = (row < rows)[:, None] & (part < SQUARES)[None, :]
        parts = tl.load(squares + row[:, None] * squares_row + part[None, :], mask=mask, other=0.0)
        scale = tl.rsqrt(tl.sum(parts, 1) / INPUTS + eps)[:, None]
    return scale


@Kernel
def load_gain(gain, output, OUTPUTS: tl.constexpr, ADD: tl.constexpr):
    """The gain of the next norm; a product without residual has none."""
    factor = 0.0
    if ADD:
        factor = tl.load(gain + output, mask=output < OUTPUTS, other=0.0).to(tl.float32)[None, :]
    return factor


@Kernel
def load_scales(scales, output, OUTPUTS: tl.constexpr, QUANTIZED: tl.constexpr, GATED: tl.constexpr):
    """The scales of the outputs' matrix rows, and of those in the second half of a gated product."""
    scale = 0.0
    up_scale = 0.0
    if QUANTIZED:
        scale = tl.load(scales + output, mask=output < OUTPUTS, other=0.0)[None, :]
        up_scale = scale
        if GATED:
            up_scale = tl.load(scales + OUTPUTS + output, mask=output < OUTPUTS, other=0.0)[None, :]
    return scale, up_scale


@Kernel
def load_residual(add, add_row, row, output, rows, OUTPUTS: tl.constexpr, ADD: tl.constexpr):
    """The residual rows, loaded before the products, which hide the latency."""
    residual = 0.0
    if ADD:
        mask = (row < rows)[:, None] & (output < OUTPUTS)[None, :]
        residual = tl.load(add + row[:, None] * add_row + output[None, :], mask=mask, other=0.0).to(tl.float32)
    return residual


@Kernel
def store_output(
    sums, ups, residual, factor, out, gained, out_squares, row, output, rows,
    OUTPUTS: tl.constexpr, BLOCK: tl.constexpr, ADD: tl.constexpr, GATED: tl.constexpr,
):  # fmt: skip
    """Round the sums [ROW_BLOCK, BLOCK], apply the residual or gate, and store them."""
    dtype = out.dtype.element_ty
    mask = (row < rows)[:, None] & (output < OUTPUTS)[None, :]
    at = row[:, None] * OUTPUTS + output[None, :]
    made = sums.to(dtype)
    if GATED:
        wide = made.to(tl.float32)
        opened = (wide / (1.0 + tl.exp(-wide))).to(dtype)
        made = (opened.to(tl.float32) * ups.to(dtype).to(tl.float32)).to(dtype)
    if ADD:
        made = (residual + made.to(tl.float32)).to(dtype)
        wide = tl.where(mask, made.to(tl.float32), 0.0)
        tl.store(gained + at, (factor * wide).to(dtype), mask=mask)
        PARTS: tl.constexpr = (OUTPUTS + BLOCK - 1) // BLOCK
        tl.store(out_squares + row * PARTS + tl.program_id(0), tl.sum(wide * wide, 1), mask=row < rows)
    tl.store(out + at, made, mask=mask)
