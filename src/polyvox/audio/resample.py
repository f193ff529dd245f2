"""Another sample rate, while the sound goes by."""

import numpy as np
import soxr

from polyvox.audio.clip import Samples
from polyvox.errors import InvalidRequest

QUALITY = "HQ"  # 20 bits; it holds back some 40 ms, 75 ms on the way down to 8 kHz
LOWEST_RATE, HIGHEST_RATE = 4_000, 192_000


class Resampler:
    """Push samples at one rate, get them at another. Any chunking gives the same sound, and exactly
    round(n × out / in) samples of it."""

    def __init__(self, in_rate: int, out_rate: int) -> None:
        for rate in (in_rate, out_rate):
            if not LOWEST_RATE <= rate <= HIGHEST_RATE:
                raise InvalidRequest("sample_rate", rate, f"must be between {LOWEST_RATE} and {HIGHEST_RATE}")
        self.in_rate, self.out_rate = in_rate, out_rate
        self._stream = soxr.ResampleStream(in_rate, out_rate, 1, dtype="float32", quality=QUALITY)
        self._taken = self._given = 0

    def push(self, samples: Samples) -> Samples:
        if not len(samples):
            return np.zeros(0, np.float32)
        self._taken += len(samples)
        out = self._stream.resample_chunk(np.ascontiguousarray(samples, np.float32))
        self._given += len(out)
        return out

    def finish(self) -> Samples:
        """The end of the sound that was still held back."""
        wanted = (2 * self._taken * self.out_rate + self.in_rate) // (2 * self.in_rate) - self._given
        rest = self._stream.resample_chunk(np.zeros(0, np.float32), last=True)[:wanted]
        self._given += wanted
        return np.pad(rest, (0, wanted - len(rest)))


def resample(samples: Samples, in_rate: int, out_rate: int) -> Samples:
    """All of it at once."""
    if in_rate == out_rate:
        return samples
    resampler = Resampler(in_rate, out_rate)
    return np.concatenate([resampler.push(samples), resampler.finish()])
