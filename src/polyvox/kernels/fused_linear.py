# SPDX-License-Identifier: Apache-2.0
"""Linear layers with the norm before them, and a gate or residual after them: which kernel computes one.

    x [..., K], or rows before a norm (pre_norm.py) · weight [N,K], of x's type or quantised (quantized_matrix.py)
    · add [..., N], or none

    x @ weightᵀ -> [..., N], silu(first half) · second half -> [..., N/2], or add + x @ weightᵀ and its `PreNorm`

The RMS norm between two products is divided between them: the first one, which adds the residual, also stores the sum
times the norm's gain and the squares of its outputs, summed per program; the second one multiplies the rows with gain
and scales its result by 1 / sqrt(mean of squares + eps). No program reads a whole row to normalise it. Some kernels
read the rows themselves and compute the norm again instead.

What no kernel of KERNELS supports is computed by separate launches: quantized_matrix.multiply, norm.py, silu_mul.py.

Roundings: row · gain is rounded; products and squares are summed in float32; the sum is multiplied by the channel's
scale, if the matrix is quantised, then by that of the norm, then rounded, then residual or gate as add_rms_norm and
silu_mul round.
"""

import torch
from torch import Tensor

from polyvox import kernels
from polyvox.kernels import (
    mid_batch_linear,
    prefetch_linear,
    prefetch_vector,
    register_linear,
    small_batch_linear,
    wgmma_linear,
)
from polyvox.kernels.pre_norm import Norm, PreNorm, pre_norm_reference
from polyvox.kernels.products import ADD, GATED, PLAIN, FusedProducts
from polyvox.kernels.quantized_matrix import Matrix, multiply_reference
from polyvox.kernels.silu_mul import silu_mul_reference

# The first one that supports a product computes it.
PREFETCHED: tuple[FusedProducts, ...] = (
    prefetch_vector,  # bfloat16 on sm_90, the matrices of the published models: 1 row
    prefetch_linear,  # 2 to 8
    mid_batch_linear,  # 9 to 64
)
KERNELS: tuple[FusedProducts, ...] = (
    *PREFETCHED,
    wgmma_linear,  # bfloat16 on sm_90, the numbers of rows in LARGE_BATCHES: 65 to 2,048
    register_linear,  # float16 where launches overlap, the matrices of the codec: up to 32 rows
    small_batch_linear,  # Triton: up to 64 rows, 256 with a quantised matrix, 1 in float32
)


def choose(x: Tensor, weight: Matrix, kind: int) -> FusedProducts | None:
    """The kernel for rows x [..., K], of which only their number and type count; None if separate launches are faster.

    Also None where kernels are not active.
    """
    return next((kernel for kernel in KERNELS if kernel.supports(x, weight, kind)), None)


def is_faster_for_few_outputs(x: Tensor, weight: Matrix) -> bool:
    """Whether `project` is faster than the library for rows x [..., K] and a matrix with few rows, such as 1,024.

    Programs of Triton's products own 32 matrix rows or more each, so most multiprocessors would read nothing.
    """
    kernel = choose(x, weight, PLAIN)
    return kernel in PREFETCHED or (kernel is not None and x.numel() == x.shape[-1])


def project(x: Tensor | PreNorm, weight: Matrix, gated: bool = False) -> Tensor:
    """x @ weightᵀ, or norm(x) @ weightᵀ, gated or not. On a GPU a kernel must support it."""
    given = x.gained if isinstance(x, PreNorm) else x
    kernel = choose(given, weight, GATED if gated else PLAIN)
    if kernel is None:
        assert not kernels.active(given), given.shape
        return project_reference(x, weight, gated)
    return kernel.launch(x, weight, gated).view(*given.shape[:-1], -1)


def project_add(x: Tensor, weight: Matrix, add: Tensor, norm: Norm, scale: Tensor | None = None) -> PreNorm:
    """add + x @ weightᵀ, and what the products after the norm read of it. On a GPU a kernel must support it.

    scale [N], of a layer, by which the product is multiplied: register_linear.py only.
    """
    if not kernels.active(x):
        return project_add_reference(x, weight, add, norm, scale)
    if scale is not None:
        assert register_linear.supports(x, weight, ADD), x.shape
        return register_linear.launch_add(x, weight, add, norm, scale)
    kernel = choose(x, weight, ADD)
    assert kernel is not None, x.shape
    return kernel.launch_add(x, weight, add, norm)


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
