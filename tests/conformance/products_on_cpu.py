# SPDX-License-Identifier: Apache-2.0
"""Random operands for kernels that run on a CPU, and how close a product is to its reference implementation."""

import torch
from torch import Tensor

from polyvox.kernels.pre_norm import Norm

TOLERANCE = 2**-6  # of a result in bfloat16


def noise(*shape: int, seed: int, scale: float = 1.0, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """Normally distributed values, the same for the same seed."""
    return (scale * torch.randn(*shape, generator=torch.Generator().manual_seed(seed))).to(dtype)


def norm(size: int, dtype: torch.dtype = torch.bfloat16) -> Norm:
    """A norm with gains around 1."""
    return Norm(1 + noise(size, seed=3, scale=0.2, dtype=dtype), 1e-6)


def assert_close(found: Tensor, expected: Tensor, tolerance: float = TOLERANCE) -> None:
    """Of the same type, with this absolute and relative error."""
    assert found.dtype == expected.dtype
    torch.testing.assert_close(found.float(), expected.float(), atol=tolerance, rtol=tolerance)
