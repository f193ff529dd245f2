# SPDX-License-Identifier: Apache-2.0
"""A KV cache of one byte per element: int8 or float8_e4m3fn, with a float32 scale for each position and head.

    x [..., D] -> values [..., D], scales [...]: x is about values · scale

The scales of a cache are [P,KVH,PAGE], those of a head's positions next to each other. Kernels that write the cache
(rotary.py, decode_attention.py) quantise the rows in registers; those that read it multiply the products of tensor
cores by the scales, so that values are converted but never rounded.

Roundings: scale = largest magnitude / LARGEST, and x · (LARGEST / largest magnitude) is rounded to the nearest value,
ties to even; both quotients and the product are rounded to float32. int8 has 12 dB less noise than float8_e4m3fn, whose
3 bits of mantissa are the same for small and large elements of a head.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from polyvox.kernels.lazy_triton import Kernel

if TYPE_CHECKING:
    import triton.language as tl

# The largest value of each type.
LARGEST = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}
SMALLEST_ROW = 1e-30  # the least largest magnitude of a row: that of zeros
MIN_FP8_ARCHITECTURE = 89  # of a GPU: the first that converts float8_e4m3fn
SCALE_TYPE = torch.float32


class KVScales(NamedTuple):
    """The scales of one layer's keys and values, each [P, KVH, PAGE]."""

    keys: Tensor
    values: Tensor


def is_quantized(dtype: torch.dtype) -> bool:
    """Whether a KV cache of this type has scales."""
    return dtype in LARGEST


def supports(dtype: torch.dtype, architecture: int) -> bool:
    """Whether kernels for GPUs of this architecture (gpu.py) read and write a cache of this type."""
    return dtype != torch.float8_e4m3fn or architecture >= MIN_FP8_ARCHITECTURE


def quantize_rows(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Values [..., D] of this type and their scales [...]."""
    wide = x.to(SCALE_TYPE)
    largest = wide.abs().amax(-1).clamp(min=SMALLEST_ROW)
    values = wide * (LARGEST[dtype] / largest)[..., None]
    return (values if dtype.is_floating_point else values.round()).to(dtype), largest / LARGEST[dtype]


def dequantize_rows(values: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
    """Rows [..., D] of values and scales [...]."""
    return (values.to(SCALE_TYPE) * scales[..., None]).to(dtype)


@Kernel
def quantize_heads(x, LARGEST: tl.constexpr, TO: tl.constexpr):
    """Heads [H,D] in float32 to their values and scales [H]."""
    largest = tl.maximum(tl.max(tl.abs(x), 1), 1e-30)
    values = x * tl.div_rn(LARGEST, largest)[:, None]
    if TO.is_int():
        values = (values + 12582912.0) - 12582912.0  # 1.5 · 2^23: rounds to an integer, ties to even
    return values.to(TO), tl.div_rn(largest, LARGEST)
