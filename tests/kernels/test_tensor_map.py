# SPDX-License-Identifier: Apache-2.0
"""What the driver is given to describe a matrix for bulk tensor copies; no GPU is needed."""

from typing import Any

import pytest
import torch

from polyvox.kernels import cuda_driver, tensor_map
from polyvox.kernels.tensor_map import TensorMap


@pytest.mark.parametrize("promotion", [tensor_map.PROMOTE_128_BYTES, tensor_map.PROMOTE_256_BYTES])
def test_a_matrix_is_described_by_columns_then_rows(promotion: int, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[Any, ...]] = []
    monkeypatch.setattr(cuda_driver, "call", lambda *arguments: calls.append(arguments))
    matrix = torch.empty(48, 304).bfloat16()[:, :256]
    TensorMap(matrix, 16, promotion).encoded()
    function, _, data_type, rank, address, shape, strides, box, steps, _, swizzle, promoted, _ = calls[0]
    assert function == "cuTensorMapEncodeTiled"
    assert (data_type.value, rank.value, swizzle.value) == (tensor_map.BFLOAT16, 2, tensor_map.SWIZZLE_128_BYTES)
    assert (address.value, promoted.value) == (matrix.data_ptr(), promotion)
    assert (list(shape), list(strides), list(box), list(steps)) == ([256, 48], [608], [64, 16], [1, 1])
