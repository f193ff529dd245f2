# SPDX-License-Identifier: Apache-2.0
"""Decode attention of the code predictor in CUDA C++: a slot has one page of up to 16 positions.

    the inputs of rotary.py, where no two rows share a slot -> [N,H,D] as in attention.py; k and v are in the cache

The page of a frame is so short that a warp has all of it in registers, before the previous launch has ended
(launch_overlap.py): earlier passes wrote it. Then the scores of all positions are summed at once, where the other
kernels go through blocks of positions. It lets the next launch start before it waits itself; the sampler, which ends
each pass, does not, so the next pass reads what this one wrote.

Types: bfloat16.
Roundings: those of rotary.py; all of attention is in float32, and the quotient is rounded once at the end. A row's bits
depend on nothing but the row.
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
from polyvox.kernels.rotary import HeadRotation

ARCHITECTURES = (90,)
MAX_ROWS = 128  # more are faster with large_batch_attention.py (H200: 5.45 instead of 5.50 ms for 256 streams)
DIM, GROUP, POSITIONS = 128, 2, 16
WARP_SIZE = 32
ALIGNMENT = 8  # bytes of a load


@cache
def source(architecture: int) -> CudaSource:
    return CudaSource("page_attention.cu", str(architecture))


def supports(qkv: Tensor, rotation: HeadRotation, cache: PagedRows) -> bool:
    """Whether the kernel runs for rows [N, (H + 2·KVH)·D], and faster than the others."""
    return (
        kernels.active(qkv)
        and not qkv.is_cpu
        and len(qkv) <= MAX_ROWS
        and qkv.dtype == cache.keys.dtype == torch.bfloat16
        and cache.is_single_page
        and cache.page <= POSITIONS
        and cache.dim == DIM
        and cache.num_heads(qkv) == GROUP * cache.kv_heads
        and rotation.norms is not None
        and supports_architecture(gpu_of(qkv.device).architecture)
    )


def supports_architecture(architecture: int) -> bool:
    """Whether a GPU of this architecture runs the kernel; compiles it at the first call."""
    return architecture in ARCHITECTURES and source(architecture).available()


def launch(qkv: Tensor, rotation: HeadRotation, cache: PagedRows) -> Tensor:
    """cache_attention.attend_decode, for inputs that `supports` accepts."""
    rows, kv_heads = len(qkv), cache.kv_heads
    out = torch.empty(rows, GROUP * kv_heads, DIM, dtype=qkv.dtype, device=qkv.device)
    assert qkv.stride(1) == 1
    assert qkv.stride(0) * qkv.itemsize % ALIGNMENT == 0
    query_gain, key_gain, cos, sin = rotation.launch_tensors(qkv)
    keys, values, _, _, tables, slots, positions = cache.launch_tensors(qkv)
    source(gpu_of(qkv.device).architecture).launch(
        "page_attention", rows * kv_heads, WARP_SIZE, 0,
        [qkv, query_gain, key_gain, cos, sin, keys, values, tables, slots, positions, out, kv_heads,
         qkv.stride(0), *cache.launch_strides(), rotation.eps, DIM**-0.5 * LOG2_E],
        overlaps=overlap(qkv)["OVERLAP"],
    )  # fmt: skip
    return out
