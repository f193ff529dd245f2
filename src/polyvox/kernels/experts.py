# SPDX-License-Identifier: Apache-2.0
"""A sparse mixture of experts without a host read of the routing, so that it can be captured in a CUDA graph.

    route: logits [N,E] -> experts [N,K] int32 by descending score, weights [N,K] float32, rows grouped by expert
    multiply_experts: rows [N,H], gate_up [E,2I,H], down [E,H,I], quantised (quantized_matrix.py) or not -> [N,K,H],
        each times its weight
    combine: [N,K,H] + sigmoid(shared gate [N,1]) · shared [N,H] (+ residual [N,H]) -> [N,H]

Pair n·K + k is choice k of row n. Each expert has a list of its pairs, filled with an atomic counter; the order of a
list changes from run to run and affects nothing, because every pair is computed by itself. A tile of a product has up
to BLOCK_M pairs of one expert. The grid has as many tiles as any routing of N rows can need; a program finds its expert
from the counts, and ends at once if there are fewer tiles.

Types: bfloat16, float16, float32; logits likewise.
Roundings: softmax and weights in float32, the weights rounded to the type of the rows; products summed in float32,
multiplied by the scales of quantised experts, and rounded; silu rounded, then gate · up rounded; the weighted outputs
are added in float32 in the order of the choices, and the sum with the shared expert and the residual is rounded once
each, as in the reference implementation.
Bytes: the weights of every chosen expert once per BLOCK_M of its pairs; rows from cache.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from polyvox.kernels.gpu import GPUS, Gpu, gpu_of
from polyvox.kernels.lazy_triton import Kernel, power_of_2
from polyvox.kernels.quantized_matrix import Matrix, QuantizedMatrix, convert, multiply_reference, select
from polyvox.kernels.silu_mul import silu_mul_reference
from polyvox.kernels.tiles import SPARE

if TYPE_CHECKING:
    import triton.language as tl

MIN_TILE = 16  # minimum rows and depth of a tensor core operand
MAX_TILE_ROWS = 64
COMBINE_COLUMNS = 1024


@dataclass(frozen=True, slots=True)
class ExpertTile:
    """The tile of a product: rows, columns and depth, and how Triton runs it."""

    rows: int
    columns: int
    depth: int
    warps: int
    stages: int

    @property
    def shared(self) -> int:
        """Shared memory of all stages' operands in bytes: rows, gate and up, in a 16-bit type."""
        return self.stages * self.depth * (self.rows + 2 * self.columns) * 2


