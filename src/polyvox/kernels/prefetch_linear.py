# SPDX-License-Identifier: Apache-2.0
"""Linear layers of 2 to 8 rows in CUDA C++: a matrix is in shared memory before the previous launch ends.

    the inputs and results of fused_linear.py, for the shapes in DIVISIONS

A frame of a few streams is a chain of short launches. Triton's product loads its matrix after the previous launch has
ended, and o and down need a second launch that adds up their splits. Here 128 programs divide every matrix; each copies
its part to shared memory before it waits (launch_overlap.py), and then reads only rows of x, from cache. The code
predictor's programs leave enough registers and shared memory for one of the next launch on the same multiprocessor,
whose copies begin meanwhile.

The norm before a product is computed here: a program reads half of the columns of each row, multiplies them with the
gain, and the programs of a cluster exchange the sums of squares with their partial sums. A program adds up those of its
warps before: stores to another program are slow.

What a program reads before it waits is constant: the matrix and gains.

Types: bfloat16; squares and sums float32.
Roundings: those of fused_linear.py. The order of a sum depends on the shape of the matrix only: a row has the
same bits in every batch of 2 to 8.
Bytes: weight once; x once per program, half of its columns, from cache; add and the result once.
Grid: clusters of two programs of 8 warps; a cluster has the same matrix rows, each program half of their columns.
"""

from dataclasses import dataclass
from functools import cache

from torch import Tensor

from polyvox.kernels.cuda_source import CudaSource
from polyvox.kernels.gpu import gpu_of
from polyvox.kernels.launch_overlap import overlap
from polyvox.kernels.pre_norm import Norm, PreNorm, empty_sum, flat_rows
from polyvox.kernels.products import ADD, GATED, PLAIN, can_prefetch
from polyvox.kernels.quantized_matrix import Matrix

ARCHITECTURES = (90,)
CLUSTER, WARPS, WARP_SIZE = 2, 8, 32
GROUP, PADDING = 8, 32
MIN_ROWS, MAX_ROWS = 2, 8  # prefetch_vector.py multiplies one row faster, mid_batch_linear.py more than eight
ALIGNMENT = 16  # bytes of a load


@dataclass(frozen=True, slots=True)
class Division:
    """How the warps of a program divide its part of a matrix; see the source."""

    groups: int  # of warps, with different matrix rows
    tiles: int  # of 16 matrix rows, of a warp
    parts: int  # of a program's columns
    pairs: int  # of tiles next to each other, 32 columns, of a part

    @property
    def height(self) -> int:
        """Matrix rows of a cluster."""
        return 16 * self.groups * self.tiles

    @property
    def columns(self) -> int:
        """Of a program."""
        return 32 * self.parts * self.pairs


# (kind, matrix rows, columns): the products that the source has, which are faster than others on an H200.
DIVISIONS = {
    (PLAIN, 4096, 1024): Division(4, 1, 2, 8),  # of the predictor and of the 0.6B talker: q, k and v
    (ADD, 1024, 2048): Division(1, 1, 8, 4),  # o
    (GATED, 6144, 1024): Division(2, 3, 4, 4),  # gate and up
    (ADD, 1024, 3072): Division(1, 1, 8, 6),  # down
    (PLAIN, 2048, 1024): Division(2, 1, 4, 4),  # head of the predictor
    (PLAIN, 4096, 2048): Division(4, 1, 2, 16),  # of the 1.7B talker: q, k and v
    (ADD, 2048, 2048): Division(1, 2, 8, 4),  # o
    (ADD, 2048, 6144): Division(1, 2, 8, 12),  # down
    (PLAIN, 3072, 2048): Division(1, 3, 8, 4),  # head
    (PLAIN, 1024, 2048): Division(1, 1, 8, 4),  # its hidden states to the predictor's width
}


@cache
def source(architecture: int) -> CudaSource:
    return CudaSource("prefetch_linear.cu", str(architecture))


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
    return architecture in ARCHITECTURES and source(architecture).available()


def kernel_name(kind: int, division: Division) -> str:
    """The function of the source."""
    return f"product_{kind}_{division.groups}_{division.tiles}_{division.parts}_{division.pairs}"


def shared_bytes(kind: int, division: Division) -> int:
    """Shared memory of a program: AT_BARRIERS in the source, and two barriers."""
    line = 2 * (division.columns + PADDING)
    exchanged = division.height * MAX_ROWS * 4 // CLUSTER
    return division.height * line + (0 if kind == ADD else MAX_ROWS * line) + exchanged + CLUSTER * MAX_ROWS * 4 + 16


def launch(x: Tensor | PreNorm, weight: Matrix, gated: bool) -> Tensor:
    """x @ weightᵀ, or norm(x) @ weightᵀ, gated or not, for rows that `supports` accepts: rows [M, outputs]."""
    assert isinstance(weight, Tensor)
    given = flat_rows(x.rows if isinstance(x, PreNorm) else x)
    out = given.new_empty(len(given), len(weight) // (2 if gated else 1))
    gain, eps = (x.norm.gain, x.norm.eps) if isinstance(x, PreNorm) else (None, 0.0)
    _launch(GATED if gated else PLAIN, given, weight, gain, None, None, out, None, None, eps)
    return out


def launch_add(x: Tensor, weight: Matrix, add: Tensor, norm: Norm) -> PreNorm:
    """add + x @ weightᵀ, and what the products after the norm read of it; the result has the shape of `add`."""
    assert isinstance(weight, Tensor)
    made = empty_sum(add, norm, len(weight) // GROUP)
    _launch(ADD, flat_rows(x), weight, None, flat_rows(add), norm.gain, *made[:3], 0.0)
    return made


def _launch(
    kind: int,
    x: Tensor,
    weight: Tensor,
    gain: Tensor | None,
    add: Tensor | None,
    out_gain: Tensor | None,
    out: Tensor,
    gained: Tensor | None,
    squares: Tensor | None,
    eps: float,
) -> None:
    division = DIVISIONS[kind, weight.shape[0], weight.shape[1]]
    assert x.stride(1) == 1
    assert x.stride(0) * x.itemsize % ALIGNMENT == 0
    assert weight.is_contiguous()
    assert add is None or add.stride(1) == 1
    assert all(each is None or (each.dtype == x.dtype and each.is_contiguous()) for each in (gain, out_gain))
    num_programs, shared = len(weight) // division.height * CLUSTER, shared_bytes(kind, division)
    source(gpu_of(x.device).architecture).launch(
        kernel_name(kind, division), num_programs, WARPS * WARP_SIZE, shared,
        [x, weight, gain, add, out_gain, out, gained, squares, len(x), x.stride(0),
         0 if add is None else add.stride(0), out.shape[-1], eps],
        overlaps=overlap(x)["OVERLAP"],
    )  # fmt: skip
