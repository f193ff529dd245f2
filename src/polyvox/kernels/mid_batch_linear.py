# SPDX-License-Identifier: Apache-2.0
"""Linear layers of 9 to 64 rows in CUDA C++ for sm_90: a matrix is in shared memory before the previous launch ends.

    the inputs and results of fused_linear.py, for the shapes in DIVISIONS

prefetch_linear.py divides the columns of a matrix over the warps of a program as well, and exchanges as many partial
sums. Here the tensor cores multiply all rows of x with all columns of a program (wgmma), so that only programs exchange
sums: two without a residual, four with one, whose matrices are longer and narrower, so that a program reads fewer
columns of x. Copies of x begin when the previous launch has ended; those of the matrix before. A pair of launches that
follow each other fits into a multiprocessor, so that the matrix of the next product is copied meanwhile. The talker's
matrices do not fit into shared memory: stages that have been read are filled again.

What a program reads before it waits is constant: the matrix and gains.

Types: bfloat16; squares and sums float32.
Roundings: those of fused_linear.py. The order of a sum depends on the shape of the matrix only: a row has the
same bits in every batch that is computed here.
Bytes: weight once; x once per cluster, from cache; squares once per program; add and the result once.
Grid: clusters of two programs, with a residual of four; a cluster has the same matrix rows, each program a part of
their columns. Four warps multiply, one copies.
"""

from dataclasses import dataclass

from torch import Tensor

from polyvox.kernels.cuda_source import CudaSource
from polyvox.kernels.gpu import gpu_of
from polyvox.kernels.launch_overlap import overlap
from polyvox.kernels.pre_norm import Norm, PreNorm, empty_sum, flat_rows
from polyvox.kernels.products import ADD, GATED, PLAIN, can_prefetch
from polyvox.kernels.quantized_matrix import Matrix
from polyvox.kernels.tensor_map import PROMOTE_128_BYTES, TensorMap

ARCHITECTURE = 90
SOURCE = CudaSource("mid_batch_linear.cu", f"{ARCHITECTURE}a")  # no other one has these instructions
THREADS = 160
MIN_ROWS = 9  # prefetch_linear.py multiplies fewer faster
MAX_ROWS, DEPTH = 64, 64  # rows of x that a stage has, and columns of a copy
SQUARES_BYTES, ALIGNMENT = 256, 16


@dataclass(frozen=True, slots=True)
class ClusterDivision:
    """How clusters divide a matrix; see the source."""

    height: int  # matrix rows of a cluster
    chunks: int  # of 64 columns, of a program
    weight_stages: int  # chunks of the matrix in shared memory
    x_stages: int  # chunks of x in shared memory


# (kind, matrix rows, columns): the products that the source has.
DIVISIONS = {
    (PLAIN, 4096, 1024): ClusterDivision(64, 8, 8, 8),  # of the predictor and of the 0.6B talker: q, k and v
    (ADD, 1024, 2048): ClusterDivision(32, 8, 8, 8),  # o
    (GATED, 6144, 1024): ClusterDivision(96, 8, 8, 4),  # gate and up
    (ADD, 1024, 3072): ClusterDivision(32, 12, 12, 6),  # down
    (PLAIN, 2048, 1024): ClusterDivision(32, 8, 8, 8),  # head of the predictor
    (PLAIN, 4096, 2048): ClusterDivision(64, 16, 8, 4),  # of the 1.7B talker: q, k and v
    (ADD, 2048, 2048): ClusterDivision(64, 8, 8, 4),  # o
    (GATED, 12288, 2048): ClusterDivision(192, 16, 4, 4),  # gate and up
    (ADD, 2048, 6144): ClusterDivision(64, 24, 8, 4),  # down
    (PLAIN, 1024, 2048): ClusterDivision(32, 16, 16, 4),  # its hidden states to the predictor's width
}


def cluster_size(kind: int) -> int:
    """Programs of a cluster."""
    return 4 if kind == ADD else 2


