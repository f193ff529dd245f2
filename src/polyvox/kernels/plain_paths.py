# SPDX-License-Identifier: Apache-2.0
"""What only some GPUs run: elsewhere a slower path computes the same, or the setting is rejected.

Each entry has the predicate that chooses the path; `polyvox doctor` shows those that a GPU does not have.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from polyvox.kernels import kv_quantize
from polyvox.kernels.gpu import Gpu


@dataclass(frozen=True, slots=True)
class FastPath:
    """A path that some GPUs do not have. requirement: what a GPU needs for it."""

    name: str
    requirement: str
    supports: Callable[[Gpu], bool]


FAST_PATHS = (
    FastPath("overlap of kernel launches", "compute capability 9.0", lambda gpu: gpu.can_overlap_launches),
    FastPath(
        "KV cache in fp8",
        "compute capability 8.9",
        lambda gpu: kv_quantize.supports(torch.float8_e4m3fn, gpu.architecture),
    ),
)


def missing_paths(gpu: Gpu) -> list[FastPath]:
    """The paths that this GPU does not have."""
    return [path for path in FAST_PATHS if not path.supports(gpu)]
