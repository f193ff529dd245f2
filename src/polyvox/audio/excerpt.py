# SPDX-License-Identifier: Apache-2.0
"""The best excerpt of a recording that is too long."""

import numpy as np

from polyvox.audio.samples import Samples
from polyvox.audio.silence import SILENCE_LEVEL, trim_silence, window_samples

MIN_PAUSE_SECONDS = 0.1  # an excerpt starts and ends in a pause of this length, if it can
CLIPPED_LEVEL = 0.99  # of full scale; a window with samples above it may be clipped


def fit_recording(samples: Samples, sample_rate: int, max_seconds: float) -> tuple[Samples, str | None]:
    """A recording of at most `max_seconds`, and a notice if speech was cut off."""
    max_samples = round(max_seconds * sample_rate)
    peak = float(np.abs(samples).max(initial=0.0))
    if len(samples) <= max_samples or not 0.0 < peak < np.inf:  # silence, NaN and infinity are rejected later
        return samples, None
    samples = trim_silence(samples, sample_rate, SILENCE_LEVEL * peak)
    if len(samples) <= max_samples:
        return samples, None
    best = trim_silence(_best_excerpt(samples, sample_rate, max_samples), sample_rate, SILENCE_LEVEL * peak)
    seconds, best_seconds = len(samples) / sample_rate, len(best) / sample_rate
    return best, f"The recording has {seconds:.1f} s of speech; its best {best_seconds:.1f} s are used."


def _best_excerpt(samples: Samples, sample_rate: int, max_samples: int) -> Samples:
    """The part with the most windows of speech that is not clipped, from pause to pause."""
    size = window_samples(sample_rate)
    windows = samples[: len(samples) // size * size].reshape(-1, size)
    rms = np.sqrt(np.mean(windows * windows, axis=1))
    peaks = np.abs(windows).max(axis=1)
    is_speech = rms >= max(SILENCE_LEVEL * float(peaks.max()), 0.1 * float(np.percentile(rms, 90)))
    is_good = is_speech & (peaks < CLIPPED_LEVEL)
    num_windows = max_samples // size
    totals = np.concatenate([[0], np.cumsum(is_good)])
    pauses = _pause_positions(~is_speech, round(MIN_PAUSE_SECONDS * sample_rate / size))
    starts = np.unique(np.concatenate([[0], pauses[pauses < len(windows) - num_windows // 2]]))
    # From each start the last pause within the limit; without one in its second half, the limit itself.
    limits = np.minimum(starts + num_windows, len(windows))
    found = np.searchsorted(pauses, limits, side="right") - 1
    last = np.where(found >= 0, pauses[np.maximum(found, 0)], 0) if len(pauses) else np.zeros_like(starts)
    ends = np.where((last > starts + num_windows // 2) & (limits < len(windows)), last, limits)
    best = int(np.argmax(totals[ends] - totals[starts]))
    return samples[starts[best] * size : ends[best] * size]


def _pause_positions(is_silent: np.ndarray, min_windows: int) -> np.ndarray:
    """The middle windows of pauses."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], is_silent, [False]]).astype(np.int8)))
    starts, ends = edges[::2], edges[1::2]
    is_long = ends - starts >= max(1, min_windows)
    return (starts[is_long] + ends[is_long]) // 2
