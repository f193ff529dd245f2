# SPDX-License-Identifier: Apache-2.0
"""Decode attention of the talker in CUDA C++: norm, rotation, KV cache write and attention in one launch.

    the inputs of rotary.py, where no two rows share a slot -> [N,H,D] as in attention.py; k and v are in the cache

A large batch is bound by reading the cache. Copies to shared memory keep many bytes in flight, and tensor cores need
few instructions; a program is one warp, so that none waits for another (warp_attention.cu). A page is stored by head: a
warp reads its head of 16 positions in one piece. Fewer rows wait for memory rather than use its bandwidth: up to eight
warps of a program divide the positions, and of a few rows the programs of a cluster, too. Their first pages are copied
before the previous launch has ended (launch_overlap.py): earlier frames wrote them.

Types: bfloat16; a cache in bfloat16, int8 or float8_e4m3fn (kv_quantize.py).
Roundings: those of rotary.py; products and sums in float32; exp(score - running maximum) is rounded to bfloat16 before
the product with the values, and the quotient is rounded once at the end. Of a quantised cache, queries and the
exponentials times the scales of the values are rounded to float16; keys and values are converted, which is exact, and
scores are multiplied by the keys' scales. The reduction runs over steps of one page, or two of a quantised cache if a
program is one warp. A row's bits depend on the row and on `choose_division`, that is on the number of rows and of the
GPU's multiprocessors.
Bytes: keys and values of all positions once per row; qkv and the result once.
Grid: per row and KV head one program, or a cluster of them, of the warps of `choose_division`.
"""

from dataclasses import dataclass
from functools import cache
from math import inf

import torch
from torch import Tensor

from polyvox import kernels
from polyvox.kernels.attention import LOG2_E
from polyvox.kernels.cuda_source import CudaSource
from polyvox.kernels.gpu import gpu_of
from polyvox.kernels.launch_overlap import overlap
from polyvox.kernels.paged_rows import PagedRows
from polyvox.kernels.quantized_rows import SCALE_TYPE, is_quantized
from polyvox.kernels.rotary import HeadRotation

DIM, GROUP, PAGE, KV_HEADS = 128, 2, 16, 8
WARP_SIZE, MAX_WARPS = 32, 8
PART_BYTES = (GROUP * DIM + 2 * GROUP) * 4  # of a part of the result
ALIGNMENT = 8  # bytes of a load
NAMES = {torch.bfloat16: "bf16", torch.int8: "int8", torch.float8_e4m3fn: "fp8"}  # types of the cache
ARCHITECTURE = 90  # the only one on which it was measured


@cache
def source() -> CudaSource:
    return CudaSource("warp_attention.cu", str(ARCHITECTURE))


def supports(qkv: Tensor, rotation: HeadRotation, cache: PagedRows) -> bool:
    """Whether the kernel runs for rows [N, (H + 2·KVH)·D]; on an H200 it is faster than others for any number."""
    return (
        kernels.active(qkv)
        and not qkv.is_cpu
        and qkv.dtype == torch.bfloat16
        and cache.keys.dtype in NAMES
        and not cache.is_single_page
        and cache.keys.shape[1:] == (PAGE, KV_HEADS, DIM)
        and cache.is_by_head
        and cache.num_heads(qkv) == GROUP * KV_HEADS
        and rotation.norms is not None
        and supports_architecture(gpu_of(qkv.device).architecture)
    )


def supports_architecture(architecture: int) -> bool:
    """Whether a GPU of this architecture runs the kernel; compiles it at the first call."""
    return architecture == ARCHITECTURE and source().available()


@dataclass(frozen=True, slots=True)
class RowDivision:
    """What divides the positions of a row and KV head."""

    max_rows: float
    warps: int  # of a program
    splits: int = 1  # programs of a cluster

    def name(self, dtype: torch.dtype) -> str:
        """The function of the source."""
        return f"attention_{NAMES[dtype]}_{self.warps}_{self.splits}"

    def shared_bytes(self, dtype: torch.dtype) -> int:
        """Of a program: the pages of each stage of its warps, and the parts of a cluster."""
        stages, position = 3 if self.splits == 1 else 2, DIM * dtype.itemsize
        pages = 1
        if is_quantized(dtype):
            position += SCALE_TYPE.itemsize
            pages = 2 if self.warps == 1 else 1
        parts = 0 if self.splits == 1 else self.splits * PART_BYTES
        return self.warps * stages * pages * 2 * PAGE * position + parts


# Ascending. Chosen on an H200 at contexts of 256 positions, those of up to 8 rows also at 1,500: with one row, programs
# that are no cluster take 1.96 instead of 1.98 ms for a frame step at 256, but 2.24 instead of 2.07 at 1,500.
DIVISIONS = (
    RowDivision(2, MAX_WARPS, 4),
    RowDivision(8, MAX_WARPS, 2),
    RowDivision(16, MAX_WARPS),
    RowDivision(48, 4),
    RowDivision(64, 2),
    RowDivision(inf, 1),
)


def choose_division(rows: int, multiprocessors: int) -> RowDivision:
    """Programs of MAX_WARPS warps are chosen if there is a multiprocessor for each.

    On an H200 all clusters then run at a time; on GPUs with other numbers of multiprocessors that was not measured.
    """
    return next(
        division
        for division in DIVISIONS
        if rows <= division.max_rows
        and (division.warps < MAX_WARPS or rows * KV_HEADS * division.splits <= multiprocessors)
    )


def launch(qkv: Tensor, rotation: HeadRotation, cache: PagedRows) -> Tensor:
    """cache_attention.attend_decode, for inputs that `supports` accepts."""
    rows, dtype = len(qkv), cache.keys.dtype
    division = choose_division(rows, gpu_of(qkv.device).multiprocessors)
    out = torch.empty(rows, GROUP * KV_HEADS, DIM, dtype=qkv.dtype, device=qkv.device)
    assert qkv.stride(0) * qkv.itemsize % ALIGNMENT == 0
    assert cache.is_by_head
    query_gain, key_gain, cos, sin = rotation.launch_tensors(qkv)
    source().launch(
        division.name(dtype), rows * KV_HEADS * division.splits, division.warps * WARP_SIZE,
        division.shared_bytes(dtype),
        [qkv, query_gain, key_gain, cos, sin, *cache.launch_tensors(qkv), out,
         qkv.stride(0), cache.tables.stride(0), rotation.eps, DIM**-0.5 * LOG2_E],
        overlaps=overlap(qkv)["OVERLAP"],
    )  # fmt: skip
    return out
