# SPDX-License-Identifier: Apache-2.0
"""Results of a call on their way to the host."""

from concurrent.futures import Future
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polyvox.audio.pcm import Audio


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

    @property
    def ready(self) -> bool:
        """Whether `get` returns without waiting."""
        return self._done is None or self._done.query()

    def get(self) -> NDArray[np.generic]:
        """Waits for the copy."""
        if self._done is not None:
            self._done.synchronize()
        return self._value.numpy()


class PendingCall:
    """The result of a call that another thread computes."""

    def __init__(self, call: "Future[Pending]") -> None:
        self._call = call

    @property
    def ready(self) -> bool:
        """Whether `get` returns or raises without waiting."""
        return self._call.done() and (self._call.exception() is not None or self._call.result().ready)

    def get(self) -> NDArray[np.generic]:
        """Waits for the result; raises the error of the call."""
        return self._call.result().get()


@dataclass(frozen=True, slots=True)
class DecodedGroup:
    """The samples of the streams of one decode step that have the same chunk size."""

    indices: list[int]  # in the order of the step
    dropped: list[int] | None  # samples to drop at the start of each: the vocoder's delay, if it has one
    samples: Pending | PendingCall
    pcm: bool  # rows as `quantize` returns them, instead of float samples


@dataclass(frozen=True, slots=True)
class PendingAudio:
    """The samples of a decode step."""

    groups: list[DecodedGroup]

    @property
    def ready(self) -> bool:
        """Whether `get` returns without waiting."""
        return all(group.samples.ready for group in self.groups)

    def get(self) -> list[Audio | None]:
        """Waits for the audio. Rows of PCM are views of the memory that the device wrote; None: not finite."""
        found: dict[int, Audio | None] = {}
        for group in self.groups:
            rows = group.samples.get()
            audio: list[Audio | None]
            if group.pcm:
                audio = list(rows[:, :-1])
                if (flags := rows[:, -1]).any():
                    audio = [None if flag else row for row, flag in zip(audio, flags, strict=True)]
            else:
                audio = list(rows.astype(np.float32))
            if group.dropped is not None:
                audio = [None if row is None else row[count:] for row, count in zip(audio, group.dropped, strict=True)]
            if len(self.groups) == 1:
                return audio
            found |= zip(group.indices, audio, strict=True)
        return [found[i] for i in range(len(found))]
