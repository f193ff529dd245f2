# SPDX-License-Identifier: Apache-2.0
"""Programmatic dependent launch (sm_90 and newer): a kernel starts before the previous launch has ended.

A kernel that takes part calls `if OVERLAP: wait()` before it reads what other launches wrote and before its first
store, and is launched with **overlap(rows). What it reads earlier is either constant while the engine runs (weights) or
was written at least two launches before (slots, positions, noise keys): every kernel waits for the end of its
predecessor before it lets its successor start. Launches of PyTorch and cuBLAS are ordered as usual.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from polyvox.kernels.gpu import gpu_of
from polyvox.kernels.lazy_triton import Kernel

if TYPE_CHECKING:
    import triton.language as tl

MAX_ROWS = 32  # a frame step of one row gains 18 % on an H200, one of 64 loses 2 %


def overlap(rows: Tensor) -> dict[str, Any]:
    """Launch options for rows [..., columns]; overlap needs sm_90 and a small batch. Triton's interpreter has none."""
    small_batch = rows.numel() <= MAX_ROWS * rows.shape[-1]
    if rows.device.type != "cpu" and small_batch and gpu_of(rows.device).can_overlap_launches:
        return {"OVERLAP": True, "launch_pdl": True}
    return {"OVERLAP": False}


@Kernel
def wait():
    """Wait for the writes of earlier launches, then let the next launch start."""
    tl.extra.cuda.gdc_wait()
    tl.extra.cuda.gdc_launch_dependents()
