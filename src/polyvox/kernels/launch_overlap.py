# SPDX-License-Identifier: Apache-2.0
"""Programmatic dependent launch (sm_90 and newer): a kernel starts before the previous launch has ended.

A kernel that takes part is launched with **overlap(rows). It waits before it reads what other launches wrote and before
its first store. `wait()` lets the next launch start when all earlier launches have ended. A kernel may instead call
start_next() first and wait_for_previous() later: the next launch then starts and loads its weights while this one still
waits.

What a kernel reads before it waits is either constant while the engine runs (weights) or was written before the last
launch with `wait()` (slots, positions, noise keys, the KV cache of earlier passes), which lets its successors start
only after its predecessors have ended. Attention of the code predictor reads the keys of earlier passes before it
waits: the sampler, between two passes, must not start the next launch before it has waited itself. Launches of PyTorch
and cuBLAS are ordered as usual, but what they write, such as the positions of a frame step, may be read before a wait
only if a launch with `wait()` is between: a kernel that calls start_next() first could let the reader start too early.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from polyvox.kernels.gpu import gpu_of
from polyvox.kernels.lazy_triton import Kernel
from polyvox.kernels.linear_plan import MAX_ROWS

if TYPE_CHECKING:
    import triton.language as tl

# Numbers of rows that wgmma_linear.py multiplies, by the model's width. With others, which leave a part of the tiles
# empty, cuBLAS was as fast or faster on an H200, or slower by less than the spread (2,048 rows of width 2,048).
LARGE_BATCHES = {
    2048: (range(65, 257), range(385, 513), range(897, 1025), range(1537, 1793)),
    1024: (range(65, 513), range(641, 1025), range(1537, 2049)),
}
# On sm_90 in bfloat16 launches of these numbers of rows overlap, also where other kernels or cuBLAS multiply them.
# Narrower rows are those of attention heads and codes.
MIN_WIDTH, LARGE_BATCH_ARCHITECTURE = min(LARGE_BATCHES), 90


def is_large_batch(rows: int, width: int) -> bool:
    """Whether wgmma_linear.py multiplies this many rows in a model of this width."""
    return any(rows in each for each in LARGE_BATCHES.get(width, ()))


def overlap(rows: Tensor) -> dict[str, Any]:
    """Launch options for rows [..., columns]; overlap needs sm_90 and few rows, or a number in LARGE_BATCHES.

    Triton's interpreter has none.
    """
    count, width = rows.numel() // rows.shape[-1], rows.shape[-1]
    if rows.device.type == "cpu" or not gpu_of(rows.device).can_overlap_launches:
        return {"OVERLAP": False}
    if count > MAX_ROWS:  # most of these calls use cuBLAS, whose launches do not take part
        is_large = any(is_large_batch(count, each) for each in LARGE_BATCHES)
        is_fused = is_large and width >= MIN_WIDTH and rows.dtype == torch.bfloat16
        if not is_fused or gpu_of(rows.device).architecture != LARGE_BATCH_ARCHITECTURE:
            return {"OVERLAP": False}
    return {"OVERLAP": True, "launch_pdl": True}


@Kernel
def wait():
    """Wait for the writes of earlier launches, then let the next launch start."""
    tl.extra.cuda.gdc_wait()
    tl.extra.cuda.gdc_launch_dependents()


@Kernel
def start_next():
    """Let the next launch start as soon as every program of this one has started."""
    tl.extra.cuda.gdc_launch_dependents()


@Kernel
def wait_for_previous():
    """Wait for the writes of earlier launches."""
    tl.extra.cuda.gdc_wait()
