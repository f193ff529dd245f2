# SPDX-License-Identifier: Apache-2.0
"""Decode attention of one stream's code predictor and its output projection in CUDA C++, in one launch.

    the inputs of rotary.py for one row and one page · weight [N,K] and add of fused_linear.py
    -> add + attention @ weightᵀ and its `PreNorm`; k and v are in the cache

In a frame of one stream the time between two launches is longer than the attention of the code predictor, whose page
has 16 positions. So each program of the output projection (prefetch_vector.py) computes all of it itself: a warp has a
KV head, whose columns of the matrix it multiplies anyway.

The page is in registers before the previous launch has ended (launch_overlap.py): earlier passes wrote it. As in
page_attention.py, the sampler lets the next pass start after its own wait only.

Types: bfloat16; scores and sums float32.
Roundings: those of rotary.py; the weights of positions are rounded, and so is the quotient, as in attention.py; then
those of prefetch_vector.py.
Bytes: the page once per program, from cache; the rest as in prefetch_vector.py.
Grid: that of prefetch_vector.py.
"""

from functools import cache

from torch import Tensor

from polyvox import kernels
from polyvox.kernels import prefetch_vector
from polyvox.kernels.attention import LOG2_E
from polyvox.kernels.cuda_source import CudaSource
from polyvox.kernels.gpu import gpu_of
from polyvox.kernels.launch_overlap import overlap
from polyvox.kernels.paged_rows import PagedRows
from polyvox.kernels.pre_norm import Norm, PreNorm, empty_sum
from polyvox.kernels.prefetch_vector import WARP_SIZE, WARPS
from polyvox.kernels.products import ADD, PROGRAMS
from polyvox.kernels.quantized_matrix import Matrix
from polyvox.kernels.rotary import HeadRotation

DIM, KV_HEADS, HEADS, PAGE = 128, WARPS, 2 * WARPS, 16
HEIGHT = 8  # matrix rows of a program
ALIGNMENT = 8  # elements of a load
X_LINES = 2  # of x in shared memory: queries and keys are exchanged there


@cache
def source(architecture: int) -> CudaSource:
    return CudaSource("attention_output.cu", str(architecture))


def supports(qkv: Tensor, rotation: HeadRotation, cache: PagedRows, weight: Matrix) -> bool:
    """Whether the kernel runs for rows [N, (H + 2·KVH)·D] and an output projection [N, K]."""
    if len(qkv) != 1 or not isinstance(weight, Tensor) or not kernels.active(qkv) or qkv.is_cpu:
        return False
    return (
        weight.shape == (HEIGHT * PROGRAMS, HEADS * DIM)
        and prefetch_vector.supports(qkv[:, : weight.shape[1]], weight, ADD)
        and cache.keys.dtype == qkv.dtype
        and (cache.dim, cache.kv_heads, cache.num_heads(qkv)) == (DIM, KV_HEADS, HEADS)
        and cache.max_positions <= PAGE
        and rotation.norms is not None
        and not rotation.by_row
        and supports_architecture(gpu_of(qkv.device).architecture)
    )


def supports_architecture(architecture: int) -> bool:
    """Whether a GPU of this architecture runs the kernel; compiles it at the first call."""
    return architecture in prefetch_vector.ARCHITECTURES and source(architecture).available()


def launch(qkv: Tensor, rotation: HeadRotation, cache: PagedRows, weight: Tensor, add: Tensor, norm: Norm) -> PreNorm:
    """add + the output projection of cache_attention.attend_decode, for inputs that `supports` accepts."""
    keys, values, _, _, tables, slots, positions = cache.launch_tensors(qkv)
    strides = cache.launch_strides()
    assert qkv.stride(1) == 1
    assert all(stride % ALIGNMENT == 0 for stride in strides[:3])
    assert weight.is_contiguous()
    assert norm.gain.is_contiguous()
    assert add.stride(-1) == 1
    made = empty_sum(add, norm, len(weight) // prefetch_vector.GROUP)
    source(gpu_of(qkv.device).architecture).launch(
        f"page_output_{HEIGHT}", PROGRAMS, WARPS * WARP_SIZE,
        prefetch_vector.shared_bytes(HEIGHT, weight.shape[1], X_LINES),
        [qkv, *rotation.launch_tensors(qkv), keys, values, tables, slots, positions, weight, add, norm.gain, *made[:3],
         *strides, rotation.eps, DIM**-0.5 * LOG2_E, len(weight)],
        overlaps=overlap(qkv)["OVERLAP"],
    )  # fmt: skip
    return made
