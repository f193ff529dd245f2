# SPDX-License-Identifier: Apache-2.0
"""16-bit PCM samples, and their conversion from and to float samples."""

import numpy as np
from numpy.typing import NDArray

from polyvox.audio.samples import Samples

Pcm = NDArray[np.int16]
Audio = NDArray[np.float32 | np.int16]  # float samples, or the same as PCM
SCALE = 32767
NO_AUDIO: Pcm = np.zeros(0, np.int16)


def to_pcm(samples: Samples) -> Pcm:
    """Float samples as 16-bit PCM. Samples beyond full scale are clipped; a tie is rounded to the even number."""
    return np.rint(np.clip(samples, -1.0, 1.0) * SCALE).astype(np.int16)


def from_pcm(pcm: Pcm) -> Samples:
    """`to_pcm` of the result is the same PCM."""
    return pcm.astype(np.float32) / np.float32(SCALE)


def as_pcm(audio: Audio) -> Pcm:
    """The audio as PCM. It is not copied if it is PCM already."""
    return audio if audio.dtype == np.int16 else to_pcm(audio)  # type: ignore[return-value, arg-type]


def as_samples(audio: Audio) -> Samples:
    """The audio as float samples. It is not copied if it is already in floats."""
    return from_pcm(audio) if audio.dtype == np.int16 else audio  # type: ignore[return-value, arg-type]


def pcm_bytes(pcm: Pcm) -> bytes:
    """Little-endian bytes."""
    return pcm.astype("<i2", copy=False).tobytes()
