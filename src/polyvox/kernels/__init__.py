"""The GPU's fast paths: Triton kernels, one to a file, each beside the plain PyTorch function that it must equal.

A public function launches its kernel where `active` says so and else is its plain twin; callers need not know which.
Kernels do not wait for the device, read no value on the host and allocate only what they return, so that they can be
recorded into a graph. A row's result never depends on the other rows of a launch, nor on its place among them.

How a cache takes part: where `active(keys)`, `Cache.at` returns `pages.Pages`, which says where the rows of a pass are
kept; a layer then writes and reads the cache by two launches, or by one where no slot has two rows (`alone`). Any other
cache returns a plain function, as before.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor

TYPES = (torch.bfloat16, torch.float16, torch.float32, torch.int64)

_enabled = True
_everywhere = False


def active(tensor: Tensor) -> bool:
    """Whether kernels are used for this tensor: on CUDA, in a type they know, where no gradient is asked for."""
    return (
        _enabled
        and (tensor.is_cuda or _everywhere)
        and tensor.dtype in TYPES
        and not torch.is_grad_enabled()
        and _installed()
    )


@contextmanager
def disabled() -> Iterator[None]:
    """Within it everything runs by the plain twins, to compare the two in one process."""
    global _enabled
    before, _enabled = _enabled, False
    try:
        yield
    finally:
        _enabled = before


@contextmanager
def everywhere() -> Iterator[None]:
    """Within it kernels are used on a CPU, too, for Triton's interpreter (TRITON_INTERPRET=1)."""
    global _everywhere
    before, _everywhere = _everywhere, True
    try:
        yield
    finally:
        _everywhere = before


@cache
def _installed() -> bool:
    found = find_spec("triton") is not None
    if not found:
        logging.getLogger(__name__).warning("triton is not installed: plain PyTorch runs instead of Polyvox's kernels")
    return found
