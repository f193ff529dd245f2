# SPDX-License-Identifier: Apache-2.0
"""Decode attention of a few rows in CUDA C++: keys and values are in shared memory before the previous launch ends.

    the inputs of rotary.py, where no two rows share a slot -> [N,H,D] as in attention.py; k and v are in the cache

A few rows wait for memory rather than use its bandwidth. A program copies the first 256 positions of its row and KV
head before it waits (launch_overlap.py), which earlier frames wrote, and the others while it computes. Up to eight
programs, a cluster, divide the positions of a row where there are too few rows for all multiprocessors; they add up
their parts without a second launch. Of a cache in bfloat16, four or eight programs copy 128 positions each, 512 or
1,024 of the row: what the next launch copies ahead then fits into the shared memory of the same multiprocessor.

Types: bfloat16; a cache in bfloat16, int8 or float8_e4m3fn (kv_quantize.py).
Roundings: those of rotary.py; all of attention is in float32, and the quotient is rounded once at the end. Of a
quantised cache, keys and values are converted, which is exact; scores are multiplied by the keys' scales, weights by
those of the values, and the row's own key and value by their scales, in float32. The order of the sums depends on the
row's position and on `choose_splits`.
Bytes: the pages of keys and values once per row, 4·KVH·D a position in bfloat16 and 2·KVH·(D + 4) quantised; qkv and
the result once.
Grid: `choose_splits` programs per row and KV head, at most one per multiprocessor.
"""

from functools import cache

import torch
from torch import Tensor

from polyvox import kernels
from polyvox.kernels.attention import LOG2_E
from polyvox.kernels.cuda_source import CudaSource
from polyvox.kernels.gpu import Gpu, gpu_of
from polyvox.kernels.launch_overlap import overlap
from polyvox.kernels.paged_rows import PagedRows
from polyvox.kernels.quantized_rows import SCALE_TYPE, is_quantized
from polyvox.kernels.rotary import HeadRotation
from polyvox.kernels.tensor_map import PROMOTE_128_BYTES, PROMOTE_256_BYTES, TensorMap

ARCHITECTURES = (90,)
# More rows: decode_kernel (bfloat16, H200: 4.08 instead of 4.12 ms for a frame step of 64) or, of a quantised cache,
# warp_attention.
MAX_ROWS = 16
DIM, GROUP, PAGE = 128, 2, 16
WARPS, WARP_SIZE = 8, 32
NAMES = {torch.bfloat16: "bf16", torch.int8: "int8", torch.float8_e4m3fn: "fp8"}  # types of the cache
ALIGNMENT = 16  # bytes of a load
# (programs of a cluster, the most clusters that an H200 runs at a time), descending
CLUSTERS = ((8, 14), (4, 30), (2, 66))
SUM_BYTES, BARRIER_BYTES = (GROUP * DIM + 2 * GROUP) * 4, 8  # of a warp, of a page


@cache
def source(architecture: int) -> CudaSource:
    return CudaSource("prefetch_attention.cu", str(architecture))


def supports(qkv: Tensor, rotation: HeadRotation, cache: PagedRows) -> bool:
    """Whether the kernel runs for rows [N, (H + 2·KVH)·D], and faster than decode_kernel."""
    return (
        kernels.active(qkv)
        and not qkv.is_cpu
        and len(qkv) <= MAX_ROWS
        and qkv.dtype == torch.bfloat16
        and cache.keys.dtype in NAMES
        and cache.page == PAGE
        and cache.keys.is_contiguous()
        and cache.dim == DIM
        and cache.num_heads(qkv) == GROUP * cache.kv_heads
        and rotation.norms is not None
        and supports_architecture(gpu_of(qkv.device).architecture)
    )


def supports_architecture(architecture: int) -> bool:
    """Whether a GPU of this architecture runs the kernels; compiles them at the first call."""
    return architecture in ARCHITECTURES and source(architecture).available()


def choose_splits(items: int, gpu: Gpu) -> int:
    """The programs that divide the positions of each of `items` rows and KV heads."""
    return next((size for size, most in CLUSTERS if items <= most and items * size <= gpu.multiprocessors), 1)


def pages_ahead(dtype: torch.dtype, splits: int) -> int:
    """The pages of a warp in shared memory or on the way; those of a quantised cache have half the bytes."""
    return 1 if splits >= 4 and not is_quantized(dtype) else 2


def shared_bytes(dtype: torch.dtype, splits: int) -> int:
    """Of a program: the pages and barriers of its warps, and their sums for rows of even and odd index."""
    position = 2 * (DIM * dtype.itemsize + (SCALE_TYPE.itemsize if is_quantized(dtype) else 0))
    return WARPS * (pages_ahead(dtype, splits) * (PAGE * position + BARRIER_BYTES) + 2 * SUM_BYTES)


def launch(qkv: Tensor, rotation: HeadRotation, cache: PagedRows) -> Tensor:
    """decode_attention.rotary_attention, for inputs that `supports` accepts."""
    rows, kv_heads, dtype, gpu = len(qkv), cache.kv_heads, cache.keys.dtype, gpu_of(qkv.device)
    splits = choose_splits(rows * kv_heads, gpu)
    out = torch.empty(rows, GROUP * kv_heads, DIM, dtype=qkv.dtype, device=qkv.device)
    query_gain, key_gain, cos, sin = rotation.launch_tensors(qkv)
    assert qkv.stride(0) * qkv.itemsize % ALIGNMENT == 0
    promotion = PROMOTE_128_BYTES if is_quantized(dtype) else PROMOTE_256_BYTES  # a position of a head
    pages = (TensorMap(each.view(-1, kv_heads * DIM), PAGE, DIM, promotion) for each in (cache.keys, cache.values))
    source(gpu.architecture).launch(
        f"attention_{NAMES[dtype]}_{splits}", min(rows * kv_heads * splits, gpu.multiprocessors), WARPS * WARP_SIZE,
        shared_bytes(dtype, splits),
        [qkv, query_gain, key_gain, cos, sin, *cache.launch_tensors(qkv), out, rows, kv_heads,
         qkv.stride(0), *cache.launch_strides(), rotation.eps, DIM**-0.5 * LOG2_E, *pages],
        overlaps=overlap(qkv)["OVERLAP"],
    )  # fmt: skip
    return out
