# SPDX-License-Identifier: Apache-2.0
"""The marker of tests that run on a GPU only: POLYVOX_TEST_DEVICE=cuda."""

from collections.abc import Iterable

import pytest
import torch

from conftest import DEVICE
from polyvox.kernels.gpu import gpu_of


def needs_gpu(architectures: Iterable[int], multiprocessors: int = 0) -> pytest.MarkDecorator:
    """Skips on a CPU, and on a GPU of another architecture or with fewer multiprocessors."""
    reason = _reason(tuple(architectures), multiprocessors)
    return pytest.mark.skipif(reason is not None, reason=reason or "")


def _reason(architectures: tuple[int, ...], multiprocessors: int) -> str | None:
    if DEVICE == "cpu":
        return "runs on a GPU only: POLYVOX_TEST_DEVICE=cuda"
    gpu = gpu_of(torch.empty(0, device=DEVICE).device)
    if gpu.architecture not in architectures:
        return f"this GPU is sm_{gpu.architecture}, the kernel is for {', '.join(map(str, architectures))}"
    if gpu.multiprocessors < multiprocessors:
        return f"this GPU has {gpu.multiprocessors} multiprocessors, the kernel needs {multiprocessors}"
    return None
