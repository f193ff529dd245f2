# SPDX-License-Identifier: Apache-2.0
"""The properties of a GPU that decide how kernels are launched, by architecture.

`tests/conformance/test_architectures.py` compiles every launch of every published model for each of them.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache

import torch

MIN_OVERLAP_ARCHITECTURE = 90


@dataclass(frozen=True, slots=True)
class Gpu:
    """architecture: compute capability 9.0 is 90. shared: bytes of shared memory per program."""

    architecture: int
    multiprocessors: int
    shared: int

    @property
    def can_overlap_launches(self) -> bool:
        """Programmatic dependent launch; see launch_overlap.py."""
        return self.architecture >= MIN_OVERLAP_ARCHITECTURE


# One common GPU of each supported architecture.
GPUS = {
    80: Gpu(80, 108, 163 << 10),  # A100
    86: Gpu(86, 82, 99 << 10),  # RTX 3090, A10
    89: Gpu(89, 128, 99 << 10),  # RTX 4090, L4, L40S
    90: Gpu(90, 132, 227 << 10),  # H100, H200
    100: Gpu(100, 148, 227 << 10),  # B200
    120: Gpu(120, 170, 99 << 10),  # RTX 5090
}
_assumed = GPUS[90]


def gpu_of(device: torch.device) -> Gpu:
    """The GPU of a device; for a device that is not CUDA the assumed one, an H200."""
    return _read(device) if device.type == "cuda" else _assumed


@contextmanager
def assume(gpu: Gpu) -> Iterator[None]:
    """Chooses launches for this GPU on devices that are not CUDA."""
    global _assumed
    before, _assumed = _assumed, gpu
    try:
        yield
    finally:
        _assumed = before


@cache
def _read(device: torch.device) -> Gpu:
    from triton.runtime import driver

    major, minor = torch.cuda.get_device_capability(device)
    properties = driver.active.utils.get_device_properties(device.index)
    return Gpu(10 * major + minor, properties["multiprocessor_count"], properties["max_shared_mem"])
