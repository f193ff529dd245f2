# SPDX-License-Identifier: Apache-2.0
"""Decode attention in one launch for large batches: that of decode_attention.py without tensor cores.

    the inputs of rotary.py, where no two rows share a slot -> [N,H,D] as in attention.py; k and v are in the cache

A large batch is bound by reading the cache. With one or two query heads per KV head, multiplying in float32 takes less
time than reading, and needs neither shared memory nor barriers: a program is one warp, LANES groups of threads read
every LANES-th position and keep a running softmax each; these are joined at the end. Keys and values are read as words
of 32 bits, which are unpacked in registers; the next block is read while one is multiplied.

Types: bfloat16, float16, float32; one type for all tensors, or a quantised cache (kv_quantize.py).
Roundings: those of rotary.py; all of attention is in float32, and the quotient is rounded once at the end. The order of
the sums is fixed: positions by lane, then the lanes.
Bytes: keys and values of all positions once per row; qkv and the result once.
Grid: one program per KV head and row; the KV heads of a row are next to each other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from polyvox.kernels.attention import LOG2_E
from polyvox.kernels.kv_quantize import quantize_heads
from polyvox.kernels.launch_overlap import overlap, wait
from polyvox.kernels.lazy_triton import Kernel
from polyvox.kernels.paged_rows import PagedRows
from polyvox.kernels.quantized_rows import LARGEST, is_quantized
from polyvox.kernels.rotary import HeadRotation

if TYPE_CHECKING:
    import triton.language as tl

MAX_GROUP = 2  # query heads per KV head
MIN_ROWS = 17  # fewer leave most multiprocessors idle
THREADS, LOAD = 32, 16  # of a warp; bytes per thread and load
WARPS = 1  # of a program


def supports(qkv: Tensor, _rotation: HeadRotation, cache: PagedRows) -> bool:
    """Whether the kernel runs for these heads, and faster than tensor cores do for these rows.

    These wait for shared memory where a slot has one page, and for the conversion of a quantised cache (H200, 512 rows:
    10 instead of 18 µs over 8 positions of one page, 109 instead of 166 µs over 256 positions of int8).
    """
    is_faster = len(qkv) >= MIN_ROWS and (cache.is_single_page or is_quantized(cache.keys.dtype))
    return is_faster and cache.num_heads(qkv) <= MAX_GROUP * cache.kv_heads and cache.dim & (cache.dim - 1) == 0


def launch(qkv: Tensor, rotation: HeadRotation, cache: PagedRows) -> Tensor:
    """cache_attention.attend_decode, for inputs that `supports` accepts."""
    rows, heads, kv_heads, dim = len(qkv), cache.num_heads(qkv), cache.kv_heads, cache.dim
    out = torch.empty(rows, heads, dim, dtype=qkv.dtype, device=qkv.device)
    pack = 4 // cache.keys.itemsize
    overlapping = overlap(qkv)
    large_batch_kernel[(kv_heads, rows)](
        qkv, *rotation.launch_tensors(qkv), *cache.launch_tensors(qkv), out,
        qkv.stride(0), *cache.launch_strides(pack), rotation.eps, dim**-0.5 * LOG2_E,
        NORM=rotation.norms is not None, HEADS=heads, KV_HEADS=kv_heads, GROUP=heads // kv_heads, DIM=dim, PACK=pack,
        PAGE=cache.page, LANES=max(1, WARPS * THREADS * LOAD // (dim * cache.keys.itemsize)),
        PREFETCH=not cache.is_single_page or overlapping["OVERLAP"], LARGEST=LARGEST.get(cache.keys.dtype),
        **overlapping, num_warps=WARPS,
    )  # fmt: skip
    return out


@Kernel
def large_batch_kernel(
    qkv, q_weight, k_weight, cos, sin, keys, values, key_scales, value_scales, tables, slots, positions, out,
    qkv_row, page_stride, offset_stride, head_stride, table_row, eps, scale,
    NORM: tl.constexpr, HEADS: tl.constexpr, KV_HEADS: tl.constexpr, GROUP: tl.constexpr, DIM: tl.constexpr,
    PACK: tl.constexpr, PAGE: tl.constexpr, LANES: tl.constexpr, PREFETCH: tl.constexpr, LARGEST: tl.constexpr,
    OVERLAP: tl.constexpr,
):  # fmt: skip
    """Strides of the cache are in words of 32 bits, each PACK elements."""
    BLOCK: tl.constexpr = 2 * LANES
    WORDS: tl.constexpr = DIM // PACK
    kv_head = tl.program_id(0)
    row = tl.program_id(1).to(tl.int64)
    dtype = out.dtype.element_ty
    cache_type = keys.dtype.element_ty
    BIAS: tl.constexpr = 1152.0 if cache_type.is_int() else 0.0
    FACTOR: tl.constexpr = 1.0 if cache_type.is_int() else 256.0
    last = tl.load(positions + row).to(tl.int32)
    table = tables + tl.load(slots + row) * table_row
    lane = tl.arange(0, LANES)
    past_keys = keys.to(tl.pointer_type(tl.int32)) + kv_head * head_stride
    past_values = values.to(tl.pointer_type(tl.int32)) + kv_head * head_stride
    past_key_scales, past_value_scales = key_scales + kv_head * PAGE, value_scales + kv_head * PAGE
    pages = find_pages(table, lane, last, LANES, PAGE)
    if PREFETCH:
        key, value, key_scale, value_scale = load_block(
            past_keys, past_values, past_key_scales, past_value_scales, pages, lane, last, page_stride, offset_stride,
            KV_HEADS, WORDS, LANES, PAGE, FACTOR, LARGEST,
        )  # fmt: skip
        pages = find_pages(table, BLOCK + lane, last, LANES, PAGE)

    # The row's own key, value and queries.
    own_page = tl.load(table + last // PAGE)
    start = qkv + row * qkv_row
    own = start + (HEADS + kv_head) * DIM
    queries = start + kv_head * GROUP * DIM
    column = tl.arange(0, DIM)
    half = tl.arange(0, DIM // 2)
    turn = last.to(tl.int64) * DIM + half
    low_cos, high_cos = tl.load(cos + turn).to(tl.float32), tl.load(cos + turn + DIM // 2).to(tl.float32)
    low_sin, high_sin = tl.load(sin + turn).to(tl.float32), tl.load(sin + turn + DIM // 2).to(tl.float32)
    if OVERLAP:
        wait()
    own_value = tl.load(own + KV_HEADS * DIM + column)
    own_key = rotate_head(own, k_weight, low_cos, high_cos, low_sin, high_sin, eps, NORM, DIM)
    query = rotate_head(queries, q_weight, low_cos, high_cos, low_sin, high_sin, eps, NORM, DIM)
    query = query.to(tl.float32) * scale
    if GROUP == 2:
        query_1 = rotate_head(queries + DIM, q_weight, low_cos, high_cos, low_sin, high_sin, eps, NORM, DIM)
        query_1 = query_1.to(tl.float32) * scale
    at = (own_page * page_stride + (last % PAGE) * offset_stride + kv_head * head_stride) * PACK + column
    if LARGEST is None:
        tl.store(keys + at, own_key)
        tl.store(values + at, own_value)
        own_key, own_value = own_key.to(tl.float32), own_value.to(tl.float32)
    else:
        stored_key, own_key_scale = quantize_heads(own_key.to(tl.float32)[None, :], LARGEST, cache_type)
        stored_value, own_value_scale = quantize_heads(own_value.to(tl.float32)[None, :], LARGEST, cache_type)
        tl.store(keys + at[None, :], stored_key)
        tl.store(values + at[None, :], stored_value)
        at_scale = own_page * KV_HEADS * PAGE + last % PAGE + tl.arange(0, 1)
        tl.store(past_key_scales + at_scale, own_key_scale)
        tl.store(past_value_scales + at_scale, own_value_scale)
        own_key = tl.sum(stored_key.to(tl.float32) * own_key_scale[:, None], 0)
        own_value = tl.sum(stored_value.to(tl.float32) * own_value_scale[:, None], 0)

    # Each lane starts with the score of the own position as its maximum; lane 0 has its value.
    denominator = tl.where(lane == 0, 1.0, 0.0)
    bias_sum = denominator * 0.0
    acc = denominator[:, None] * own_value[None, :]
    running_max = tl.zeros([LANES], tl.float32) + tl.sum(query * own_key, 0)
    key_bias = BIAS * tl.sum(query, 0)
    if GROUP == 2:
        running_max_1 = tl.zeros([LANES], tl.float32) + tl.sum(query_1 * own_key, 0)
        key_bias_1 = BIAS * tl.sum(query_1, 0)
        denominator_1, bias_sum_1, acc_1 = denominator, bias_sum, acc

    for begin in range(0, last, BLOCK):
        position = begin + lane
        if PREFETCH:
            next_key, next_value, next_key_scale, next_value_scale = load_block(
                past_keys, past_values, past_key_scales, past_value_scales, pages, position + BLOCK, last, page_stride,
                offset_stride, KV_HEADS, WORDS, LANES, PAGE, FACTOR, LARGEST,
            )  # fmt: skip
            pages = find_pages(table, position + 2 * BLOCK, last, LANES, PAGE)
        else:
            key, value, key_scale, value_scale = load_block(
                past_keys, past_values, past_key_scales, past_value_scales, pages, position, last, page_stride,
                offset_stride, KV_HEADS, WORDS, LANES, PAGE, FACTOR, LARGEST,
            )  # fmt: skip
            pages = find_pages(table, position + BLOCK, last, LANES, PAGE)
        visible = position < last, position + LANES < last
        wide_key = unpack(key[0], cache_type), unpack(key[1], cache_type)
        wide_value = unpack(value[0], cache_type), unpack(value[1], cache_type)
        running_max, denominator, bias_sum, acc = attend_pair(
            query, key_bias, wide_key, wide_value, key_scale, value_scale, visible,
            running_max, denominator, bias_sum, acc, LARGEST,
        )  # fmt: skip
        if GROUP == 2:
            running_max_1, denominator_1, bias_sum_1, acc_1 = attend_pair(
                query_1, key_bias_1, wide_key, wide_value, key_scale, value_scale, visible,
                running_max_1, denominator_1, bias_sum_1, acc_1, LARGEST,
            )  # fmt: skip
        if PREFETCH:
            key, value, key_scale, value_scale = next_key, next_value, next_key_scale, next_value_scale

    heads = out + (row * HEADS + kv_head * GROUP) * DIM + column
    tl.store(heads, join_lanes(running_max, denominator, acc - BIAS * bias_sum[:, None]).to(dtype))
    if GROUP == 2:
        tl.store(heads + DIM, join_lanes(running_max_1, denominator_1, acc_1 - BIAS * bias_sum_1[:, None]).to(dtype))


@Kernel
def find_pages(table, position, last, LANES: tl.constexpr, PAGE: tl.constexpr):
    """The pages of positions [LANES], and of those LANES later."""
    later = position + LANES
    page = tl.load(table + position // PAGE, mask=position < last, other=0)
    return page, tl.load(table + later // PAGE, mask=later < last, other=0)


@Kernel
def load_block(
    keys, values, key_scales, value_scales, pages, position, last, page_stride, offset_stride,
    KV_HEADS: tl.constexpr, WORDS: tl.constexpr, LANES: tl.constexpr, PAGE: tl.constexpr, FACTOR: tl.constexpr,
    LARGEST: tl.constexpr,
):  # fmt: skip
    """Keys, values and their scales, each a pair: those of positions [LANES], and of those LANES later.

    An axis for the two would be distributed over threads, whose sums then need an exchange.
    """
    key, value, key_scale, value_scale = load_positions(
        keys, values, key_scales, value_scales, pages[0], position, last, page_stride, offset_stride,
        KV_HEADS, WORDS, PAGE, FACTOR, LARGEST,
    )  # fmt: skip
    later_key, later_value, later_key_scale, later_value_scale = load_positions(
        keys, values, key_scales, value_scales, pages[1], position + LANES, last, page_stride, offset_stride,
        KV_HEADS, WORDS, PAGE, FACTOR, LARGEST,
    )  # fmt: skip
    return (key, later_key), (value, later_value), (key_scale, later_key_scale), (value_scale, later_value_scale)


@Kernel
def load_positions(
    keys, values, key_scales, value_scales, page, position, last, page_stride, offset_stride,
    KV_HEADS: tl.constexpr, WORDS: tl.constexpr, PAGE: tl.constexpr, FACTOR: tl.constexpr, LARGEST: tl.constexpr,
):  # fmt: skip
    """Keys and values [LANES, WORDS] of positions [LANES], and their scales; zeros from last on."""
    visible = position < last
    at = (page * page_stride + (position % PAGE) * offset_stride)[:, None] + tl.arange(0, WORDS)[None, :]
    key = tl.load(keys + at, mask=visible[:, None], other=0)
    value = tl.load(values + at, mask=visible[:, None], other=0)
    key_scale, value_scale = position, position  # not used
    if LARGEST is not None:
        at_scale = page * KV_HEADS * PAGE + position % PAGE
        key_scale = tl.load(key_scales + at_scale, mask=visible, other=0.0) * FACTOR
        value_scale = tl.load(value_scales + at_scale, mask=visible, other=0.0) * FACTOR
    return key, value, key_scale, value_scale


@Kernel
def unpack(words, TYPE: tl.constexpr):
    """Words [A, B] as elements [A, B · elements per word] in float32.

    Elements of int8 have 1,152 added, and those of float8 are divided by 256; large_batch_kernel corrects both.
    """
    if TYPE.is_fp32():
        wide = words.to(tl.float32, bitcast=True)
    else:
        if TYPE.is_bf16():
            wide = tl.join((words << 16).to(tl.float32, bitcast=True), (words & -65536).to(tl.float32, bitcast=True))
        elif TYPE.is_fp16():
            wide = unpack_halves(words)
        elif TYPE.is_int():
            # A byte plus 128 is the mantissa of a float16 from 1,024 on.
            even = unpack_halves((words & 0x00FF00FF) ^ 0x64806480)
            wide = tl.join(even, unpack_halves(((words >> 8) & 0x00FF00FF) ^ 0x64806480))
        else:
            # Sign, exponent and mantissa of a float16, whose exponent has 8 more.
            even = unpack_halves(((words << 8) & -2147450880) | ((words << 7) & 0x3F803F80))
            wide = tl.join(even, unpack_halves((words & -2147450880) | ((words >> 1) & 0x3F803F80)))
        wide = tl.reshape(wide, [words.shape[0], words.shape[1] * (32 // TYPE.primitive_bitwidth)])
    return wide


@Kernel
def unpack_halves(words):
    """The two float16 of each word in float32."""
    low = words.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
    return tl.join(low, (words >> 16).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32))


@Kernel
def attend_pair(
    query, key_bias, key, value, key_scale, value_scale, visible, running_max, denominator, bias_sum, acc,
    LARGEST: tl.constexpr,
):  # fmt: skip
    """Add the positions of a pair of keys and values [LANES, DIM] to the running softmax of each lane."""
    score = score_positions(query, key_bias, key[0], key_scale[0], visible[0], LARGEST)
    later_score = score_positions(query, key_bias, key[1], key_scale[1], visible[1], LARGEST)
    new_max = tl.maximum(running_max, tl.maximum(score, later_score))
    rescale = tl.exp2(running_max - new_max)
    weight, later_weight = tl.exp2(score - new_max), tl.exp2(later_score - new_max)
    denominator = denominator * rescale + (weight + later_weight)
    if LARGEST is not None:
        weight, later_weight = weight * value_scale[0], later_weight * value_scale[1]
        bias_sum = bias_sum * rescale + (weight + later_weight)
    acc = acc * rescale[:, None] + (weight[:, None] * value[0] + later_weight[:, None] * value[1])
    return new_max, denominator, bias_sum, acc


@Kernel
def score_positions(query, key_bias, key, key_scale, visible, LARGEST: tl.constexpr):
    """The scores of positions [LANES]."""
    score = tl.sum(key * query[None, :], 1)
    if LARGEST is not None:
        score = (score - key_bias) * key_scale
    return tl.where(visible, score, float("-inf"))


@Kernel
def join_lanes(running_max, denominator, acc):
    """The result of the lanes' running softmaxes."""
    factor = tl.exp2(running_max - tl.max(running_max, 0))
    return tl.sum(acc * factor[:, None], 0) / tl.sum(denominator * factor, 0)


