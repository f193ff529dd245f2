# SPDX-License-Identifier: Apache-2.0
"""Linear layers for small batches: norm before the product, gate or residual after it.

    x [M,K], any row stride, or rows before a norm (pre_norm.py) · weight [N,K], of x's type or quantised
    (quantized_matrix.py) · add [M,N], or none

    x @ weightᵀ -> [M,N], silu(first half) · second half -> [M,N/2], or add + x @ weightᵀ and its `PreNorm`

Decoding a few streams is bound by reading weights and by the latency of launches that depend on each other. A program
owns a few outputs and reads their matrix rows once. One row is multiplied without tensor cores; a program loads its
first matrix columns before the previous launch has ended (launch_overlap.py). More rows use tensor cores (in bfloat16
on an H200, two rows take 2.20 instead of 2.27 ms of a frame step; other types and architectures were not measured),
with the matrix as left operand, so that few rows waste little. A matrix with few rows is also divided by columns
(`splits`), so that every multiprocessor reads a part of it, and a second launch adds up the splits.

Where prefetch_vector.py, prefetch_linear.py, mid_batch_linear.py or register_linear.py support a product, it is
computed there.

Quantised weights are converted to the type of x after they are loaded, which is exact, and the sum of a channel is
multiplied by its scale. Each byte costs less than two of bfloat16 and a large product needs its matrix in 16 bits, so
batches of up to MAX_QUANTIZED_ROWS rows are computed here, in tiles of MAX_ROWS.

The RMS norm between two products is divided between them: the first one, which adds the residual, also stores the sum
times the norm's gain and the squares of its outputs, summed per program; the second one multiplies the rows with gain
and scales its result by 1 / sqrt(mean of squares + eps). No program reads a whole row to normalise it.

Types: bfloat16, float16; float32 for one row.
Roundings: row · gain is rounded; products and squares are summed in float32, in an order that depends only on N, K,
weight's type, `row_block(M)`, the number of tiles of rows and which file computes the product; the sum is multiplied by
the channel's scale, if any, then by that of the norm, then rounded, then residual or gate as add_rms_norm and silu_mul
round.
Bytes: weight once, from cache for all tiles but the first; x, add and the result once from memory.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from polyvox import kernels
from polyvox.kernels import mid_batch_linear, prefetch_linear, prefetch_vector, register_linear
from polyvox.kernels.gpu import Gpu, gpu_of
from polyvox.kernels.launch_overlap import overlap, start_next, wait, wait_for_previous
from polyvox.kernels.lazy_triton import Kernel, largest_power_of_2, power_of_2
from polyvox.kernels.pre_norm import Norm, PreNorm, flat_rows, pre_norm_reference
from polyvox.kernels.products import ADD, GATED, PLAIN, PrefetchedProducts
from polyvox.kernels.quantized_matrix import Matrix, QuantizedMatrix, convert, multiply_reference
from polyvox.kernels.silu_mul import silu_mul_reference
from polyvox.kernels.tiles import SPARE

if TYPE_CHECKING:
    import triton.language as tl

MAX_ROWS = 64
MAX_QUANTIZED_ROWS = 256  # estimated, not measured
LANES = 256  # matrix columns per warp and load: 32 threads of 16 bytes, in a 16-bit type
QUANTIZED_LANES = 512  # in a type of one byte
MIN_TILE = 16  # minimum rows and depth of a tensor core operand
SPLIT_PROGRAMS = 128  # programs of a product that is divided by columns
PREFETCHED: tuple[PrefetchedProducts, ...] = (prefetch_vector, prefetch_linear, mid_batch_linear)
EARLY_START_ROWS = 33  # from here on, tensor core products let the next launch start before they wait


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """How a product is partitioned."""

    height: int  # matrix rows per program; a gated product takes half of them from each half
    depth: int  # columns per iteration
    warps: int
    stages: int = 1  # iterations whose loads are in flight; with tensor cores only
    splits: int = 1  # parts of the columns, each with its own programs; only for sums with a residual


# (minimum matrix rows, plan): the first match is used. Chosen for bfloat16 on sm_90, where the talker's gates need
# them; benchmarks/small_batch_linear.py --tune measures others.
VECTOR_PLANS = (
    (12288, LaunchPlan(8, 512, 2)),
    (6144, LaunchPlan(8, 1024, 4)),
    (4096, LaunchPlan(4, 1024, 4)),
    (0, LaunchPlan(8, 2048, 8)),
)
MATRIX_PLAN = LaunchPlan(64, 128, 4, 4)
SPLIT_PLAN = LaunchPlan(64, 64, 4, 6)
# (maximum rows of a tile, plan) for quantised weights: as many bytes in flight need more stages. Chosen by the
# instructions of the loop for sm_90: with two warps, 16 rows take 126 per 1,024 weights instead of 203.
QUANTIZED_PLANS = ((MIN_TILE, LaunchPlan(32, 128, 2, 8)), (MAX_ROWS, LaunchPlan(64, 128, 4, 8)))


def is_small_batch(x: Tensor, weight: Matrix) -> bool:
    """Whether rows x [..., K] are few enough for `project` to be faster than separate launches."""
    max_rows = MAX_QUANTIZED_ROWS if isinstance(weight, QuantizedMatrix) else MAX_ROWS
    rows = x.numel() // x.shape[-1]
    return kernels.active(x) and 0 < rows <= (1 if x.dtype == torch.float32 else max_rows)


def is_faster_for_few_outputs(x: Tensor, weight: Matrix) -> bool:
    """Whether `project` is faster than the library for rows x [..., K] and a matrix with few rows, such as 1,024.

    Programs with tensor cores own 64 matrix rows each, so most multiprocessors would read nothing.
    """
    if not is_small_batch(x, weight):
        return False
    return x.numel() == x.shape[-1] or _prefetched(x, weight, PLAIN) is not None


def project(x: Tensor | PreNorm, weight: Matrix, gated: bool = False) -> Tensor:
    """Compute x @ weightᵀ, or norm(x) @ weightᵀ, gated or not."""
    given = x.gained if isinstance(x, PreNorm) else x
    if not is_small_batch(given, weight):
        return project_reference(x, weight, gated)
    if (module := _prefetched(given, weight, GATED if gated else PLAIN)) is not None:
        assert isinstance(weight, Tensor)
        return module.launch(x, weight, gated).view(*given.shape[:-1], -1)
    if register_linear.supports(given, weight, gated=gated):
        assert isinstance(weight, Tensor)
        return register_linear.launch(x, weight, gated).view(*given.shape[:-1], -1)
    plan = choose_plan(given.numel() // given.shape[-1], weight, gpu=gpu_of(given.device))
    return launch(x, weight, gated, plan).view(*given.shape[:-1], -1)


def project_add(x: Tensor, weight: Matrix, add: Tensor, norm: Norm, scale: Tensor | None = None) -> PreNorm:
    """Compute add + x @ weightᵀ, and what the products after the norm read of it.

    scale [N], of a layer, by which the product is multiplied: register_linear.py only.
    """
    if not is_small_batch(x, weight):
        return project_add_reference(x, weight, add, norm, scale)
    if scale is None and (module := _prefetched(x, weight, ADD)) is not None:
        assert isinstance(weight, Tensor)
        return module.launch_add(x, weight, add, norm)
    if register_linear.supports(x, weight, add=True):
        assert isinstance(weight, Tensor)
        return register_linear.launch_add(x, weight, add, norm, scale)
    assert scale is None
    plan = choose_plan(x.numel() // x.shape[-1], weight, add=True, gpu=gpu_of(x.device))
    return launch_add(x, weight, add, norm, plan)


def _prefetched(x: Tensor, weight: Matrix, kind: int) -> PrefetchedProducts | None:
    return next((module for module in PREFETCHED if module.supports(x, weight, kind)), None)


def project_reference(x: Tensor | PreNorm, weight: Matrix, gated: bool = False) -> Tensor:
    """Reference implementation."""
    if isinstance(x, PreNorm):
        wide, dtype = x.squares.dtype, x.gained.dtype
        scale = torch.rsqrt(x.squares.sum(-1, keepdim=True) / x.gained.shape[-1] + x.norm.eps)
        given = weight.to(wide) if isinstance(weight, Tensor) else weight
        made = (multiply_reference(x.gained.to(wide), given) * scale).to(dtype)
    else:
        made = multiply_reference(x, weight)
    return silu_mul_reference(made) if gated else made


def project_add_reference(x: Tensor, weight: Matrix, add: Tensor, norm: Norm, scale: Tensor | None = None) -> PreNorm:
    """Reference implementation."""
    made = multiply_reference(x, weight)
    return pre_norm_reference(add + (made if scale is None else scale * made), norm)


def row_block(rows: int) -> int:
    """The rows of a tile: 1 without tensor cores, 16, 32 or 64 with them."""
    return 1 if rows == 1 else power_of_2(min(max(rows, MIN_TILE), MAX_ROWS))


def choose_plan(rows: int, weight: Matrix, add: bool = False, *, gpu: Gpu) -> LaunchPlan:
    """The launch plan, from rows, shape and type of the matrix; the GPU changes only the number of stages."""
    quantized = isinstance(weight, QuantizedMatrix)
    height, inputs = _values(weight).shape
    if rows == 1:
        plan = next(plan for min_height, plan in VECTOR_PLANS if height >= min_height)
        return replace(plan, depth=min(plan.depth, max(_lanes(weight), power_of_2(inputs))))
    if quantized:
        plan = next(plan for max_rows, plan in QUANTIZED_PLANS if row_block(rows) <= max_rows)
    elif add:
        plan = SPLIT_PLAN
    else:
        plan = MATRIX_PLAN
    if add:
        programs = -(-height // plan.height) * -(-rows // row_block(rows))
        splits = largest_power_of_2(min(SPLIT_PROGRAMS // programs, -(-inputs // plan.depth) // 2))
        plan = replace(plan, splits=splits)
    stage = plan.depth * (plan.height * _values(weight).itemsize + row_block(rows) * 2)
    # Some architectures read converted weights from shared memory.
    spare = SPARE + (plan.depth * plan.height * 2 if quantized else 0)
    return replace(plan, stages=min(plan.stages, (gpu.shared - spare) // stage))


def _values(weight: Matrix) -> Tensor:
    return weight.values if isinstance(weight, QuantizedMatrix) else weight


def _lanes(weight: Matrix) -> int:
    return QUANTIZED_LANES if isinstance(weight, QuantizedMatrix) else LANES


def launch(x: Tensor | PreNorm, weight: Matrix, gated: bool, plan: LaunchPlan) -> Tensor:
    """Launch the kernel with this plan; returns rows [M, outputs]."""
    given = flat_rows(x.gained if isinstance(x, PreNorm) else x)
    out = given.new_empty(len(given), len(_values(weight)) // (2 if gated else 1))
    if isinstance(x, PreNorm):
        _launch(given, weight, out, plan, squares=flat_rows(x.squares), eps=x.norm.eps, gated=gated)
    else:
        _launch(given, weight, out, plan, gated=gated)
    return out


def launch_add(x: Tensor, weight: Matrix, add: Tensor, norm: Norm, plan: LaunchPlan) -> PreNorm:
    """Launch the kernels with this plan; the result has the shape of `add`."""
    given, added, size = flat_rows(x), flat_rows(add), add.shape[-1]
    out, gained = (given.new_empty(added.shape) for _ in range(2))
    parts = 1 if plan.splits > 1 else -(-size // plan.height)
    squares = torch.empty(len(given), parts, dtype=torch.float32, device=x.device)
    if plan.splits > 1:
        sums = torch.empty(plan.splits, *added.shape, dtype=torch.float32, device=x.device)
        _launch(given, weight, sums[0], plan)
        add_splits_kernel[(len(added),)](
            sums, added, norm.gain, out, gained, squares, added.stride(0), len(added), SPLITS=plan.splits,
            SPLITS_BLOCK=power_of_2(plan.splits), SIZE=size, BLOCK=power_of_2(size), **overlap(given),
            num_warps=8,
        )  # fmt: skip
    else:
        _launch(given, weight, out, plan, add=(added, norm.gain, gained, squares))
    return PreNorm(out.view(add.shape), gained.view(add.shape), squares.view(*add.shape[:-1], parts), norm)


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
    (rows, inputs), outputs = x.shape, out.shape[1]
    block = plan.height // (2 if gated else 1)
    added, gain, gained, out_squares = add or (out, out, out, out)
    parts, parts_row = (0, 0) if squares is None else (squares.shape[1], squares.stride(0))
    assert x.stride(1) == added.stride(1) == 1
    assert squares is None or parts == 1 or squares.stride(1) == 1
    values = _values(weight)
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
            *given, *settings, **shape, PARTS=plan.depth // _lanes(weight), DEPTH=_lanes(weight), **overlap(x),
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
