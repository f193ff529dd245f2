# SPDX-License-Identifier: Apache-2.0
"""The histories of all convolutions of a call in one launch at its end.

    of each convolution: x [B,T,C] contiguous · state [S,H,C] contiguous · slots [B] int64, the same for all

A call of a few frames is a chain of short launches, a fifth of which only update a history (conv.update_history). Here
they are collected and launched together (history.cu): as many bytes, but the inputs of all layers live until then.

Types: two bytes. Roundings: none; values are copied.
Bytes: H columns of each stream and convolution are read, from x or from its history, and H are written.
Grid: a program updates 32 channels of one stream; all its loads precede its stores. Needs NVRTC; histories of more than
64 columns, and those that do not fit into a launch, are updated at once.
"""

import struct
from dataclasses import dataclass
from functools import cache

from torch import Tensor

from polyvox.kernels.conv import update_history
from polyvox.kernels.cuda_source import CudaSource
from polyvox.kernels.gpu import GPUS, gpu_of

MAX_UPDATES = 24
MAX_ROWS, CHANNELS = 64, 32  # of a program
THREADS = MAX_ROWS * CHANNELS // 8
MAX_FRAMES = 64  # of all streams of a call


@cache
def source(architecture: int) -> CudaSource:
    return CudaSource("history.cu", str(architecture))


def supports_architecture(architecture: int) -> bool:
    return architecture in GPUS and source(architecture).available()


def supports(x: Tensor) -> bool:
    """Whether the updates of a call for x [B,C,frames] are collected."""
    if x.device.type == "cpu" or x.itemsize != 2 or x.shape[0] * x.shape[2] > MAX_FRAMES:
        return False
    return supports_architecture(gpu_of(x.device).architecture)


@dataclass(frozen=True, slots=True, eq=False)
class _Update:
    rows: Tensor
    past: Tensor


class HistoryUpdates:
    """Collects updates of histories."""

    def __init__(self) -> None:
        self._updates: list[_Update] = []
        self._slots: Tensor | None = None

    def add(self, rows: Tensor, past: Tensor, slots: Tensor) -> None:
        """As conv.update_history, at the latest when `launch` is called."""
        assert rows.dtype == past.dtype
        assert past.itemsize == 2
        assert rows.is_contiguous()
        assert past.is_contiguous()
        fits = past.shape[1] <= MAX_ROWS and past.shape[2] % CHANNELS == 0 and len(self._updates) < MAX_UPDATES
        if not fits or (self._slots is not None and self._slots is not slots):
            update_history(rows, past, slots)
            return
        self._slots = slots
        self._updates.append(_Update(rows, past))

    def launch(self) -> None:
        """Updates all collected histories."""
        if self._slots is None:
            return
        table, end = b"", 0
        for update in self._updates:
            batch, columns, channels = update.rows.shape
            end += batch * channels // CHANNELS
            pointers = update.rows.data_ptr(), update.past.data_ptr()
            table += struct.pack("<2Q4i", *pointers, columns, update.past.shape[1], channels // 8, end)
        table = table.ljust(MAX_UPDATES * struct.calcsize("<2Q4i"), b"\0")
        architecture = gpu_of(self._slots.device).architecture
        source(architecture).launch("update_histories", end, THREADS, 0, [table, self._slots])
        self._updates.clear()
        self._slots = None
