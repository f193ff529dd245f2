# SPDX-License-Identifier: Apache-2.0
"""16-bit PCM samples."""

import numpy as np
from numpy.typing import NDArray

Pcm = NDArray[np.int16]
SCALE = 32767


def to_pcm(samples: NDArray[np.float32]) -> Pcm:
    """Float samples as 16-bit PCM. Samples beyond full scale are clipped."""
    return np.rint(np.clip(samples, -1.0, 1.0) * SCALE).astype(np.int16)


def from_pcm(pcm: Pcm) -> NDArray[np.float32]:
    return pcm.astype(np.float32) / np.float32(SCALE)


def pcm_bytes(pcm: Pcm) -> bytes:
    """Little-endian bytes."""
    return pcm.astype("<i2", copy=False).tobytes()
