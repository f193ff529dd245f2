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
        self._rest = np.empty(0, np.float64)

    def push(self, samples: NDArray[np.int16]) -> None:
        if self.position is not None:
            return
        sound = np.concatenate([self._rest, samples.astype(np.float64) / FULL_SCALE])
        count = max(0, (len(sound) - self.window) // self.hop + 1)
        if count:
            windows = np.lib.stride_tricks.sliding_window_view(sound, self.window)[:: self.hop][:count]
            for loud in windows.std(axis=1) >= LEVEL:
                self._loud = self._loud + 1 if loud else 0
                if self._loud == IN_A_ROW:
                    self.position = self._start - (IN_A_ROW - 1) * self.hop
                    break
                self._start += self.hop
        self._rest = sound[count * self.hop :]
