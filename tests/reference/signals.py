"""Recordings by formula, for the encoders. No imports beyond NumPy: both sides make the same samples.

They are rounded to 16 bits, as recordings are, so that a sine's last bit on another machine makes no difference; and
all but digital silence have a floor of noise, without which the logarithm of an empty band is the rounding of an FFT.
"""

import numpy as np
from numpy.typing import NDArray

RATE = 24_000
FLOOR = 1e-3


def _noise(seed: int, count: int) -> NDArray[np.float64]:
    return np.random.Generator(np.random.PCG64(seed)).random(count) * 2 - 1


def signal(name: str, count: int) -> NDArray[np.float32]:
    """So many samples of one of the kinds below."""
    t = np.arange(count) / RATE
    if name == "noise":
        x = 0.4 * _noise(1, count)
    elif name == "tones":
        x = np.sum([0.15 * np.sin(2 * np.pi * hz * t) for hz in (220.0, 555.0, 3_100.0)], axis=0)
    elif name == "chirp":
        x = 0.5 * np.sin(2 * np.pi * (80.0 * t + 1_500.0 * t * t))
    elif name == "vowels":
        # A voice of sorts: harmonics of a gliding pitch under two wandering formants, in syllables.
        pitch = 2 * np.pi * np.cumsum(120.0 + 25.0 * np.sin(2 * np.pi * 0.7 * t)) / RATE
        x = np.zeros(count)
        for k in range(1, 24):
            hz = 120.0 * k
            formants = (500 + 200 * np.sin(2 * np.pi * 1.1 * t), 1_500 + 500 * np.sin(2 * np.pi * 0.6 * t))
            x += sum(np.exp(-(((hz - f) / 180.0) ** 2)) for f in formants) * np.sin(k * pitch)
        x *= 0.2 * np.clip(np.sin(2 * np.pi * 2.3 * t), 0, 1)
    elif name == "silence":
        return np.zeros(count, np.float32)
    else:
        raise KeyError(name)
    return (np.rint((x + FLOOR * _noise(2, count)) * 32767) / 32768).astype(np.float32)
