# SPDX-License-Identifier: Apache-2.0
"""Linear layers of one row in CUDA C++: a matrix is in shared memory before the previous launch ends.

    the inputs and results of fused_linear.py, for the shapes in SHAPES

A frame of one stream is a chain of short launches, each of which reads a matrix once. 128 programs, one per
multiprocessor, own whole rows of a matrix. A program copies them to shared memory before it waits (launch_overlap.py),
and then reads only x, from cache. Two or three launches of the predictor fit into a multiprocessor, so that the next
matrices are copied while a launch waits.

The norm before a product is computed here: each warp sums the squares of the columns that it reads.

What a program reads before it waits is constant: the matrix and gains.

Types: bfloat16; squares and sums float32.
Roundings: those of fused_linear.py. The order of a sum depends on the shape of the matrix only.
Bytes: weight once; x once per program, from cache; add and the result once.
Grid: 128 programs of 8 warps, which divide the columns.
"""

from functools import cache

from torch import Tensor

from polyvox.kernels.cuda_source import CudaSource
from polyvox.kernels.gpu import gpu_of
from polyvox.kernels.launch_overlap import overlap
from polyvox.kernels.pre_norm import Norm, PreNorm, empty_sum, flat_rows
from polyvox.kernels.products import ADD, GATED, PLAIN, PROGRAMS, can_prefetch
from polyvox.kernels.quantized_matrix import Matrix

ARCHITECTURES = (90,)
WARPS, WARP_SIZE = 8, 32
GROUP, TILE, PADDING = 8, 16, 64
ALIGNMENT = 8  # bytes of a load
# (kind, matrix rows, columns): the products that the source has. Others of the talker are as fast or faster elsewhere.
SHAPES = (
    (PLAIN, 4096, 1024),  # of the predictor and of the 0.6B talker: q, k and v
    (ADD, 1024, 2048),  # o
    (GATED, 6144, 1024),  # gate and up
    (ADD, 1024, 3072),  # down
    (PLAIN, 2048, 1024),  # head of the predictor
    (ADD, 2048, 2048),  # of the 1.7B talker: o
    (PLAIN, 3072, 2048),  # head
    (PLAIN, 1024, 2048),  # its hidden states to the predictor's width
)


@cache
def source(architecture: int) -> CudaSource:
    return CudaSource("prefetch_vector.cu", str(architecture))


def supports(x: Tensor, weight: Matrix, kind: int) -> bool:
    """Whether the kernel runs for rows x [..., K] and a matrix [N, K], and is faster than the others."""
    return (
        can_prefetch(weight, x)
        and (kind, *weight.shape) in SHAPES
        and x.numel() == x.shape[-1]
        and supports_architecture(gpu_of(x.device).architecture)
    )


def supports_architecture(architecture: int) -> bool:
    """Whether a GPU of this architecture runs these kernels; compiles them at the first call."""
    return architecture in ARCHITECTURES and source(architecture).available()


def kernel_name(kind: int, height: int, inputs: int) -> str:
    """The function of the source; height: matrix rows of a program."""
    return f"vector_{kind}_{height}_{inputs}"


def shared_bytes(height: int, inputs: int, x_lines: int = 1) -> int:
    """Shared memory of a program: its rows of the matrix, partial sums, squares, a barrier and x."""
    matrix, sums = height // 2 * (4 * inputs + PADDING), 4 * WARPS * (height + 1)
    return matrix + sums + 16 + x_lines * (2 * inputs + PADDING)


def launch(x: Tensor | PreNorm, weight: Matrix, gated: bool) -> Tensor:
    """x @ weightᵀ, or norm(x) @ weightᵀ, gated or not, for a row that `supports` accepts: rows [1, outputs]."""
    assert isinstance(weight, Tensor)
    given = flat_rows(x.rows if isinstance(x, PreNorm) else x)
    out = given.new_empty(1, len(weight) // (2 if gated else 1))
    gain, eps = (x.norm.gain, x.norm.eps) if isinstance(x, PreNorm) else (None, 0.0)
    _launch(GATED if gated else PLAIN, given, weight, gain, None, None, out, None, None, eps)
    return out


def launch_add(x: Tensor, weight: Matrix, add: Tensor, norm: Norm) -> PreNorm:
    """add + x @ weightᵀ, and what the products after the norm read of it; the result has the shape of `add`."""
    assert isinstance(weight, Tensor)
    assert add.stride(-1) == 1
    made = empty_sum(add, norm, len(weight) // GROUP)
    _launch(ADD, flat_rows(x), weight, None, add, norm.gain, *made[:3], 0.0)
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
    height, inputs = len(weight) // PROGRAMS, weight.shape[1]
    assert x.stride(1) == 1
    assert x.storage_offset() * x.itemsize % ALIGNMENT == 0
    assert weight.is_contiguous()
    assert all(each is None or (each.dtype == x.dtype and each.is_contiguous()) for each in (gain, out_gain))
    source(gpu_of(x.device).architecture).launch(
        kernel_name(kind, height, inputs), PROGRAMS, WARPS * WARP_SIZE, shared_bytes(height, inputs),
        [x, weight, gain, add, out_gain, out, gained, squares, out.shape[-1], eps],
        overlaps=overlap(x)["OVERLAP"],
    )  # fmt: skip
