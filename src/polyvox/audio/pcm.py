"""Samples as 16-bit numbers: in WAV files, on their way to a client."""

import numpy as np
from numpy.typing import NDArray

Pcm = NDArray[np.int16]
SCALE = 32767


def to_pcm(samples: NDArray[np.float32]) -> Pcm:
    """What is louder than 1 is clipped."""
    return np.rint(np.clip(samples, -1.0, 1.0) * SCALE).astype(np.int16)


def from_pcm(pcm: Pcm) -> NDArray[np.float32]:
    return pcm.astype(np.float32) / np.float32(SCALE)