def expert_tile(num_pairs: int, num_experts: int, dtype: torch.dtype, gpu: Gpu = GPUS[90]) -> ExpertTile:
    """The tile for this many pairs: narrow while few experts are read, so that all multiprocessors have work.

    Measured on an H200, 20 layers of 128 experts with 6 chosen, in ms: 0.24 (1 row), 0.42 (4), 0.64 (8), 1.56 (64),
    1.70 (256); reading all weights takes 1.45.
    """
    rows = min(MAX_TILE_ROWS, max(MIN_TILE, power_of_2(-(-num_pairs // num_experts))))
    if dtype == torch.float32:
        return ExpertTile(rows, 32, 32, 4, 2)
    if 4 * num_pairs <= num_experts:
        tile = ExpertTile(rows, 32, 128, 4, 3)
    else:
        tile = ExpertTile(rows, 64, 64 if 2 * num_pairs < num_experts else 128, 4, 3)
    return tile if tile.shared + SPARE <= gpu.shared else replace(tile, depth=tile.depth // 2)


def max_tiles(num_pairs: int, num_experts: int, rows: int) -> int:
    """The most tiles of this many rows that any routing of the pairs needs: each expert may have a partial one."""
    return min(num_pairs, num_experts + num_pairs // rows)


@dataclass(frozen=True, slots=True, eq=False)
class Routing:
    """The experts of each row, and the rows of each expert."""

    chosen: Tensor  # [N,K] int32
    weights: Tensor  # [N,K], in the type of the rows
    counts: Tensor  # [E] int32: pairs of each expert
    pairs: Tensor  # [E,N] int32: the first counts[e] of row e are the pairs of expert e


def route(logits: Tensor, num_chosen: int, normalize: bool) -> Routing:
    """The experts of rows with router logits [N,E], of any row stride."""
    rows, experts = logits.shape
    assert logits.stride(1) == 1
    chosen = torch.empty(rows, num_chosen, dtype=torch.int32, device=logits.device)
    weights = torch.empty(rows, num_chosen, dtype=logits.dtype, device=logits.device)
    counts = torch.zeros(experts, dtype=torch.int32, device=logits.device)
    pairs = torch.empty(experts, rows, dtype=torch.int32, device=logits.device)
    route_kernel[(rows,)](
        logits, chosen, weights, counts, pairs, rows, logits.stride(0),
        EXPERTS=experts, BLOCK=power_of_2(experts), CHOSEN=num_chosen, NORMALIZE=normalize, num_warps=1,
    )  # fmt: skip
    return Routing(chosen, weights, counts, pairs)


def route_reference(logits: Tensor, num_chosen: int, normalize: bool) -> tuple[Tensor, Tensor]:
    """Reference implementation: experts and weights, [N,K] each."""
    scores = F.softmax(logits, dim=-1, dtype=torch.promote_types(logits.dtype, torch.float32))
    weights, chosen = scores.topk(num_chosen, dim=-1)
    if normalize:
        weights = weights / weights.sum(dim=-1, keepdim=True)
    return chosen, weights.to(logits.dtype)


def multiply_experts(rows: Tensor, routing: Routing, gate_up: Matrix, down: Matrix) -> Tensor:
    """The outputs of the chosen experts [N,K,H], each times its weight."""
    count, hidden = rows.shape
    (gate_up_values, gate_up_scales), (down_values, down_scales) = _parts(gate_up), _parts(down)
    experts, inner = len(gate_up_values), down_values.shape[2]
    num_chosen = routing.chosen.shape[1]
    activated = torch.empty(count * num_chosen, inner, dtype=rows.dtype, device=rows.device)
    out = torch.empty(count, num_chosen, hidden, dtype=rows.dtype, device=rows.device)
    num_pairs = count * num_chosen
    tile = expert_tile(num_pairs, experts, rows.dtype, gpu_of(rows.device))
    tiles = max_tiles(num_pairs, experts, tile.rows)
    precision = "ieee" if rows.dtype != torch.float32 or not torch.backends.cuda.matmul.allow_tf32 else "tf32"
    common = {
        "EXPERTS": experts, "EXPERTS_BLOCK": power_of_2(experts), "BLOCK_M": tile.rows, "BLOCK_N": tile.columns,
        "QUANTIZED": isinstance(gate_up, QuantizedMatrix), "PRECISION": precision, "num_warps": tile.warps,
        "num_stages": tile.stages,
    }  # fmt: skip
    gate_up_kernel[(tiles, -(-inner // tile.columns))](
        rows.contiguous(), gate_up_values, gate_up_scales, routing.counts, routing.pairs, activated,
        count, hidden, inner,
        CHOSEN=num_chosen, BLOCK_K=min(tile.depth, max(MIN_TILE, power_of_2(hidden))), **common,
    )  # fmt: skip
    down_kernel[(tiles, -(-hidden // tile.columns))](
        activated, down_values, down_scales, routing.counts, routing.pairs, routing.weights, out, count, hidden, inner,
        BLOCK_K=min(tile.depth, max(MIN_TILE, power_of_2(inner))), **common,
    )  # fmt: skip
    return out


def _parts(matrix: Matrix) -> tuple[Tensor, Tensor]:
    """Values and scales; the scales of a matrix without them are not read."""
    return matrix if isinstance(matrix, QuantizedMatrix) else (matrix, matrix)


def multiply_experts_reference(rows: Tensor, chosen: Tensor, weights: Tensor, gate_up: Matrix, down: Matrix) -> Tensor:
    """Reference implementation."""
    out = rows.new_empty(*chosen.shape, rows.shape[1])
    for expert in chosen.unique().tolist():
        row, choice = (chosen == expert).nonzero(as_tuple=True)
        inner = silu_mul_reference(multiply_reference(rows[row], select(gate_up, expert)))
        out[row, choice] = multiply_reference(inner, select(down, expert)) * weights[row, choice, None]
    return out


def combine(outputs: Tensor, shared: Tensor, shared_gate: Tensor, residual: Tensor | None) -> Tensor:
    """The sum of expert outputs [N,K,H] and the gated shared expert [N,H], plus residual [N,H]."""
    rows, num_chosen, hidden = outputs.shape
    out = torch.empty_like(shared)
    block = min(COMBINE_COLUMNS, power_of_2(hidden))
    combine_kernel[(rows, -(-hidden // block))](
        outputs, shared, shared_gate, out if residual is None else residual.contiguous(), out, shared_gate.stride(0),
        HIDDEN=hidden, CHOSEN=num_chosen, ADD=residual is not None, BLOCK=block, num_warps=4,
    )  # fmt: skip
    return out


def combine_reference(outputs: Tensor, shared: Tensor, shared_gate: Tensor, residual: Tensor | None) -> Tensor:
    """Reference implementation."""
    wide = torch.promote_types(outputs.dtype, torch.float32)
    summed = outputs.sum(1, dtype=wide).to(outputs.dtype) + torch.sigmoid(shared_gate) * shared
    return summed if residual is None else residual + summed


@Kernel
def route_kernel(
    logits, chosen, weights, counts, pairs, rows, logits_row,
    EXPERTS: tl.constexpr, BLOCK: tl.constexpr, CHOSEN: tl.constexpr, NORMALIZE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    expert = tl.arange(0, BLOCK)
    values = tl.load(logits + row.to(tl.int64) * logits_row + expert, mask=expert < EXPERTS, other=float("-inf"))
    values = values.to(tl.float32)
    exponentials = tl.exp(values - tl.max(values, 0))
    scores = exponentials / tl.sum(exponentials, 0)
    left = scores
    total = 0.0
    for _ in tl.static_range(CHOSEN):
        best = tl.argmax(left, 0)
        total += tl.max(left, 0)
        left = tl.where(expert == best, -1.0, left)
    scale = 1.0 / total if NORMALIZE else 1.0
    left = scores
    for choice in tl.static_range(CHOSEN):
        best = tl.argmax(left, 0)
        weight = tl.max(left, 0) * scale
        left = tl.where(expert == best, -1.0, left)
        pair = row * CHOSEN + choice
        tl.store(chosen + pair, best.to(tl.int32))
        tl.store(weights + pair, weight.to(weights.dtype.element_ty))
        index = tl.atomic_add(counts + best, 1)
        tl.store(pairs + best.to(tl.int64) * rows + index, pair.to(tl.int32))


@Kernel
def find_tile(counts, tile, EXPERTS: tl.constexpr, EXPERTS_BLOCK: tl.constexpr, BLOCK_M: tl.constexpr):
    """The expert of a tile, its number of pairs, and the tile's first pair in its list; 0 pairs: no such tile."""
    index = tl.arange(0, EXPERTS_BLOCK)
    count = tl.load(counts + index, mask=index < EXPERTS, other=0)
    tiles = (count + BLOCK_M - 1) // BLOCK_M
    before = tl.cumsum(tiles, 0) - tiles
    here = (before <= tile) & (tile < before + tiles)
    expert = tl.sum(tl.where(here, index, 0), 0)
    return expert, tl.sum(tl.where(here, count, 0), 0), tl.sum(tl.where(here, tile - before, 0), 0) * BLOCK_M


@Kernel
def gate_up_kernel(
    x, matrices, scales, counts, pairs, out, rows, hidden, inner,
    EXPERTS: tl.constexpr, EXPERTS_BLOCK: tl.constexpr, CHOSEN: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, QUANTIZED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    expert, count, first = find_tile(counts, tl.program_id(0), EXPERTS, EXPERTS_BLOCK, BLOCK_M)
    m = first + tl.arange(0, BLOCK_M)
    if count > 0:
        present = m < count
        pair = tl.load(pairs + expert.to(tl.int64) * rows + m, mask=present, other=0)
        source = x + (pair // CHOSEN).to(tl.int64) * hidden
        n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
        gate_rows = matrices + (expert.to(tl.int64) * (2 * inner) + n) * hidden
        up_rows = gate_rows + inner.to(tl.int64) * hidden
        gates = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
        ups = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
        for start in range(0, hidden, BLOCK_K):
            k = start + tl.arange(0, BLOCK_K)
            values = tl.load(source[:, None] + k[None, :], mask=present[:, None] & (k < hidden)[None, :], other=0.0)
            mask = (n < inner)[None, :] & (k < hidden)[:, None]
            gate_part = tl.load(gate_rows[None, :] + k[:, None], mask=mask, other=0.0)
            gates = tl.dot(values, convert(gate_part, values.dtype), gates, input_precision=PRECISION)
            up_part = tl.load(up_rows[None, :] + k[:, None], mask=mask, other=0.0)
            ups = tl.dot(values, convert(up_part, values.dtype), ups, input_precision=PRECISION)
        if QUANTIZED:
            gate_scales = scales + expert.to(tl.int64) * (2 * inner) + n
            gates *= tl.load(gate_scales, mask=n < inner, other=0.0)[None, :]
            ups *= tl.load(gate_scales + inner, mask=n < inner, other=0.0)[None, :]
        dtype = out.dtype.element_ty
        gate = gates.to(dtype).to(tl.float32)
        opened = (gate / (1.0 + tl.exp(-gate))).to(dtype).to(tl.float32)
        made = (opened * ups.to(dtype).to(tl.float32)).to(dtype)
        at = pair.to(tl.int64)[:, None] * inner + n[None, :]
        tl.store(out + at, made, mask=present[:, None] & (n < inner)[None, :])


@Kernel
def down_kernel(
    x, matrices, scales, counts, pairs, pair_weights, out, rows, hidden, inner,
    EXPERTS: tl.constexpr, EXPERTS_BLOCK: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, QUANTIZED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    expert, count, first = find_tile(counts, tl.program_id(0), EXPERTS, EXPERTS_BLOCK, BLOCK_M)
    m = first + tl.arange(0, BLOCK_M)
    if count > 0:
        present = m < count
        pair = tl.load(pairs + expert.to(tl.int64) * rows + m, mask=present, other=0).to(tl.int64)
        n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
        lines = matrices + (expert.to(tl.int64) * hidden + n) * inner
        sums = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
        for start in range(0, inner, BLOCK_K):
            k = start + tl.arange(0, BLOCK_K)
            at = pair[:, None] * inner + k[None, :]
            values = tl.load(x + at, mask=present[:, None] & (k < inner)[None, :], other=0.0)
            mask = (n < hidden)[None, :] & (k < inner)[:, None]
            matrix = tl.load(lines[None, :] + k[:, None], mask=mask, other=0.0)
            sums = tl.dot(values, convert(matrix, values.dtype), sums, input_precision=PRECISION)
        if QUANTIZED:
            sums *= tl.load(scales + expert.to(tl.int64) * hidden + n, mask=n < hidden, other=0.0)[None, :]
        dtype = out.dtype.element_ty
        pair_weight = tl.load(pair_weights + pair, mask=present, other=0.0).to(tl.float32)
        made = (sums.to(dtype).to(tl.float32) * pair_weight[:, None]).to(dtype)
        tl.store(out + pair[:, None] * hidden + n[None, :], made, mask=present[:, None] & (n < hidden)[None, :])


@partial(Kernel, fuse=False)
def combine_kernel(
    outputs, shared, shared_gate, residual, out, gate_row,
    HIDDEN: tl.constexpr, CHOSEN: tl.constexpr, ADD: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = column < HIDDEN
    dtype = out.dtype.element_ty
    summed = tl.zeros([BLOCK], tl.float32)
    for choice in tl.static_range(CHOSEN):
        summed += tl.load(outputs + (row * CHOSEN + choice) * HIDDEN + column, mask=mask, other=0.0).to(tl.float32)
    gate = tl.load(shared_gate + row * gate_row).to(tl.float32)
    opened = (1.0 / (1.0 + tl.exp(-gate))).to(dtype).to(tl.float32)
    also = tl.load(shared + row * HIDDEN + column, mask=mask, other=0.0).to(tl.float32)
    made = (summed.to(dtype).to(tl.float32) + (opened * also).to(dtype).to(tl.float32)).to(dtype)
    if ADD:
        before = tl.load(residual + row * HIDDEN + column, mask=mask, other=0.0).to(tl.float32)
        made = (before + made.to(tl.float32)).to(dtype)
    tl.store(out + row * HIDDEN + column, made, mask=mask)
