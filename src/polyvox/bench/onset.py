"""Where a stream becomes audible, found while it arrives and whatever its chunks are."""

import numpy as np
from numpy.typing import NDArray

WINDOW_SECONDS, HOP_SECONDS = 0.02, 0.01
LEVEL = 10 ** (-45 / 20)  # -45 dBFS
IN_A_ROW = 2
FULL_SCALE = 32768.0


class Onset:
    """Push 16-bit samples; `position` is the first sample of the first of two loud windows in a row, or None.

    Windows are 20 ms long and begin every 10 ms; each is loud where its RMS without its mean is -45 dBFS or more.
    """

    def __init__(self, sample_rate: int) -> None:
        self.window, self.hop = int(WINDOW_SECONDS * sample_rate), int(HOP_SECONDS * sample_rate)
        self.position: int | None = None
        self._start = 0  # of the next window, in samples of the stream
        self._loud = 0  # windows in a row before it
        self._rest = np.empty(0, np.int16)

    def push(self, samples: NDArray[np.int16]) -> None:
        if self.position is not None:
            return
        sound = np.concatenate([self._rest, samples])
        count = max(0, (len(sound) - self.window) // self.hop + 1)
        if count:
            # Running sums, in whole numbers: a window is the difference of two, however much the windows overlap.
            wide = sound.astype(np.int64)
            sums, squares = (np.concatenate([[0], np.cumsum(each)]) for each in (wide, wide * wide))
            start = np.arange(count) * self.hop
            mean, power = ((run[start + self.window] - run[start]) / self.window for run in (sums, squares))
            for loud in power - mean * mean >= (LEVEL * FULL_SCALE) ** 2:
                self._loud = self._loud + 1 if loud else 0
                if self._loud == IN_A_ROW:
                    self.position = self._start - (IN_A_ROW - 1) * self.hop
                    break
                self._start += self.hop
        self._rest = sound[count * self.hop :]
