# SPDX-License-Identifier: Apache-2.0
"""Parts of the Triton kernels that attend over the KV cache: one block of positions.

attention.py has the roundings.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from polyvox.kernels.lazy_triton import Kernel

if TYPE_CHECKING:
    import triton.language as tl


@Kernel
def load_kv_block(
    keys, values, table, begin, stop, page_stride, offset_stride,
    DIM: tl.constexpr, DIM_BLOCK: tl.constexpr, PAGE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Keys and values of one head and a block of positions from begin; zeros from stop on."""
    position = begin + tl.arange(0, BLOCK)
    column = tl.arange(0, DIM_BLOCK)
    visible = position < stop
    page = tl.load(table + position // PAGE, mask=visible, other=0)
    at = (page * page_stride + (position % PAGE) * offset_stride)[:, None] + column[None, :]
    kv_mask = visible[:, None] & (column < DIM)[None, :]
    return tl.load(keys + at, mask=kv_mask, other=0.0), tl.load(values + at, mask=kv_mask, other=0.0)


@Kernel
def load_scale_block(
    key_scales, value_scales, table, begin, stop,
    KV_HEADS: tl.constexpr, PAGE: tl.constexpr, BLOCK: tl.constexpr, SCALED: tl.constexpr,
):  # fmt: skip
    """The scales of one head and block of a quantised cache; of another cache, ones that are not used."""
    key_scale = tl.full([BLOCK], 1.0, tl.float32)
    value_scale = key_scale
    if SCALED:
        position = begin + tl.arange(0, BLOCK)
        visible = position < stop
        page = tl.load(table + position // PAGE, mask=visible, other=0)
        at = page * KV_HEADS * PAGE + position % PAGE
        key_scale = tl.load(key_scales + at, mask=visible, other=0.0)
        value_scale = tl.load(value_scales + at, mask=visible, other=0.0)
    return key_scale, value_scale


@Kernel
def attend_block(
    query, key, value, key_scale, value_scale, visible, scale, running_max, denominator, acc, SCALED: tl.constexpr
):  # fmt: skip
    """Add a block to the running softmax. visible [queries or 1, positions]; scales of positions if SCALED."""
    score = tl.dot(query, tl.trans(key.to(query.dtype)), input_precision="ieee") * scale
    if SCALED:
        score *= key_scale[None, :]
    score = tl.where(visible, score, float("-inf"))
    new_max = tl.maximum(running_max, tl.max(score, 1))
    rescale = tl.exp2(running_max - new_max)
    weight = tl.exp2(score - new_max[:, None])
    denominator = denominator * rescale + tl.sum(weight, 1)
    if SCALED:
        weight *= value_scale[None, :]
    acc = tl.dot(weight.to(query.dtype), value.to(query.dtype), acc * rescale[:, None], input_precision="ieee")
    return new_max, denominator, acc
