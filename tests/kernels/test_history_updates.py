# SPDX-License-Identifier: Apache-2.0
"""Which calls collect updates of histories (history.py), and their results on a GPU: POLYVOX_TEST_DEVICE=cuda.

tests/conformance/test_history_on_cpu.py runs its source on a CPU.
"""

import pytest
import torch
from torch import Tensor

from conftest import DEVICE
from gpu_only import needs_gpu
from polyvox.kernels import history
from polyvox.kernels.conv import update_history_reference
from polyvox.kernels.gpu import GPUS, assume
from polyvox.kernels.launches import Launch, record_launches


@pytest.fixture
def _nvrtc(monkeypatch: pytest.MonkeyPatch) -> None:
    for architecture in GPUS:
        monkeypatch.setattr(history.source(architecture), "_available", True)


@pytest.mark.usefixtures("_nvrtc")
def test_small_calls_in_two_bytes_are_collected() -> None:
    def features(batch: int, frames: int, dtype: torch.dtype = torch.float16, device: str = "meta") -> Tensor:
        return torch.empty(batch, 8, frames, dtype=dtype, device=device)

    for gpu in GPUS.values():
        with assume(gpu):
            assert history.supports(features(1, 4))
            assert history.supports(features(16, 4, torch.bfloat16))
            assert not history.supports(features(17, 4))
            assert not history.supports(features(1, 4, torch.float32))
            assert not history.supports(features(1, 4, device="cpu"))


@pytest.mark.usefixtures("_nvrtc")
def test_one_launch_is_listed() -> None:
    def call() -> None:
        updates, slots = history.HistoryUpdates(), torch.zeros(1, dtype=torch.int64)
        for _ in range(2):
            updates.add(torch.zeros(1, 4, 32).half(), torch.zeros(1, 6, 32).half(), slots)
        updates.launch()

    assert record_launches([call], GPUS[90]) == [Launch("history.cu:90", "", 90)]


@needs_gpu(GPUS)
def test_all_histories_equal_their_reference() -> None:
    slots, updates, pairs = torch.tensor([3, 0], device=DEVICE), history.HistoryUpdates(), []
    for columns, past_columns, channels in ((5, 6, 96), (6, 6, 32), (20, 54, 64), (9, 1, 1536), (70, 64, 32)):
        rows = torch.randn(2, columns, channels, device=DEVICE).half()
        past = torch.randn(4, past_columns, channels, device=DEVICE).half()
        expected = past.clone()
        update_history_reference(rows, expected, slots)
        updates.add(rows, past, slots)
        pairs.append((past, expected))
    updates.launch()
    assert all(torch.equal(*pair) for pair in pairs)
