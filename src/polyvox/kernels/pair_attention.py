# SPDX-License-Identifier: Apache-2.0
"""Attention of the code predictor's first pass in CUDA C++: two rows per slot, positions 0 and 1 of its page.

    the inputs of rotary.py, rows 2i and 2i + 1 are positions 0 and 1 of one slot -> [N,H,D] as in attention.py; k and v
    are in the cache

Fuses rotary.py and attention.py for what they are slow at: two positions that this launch has in registers.

Types: bfloat16.
Roundings: those of rotary.py; all of attention is in float32, and the quotient is rounded once at the end. A row's bits
depend on nothing but its slot's rows.
Bytes: qkv, the rows of k and v, and the result once each.
Grid: one warp per slot and KV head, in programs of one warp, or of four in large batches.
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
DIM, GROUP = 128, 2
WARP_SIZE = 32
ALIGNMENT = 8  # bytes of a load
SMALL_BATCH_ROWS, LARGE_BATCH_WARPS = 128, 4


@cache
def source(architecture: int) -> CudaSource:
    return CudaSource("pair_attention.cu", str(architecture))


def supports(qkv: Tensor, rotation: HeadRotation, cache: PagedRows) -> bool:
    """Whether the kernel runs for rows [N, (H + 2·KVH)·D], which are pairs."""
    return (
        kernels.active(qkv)
        and not qkv.is_cpu
        and qkv.dtype == cache.keys.dtype == torch.bfloat16
        and cache.dim == DIM
        and cache.num_heads(qkv) == GROUP * cache.kv_heads
        and rotation.norms is not None
        and not rotation.by_row
        and supports_architecture(gpu_of(qkv.device).architecture)
    )


def supports_architecture(architecture: int) -> bool:
    """Whether a GPU of this architecture runs the kernel; compiles it at the first call."""
    return architecture in ARCHITECTURES and source(architecture).available()


def launch(qkv: Tensor, rotation: HeadRotation, cache: PagedRows) -> Tensor:
    """rotary_store and paged_attention, for inputs that `supports` accepts."""
    rows, kv_heads = len(qkv), cache.kv_heads
    assert rows % 2 == 0
    out = torch.empty(rows, GROUP * kv_heads, DIM, dtype=qkv.dtype, device=qkv.device)
    assert qkv.stride(1) == 1
    assert qkv.stride(0) * qkv.itemsize % ALIGNMENT == 0
    query_gain, key_gain, cos, sin = rotation.launch_tensors(qkv)
    keys, values, _, _, tables, slots, _ = cache.launch_tensors(qkv)
    warps = 1 if rows <= SMALL_BATCH_ROWS else LARGE_BATCH_WARPS
    source(gpu_of(qkv.device).architecture).launch(
        "pair_attention", -(-(rows // 2) * kv_heads // warps), warps * WARP_SIZE, 0,
        [qkv, query_gain, key_gain, cos, sin, keys, values, tables, slots, out, rows // 2, kv_heads,
         qkv.stride(0), *cache.launch_strides(), rotation.eps, DIM**-0.5 * LOG2_E],
        overlaps=overlap(qkv)["OVERLAP"],
    )  # fmt: skip
    return out
