"""The way of samples from the engine's process to one server: memory that both see, written and read in order."""

import mmap
import os
import sys
import tempfile

import numpy as np

from polyvox.audio.clip import Samples


def shared_file(samples: int) -> int:
    """A file descriptor of memory for so many samples.

    It has no name: nothing is left of it once nobody holds it, however its holders ended.
    """
    if sys.platform == "linux":
        file = os.memfd_create("polyvox-ring")
    else:
        with tempfile.TemporaryFile() as unnamed:
            file = os.dup(unnamed.fileno())
    os.ftruncate(file, samples * np.dtype(np.float32).itemsize)
    return file


class AudioRing:
    """One end of the memory. Positions count samples from the beginning and do not wrap.

    Each side learns the other's position from messages, so that the socket, not the memory, gives the order:
    samples are in place before the message that tells of them, and copied out before the one that frees them.
    """

    def __init__(self, file: int) -> None:
        self.written = self.taken = 0
        self._map = mmap.mmap(file, 0)
        self._samples: Samples = np.frombuffer(self._map, dtype=np.float32)
        self.capacity = len(self._samples)

    @property
    def room(self) -> int:
        return self.capacity - (self.written - self.taken)

    def write(self, added: Samples) -> None:
        """The writer's: adds samples, for which there must be room."""
        if len(added) > self.room:
            raise ValueError(f"{len(added)} samples do not fit: the ring has room for {self.room}")
        at = self.written % self.capacity
        before = min(len(added), self.capacity - at)
        self._samples[at : at + before] = added[:before]
        if before < len(added):
            self._samples[: len(added) - before] = added[before:]
        self.written += len(added)

    def release(self, taken: int) -> None:
        """The writer's: the reader has copied everything before this position."""
        if taken > self.written:
            raise ValueError(f"position {taken} was never written: the ring is at {self.written}")
        self.taken = max(self.taken, taken)

    def read(self, samples: int) -> Samples:
        """The reader's: a copy of the next samples."""
        at = self.taken % self.capacity
        before = min(samples, self.capacity - at)
        copied = np.concatenate((self._samples[at : at + before], self._samples[: samples - before]))
        self.taken += samples  # only now may the writer use the place again
        return copied

    def close(self) -> None:
        """Lets go of the memory; any number of times."""
        self._samples = np.empty(0, np.float32)
        self._map.close()
