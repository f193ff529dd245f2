# SPDX-License-Identifier: Apache-2.0
"""Detection of the first audible sample of a stream, independent of how it is split into packets."""

import numpy as np
from numpy.typing import NDArray

from polyvox.audio.silence import SILENCE_LEVEL

WINDOW_SECONDS, HOP_SECONDS = 0.02, 0.01
MIN_WINDOWS = 2  # consecutive windows above the threshold
FULL_SCALE = 32768.0


class OnsetDetector:
    """Push 16-bit samples; `position` is the first sample of the first two consecutive loud windows, or None.

    Windows are 20 ms long with a hop of 10 ms. A window is loud if its RMS, without its mean, is -45 dBFS or more.
    """

    def __init__(self, sample_rate: int) -> None:
        self.window, self.hop = int(WINDOW_SECONDS * sample_rate), int(HOP_SECONDS * sample_rate)
        self.position: int | None = None
        self._start = 0  # of the next window, in samples of the stream
        self._loud = 0  # consecutive loud windows before it
        self._tail = np.empty(0, np.int16)

    def push(self, samples: NDArray[np.int16]) -> None:
        if self.position is not None:
            return
        pending = np.concatenate([self._tail, samples])
        count = max(0, (len(pending) - self.window) // self.hop + 1)
        if count:
            # Integer prefix sums: the sum of a window is the difference of two, however much windows overlap.
            wide = pending.astype(np.int64)
            sums, squares = (np.concatenate([[0], np.cumsum(each)]) for each in (wide, wide * wide))
            start = np.arange(count) * self.hop
            mean, power = ((prefix[start + self.window] - prefix[start]) / self.window for prefix in (sums, squares))
            for loud in power - mean * mean >= (SILENCE_LEVEL * FULL_SCALE) ** 2:
                self._loud = self._loud + 1 if loud else 0
                if self._loud == MIN_WINDOWS:
                    self.position = self._start - (MIN_WINDOWS - 1) * self.hop
                    break
                self._start += self.hop
        self._tail = pending[count * self.hop :]
