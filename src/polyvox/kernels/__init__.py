# SPDX-License-Identifier: Apache-2.0
"""Kernels in Triton and CUDA C++, each next to the PyTorch function that is its reference implementation.

A public function launches its kernel where `active` is true and runs the reference implementation elsewhere; callers
do not need to know which. Kernels do not synchronise with the host, read no value on the host and allocate only what
they return, so they can be captured in a CUDA graph. A row's result depends neither on the other rows of a launch nor
on its index among them.

KV cache: where `active(keys)` is true, the cache returns a `models.paged_kv.PagedKVView`, which describes where the
rows of a pass are stored. A layer then writes and reads the cache in two launches, or in one where no slot has two
rows (`decode_only`). Otherwise the cache returns an attention function.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor

# int8 and float8 are those of a quantised KV cache.
TYPES = (torch.bfloat16, torch.float16, torch.float32, torch.int64, torch.int8, torch.float8_e4m3fn)

_enabled = True
_enabled_on_cpu = False


def active(tensor: Tensor) -> bool:
    """Whether kernels run for this tensor: on CUDA, of a supported type, with gradients disabled.

    Also for tensors of the meta device, on which launches are recorded (launches.py).
    """
    return (
        _enabled
        and (tensor.is_cuda or tensor.is_meta or _enabled_on_cpu)
        and tensor.dtype in TYPES
        and not torch.is_grad_enabled()
        and installed()
    )


@contextmanager
def disabled() -> Iterator[None]:
    """Run the reference implementations inside this context, to compare both in one process."""
    global _enabled
    before, _enabled = _enabled, False
    try:
        yield
    finally:
        _enabled = before


@contextmanager
def enabled_on_cpu() -> Iterator[None]:
    """Also run kernels on CPU tensors inside this context, for Triton's interpreter (TRITON_INTERPRET=1)."""
    global _enabled_on_cpu
    before, _enabled_on_cpu = _enabled_on_cpu, True
    try:
        yield
    finally:
        _enabled_on_cpu = before


@cache
def installed() -> bool:
    """Whether Triton is installed; logs a warning once if it is not."""
    found = find_spec("triton") is not None
    if not found:
        logging.getLogger(__name__).warning(
            "Triton is not installed; using the PyTorch reference implementations instead of kernels"
        )
    return found
