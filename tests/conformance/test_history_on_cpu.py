# SPDX-License-Identifier: Apache-2.0
"""The update of several histories, compiled for a CPU, against its reference implementation; no GPU is needed."""

import ctypes
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from conformance.cuda_on_cpu import NVCC, compile_for_cpu, needs_compiler, registers_of
from polyvox.kernels import cuda_source, history
from polyvox.kernels.conv import update_history_reference
from polyvox.kernels.gpu import GPUS

PROGRAM = """
#include "history.cu"
static void call_update_histories(void **p, int *n) { update_histories(*(Updates *)p[0], (long long *)p[1]); }
LAUNCH(update_histories)
"""


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return compile_for_cpu(PROGRAM, tmp_path_factory.mktemp("history"))


@pytest.fixture
def launches(compiled: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of programs of each launch; launches run on the CPU."""
    made: list[int] = []

    class OnCpu:
        def launch(
            self, name: str, num_programs: int, threads: int, shared: int, arguments: Sequence[cuda_source.Argument]
        ) -> None:
            table, slots = arguments
            assert isinstance(table, bytes)
            assert isinstance(slots, Tensor)
            kept = ctypes.create_string_buffer(table, len(table))
            pointers = (ctypes.c_void_p * 2)(ctypes.addressof(kept), slots.data_ptr())
            getattr(compiled, f"launch_{name}")(num_programs, threads, shared, pointers, (ctypes.c_int * 1)(0))
            made.append(num_programs)

    monkeypatch.setattr(history, "source", lambda _: OnCpu())
    return made


@needs_compiler
def test_all_histories_equal_their_reference_after_one_launch(
    launches: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With fewer, as many and more new columns than the history has; one history is too long for the launch."""
    monkeypatch.setattr(history, "update_history", update_history_reference)
    slots, updates = torch.tensor([3, 0]), history.HistoryUpdates()
    pairs = []
    sizes = (5, 6, 96), (6, 6, 32), (20, 54, 64), (9, 1, 32), (70, 64, 32), (3, 65, 32)
    for columns, past_columns, channels in sizes:
        rows, past = torch.randn(2, columns, channels).half(), torch.randn(4, past_columns, channels).half()
        expected = past.clone()
        update_history_reference(rows, expected, slots)
        updates.add(rows, past, slots)
        pairs.append((past, expected))
    assert torch.equal(*pairs[-1])
    assert not launches
    updates.launch()
    updates.launch()
    assert launches == [2 * (3 + 1 + 2 + 1 + 1)]
    assert all(torch.equal(*pair) for pair in pairs)


@pytest.mark.skipif(NVCC is None, reason="needs nvcc")
@pytest.mark.parametrize("architecture", GPUS)
def test_the_source_compiles_for_every_architecture(architecture: int, tmp_path: Path) -> None:
    assert len(registers_of(Path(history.__file__).with_suffix(".cu"), architecture, tmp_path)) == 1