def supports(x: Tensor, weight: Matrix, kind: int) -> bool:
    """Whether the kernel runs for rows x [..., K] and a matrix [N, K], and is faster than the others."""
    if not can_prefetch(weight, x):
        return False
    rows, division = x.numel() // x.shape[-1], DIVISIONS.get((kind, *weight.shape))
    return (
        division is not None and MIN_ROWS <= rows <= MAX_ROWS and supports_architecture(gpu_of(x.device).architecture)
    )


def supports_architecture(architecture: int) -> bool:
    """Whether a GPU of this architecture runs these kernels; compiles them at the first call."""
    return architecture == ARCHITECTURE and SOURCE.available()


def kernel_name(kind: int, division: ClusterDivision) -> str:
    """The function of the source."""
    stages = f"{division.weight_stages}_{division.x_stages}"
    return f"mid_product_{kind}_{division.height}_{division.chunks}_{stages}"


def shared_bytes(division: ClusterDivision) -> int:
    """Shared memory of a program: x, the matrix, barriers and sums of squares."""
    weight_stages, x_stages = division.weight_stages, division.x_stages
    barriers = weight_stages + x_stages + min(weight_stages, x_stages) + 2
    return 2 * DEPTH * (x_stages * MAX_ROWS + weight_stages * division.height) + 8 * barriers + SQUARES_BYTES


def launch(x: Tensor | PreNorm, weight: Matrix, gated: bool) -> Tensor:
    """x @ weightᵀ, or norm(x) @ weightᵀ, gated or not, for rows that `supports` accepts: rows [M, outputs]."""
    assert isinstance(weight, Tensor)
    given = flat_rows(x.gained if isinstance(x, PreNorm) else x)
    out = given.new_empty(len(given), len(weight) // (2 if gated else 1))
    squares, eps = (flat_rows(x.squares), x.norm.eps) if isinstance(x, PreNorm) else (None, 0.0)
    _launch(GATED if gated else PLAIN, given, weight, squares, None, None, out, None, None, eps)
    return out


def launch_add(x: Tensor, weight: Matrix, add: Tensor, norm: Norm) -> PreNorm:
    """add + x @ weightᵀ, and what the products after the norm read of it; the result has the shape of `add`."""
    assert isinstance(weight, Tensor)
    made = empty_sum(add, norm, len(weight) // DIVISIONS[ADD, weight.shape[0], weight.shape[1]].height)
    _launch(ADD, flat_rows(x), weight, None, flat_rows(add), norm.gain, *made[:3], 0.0)
    return made


def _launch(
    kind: int,
    x: Tensor,
    weight: Tensor,
    squares: Tensor | None,
    add: Tensor | None,
    gain: Tensor | None,
    out: Tensor,
    gained: Tensor | None,
    out_squares: Tensor | None,
    eps: float,
) -> None:
    division, cluster = DIVISIONS[kind, weight.shape[0], weight.shape[1]], cluster_size(kind)
    (rows, inputs), outputs = x.shape, out.shape[-1]
    assert x.stride(1) == 1
    assert x.stride(0) * x.itemsize % ALIGNMENT == 0
    assert weight.is_contiguous()
    assert add is None or (add.stride(1) == 1 and add.stride(0) % 2 == 0)
    assert gain is None or (gain.dtype == x.dtype and gain.is_contiguous())
    assert squares is None or squares.shape[1] == 1 or squares.stride(1) == 1
    assert squares is None or squares.shape[1] % 8 or squares.stride(0) % 4 == 0
    parts, squares_row = (0, 0) if squares is None else (squares.shape[1], squares.stride(0))
    weight_box = division.height // (1 if kind == ADD else cluster * (2 if kind == GATED else 1))
    maps = TensorMap(x, rows), TensorMap(weight, weight_box, promotion=PROMOTE_128_BYTES)
    SOURCE.launch(
        kernel_name(kind, division), len(weight) // division.height * cluster, THREADS, shared_bytes(division),
        [*maps, squares, add, gain, out, gained, out_squares, rows, inputs, outputs, parts, squares_row,
         0 if add is None else add.stride(0), eps],
        overlaps=overlap(x)["OVERLAP"],
    )  # fmt: skip
