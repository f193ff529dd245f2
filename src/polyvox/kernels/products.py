# SPDX-License-Identifier: Apache-2.0
"""What the kernels of linear layers have in common: kinds of products, and the functions of each module.

fused_linear.py chooses among them.
"""

from typing import Protocol, TypeGuard

import torch
from torch import Tensor

from polyvox import kernels
from polyvox.kernels.gpu import gpu_of
from polyvox.kernels.pre_norm import Norm, PreNorm
from polyvox.kernels.quantized_matrix import Matrix

PLAIN, GATED, ADD = range(3)  # x @ weightᵀ, silu(first half) · second half of it, add + x @ weightᵀ
PROGRAMS = 128  # of a product whose matrix is in shared memory ahead


class FusedProducts(Protocol):
    """A module of kernels for linear layers; fused_linear.py has their inputs and results."""

    def supports(self, x: Tensor, weight: Matrix, kind: int, /) -> bool:
        """Whether a kernel runs for rows x [..., K] and a matrix [N, K], and is faster than the others."""
        ...

    def launch(self, x: Tensor | PreNorm, weight: Matrix, gated: bool) -> Tensor:
        """x @ weightᵀ, or norm(x) @ weightᵀ, gated or not, for rows that `supports` accepts: rows [M, outputs]."""
        ...

    def launch_add(self, x: Tensor, weight: Matrix, add: Tensor, norm: Norm) -> PreNorm:
        """add + x @ weightᵀ, and what the products after the norm read of it; the result has the shape of `add`."""
        ...


def can_prefetch(weight: Matrix, x: Tensor) -> TypeGuard[Tensor]:
    """Whether products with the matrix in shared memory ahead have these types, and a multiprocessor per program."""
    return (
        kernels.active(x)
        and not x.is_cpu
        and isinstance(weight, Tensor)
        and x.dtype == weight.dtype == torch.bfloat16
        and gpu_of(x.device).multiprocessors >= PROGRAMS
    )
