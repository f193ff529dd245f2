# SPDX-License-Identifier: Apache-2.0
"""Streaming time stretching: faster or slower speech at the same pitch.

WSOLA (waveform similarity overlap-add, Verhelst and Roelands 1993): the output is a sequence of input blocks that are
cross-faded. Each block is taken near the position that the speed requires, at the offset where it is most similar to
the natural continuation of the previous block, so that pitch periods align. docs/dependencies.md compares it with
FFmpeg's atempo filter.
"""

import numpy as np

from polyvox.audio.samples import Samples
from polyvox.errors import InvalidRequest

MIN_SPEED, MAX_SPEED = 0.25, 4.0
BLOCK_SECONDS = 0.02  # half a window; a window is longer than a pitch period of the lowest voice
SEARCH_SECONDS = 0.01  # to both sides; together one period of 50 Hz
ENERGY_FLOOR = 1e-8  # per sample; below it correlations are treated as 0


def check_speed(speed: float) -> None:
    """Raises InvalidRequest for a speed that is no number or out of range."""
    if isinstance(speed, bool) or not isinstance(speed, int | float | np.number) or not MIN_SPEED <= speed <= MAX_SPEED:
        raise InvalidRequest("speed", speed, f"must be between {MIN_SPEED:g} and {MAX_SPEED:g}")


class TimeStretcher:
    """Changes the speed of pushed samples. The output has round(n / speed) samples and does not depend on the chunk
    sizes. The delay is about 50 ms. At speed 1 samples pass through unchanged."""

    def __init__(self, speed: float, sample_rate: int) -> None:
        check_speed(speed)
        self.speed = speed
        self._block = max(1, round(BLOCK_SECONDS * sample_rate))
        self._search = round(SEARCH_SECONDS * sample_rate)
        self._fade_in = (0.5 - 0.5 * np.cos(np.pi * (np.arange(self._block) + 0.5) / self._block)).astype(np.float32)
        self._buffer = np.zeros(0, np.float32)  # input from _buffer_start on
        self._buffer_start = 0
        self._num_in = 0
        self._num_blocks = 0
        self._continuation = 0  # input position at which the last block would continue
        self._ready = np.zeros(0, np.float32)  # output that push() may not return yet
        self._num_out = 0

    def push(self, samples: Samples) -> Samples:
        if self.speed == 1.0:
            return samples
        self._buffer = np.concatenate([self._buffer, samples])
        self._num_in += len(samples)
        blocks = []
        while max(self._target() + self._search, self._continuation) + self._block <= self._num_in:
            blocks.append(self._next_block())
        consumed = min(self._continuation, self._search_start()) - self._buffer_start
        self._buffer, self._buffer_start = self._buffer[consumed:], self._buffer_start + consumed
        return self._take(blocks, int(self._num_in / self.speed))

    def finish(self) -> Samples:
        """The remaining samples."""
        if self.speed == 1.0:
            return np.zeros(0, np.float32)
        length = round(self._num_in / self.speed)
        self._buffer = np.pad(self._buffer, (0, 2 * self._block))
        blocks = []
        while self._num_blocks * self._block < length:
            blocks.append(self._next_block())
        return self._take(blocks, length)

    def _take(self, blocks: list[Samples], up_to: int) -> Samples:
        """Output up to a position; the rest stays ready."""
        ready = np.concatenate([self._ready, *blocks])
        taken, self._ready = ready[: up_to - self._num_out], ready[up_to - self._num_out :]
        self._num_out += len(taken)
        return taken

    def _target(self) -> int:
        """The input position that the speed requires for the next block, measured at the end of its fade-in."""
        return round((self._num_blocks + 1) * self._block * self.speed) - self._block

    def _search_start(self) -> int:
        return max(0, min(self._target() - self._search, self._num_in - self._block))

    def _next_block(self) -> Samples:
        continuation = self._input(self._continuation, self._block)
        first = self._search_start()
        last = max(first, min(self._target() + self._search, self._num_in - self._block))
        start = first + _best_match(continuation, self._input(first, last - first + self._block))
        block = continuation + self._fade_in * (self._input(start, self._block) - continuation)
        self._continuation = start + self._block
        self._num_blocks += 1
        return block

    def _input(self, start: int, length: int) -> Samples:
        offset = start - self._buffer_start
        return self._buffer[offset : offset + length]


def _best_match(pattern: Samples, candidates: Samples) -> int:
    """The offset in `candidates` with the highest normalised correlation."""
    correlation = np.correlate(candidates, pattern)
    energy = np.cumsum(np.concatenate([[0.0], candidates.astype(np.float64) ** 2]))
    energy = energy[len(pattern) :] - energy[: -len(pattern)]
    return int(np.argmax(correlation / np.sqrt(energy + ENERGY_FLOOR * len(pattern))))
