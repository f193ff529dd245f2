"""Where sound begins."""

import numpy as np

from polyvox.audio.clip import Samples

WINDOW_SECONDS = 0.02
LEVEL = 10 ** (-45 / 20)  # -45 dBFS, as the benchmark hears it
KEPT_WINDOWS = 1  # before the first sound, so that no onset is cut


def window_of(sample_rate: int) -> int:
    return int(WINDOW_SECONDS * sample_rate)


def first_sound(samples: Samples, sample_rate: int, level: float = LEVEL) -> int | None:
    """The sample to begin with, a window before the first that is not silent; None where all are."""
    window = window_of(sample_rate)
    for start in range(0, len(samples), window):
        part = samples[start : start + window]
        if float(np.sqrt(np.mean(part * part))) >= level:
            return max(0, start - KEPT_WINDOWS * window)
    return None


def trimmed(samples: Samples, sample_rate: int, level: float = LEVEL) -> Samples:
    """Without the silence at both ends; nothing where there is no sound."""
    start, back = (first_sound(part, sample_rate, level) for part in (samples, samples[::-1]))
    return samples[:0] if start is None or back is None else samples[start : len(samples) - back]
