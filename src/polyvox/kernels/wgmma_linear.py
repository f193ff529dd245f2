# SPDX-License-Identifier: Apache-2.0
"""Linear layers of large batches in CUDA C++ for sm_90 (H100, H200): norm before, gate or residual after the product.

    the inputs and results of fused_linear.py, for LARGE_BATCHES rows and weights that are not quantised

Why not the library: its products take as long, but leave norms and gates to launches of their own. A tile is chosen so
that the tiles are about as many as the multiprocessors. Two programs of a cluster share the copies of a matrix
(wgmma_linear.cu), and launches overlap (launch_overlap.py). For other numbers of rows the library was faster (H200: a
layer of 2,048 columns and 640 rows takes 109 instead of 129 µs), and matrices of other widths were not measured.

Types: bfloat16; squares float32.
Roundings: those of fused_linear.py. Products are summed over columns in ascending order, whatever the tile;
squares are summed for each 64 outputs, then over these. A row's bits depend on nothing else of the batch.
Bytes: weight and x once from memory, from cache for all clusters but the first; add and the result once.
Grid: one program per tile, rounded up to whole clusters; a program without rows only copies its half of the matrix.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from polyvox import kernels
from polyvox.kernels.cuda_source import CudaSource
from polyvox.kernels.gpu import gpu_of
from polyvox.kernels.launch_overlap import LARGE_BATCH_ARCHITECTURE as ARCHITECTURE
from polyvox.kernels.launch_overlap import is_large_batch
from polyvox.kernels.pre_norm import Norm, PreNorm, empty_sum, flat_rows
from polyvox.kernels.products import ADD, GATED, PLAIN
from polyvox.kernels.quantized_matrix import Matrix
from polyvox.kernels.tensor_map import TensorMap

SOURCE = CudaSource("wgmma_linear.cu", f"{ARCHITECTURE}a")  # no other one has these instructions
DEPTH = 64  # columns of a stage
CLUSTER = 2  # programs
BOX_ROWS = 64  # rows of a copy of x
PART = 64  # outputs whose squares are summed
MIN_INPUTS = 1024  # columns: those of the stages of any tile


@dataclass(frozen=True, slots=True)
class ProductTile:
    """Rows of x and matrix rows of a program, stages in shared memory."""

    rows: int
    width: int
    stages: int
    kind: int
    cost: float  # µs of a product of 2,048 columns with one tile per multiprocessor, measured on an H200

    @property
    def name(self) -> str:
        return f"product_{self.rows}_{self.width}_{self.stages}_{self.kind}"

    @property
    def threads(self) -> int:
        return self.rows + 128 if self.rows > 128 else 2 * self.rows + 32

    @property
    def shared(self) -> int:
        """Bytes of shared memory: the stages, and two barriers for each."""
        return self.stages * ((self.rows + self.width) * DEPTH * 2 + 16)

    def divides(self, matrix_rows: int) -> bool:
        return matrix_rows % self.width == 0

    def num_programs(self, rows: int, matrix_rows: int) -> int:
        return -(-rows // (self.rows * CLUSTER)) * CLUSTER * (matrix_rows // self.width)


TILES = (
    ProductTile(256, 128, 4, PLAIN, 26.1),
    ProductTile(128, 128, 6, PLAIN, 14.7),
    ProductTile(64, 128, 8, PLAIN, 10.3),
    ProductTile(256, 192, 4, GATED, 37.6),
    ProductTile(128, 192, 5, GATED, 21.0),
    ProductTile(64, 192, 6, GATED, 14.5),  # this cost and the next one were estimated
    ProductTile(64, 128, 8, GATED, 10.5),
    ProductTile(128, 128, 6, ADD, 14.5),
    ProductTile(128, 64, 9, ADD, 10.4),
    ProductTile(64, 128, 8, ADD, 10.7),
    ProductTile(64, 64, 13, ADD, 7.3),
)


def supports(x: Tensor, weight: Matrix, kind: int) -> bool:
    """Whether the kernels run for rows x [..., K] and a matrix [N, K], and are faster than separate launches."""
    if not kernels.active(x) or x.is_cpu or not isinstance(weight, Tensor):
        return False
    rows, (outputs, inputs) = x.numel() // x.shape[-1], weight.shape
    # The smaller side of a matrix is the model's width.
    if not is_large_batch(rows, min(outputs, inputs)) or not x.dtype == weight.dtype == torch.bfloat16:
        return False
    if not _tiles(outputs, kind) or inputs % DEPTH or inputs < MIN_INPUTS:
        return False
    return supports_architecture(gpu_of(x.device).architecture)


def supports_architecture(architecture: int) -> bool:
    """Whether a GPU of this architecture runs these kernels; compiles them at the first call."""
    return architecture == ARCHITECTURE and SOURCE.available()


def choose_tile(rows: int, matrix_rows: int, kind: int, multiprocessors: int) -> ProductTile:
    """The tile whose waves over the multiprocessors take the least time."""

    def cost(tile: ProductTile) -> float:
        return -(-tile.num_programs(rows, matrix_rows) // multiprocessors) * tile.cost

    return min(_tiles(matrix_rows, kind), key=cost)


def _tiles(matrix_rows: int, kind: int) -> list[ProductTile]:
    return [tile for tile in TILES if tile.kind == kind and tile.divides(matrix_rows)]


def launch(x: Tensor | PreNorm, weight: Matrix, gated: bool) -> Tensor:
    """x @ weightᵀ, or norm(x) @ weightᵀ, gated or not, for rows that `supports` accepts: rows [M, outputs]."""
    assert isinstance(weight, Tensor)
    tile = _choose(x.gained if isinstance(x, PreNorm) else x, weight, GATED if gated else PLAIN)
    return launch_tile(x, weight, gated, tile)


def launch_add(x: Tensor, weight: Matrix, add: Tensor, norm: Norm) -> PreNorm:
    """add + x @ weightᵀ, and what the products after the norm read of it; the result has the shape of `add`."""
    assert isinstance(weight, Tensor)
    return launch_add_tile(x, weight, add, norm, _choose(x, weight, ADD))


def _choose(x: Tensor, weight: Tensor, kind: int) -> ProductTile:
    return choose_tile(x.numel() // x.shape[-1], len(weight), kind, gpu_of(x.device).multiprocessors)


def launch_tile(x: Tensor | PreNorm, weight: Tensor, gated: bool, tile: ProductTile) -> Tensor:
    """`launch` with this tile."""
    given = flat_rows(x.gained if isinstance(x, PreNorm) else x)
    out = given.new_empty(len(given), len(weight) // (2 if gated else 1))
    squares, eps = (flat_rows(x.squares), x.norm.eps) if isinstance(x, PreNorm) else (None, 0.0)
    _launch(given, weight, squares, None, None, out, None, None, tile, eps)
    return out


def launch_add_tile(x: Tensor, weight: Tensor, add: Tensor, norm: Norm, tile: ProductTile) -> PreNorm:
    """`launch_add` with this tile."""
    made = empty_sum(add, norm, len(weight) // PART)
    _launch(flat_rows(x), weight, None, flat_rows(add), norm.gain, *made[:3], tile, 0.0)
    return made


def _launch(
    x: Tensor,
    weight: Tensor,
    squares: Tensor | None,
    add: Tensor | None,
    gain: Tensor | None,
    out: Tensor,
    gained: Tensor | None,
    out_squares: Tensor | None,
    tile: ProductTile,
    eps: float,
) -> None:
    (rows, inputs), outputs = x.shape, out.shape[-1]
    assert weight.is_contiguous()
    assert add is None or (add.stride(1) == 1 and add.stride(0) % 8 == 0)
    assert gain is None or (gain.dtype == x.dtype and gain.is_contiguous())
    assert squares is None or squares.shape[1] == 1 or squares.stride(1) == 1
    parts, squares_row = (0, 0) if squares is None else (squares.shape[1], squares.stride(0))
    SOURCE.launch(
        tile.name, tile.num_programs(rows, len(weight)), tile.threads, tile.shared,
        [*_maps(x, weight, tile), squares, add, gain, out, gained, out_squares, rows, inputs, outputs, parts,
         squares_row, 0 if add is None else add.stride(0), eps],
        overlaps=True,
    )  # fmt: skip


def _maps(x: Tensor, weight: Tensor, tile: ProductTile) -> tuple[TensorMap, TensorMap]:
    """The operands; each program of a cluster copies a part of the matrix rows."""
    width = tile.width // (2 if tile.kind == GATED else 1)  # rows of a copy in each half of a gated matrix
    return TensorMap(x, BOX_ROWS), TensorMap(weight, width // CLUSTER)
