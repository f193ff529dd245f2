# SPDX-License-Identifier: Apache-2.0
"""A ring buffer in shared memory that carries 16-bit PCM from the engine's process to one server."""

import fcntl
import mmap
import os
import sys
import tempfile
from collections.abc import Sequence

import numpy as np

from polyvox.audio.pcm import NO_AUDIO, Pcm


def create_shared_memory(num_samples: int) -> int:
    """A file descriptor of unnamed memory, which is freed when the last process that has it open ends."""
    size = num_samples * np.dtype(np.int16).itemsize
    if sys.platform == "linux":
        file = os.memfd_create("polyvox-ring", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(file, size)
        # A peer that shrinks the file would crash the engine at its next write.
        fcntl.fcntl(file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    else:
        with tempfile.TemporaryFile() as unnamed:
            file = os.dup(unnamed.fileno())
        os.ftruncate(file, size)
    return file


class AudioRing:
    """One end of the ring. Positions count samples from the beginning and do not wrap.

    Each side learns the other's position from messages, so the socket orders the accesses: samples are written before
    the message that announces them, and copied out before the message that frees them.
    """

    def __init__(self, file: int) -> None:
        self.written = self.consumed = 0
        self._map = mmap.mmap(file, 0)
        self._samples: Pcm = np.frombuffer(self._map, dtype=np.int16)
        self.capacity = len(self._samples)

    @property
    def free(self) -> int:
        """Samples that can be written."""
        return self.capacity - (self.written - self.consumed)

    def write(self, parts: Sequence[Pcm]) -> None:
        """Writer: appends all parts with one copy; raises ValueError if they do not fit."""
        size = sum(map(len, parts))
        if size > self.free:
            raise ValueError(f"{size} samples do not fit into the {self.free} free ones of the ring")
        start = self.written % self.capacity
        end = start + size
        if not parts:
            return
        if end <= self.capacity:
            np.concatenate(parts, out=self._samples[start:end])
        else:
            joined, first = np.concatenate(parts), self.capacity - start
            self._samples[start:] = joined[:first]
            self._samples[: size - first] = joined[first:]
        self.written += size

    def release(self, position: int) -> None:
        """Writer: the reader has copied everything before this position."""
        if position > self.written:
            raise ValueError(f"position {position} is beyond the {self.written} samples written")
        self.consumed = max(self.consumed, position)

    def read(self, num_samples: int) -> Pcm:
        """Reader: a copy of the next samples."""
        if num_samples > self.capacity:
            raise ValueError(f"{num_samples} samples exceed the ring's capacity of {self.capacity}")
        start = self.consumed % self.capacity
        end = start + num_samples
        if end <= self.capacity:
            copied = self._samples[start:end].copy()
        else:
            copied = np.concatenate((self._samples[start:], self._samples[: end - self.capacity]))
        self.consumed += num_samples  # the writer may overwrite them from now on
        return copied

    def close(self) -> None:
        """Unmaps the memory. Idempotent."""
        self._samples = NO_AUDIO
        self._map.close()
