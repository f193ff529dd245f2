# SPDX-License-Identifier: Apache-2.0
"""A KV cache of quantised rows (quantized_rows.py), one for each position and head.

The scales of a cache are [P,KVH,PAGE], those of a head's positions next to each other. Kernels that write the cache
(rotary.py, decode_attention.py) quantise the rows in registers; those that read it multiply the products of tensor
cores by the scales, so that values are converted but never rounded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor

from polyvox.kernels.lazy_triton import Kernel

if TYPE_CHECKING:
    import triton.language as tl


class KVScales(NamedTuple):
    """The scales of one layer's keys and values, each [P, KVH, PAGE]."""

    keys: Tensor
    values: Tensor


@Kernel
def quantize_heads(x, LARGEST: tl.constexpr, TO: tl.constexpr):
    """Heads [H,D] in float32 to their values and scales [H]."""
    largest = tl.maximum(tl.max(tl.abs(x), 1), 1e-30)
    values = x * tl.div_rn(LARGEST, largest)[:, None]
    if TO.is_int():
        # The maximum keeps the compiler from fusing product and sum, so that the product is rounded as in PyTorch.
        values = tl.maximum(values, -LARGEST)
        values = (values + 12582912.0) - 12582912.0  # 1.5 · 2^23: rounds to an integer, ties to even
    return values.to(TO), tl.div_rn(largest, LARGEST)
