# SPDX-License-Identifier: Apache-2.0
"""Collects decoded samples until they are delivered as one chunk, and trims leading silence."""

from dataclasses import dataclass

import numpy as np

from polyvox.audio.pcm import NO_AUDIO, Audio, as_samples
from polyvox.audio.silence import find_onset, window_samples
from polyvox.engine.interface import Chunk, FirstChunkTimes


@dataclass(slots=True, eq=False)
class BufferedChunk:
    """A chunk as it was decoded: its parts may be views of memory that all streams of a step share."""

    parts: list[Audio]
    size: int  # samples
    index: int
    final: bool
    times: FirstChunkTimes | None = None

    def own(self) -> None:
        """Moves the samples to memory of their own, unless they are there already."""
        if len(self.parts) != 1:
            self.parts = [np.concatenate(self.parts) if self.parts else NO_AUDIO]
        elif self.parts[0].base is not None:
            self.parts = [self.parts[0].copy()]

    def owned(self) -> Chunk:
        """The chunk in memory of its own."""
        self.own()
        return Chunk(self.parts[0], self.index, self.final, self.times)


class ChunkAssembler:
    """The samples of one stream that are not delivered yet."""

    def __init__(self, sample_rate: int, trim_silence: bool) -> None:
        self.trims = trim_silence  # until the first sound is delivered
        self.parts: list[Audio] = []  # `add` appends; so may a caller, while nothing is trimmed
        self._sample_rate = sample_rate
        self._has_sound = False

    @property
    def size(self) -> int:
        """Samples."""
        return sum(map(len, self.parts))

    @property
    def silent(self) -> bool:
        """All samples so far are leading silence, which is not delivered."""
        return self.trims and not self._has_sound

    def add(self, samples: Audio) -> None:
        """Adds samples, which may be a view of shared memory."""
        self.parts.append(samples)
        if self.trims and not self._has_sound:
            self._trim()

    def own_last(self) -> None:
        """Copies the samples added last, so that the memory of a whole step is not kept for them."""
        self.parts[-1] = self.parts[-1].copy()

    def take(self, index: int, final: bool) -> BufferedChunk:
        """Removes all samples as a chunk; an empty one if they are silent."""
        parts, size = ([], 0) if self.silent else (self.parts, self.size)
        self.trims = False
        self.clear()
        return BufferedChunk(parts, size, index, final)

    def clear(self) -> None:
        self.parts = []

    def _trim(self) -> None:
        samples = np.concatenate(self.parts)
        start = find_onset(as_samples(samples), self._sample_rate)
        self._has_sound = start is not None
        # Of silence the last window is kept, because the next sound may begin within it.
        samples = samples[start if start is not None else -window_samples(self._sample_rate) :]
        self.parts = [samples]
