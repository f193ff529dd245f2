# SPDX-License-Identifier: Apache-2.0
"""Decode attention of many rows in CUDA C++: norm, rotation, KV cache write and attention in one launch.

    the inputs of rotary.py, where no two rows share a slot -> [N,H,D] as in attention.py; k and v are in the cache

A large batch is bound by reading the cache. Copies to shared memory keep many bytes in flight, and tensor cores need
few instructions; a program is one warp, so that none waits for another (warp_attention.cu). The programs of a row are
next to each other: they read the heads of a position at about the same time, which are next to each other in memory.

Types: bfloat16; a cache in bfloat16, int8 or float8_e4m3fn (kv_quantize.py).
Roundings: those of rotary.py; products and sums in float32; exp(score - running maximum) is rounded to bfloat16 before
the product with the values, and the quotient is rounded once at the end. Of a quantised cache, queries and the
exponentials times the scales of the values are rounded to float16; keys and values are converted, which is exact, and
scores are multiplied by the keys' scales. The reduction runs over steps of one page, or two of a quantised cache, so a
row's bits depend on nothing but the row.
Bytes: keys and values of all positions once per row; qkv and the result once.
Grid: one program of one warp per row and KV head.
"""

from functools import cache

import torch
from torch import Tensor

from polyvox import kernels
from polyvox.kernels.attention import LOG2_E
from polyvox.kernels.cuda_source import CudaSource
from polyvox.kernels.gpu import gpu_of
from polyvox.kernels.launch_overlap import overlap
from polyvox.kernels.paged_rows import PagedRows
from polyvox.kernels.quantized_rows import is_quantized
from polyvox.kernels.rotary import HeadRotation

DIM, GROUP, PAGE, KV_HEADS = 128, 2, 16, 8
WARP_SIZE, STAGES = 32, 3
ALIGNMENT = 8  # bytes of a load
NAMES = {torch.bfloat16: "bf16", torch.int8: "int8", torch.float8_e4m3fn: "fp8"}  # types of the cache
ARCHITECTURE = 90  # the only one on which it was measured
# Measured with bfloat16 for 256, 512 and 1,024 rows, with int8 also for 32, 64 and 128, where decode_kernel is slower
# (H200, 64 rows: 3.42 instead of 3.79 ms for a frame step). Up to 16 rows prefetch_attention.py is faster.
MIN_ROWS, MIN_ROWS_QUANTIZED = 256, 17


@cache
def source() -> CudaSource:
    return CudaSource("warp_attention.cu", str(ARCHITECTURE))


def supports(qkv: Tensor, rotation: HeadRotation, cache: PagedRows) -> bool:
    """Whether the kernel runs for rows [N, (H + 2·KVH)·D], and faster than others."""
    return (
        kernels.active(qkv)
        and not qkv.is_cpu
        and qkv.dtype == torch.bfloat16
        and cache.keys.dtype in NAMES
        and len(qkv) >= (MIN_ROWS_QUANTIZED if is_quantized(cache.keys.dtype) else MIN_ROWS)
        and cache.tables.shape[1] > 1
        and cache.keys.shape[1:] == (PAGE, KV_HEADS, DIM)
        and cache.keys.is_contiguous()
        and cache.num_heads(qkv) == GROUP * KV_HEADS
        and rotation.norms is not None
        and supports_architecture(gpu_of(qkv.device).architecture)
    )


def supports_architecture(architecture: int) -> bool:
    """Whether a GPU of this architecture runs the kernel; compiles it at the first call."""
    return architecture == ARCHITECTURE and source().available()


def shared_bytes(dtype: torch.dtype) -> int:
    """Of a program: the keys and values of each stage, and their scales."""
    if is_quantized(dtype):
        return STAGES * 2 * 2 * PAGE * (DIM + 4)
    return STAGES * 2 * PAGE * DIM * dtype.itemsize


def launch(qkv: Tensor, rotation: HeadRotation, cache: PagedRows, num_programs: int | None = None) -> Tensor:
    """decode_attention.rotary_attention for inputs that `supports` accepts; a test gives the number of programs."""
    rows, dtype = len(qkv), cache.keys.dtype
    out = torch.empty(rows, GROUP * KV_HEADS, DIM, dtype=qkv.dtype, device=qkv.device)
    assert qkv.stride(0) * qkv.itemsize % ALIGNMENT == 0
    query_gain, key_gain, cos, sin = rotation.launch_tensors(qkv)
    source().launch(
        f"attention_{NAMES[dtype]}", num_programs or rows * KV_HEADS, WARP_SIZE, shared_bytes(dtype),
        [qkv, query_gain, key_gain, cos, sin, *cache.launch_tensors(qkv), out, rows,
         qkv.stride(0), cache.tables.stride(0), rotation.eps, DIM**-0.5 * LOG2_E],
        overlaps=overlap(qkv)["OVERLAP"],
    )  # fmt: skip
    return out
