# SPDX-License-Identifier: Apache-2.0
"""Programmatic dependent launch (sm_90 and newer): a kernel starts before the previous launch has ended.

A kernel that takes part calls `if OVERLAP: wait()` before it reads what other launches wrote and before its first
store, and is launched with **overlap(rows). What it reads earlier is either constant while the engine runs (weights) or
was written at least two launches before (slots, positions, noise keys): every kernel waits for the end of its
predecessor before it lets its successor start. Launches of PyTorch and cuBLAS are ordered as usual.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from polyvox.kernels.lazy_triton import Kernel

if TYPE_CHECKING:
    import triton.language as tl

MIN_CAPABILITY = (9, 0)
MAX_ROWS = 32  # a frame step of one row gains 18 % on an H200, one of 64 loses 2 %


def overlap(rows: Tensor) -> dict[str, Any]:
    """Launch options for rows [..., columns]; overlap needs sm_90 and a small batch."""
    small_batch = rows.numel() <= MAX_ROWS * rows.shape[-1]
    if rows.is_cuda and small_batch and _capability(rows.device) >= MIN_CAPABILITY:
        return {"OVERLAP": True, "launch_pdl": True}
    return {"OVERLAP": False}


@cache
def _capability(device: torch.device) -> tuple[int, int]:
    return torch.cuda.get_device_capability(device)


@Kernel
def wait():
    """Wait for the writes of earlier launches, then let the next launch start."""
    tl.extra.cuda.gdc_wait()
    tl.extra.cuda.gdc_launch_dependents()
