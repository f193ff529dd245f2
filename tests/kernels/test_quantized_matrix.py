# SPDX-License-Identifier: Apache-2.0
"""Matrices of one byte per weight: their roundings, and products of large batches."""

import pytest
import torch
from torch.nn import functional as F

from polyvox.kernels.quantized_matrix import (
    dequantize_matrix,
    dequantize_matrix_reference,
    multiply,
    multiply_reference,
    quantize_matrix,
    select,
)
from polyvox.kernels.quantized_rows import LARGEST

types = pytest.mark.parametrize("dtype", LARGEST)


def weights(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0)) / shape[-1] ** 0.5


@types
@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("columns", [24, 2304])
def test_the_kernel_writes_the_weights_of_its_reference(columns: int, dtype: torch.dtype) -> None:
    matrix = quantize_matrix(weights(5, columns), dtype)
    for wide in (torch.float32, torch.float16):
        assert torch.equal(dequantize_matrix(matrix, wide), dequantize_matrix_reference(matrix, wide))


@types
@pytest.mark.usefixtures("interpreted")
def test_a_large_product_has_the_error_of_rounded_weights_only(dtype: torch.dtype) -> None:
    matrix = quantize_matrix(weights(40, 64), dtype)
    x = torch.randn(300, 64, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(multiply(x, matrix), multiply_reference(x, matrix), atol=1e-5, rtol=1e-5)


@types
def test_a_product_without_kernels_is_rounded_once(dtype: torch.dtype) -> None:
    matrix = quantize_matrix(weights(40, 64), dtype)
    x = torch.randn(7, 64, generator=torch.Generator().manual_seed(1)).bfloat16()
    exact = F.linear(x.double(), matrix.values.double() * matrix.scales[:, None])
    found = multiply(x, matrix)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found, exact.bfloat16(), atol=0, rtol=2**-7)
    assert (found == exact.bfloat16()).float().mean() > 0.99


def test_a_stack_is_quantised_as_its_matrices() -> None:
    stack = weights(3, 20, 16)
    quantized = quantize_matrix(stack, torch.int8)
    for index, matrix in enumerate(stack):
        for part, expected in zip(select(quantized, index), quantize_matrix(matrix, torch.int8), strict=True):
            assert torch.equal(part, expected)
