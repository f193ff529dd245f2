# SPDX-License-Identifier: Apache-2.0
"""Features of speech for the alignment: level and spectral shape of each frame."""

import numpy as np
from numpy.typing import NDArray

from polyvox.audio.samples import Samples

FRAME_SECONDS = 0.02
WINDOWS = 2  # spectra of a frame, which are averaged
WINDOW_SECONDS = 0.025
BAND_EDGES = (0, 300, 700, 1200, 1900, 2800, 4000, 5500, 7500, 11_000)  # Hz
NUM_FEATURES = len(BAND_EDGES) + 2
MIN_POWER = 1e-4
MIN_PEAK = 3.0  # log power of quiet speech: a lower level counts as silence from the start on
MIN_LEVEL, MIN_SHAPE = -12.0, -9.0
REFERENCE_WINDOW = 600  # samples: the scale of the powers

Features = NDArray[np.float32]


class SpeechFeatures:
    """Features of pushed samples, [frames, NUM_FEATURES].

    They are the level relative to the loudest frame so far, the level of each band relative to the frame, and the
    changes of the level and of the shape since the last frame.

    speed: of the speech. Frames of faster speech are shorter, so that sounds have as many frames as at speed 1.
    """

    def __init__(self, sample_rate: int, speed: float = 1.0) -> None:
        self._hop = max(1, round(FRAME_SECONDS / WINDOWS / speed * sample_rate))
        self._size = round(WINDOW_SECONDS * sample_rate)
        self._fft_size = 1 << (self._size - 1).bit_length()
        self._window = np.hanning(self._size).astype(np.float32) * np.float32(REFERENCE_WINDOW / self._size)
        frequencies = np.fft.rfftfreq(self._fft_size, 1 / sample_rate)
        edges = np.array(BAND_EDGES)[:, None]
        bands = ((frequencies >= edges[:-1]) & (frequencies < edges[1:])).astype(np.float32).T
        # Mean over the windows of a frame, of the squares of the real and of the imaginary part.
        self._bands = np.tile(bands.repeat(2, 0), (WINDOWS, 1)) / np.float32(WINDOWS)
        self._buffer = np.zeros(0, np.float32)
        self._peak = MIN_PEAK
        self._last: Features | None = None  # level and shape of the last frame

    @property
    def frame_samples(self) -> int:
        return WINDOWS * self._hop

    def push(self, samples: Samples) -> Features:
        """The frames that are complete with these samples."""
        self._buffer = np.concatenate([self._buffer, samples], dtype=np.float32)
        num_frames = (len(self._buffer) - self._size - (WINDOWS - 1) * self._hop) // self.frame_samples + 1
        if num_frames <= 0:
            return np.zeros((0, NUM_FEATURES), np.float32)
        item = self._buffer.itemsize
        shape, strides = (num_frames * WINDOWS, self._size), (self._hop * item, item)
        windows: Features = np.ndarray(shape, np.float32, self._buffer, strides=strides)
        spectra = np.fft.rfft(windows * self._window, self._fft_size).astype(np.complex64, copy=False)
        parts = spectra.view(np.float32).reshape(num_frames, -1)
        self._buffer = self._buffer[num_frames * self.frame_samples :]
        return self._features(np.square(parts) @ self._bands + np.float32(MIN_POWER))

    def finish(self) -> Features:
        """The remaining frames, with silence after the end."""
        num_missing = -len(self._buffer) % self.frame_samples
        num_frames = (len(self._buffer) + num_missing) // self.frame_samples
        padding = num_missing + self._size + (WINDOWS - 1) * self._hop - self.frame_samples
        return self.push(np.zeros(max(0, padding), np.float32))[:num_frames]

    def _features(self, powers: Features) -> Features:
        total = np.log(powers.sum(1))
        peaks = np.maximum.accumulate(np.maximum(total, self._peak))
        self._peak = float(peaks[-1])
        level = np.maximum(total - peaks, MIN_LEVEL)[:, None]
        shape = np.maximum(np.log(powers) - total[:, None], MIN_SHAPE)
        frames = np.concatenate([level, shape], 1)
        before = np.concatenate([frames[:1] if self._last is None else self._last, frames[:-1]])
        self._last = frames[-1:]
        change = frames - before
        shape_change = np.abs(change[:, 1:]).sum(1, keepdims=True) / np.float32(change.shape[1] - 1)
        return np.concatenate([frames, change[:, :1], shape_change], 1)
