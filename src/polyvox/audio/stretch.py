"""Faster or slower speech at the same pitch, while it goes by.

WSOLA (waveform similarity overlap-add, Verhelst and Roelands 1993): the output is made of blocks of the input, one
fading into the next. A block is taken near the place that the speed asks for, there where it looks most like the
natural continuation of the block before, so that periods of the voice join.
"""

import numpy as np

from polyvox.audio.clip import Samples
from polyvox.errors import InvalidRequest

SLOWEST, FASTEST = 0.25, 4.0
BLOCK_SECONDS = 0.02  # two make a window: more than a period of the deepest voice
REACH_SECONDS = 0.01  # to both sides: together a period of 50 Hz
SILENCE = 1e-8  # energy of a sample below which nothing is compared


class Stretcher:
    """Push samples, get them at another speed: round(n / speed) in all, the same for any chunking. It holds back some
    50 ms. At speed 1 the samples go through untouched."""

    def __init__(self, speed: float, sample_rate: int) -> None:
        if not SLOWEST <= speed <= FASTEST:
            raise InvalidRequest("speed", speed, f"must be between {SLOWEST:g} and {FASTEST:g}")
        self.speed = speed
        self._block = max(1, round(BLOCK_SECONDS * sample_rate))
        self._reach = round(REACH_SECONDS * sample_rate)
        self._rise = (0.5 - 0.5 * np.cos(np.pi * (np.arange(self._block) + 0.5) / self._block)).astype(np.float32)
        self._kept = np.zeros(0, np.float32)  # the input from _start on
        self._start = 0
        self._taken = 0
        self._blocks = 0  # made
        self._follows = 0  # where the last block would go on
        self._ready = np.zeros(0, np.float32)  # made and not given out: no more goes than was put in
        self._given = 0

    def push(self, samples: Samples) -> Samples:
        if self.speed == 1.0:
            return samples
        self._kept = np.concatenate([self._kept, samples])
        self._taken += len(samples)
        made = []
        while max(self._wanted() + self._reach, self._follows) + self._block <= self._taken:
            made.append(self._next())
        done = min(self._follows, self._first()) - self._start
        self._kept, self._start = self._kept[done:], self._start + done
        return self._give(made, int(self._taken / self.speed))

    def finish(self) -> Samples:
        """The end of the speech that was still held back."""
        if self.speed == 1.0:
            return np.zeros(0, np.float32)
        length = round(self._taken / self.speed)
        self._kept = np.pad(self._kept, (0, 2 * self._block))
        made = []
        while self._blocks * self._block < length:
            made.append(self._next())
        return self._give(made, length)

    def _give(self, made: list[Samples], up_to: int) -> Samples:
        ready = np.concatenate([self._ready, *made])
        given, self._ready = ready[: up_to - self._given], ready[up_to - self._given :]
        self._given += len(given)
        return given

    def _wanted(self) -> int:
        """Where the next block would be taken if it joined everywhere: it is heard best at its end, where it has risen
        and the one after it has not."""
        return round((self._blocks + 1) * self._block * self.speed) - self._block

    def _first(self) -> int:
        """The first place where the next block may be taken; past the last block there is no speech."""
        return max(0, min(self._wanted() - self._reach, self._taken - self._block))

    def _next(self) -> Samples:
        follows = self._input(self._follows, self._block)
        first = self._first()
        last = max(first, min(self._wanted() + self._reach, self._taken - self._block))
        at = first + _likest(follows, self._input(first, last - first + self._block))
        block = follows + self._rise * (self._input(at, self._block) - follows)
        self._follows = at + self._block
        self._blocks += 1
        return block

    def _input(self, at: int, length: int) -> Samples:
        return self._kept[at - self._start : at - self._start + length]


def _likest(pattern: Samples, among: Samples) -> int:
    """The place in `among` whose samples are most like the pattern: the greatest normalised correlation."""
    likeness = np.correlate(among, pattern)
    energy = np.cumsum(np.concatenate([[0.0], among.astype(np.float64) ** 2]))
    energy = energy[len(pattern) :] - energy[: -len(pattern)]
    return int(np.argmax(likeness / np.sqrt(energy + SILENCE * len(pattern))))
