# SPDX-License-Identifier: Apache-2.0
"""Recordings by formula, for the encoders. Imports only NumPy: both environments compute the same samples.

They are rounded to 16 bits, as recordings are, so that the last bit of a sine on another machine makes no difference;
all but digital silence have a noise floor, without which the logarithm of an empty band is the rounding of an FFT.
"""

import numpy as np
from numpy.typing import NDArray

RATE = 24_000
FLOOR = 1e-3


def _noise(seed: int, count: int) -> NDArray[np.float64]:
    return np.random.Generator(np.random.PCG64(seed)).random(count) * 2 - 1


def signal(name: str, count: int) -> NDArray[np.float32]:
    """`count` samples of one of the signals below."""
    t = np.arange(count) / RATE
    if name == "noise":
        x = 0.4 * _noise(1, count)
    elif name == "tones":
        x = np.sum([0.15 * np.sin(2 * np.pi * hz * t) for hz in (220.0, 555.0, 3_100.0)], axis=0)
    elif name == "chirp":
        x = 0.5 * np.sin(2 * np.pi * (80.0 * t + 1_500.0 * t * t))
    elif name == "vowels":
        # Similar to a voice: harmonics of a gliding pitch under two moving formants, in syllables.
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
