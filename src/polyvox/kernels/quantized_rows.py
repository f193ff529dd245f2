# SPDX-License-Identifier: Apache-2.0
"""Rows of one byte per element, int8 or float8_e4m3fn, with a float32 scale for each row.

    x [..., D] -> values [..., D], scales [...]: x is about values · scale

A row is a head of a position in the KV cache (kv_quantize.py), or an output channel of a matrix (quantized_matrix.py).

Roundings: scale = largest magnitude / LARGEST, and x · (LARGEST / largest magnitude) is rounded to the nearest value,
ties to even; both quotients and the product are rounded to float32. int8 has 12 dB less noise than float8_e4m3fn, whose
3 bits of mantissa are the same for small and large elements of a row.
"""

import torch
from torch import Tensor

# The largest value of each type.
LARGEST = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}
SMALLEST_ROW = 1e-30  # the least largest magnitude of a row: that of zeros
MIN_FP8_ARCHITECTURE = 89  # of a GPU: the first that converts float8_e4m3fn
SCALE_TYPE = torch.float32


def is_quantized(dtype: torch.dtype) -> bool:
    """Whether rows of this type have scales."""
    return dtype in LARGEST


def supports(dtype: torch.dtype, architecture: int) -> bool:
    """Whether kernels for GPUs of this architecture (gpu.py) read and write rows of this type."""
    return dtype != torch.float8_e4m3fn or architecture >= MIN_FP8_ARCHITECTURE


def quantize_rows(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Values [..., D] of this type and their scales [...]."""
    wide = x.to(SCALE_TYPE)
    largest = wide.abs().amax(-1).clamp(min=SMALLEST_ROW)
    limit = torch.full_like(largest, LARGEST[dtype])  # PyTorch divides a number by a tensor with two roundings
    values = wide * (limit / largest)[..., None]
    return (values if dtype.is_floating_point else values.round()).to(dtype), largest / limit


def dequantize_rows(values: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
    """Rows [..., D] of values and scales [...]."""
    return (values.to(SCALE_TYPE) * scales[..., None]).to(dtype)
