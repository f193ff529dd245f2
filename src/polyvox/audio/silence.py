# SPDX-License-Identifier: Apache-2.0
"""Detect and trim silence."""

import numpy as np

from polyvox.audio.samples import Samples

SILENCE_DBFS = -45.0  # RMS; `polyvox bench` uses the same level
SILENCE_LEVEL = 10 ** (SILENCE_DBFS / 20)
WINDOW_SECONDS = 0.02
PREROLL_WINDOWS = 1  # kept before the onset, so that it is not cut


def window_samples(sample_rate: int) -> int:
    return int(WINDOW_SECONDS * sample_rate)


def find_onset(samples: Samples, sample_rate: int, level: float = SILENCE_LEVEL) -> int | None:
    """The start of the audio: one window before the first that is not silent. None if all windows are silent."""
    window = window_samples(sample_rate)
    for start in range(0, len(samples), window):
        part = samples[start : start + window]
        if float(np.sqrt(np.mean(part * part))) >= level:
            return max(0, start - PREROLL_WINDOWS * window)
    return None


def trim_silence(samples: Samples, sample_rate: int, level: float = SILENCE_LEVEL) -> Samples:
    """The samples without silence at both ends; empty if all is silent."""
    start, back = (find_onset(part, sample_rate, level) for part in (samples, samples[::-1]))
    return samples[:0] if start is None or back is None else samples[start : len(samples) - back]