@Kernel
def rotate_head(start, weight, low_cos, high_cos, low_sin, high_sin, eps, NORM: tl.constexpr, DIM: tl.constexpr):
    """Load one head, normalise and rotate it, with the roundings of rotary.py."""
    half = tl.arange(0, DIM // 2)
    low, high = tl.load(start + half), tl.load(start + DIM // 2 + half)
    dtype = low.dtype
    low, high = low.to(tl.float32), high.to(tl.float32)
    if NORM:
        scale = tl.rsqrt(tl.sum(low * low + high * high, 0) / DIM + eps)
        low_weight, high_weight = (
            tl.load(weight + half).to(tl.float32),
            tl.load(weight + DIM // 2 + half).to(tl.float32),
        )
        low = (low_weight * (low * scale).to(dtype).to(tl.float32)).to(dtype).to(tl.float32)
        high = (high_weight * (high * scale).to(dtype).to(tl.float32)).to(dtype).to(tl.float32)
    low_out = round_product(low * low_cos, dtype) + round_product(high * low_sin, dtype)
    high_out = round_product(high * high_cos, dtype) + round_product(low * high_sin, dtype)
    return tl.reshape(tl.permute(tl.join(low_out, high_out), [1, 0]), [DIM]).to(dtype)


@Kernel
def round_product(product, dtype: tl.constexpr):
    """A product in float32, rounded to a type: the compiler cannot fuse it with the sum that follows.

    The maximum prevents that. It keeps NaN, and minus infinity in 16 bits, to which the constant rounds.
    """
    min_float = -3.4028234663852886e38
    return tl.maximum(product, min_float, propagate_nan=tl.PropagateNan.ALL).to(dtype).to(tl.float32)
