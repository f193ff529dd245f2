# SPDX-License-Identifier: Apache-2.0
"""What only some GPUs run: elsewhere a slower path computes the same, or the setting is rejected.

Each entry has the predicate that chooses the path; `polyvox doctor` shows those that a GPU does not have, and
docs/kernels.md has them for all architectures.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from polyvox.kernels import (
    attention_output,
    code_draw,
    history,
    mid_batch_linear,
    page_attention,
    pair_attention,
    prefetch_linear,
    prefetch_vector,
    quantized_rows,
    register_linear,
    sample_conv,
    warp_attention,
    wgmma_conv,
    wgmma_linear,
)
from polyvox.kernels.gpu import MIN_OVERLAP_ARCHITECTURE
from polyvox.kernels.products import PROGRAMS


@dataclass(frozen=True, slots=True)
class FastPath:
    """A path that some GPUs do not have. requirement: what a GPU needs for it; otherwise: what the others run instead.

    supports: whether an architecture (gpu.py) has it; multiprocessors: how many a GPU needs.
    """

    name: str
    requirement: str
    otherwise: str
    supports: Callable[[int], bool]
    multiprocessors: int = 0


def _all_support(*predicates: Callable[[int], bool]) -> Callable[[int], bool]:
    """For a path of several files: an architecture has it if it has all of them."""
    return lambda architecture: all(supports(architecture) for supports in predicates)


FAST_PATHS = (
    FastPath(
        "overlap of kernel launches",
        "compute capability 9.0",
        "a launch starts when the previous one has ended",
        lambda architecture: architecture >= MIN_OVERLAP_ARCHITECTURE,
    ),
    FastPath(
        "KV cache and weights in fp8",
        "compute capability 8.9",
        "fp8 is rejected; int8 takes as little memory",
        lambda architecture: quantized_rows.supports(torch.float8_e4m3fn, architecture),
    ),
    FastPath(
        "vocoder's wgmma kernels",
        "compute capability 9.0 exactly, and NVRTC",
        "Triton kernels",
        wgmma_conv.supports_architecture,
    ),
    FastPath(
        "linear layers of one row in CUDA C++",
        f"compute capability 9.0 exactly, {PROGRAMS} multiprocessors and NVRTC",
        "Triton kernels",
        _all_support(prefetch_vector.supports_architecture, attention_output.supports_architecture),
        PROGRAMS,
    ),
    FastPath(
        "linear layers of 2 to 8 rows in CUDA C++",
        f"compute capability 9.0 exactly, {PROGRAMS} multiprocessors and NVRTC",
        "Triton kernels",
        prefetch_linear.supports_architecture,
        PROGRAMS,
    ),
    FastPath(
        "linear layers of 9 to 64 rows in CUDA C++",
        f"compute capability 9.0 exactly, {PROGRAMS} multiprocessors and NVRTC",
        "Triton kernels",
        mid_batch_linear.supports_architecture,
        PROGRAMS,
    ),
    FastPath("sampling in CUDA C++", "NVRTC", "Triton kernels", code_draw.supports_architecture),
    FastPath(
        "codec's linear layers of few rows in CUDA C++",
        "compute capability 9.0, 10.0 or 12.0, and NVRTC",
        "Triton kernels",
        register_linear.supports_architecture,
    ),
    FastPath(
        "linear layers of large batches with norms and gates",
        "compute capability 9.0 exactly, and NVRTC",
        "products of cuBLAS, and Triton kernels",
        wgmma_linear.supports_architecture,
    ),
    FastPath(
        "decode attention in CUDA C++",
        "compute capability 9.0 exactly, and NVRTC",
        "Triton kernels",
        _all_support(
            warp_attention.supports_architecture,
            page_attention.supports_architecture,
            pair_attention.supports_architecture,
        ),
    ),
    FastPath("codec's last layer in CUDA C++", "NVRTC", "Triton kernels", sample_conv.supports_architecture),
    FastPath(
        "codec's histories in one launch",
        "NVRTC",
        "a launch of a Triton kernel for each",
        history.supports_architecture,
    ),
)


def missing_paths(architecture: int, multiprocessors: int) -> list[FastPath]:
    """The paths that such a GPU does not have."""
    return [path for path in FAST_PATHS if not path.supports(architecture) or multiprocessors < path.multiprocessors]
