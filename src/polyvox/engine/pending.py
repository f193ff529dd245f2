# SPDX-License-Identifier: Apache-2.0
"""Results of a call on their way to the host."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polyvox.audio.samples import Samples


class Pending:
    """A tensor that is being copied to the host."""

    def __init__(self, value: Tensor) -> None:
        self._done: torch.cuda.Event | None = None
        if value.is_cuda:
            self._value = torch.empty(value.shape, dtype=value.dtype, pin_memory=True)
            self._value.copy_(value, non_blocking=True)
            self._done = torch.cuda.Event(blocking=True)
            self._done.record(torch.cuda.current_stream(value.device))
        else:
            self._value = value.clone()  # the next call may write to the same memory

    def get(self) -> NDArray[np.generic]:
        """Waits for the copy."""
        if self._done is not None:
            self._done.synchronize()
        return self._value.numpy()


@dataclass(frozen=True, slots=True)
class DecodedGroup:
    """The samples of the streams of one decode step that have the same chunk size."""

    indices: list[int]  # in the order of the step
    dropped: list[int] | None  # samples to drop at the start of each: the vocoder's delay, if it has one
    samples: Pending


@dataclass(frozen=True, slots=True)
class PendingAudio:
    """The samples of a decode step."""

    groups: list[DecodedGroup]

    def get(self) -> list[Samples]:
        """Waits for the samples; each group is copied once, because its pinned memory is reused."""
        found: dict[int, Samples] = {}
        for group in self.groups:
            rows = group.samples.get().astype(np.float32)
            kept = rows if group.dropped is None else map(_drop, rows, group.dropped)
            found |= zip(group.indices, kept, strict=True)
        return [found[i] for i in range(len(found))] if len(self.groups) > 1 else list(found.values())


def _drop(samples: Samples, count: int) -> Samples:
    return samples[count:]
