# SPDX-License-Identifier: Apache-2.0
"""Matrices of quantised rows (quantized_rows.py): one byte per weight and a scale for each output channel.

    values [..., N, K] int8 or float8_e4m3fn · scales [..., N] float32 -> weights [N, K]

Small batches read the bytes (small_batch_linear.py). Products with more rows, which are bound by multiplications,
are those of the library: this kernel writes a matrix in the type of the rows just before its product, and the next
layer's matrix takes the same memory. 16-bit copies of all matrices would save this launch, but take more memory than
matrices that are not quantised.

Types: bfloat16, float16, float32.
Roundings: value · scale is computed in float32 and rounded.
Bytes: values and scales once, the weights once.
Grid: one program per row and BLOCK columns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from polyvox import kernels
from polyvox.kernels.lazy_triton import Kernel, power_of_2
from polyvox.kernels.quantized_rows import dequantize_rows, quantize_rows

if TYPE_CHECKING:
    import triton.language as tl

BLOCK = 2048  # columns per program


class QuantizedMatrix(NamedTuple):
    """A matrix [N, K], or a stack of them."""

    values: Tensor  # [..., N, K]
    scales: Tensor  # [..., N]


Matrix = Tensor | QuantizedMatrix


def select(stack: Matrix, index: int) -> Matrix:
    """One matrix of a stack."""
    return stack[index] if isinstance(stack, Tensor) else QuantizedMatrix(stack.values[index], stack.scales[index])


def quantize_matrix(weight: Tensor, dtype: torch.dtype) -> QuantizedMatrix:
    """Weights [N, K], or a stack of such matrices, which is quantised one by one to need less memory."""
    if weight.dim() == 2:
        return QuantizedMatrix(*quantize_rows(weight, dtype))
    made = QuantizedMatrix(
        torch.empty_like(weight, dtype=dtype), torch.empty(weight.shape[:-1], dtype=torch.float32, device=weight.device)
    )
    for index, matrix in enumerate(weight):
        made.values[index], made.scales[index] = quantize_rows(matrix, dtype)
    return made


def dequantize_matrix(matrix: QuantizedMatrix, dtype: torch.dtype) -> Tensor:
    """The weights [N, K] in this type, where kernels are active."""
    rows, columns = matrix.values.shape
    out = torch.empty(rows, columns, dtype=dtype, device=matrix.values.device)
    block = min(BLOCK, power_of_2(columns))
    dequantize_kernel[(rows, -(-columns // block))](
        matrix.values, matrix.scales, out, COLUMNS=columns, BLOCK=block, num_warps=4
    )
    return out


def dequantize_matrix_reference(matrix: QuantizedMatrix, dtype: torch.dtype) -> Tensor:
    """Reference implementation."""
    return dequantize_rows(*matrix, dtype)


def multiply(x: Tensor, matrix: Matrix) -> Tensor:
    """x @ matrixᵀ for a batch of any size."""
    if isinstance(matrix, QuantizedMatrix) and kernels.active(x):
        matrix = dequantize_matrix(matrix, x.dtype)
    return multiply_reference(x, matrix)


def multiply_reference(x: Tensor, matrix: Matrix) -> Tensor:
    """x @ matrixᵀ without kernels: bytes are multiplied in at least float32, and the sum is scaled, then rounded."""
    if isinstance(matrix, Tensor):
        return F.linear(x, matrix)
    wide = torch.promote_types(x.dtype, torch.float32)
    return (F.linear(x.to(wide), matrix.values.to(wide)) * matrix.scales).to(x.dtype)


@Kernel
def dequantize_kernel(values, scales, out, COLUMNS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    at = row.to(tl.int64) * COLUMNS + column
    value = tl.load(values + at, mask=column < COLUMNS, other=0.0).to(tl.float32)
    tl.store(out + at, (value * tl.load(scales + row)).to(out.dtype.element_ty), mask=column < COLUMNS)


@Kernel
def convert(weights, dtype: tl.constexpr):
    """Loaded weights in the type of the rows, which is exact. float8 is converted by way of float32: the direct way to
    bfloat16 has instructions that sm_89 lacks.
    """
    if weights.dtype == tl.float8e4nv:
        return weights.to(tl.float32).to(dtype)
    return weights.to(dtype)
