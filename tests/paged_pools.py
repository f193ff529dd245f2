# SPDX-License-Identifier: Apache-2.0
"""KV caches as a GPU stores them: pages by head, in any type."""

from dataclasses import replace

import torch
from torch import Tensor

from polyvox.kernels.kv_quantize import KVScales
from polyvox.kernels.paged_rows import PagedRows
from polyvox.kernels.quantized_rows import quantize_rows

# The largest distance of two neighbours, relative to the smaller one.
FLOAT8_STEP, BFLOAT16_STEP = 2**-3, 2**-7


def by_head(pool: Tensor) -> Tensor:
    """A copy of pages [P, PAGE, KVH, D] that is [P, KVH, PAGE, D] in memory."""
    return pool.transpose(1, 2).contiguous().transpose(1, 2)


def copied(cache: PagedRows) -> PagedRows:
    scales = None if cache.scales is None else KVScales(*(pool.clone() for pool in cache.scales))
    return replace(cache, keys=cache.keys.clone(), values=cache.values.clone(), scales=scales)


def quantized(cache: PagedRows, dtype: torch.dtype) -> PagedRows:
    """A copy of the cache in this type; what is NaN has a scale of NaN."""
    pools, scales = [], []
    for pool in (cache.keys, cache.values):
        made, scale = quantize_rows(pool.nan_to_num(1.0), dtype)
        pools.append(made)
        scales.append(scale.masked_fill(pool[..., 0].isnan(), torch.nan).transpose(1, 2).contiguous())
    return replace(cache, keys=pools[0], values=pools[1], scales=KVScales(*scales))


def own_rows(cache: PagedRows) -> list[Tensor]:
    """What the cache has of each row's own position: keys and values [N,KVH,D], and their scales [N,KVH]."""
    at, offset = cache.tables[cache.slots, cache.positions // cache.page], cache.positions % cache.page
    rows = [cache.keys[at, offset], cache.values[at, offset]]
    return rows + [pool[at, :, offset] for pool in cache.scales or ()]


def assert_stored(found: PagedRows, expected: PagedRows) -> None:
    """The keys and values that a launch stored equal those of the reference.

    Values are copied, so their bits are equal. The scale of a key's norm may differ in its last bit. Then some of its
    elements are the next bfloat16 before the rotation, which adds two of them, and the next value of the cache's type.
    """
    key, value, *scales = own_rows(found)
    expected_key, expected_value, *expected_scales = own_rows(expected)
    assert torch.equal(value.view(torch.uint8), expected_value.view(torch.uint8))
    apart, size = (key.float() - expected_key.float()).abs(), expected_key.float().abs()
    step = {torch.int8: torch.ones_like(size), torch.float8_e4m3fn: FLOAT8_STEP * size}.get(key.dtype, 0.0)
    assert (apart <= 4 * BFLOAT16_STEP * size.amax(-1, keepdim=True) + step).all()
    assert (apart == 0).float().mean() > 0.98
    for scale, expected_scale in zip(scales, expected_scales, strict=True):
        torch.testing.assert_close(scale, expected_scale, rtol=BFLOAT16_STEP, atol=0.0)
