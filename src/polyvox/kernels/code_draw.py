# SPDX-License-Identifier: Apache-2.0
"""Sampling a code of the predictor in CUDA C++: 2,048 logits per row, without the rules of code 0.

    the inputs of sampler.py -> codes [B] int64, those of its kernel

A frame has 15 of these launches, each between two passes that depend on each other. Triton's reductions over a program
have two or three barriers and a dozen shuffles; here they have one barrier, and those of integers one instruction per
warp.

Types: bfloat16 logits; float32 inside.
Roundings: those of sampler.py, and the order of its sums for top-p.
Bytes: the logits once; noise is generated in registers, before the previous launch has ended.
Grid: one program of 8 warps per row.
"""

from functools import cache

import torch
from torch import Tensor

from polyvox import kernels
from polyvox.kernels.cuda_source import CudaSource
from polyvox.kernels.gpu import GPUS, gpu_of
from polyvox.kernels.launch_overlap import overlap

VOCAB, THREADS = 2048, 256
ALIGNMENT = 16  # bytes of a load


@cache
def source(architecture: int) -> CudaSource:
    return CudaSource("code_draw.cu", str(architecture))


def supports(logits: Tensor) -> bool:
    """Whether the kernel runs for logits [B, vocab]."""
    return (
        kernels.active(logits)
        and not logits.is_cpu
        and logits.dtype == torch.bfloat16
        and logits.shape[1] == VOCAB
        and logits.stride(0) * logits.itemsize % ALIGNMENT == 0
        and supports_architecture(gpu_of(logits.device).architecture)
    )


def supports_architecture(architecture: int) -> bool:
    """Whether a GPU of this architecture runs the kernel; compiles it at the first call."""
    return architecture in GPUS and source(architecture).available()


def launch(
    logits: Tensor, book: int, slots: Tensor, params: Tensor, key: Tensor, segment: Tensor, frame: Tensor, codes: Tensor
) -> None:
    """sampler.draw_keyed without rules, for logits that `supports` accepts."""
    source(gpu_of(logits.device).architecture).launch(
        "code_draw", len(logits), THREADS, 0,
        [logits, slots, params, key, segment, frame, codes, logits.stride(0), book],
        overlaps=overlap(logits)["OVERLAP"],
    )  # fmt: skip
