# SPDX-License-Identifier: Apache-2.0
"""The codec's linear layers of up to 32 rows in CUDA C++: a matrix is in registers before the previous launch ends.

    the inputs and results of fused_linear.py, for the shapes in INSTANCES; also with a layer scale [N]:
    add + scale · (x @ weightᵀ)

The codec's transformer for a few streams is a chain of short launches. Triton's product loads its matrix after the
previous launch has ended, and o and down need a second launch that adds up their splits. Here every program has 8, 16
or 24 matrix rows, so that at most 128 programs divide any of the matrices by rows alone; each loads its part (16 or
24 KB) before it waits (launch_overlap.py), and then only rows of x, from cache. Every program reads all of x, which is
why this is for few rows.

What a program reads before it waits is constant: the matrix, the layer scale and the gain of the next norm. GPUs whose
launches do not overlap or that have no NVRTC, and other shapes and types, keep the other kernels: talker and predictor
were slower with such products (docs/notes/2026-11-performance.md).

Types: float16; squares and sums float32.
Roundings: those of fused_linear.py; the rounded product times the layer scale is rounded, as in norm.py. The
order of a sum depends on N and K only, not on the number of rows.
Bytes: weight once; x once per program, from cache; add and the result once.
Grid: one program per 8 · tiles matrix rows; 8 warps divide the columns.
"""

from functools import cache

import torch
from torch import Tensor

from polyvox import kernels
from polyvox.kernels.cuda_source import CudaSource
from polyvox.kernels.gpu import GPUS, gpu_of
from polyvox.kernels.launch_overlap import overlap
from polyvox.kernels.pre_norm import Norm, PreNorm, empty_sum, flat_rows
from polyvox.kernels.products import ADD, GATED
from polyvox.kernels.quantized_matrix import Matrix

ROW_TILE = 8  # rows of x
PROGRAMS = 128  # of a launch, at most
TILE, COLUMNS = 8, 256  # matrix rows of a tile, columns of an iteration
WARPS, WARP_SIZE = 8, 32
ALIGNMENT = 16  # bytes of a load
MAX_ADD_TILES = 2  # of a program with a residual, so that a warp has whole rows
MAX_ROWS = 32  # of x; with more, reading all of x in every program takes longer than the other kernels
INSTANCES = {(1, 4), (2, 2), (3, 2)}  # tiles and iterations that the source has: o and down, gate and up, qkv
ROW_TILES = (2, 4)  # of a program, that the source has, ascending
ARCHITECTURES = tuple(architecture for architecture, gpu in GPUS.items() if gpu.can_overlap_launches)


@cache
def source(architecture: int) -> CudaSource:
    return CudaSource("register_linear.cu", str(architecture))


def supports(x: Tensor, weight: Matrix, kind: int) -> bool:
    """Whether the kernel runs for rows x [..., K] and a matrix [N, K], and is faster than the others."""
    if not kernels.active(x) or not isinstance(weight, Tensor) or x.is_cpu:
        return False
    rows = x.numel() // x.shape[-1]
    if not 1 <= rows <= MAX_ROWS or not x.dtype == weight.dtype == torch.float16:
        return False
    tiles, iterations = instance(weight)
    if (tiles, iterations) not in INSTANCES:
        return False
    outputs = row_tiles(rows) * ROW_TILE * tiles * TILE
    if kind == ADD and (tiles > MAX_ADD_TILES or outputs > WARPS * WARP_SIZE):  # a thread has one output
        return False
    if kind == GATED and tiles % 2:  # a program has as many tiles of each half
        return False
    return supports_architecture(gpu_of(x.device).architecture)


def supports_architecture(architecture: int) -> bool:
    """Whether a GPU of this architecture runs these kernels; compiles them at the first call."""
    return architecture in ARCHITECTURES and source(architecture).available()


def instance(weight: Tensor) -> tuple[int, int]:
    """Tiles and iterations of a program; (0, 0) for a matrix that programs cannot divide."""
    height, inputs = weight.shape
    tiles = -(-height // (TILE * PROGRAMS))
    return (tiles, inputs // COLUMNS) if height % (TILE * tiles) == 0 and inputs % COLUMNS == 0 else (0, 0)


def row_tiles(rows: int) -> int:
    """Row tiles of a program."""
    return next(count for count in ROW_TILES if rows <= count * ROW_TILE)


def shared_bytes(tiles: int, num_row_tiles: int) -> int:
    """Shared memory of a program: the sums of each warp, and the scale of each row."""
    return 4 * num_row_tiles * ROW_TILE * (WARPS * TILE * tiles + 1)


def launch(x: Tensor | PreNorm, weight: Matrix, gated: bool) -> Tensor:
    """x @ weightᵀ, or norm(x) @ weightᵀ, gated or not, for rows that `supports` accepts: rows [M, outputs]."""
    assert isinstance(weight, Tensor)
    given = flat_rows(x.gained if isinstance(x, PreNorm) else x)
    out = given.new_empty(len(given), len(weight) // (2 if gated else 1))
    squares, eps = (flat_rows(x.squares), x.norm.eps) if isinstance(x, PreNorm) else (None, 0.0)
    _launch(given, weight, squares, None, None, None, out, None, None, gated, eps)
    return out


def launch_add(x: Tensor, weight: Matrix, add: Tensor, norm: Norm, scale: Tensor | None = None) -> PreNorm:
    """add + x @ weightᵀ, and what the products after the norm read of it; the result has the shape of `add`.

    scale: of the layer, by which the product is multiplied.
    """
    assert isinstance(weight, Tensor)
    made = empty_sum(add, norm, len(weight) // (TILE * instance(weight)[0]))
    _launch(flat_rows(x), weight, None, flat_rows(add), scale, norm.gain, *made[:3], False, 0.0)
    return made


def _launch(
    x: Tensor,
    weight: Tensor,
    squares: Tensor | None,
    add: Tensor | None,
    scale: Tensor | None,
    gain: Tensor | None,
    out: Tensor,
    gained: Tensor | None,
    out_squares: Tensor | None,
    gated: bool,
    eps: float,
) -> None:
    (tiles, iterations), num_row_tiles = instance(weight), row_tiles(len(x))
    assert x.stride(1) == 1
    assert x.stride(0) * x.itemsize % ALIGNMENT == 0
    assert weight.is_contiguous()
    assert add is None or add.stride(1) == 1
    assert squares is None or squares.shape[1] == 1 or squares.stride(1) == 1
    parts, squares_row = (0, 0) if squares is None else (squares.shape[1], squares.stride(0))
    source(gpu_of(x.device).architecture).launch(
        f"product_{tiles}_{iterations}_{num_row_tiles}", len(weight) // (TILE * tiles),
        WARPS * WARP_SIZE, shared_bytes(tiles, num_row_tiles),
        [x, weight, squares, add, scale, gain, out, gained, out_squares, len(x), x.stride(0), parts, squares_row,
         0 if add is None else add.stride(0), out.shape[-1], int(gated), eps],
        overlaps=overlap(x)["OVERLAP"],
    )  # fmt: skip
