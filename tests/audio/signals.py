# SPDX-License-Identifier: Apache-2.0
"""Test signals, and FFmpeg as the reference decoder."""

import io
from collections.abc import Iterator

import av
import numpy as np
from numpy.typing import NDArray

from polyvox.audio.samples import Samples

RAW = {"pcm": "s16le", "ulaw": "mulaw", "alaw": "alaw"}


def vowel(seconds: float, sample_rate: int, pitch: float = 120.0) -> Samples:
    """Harmonics of one pitch under three formants."""
    time = np.arange(round(seconds * sample_rate)) / sample_rate
    sound = np.zeros(len(time))
    for harmonic in np.arange(pitch, min(3800, 0.45 * sample_rate), pitch):
        level = sum(1 / (1 + ((harmonic - formant) / 120) ** 2) for formant in (700, 1200, 2600))
        sound += level * np.sin(2 * np.pi * harmonic * time + harmonic)
    return (0.5 * sound / np.abs(sound).max(initial=1e-9)).astype(np.float32)


def speech(seconds: float, sample_rate: int = 24_000) -> Samples:
    """A vowel with an amplitude modulation of 4 Hz, the rate of syllables."""
    sound = vowel(seconds, sample_rate)
    time = np.arange(len(sound)) / sample_rate
    return (sound * (0.55 - 0.45 * np.cos(2 * np.pi * 4 * time))).astype(np.float32)


def decoded(data: bytes, format: str, sample_rate: int = 24_000) -> tuple[Samples, int]:
    """The bytes decoded by FFmpeg, and their rate; raw formats are given it."""
    raw = RAW.get(format)
    if raw and not data:
        return np.zeros(0, np.float32), sample_rate
    options = {"sample_rate": str(sample_rate)} if raw else {}
    with av.open(io.BytesIO(data), "r", format=raw or ("aac" if format == "aac" else None), options=options) as file:
        stream = file.streams.audio[0]
        parts = [_float(frame.to_ndarray()) for frame in file.decode(stream)]
        return np.concatenate([np.zeros(0, np.float32), *parts]), stream.rate


def chunks(samples: Samples, sizes: list[int]) -> Iterator[Samples]:
    """The samples in chunks of these sizes, repeated."""
    at = turn = 0
    while at < len(samples):
        size = sizes[turn % len(sizes)]
        yield samples[at : at + size]
        at, turn = at + size, turn + 1


def _float(frame: NDArray[np.generic]) -> Samples:
    scale = 1 / 32768 if frame.dtype == np.int16 else 1.0
    return np.multiply(frame.reshape(-1), scale, dtype=np.float32)
