# SPDX-License-Identifier: Apache-2.0
"""Linear layers of up to 8 or 32 rows in CUDA C++: the matrix is in registers before the previous launch has ended.

    the inputs and results of small_batch_linear.py, for the shapes in INSTANCES; also with a layer scale [N]:
    add + scale · (x @ weightᵀ)

A frame step of a few streams is a chain of short launches. Triton's product of 3 rows or more loads its matrix after
the previous launch has ended, and o and down need a second launch that adds up their splits. Here every program has
8, 16, … matrix rows, so that about 128 programs divide any of the matrices by rows alone; each loads its part
(32 to 96 KB) before it waits (launch_overlap.py), and then only rows of x, from cache. Every program reads all of x,
which is why this is for few rows. The matrices of the codec's transformer have 512 or 1,024 columns: up to 32 rows.

Loads begin early only if the program fits into a multiprocessor beside one of the previous launch. With 16 rows of x
it has up to 194 registers per thread, and few pairs of launches fit; with 8 it has at most 128, and all do.

Two trials (`kernels.in_trial`), of the same products: TRIAL always has 16 rows of x and was measured; SMALL_TRIAL has
8 in bfloat16, and no GPU has run it.

Types: bfloat16, float16; squares and sums float32.
Roundings: those of small_batch_linear.py; the rounded product times the layer scale is rounded, as in norm.py. The
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
from polyvox.kernels.pre_norm import Norm, PreNorm
from polyvox.kernels.quantized_matrix import Matrix

TRIAL, SMALL_TRIAL = "register_linear", "register_linear_8_rows"
ROW_TILE = 8  # rows of x
PROGRAMS = 128  # of a launch, at most
TILE, COLUMNS = 8, 256  # matrix rows of a tile, columns of an iteration
WARPS, WARP_SIZE = 8, 32
ALIGNMENT = 16  # bytes of a load
MAX_ADD_TILES = 2  # of a program with a residual, so that a warp has whole rows
# Minimum and maximum rows by type and gate: where an H200 was faster with it than with the other kernels. In bfloat16
# a gated product of 8 rows takes 17 µs instead of 15 (talker), and one row of any product is slower.
ROWS = {(torch.bfloat16, False): (2, 8), (torch.float16, False): (1, 32), (torch.float16, True): (1, 32)}
# Tiles and iterations that the source has: for talker and predictor, and for the transformer of the codec.
INSTANCES = {
    torch.bfloat16: {(1, 8), (1, 12), (2, 4), (2, 8), (2, 24), (3, 4), (3, 8), (4, 4), (4, 8)},
    torch.float16: {(1, 4), (2, 2), (3, 2)},
}
ROW_TILES = {torch.bfloat16: (1, 2), torch.float16: (2, 4)}  # that the source has
NAMES = {torch.bfloat16: "bf16", torch.float16: "f16"}


@cache
def source(architecture: int) -> CudaSource:
    return CudaSource("register_linear.cu", str(architecture))


def supports(x: Tensor, weight: Matrix, add: bool = False, gated: bool = False) -> bool:
    """Whether a trial is enabled, and the kernel runs for rows x [..., K] and a matrix [N, K]."""
    in_trial = kernels.in_trial(TRIAL) or kernels.in_trial(SMALL_TRIAL)
    if not in_trial or not kernels.active(x) or not isinstance(weight, Tensor) or x.is_cpu:
        return False
    rows, architecture = x.numel() // x.shape[-1], gpu_of(x.device).architecture
    min_rows, max_rows = ROWS.get((x.dtype, gated), (1, 0))
    if not min_rows <= rows <= max_rows or x.dtype != weight.dtype:
        return False
    tiles, iterations = instance(weight)
    if (tiles, iterations) not in INSTANCES[x.dtype]:
        return False
    outputs = row_tiles(rows, x.dtype) * ROW_TILE * tiles * TILE
    if add and (tiles > MAX_ADD_TILES or outputs > WARPS * WARP_SIZE):  # a thread has one output
        return False
    if gated and tiles % 2:  # a program has as many tiles of each half
        return False
    return architecture in GPUS and source(architecture).available()


def instance(weight: Tensor) -> tuple[int, int]:
    """Tiles and iterations of a program; (0, 0) for a matrix that programs cannot divide."""
    height, inputs = weight.shape
    tiles = -(-height // (TILE * PROGRAMS))
    return (tiles, inputs // COLUMNS) if height % (TILE * tiles) == 0 and inputs % COLUMNS == 0 else (0, 0)


def row_tiles(rows: int, dtype: torch.dtype) -> int:
    """Row tiles of a program."""
    small, large = ROW_TILES[dtype]
    if dtype == torch.bfloat16:
        return small if kernels.in_trial(SMALL_TRIAL) else large
    return small if rows <= small * ROW_TILE else large


def shared_bytes(tiles: int, num_row_tiles: int) -> int:
    """Shared memory of a program: the sums of each warp, and the scale of each row."""
    return 4 * num_row_tiles * ROW_TILE * (WARPS * TILE * tiles + 1)


def launch(x: Tensor | PreNorm, weight: Tensor, gated: bool) -> Tensor:
    """x @ weightᵀ, or norm(x) @ weightᵀ, gated or not, for rows that `supports` accepts: rows [M, outputs]."""
    given = _flat(x.gained if isinstance(x, PreNorm) else x)
    out = given.new_empty(len(given), len(weight) // (2 if gated else 1))
    squares, eps = (_flat(x.squares), x.norm.eps) if isinstance(x, PreNorm) else (None, 0.0)
    _launch(given, weight, squares, None, None, None, out, None, None, gated, eps)
    return out


def launch_add(x: Tensor, weight: Tensor, add: Tensor, norm: Norm, scale: Tensor | None = None) -> PreNorm:
    """add + x @ weightᵀ, and what the products after the norm read of it; the result has the shape of `add`.

    scale: of the layer, by which the product is multiplied.
    """
    given, added = _flat(x), _flat(add)
    out, gained = (given.new_empty(added.shape) for _ in range(2))
    parts = len(weight) // (TILE * instance(weight)[0])
    squares = torch.empty(len(given), parts, dtype=torch.float32, device=x.device)
    _launch(given, weight, None, added, scale, norm.gain, out, gained, squares, False, 0.0)
    return PreNorm(out.view(add.shape), gained.view(add.shape), squares.view(*add.shape[:-1], parts), norm)


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
    (tiles, iterations), num_row_tiles = instance(weight), row_tiles(len(x), x.dtype)
    assert x.stride(1) == 1
    assert x.stride(0) * x.itemsize % ALIGNMENT == 0
    assert weight.is_contiguous()
    assert squares is None or squares.shape[1] == 1 or squares.stride(1) == 1
    parts, squares_row = (0, 0) if squares is None else (squares.shape[1], squares.stride(0))
    source(gpu_of(x.device).architecture).launch(
        f"product_{NAMES[x.dtype]}_{tiles}_{iterations}_{num_row_tiles}", len(weight) // (TILE * tiles),
        WARPS * WARP_SIZE, shared_bytes(tiles, num_row_tiles),
        [x, weight, squares, add, scale, gain, out, gained, out_squares, len(x), x.stride(0), parts, squares_row,
         0 if add is None else add.stride(0), out.shape[1], int(gated), eps],
        overlaps=overlap(x)["OVERLAP"],
    )  # fmt: skip


def _flat(x: Tensor) -> Tensor:
    return x.flatten(0, -2) if x.dim() > 1 else x[None]
