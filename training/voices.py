# SPDX-License-Identifier: Apache-2.0
"""Voice statistics: median pitch and the distance of long-term spectra."""

import itertools

import numpy as np

FRAME_SECONDS, HOP_SECONDS = 0.04, 0.01
MIN_PITCH, MAX_PITCH = 60, 400  # Hz
VOICED = 0.5  # minimum autocorrelation of a voiced frame, relative to lag 0
BANDS, CEPSTRA = 40, 20
LOUD = 0.1  # minimum level of a frame, relative to the loudest


def median_pitch(pieces: list[np.ndarray], rate: int) -> float:
    """Median pitch over voiced frames, by autocorrelation."""
    size = int(FRAME_SECONDS * rate)
    first, last = rate // MAX_PITCH, rate // MIN_PITCH
    found: list[float] = []
    for samples in pieces:
        for frame in _frames(samples, rate):
            spectrum = np.fft.rfft(frame - frame.mean(), 2 * size)
            likeness = np.fft.irfft(np.abs(spectrum) ** 2)[:size]
            likeness /= likeness[0] * (1 - np.arange(size) / size) + 1e-9
            lag = first + int(likeness[first:last].argmax())
            if likeness[lag] > VOICED:
                found.append(rate / lag)
    return float(np.median(found))


def voice_distance(voices: list[list[np.ndarray]], rate: int) -> dict[str, float]:
    """Cosine distance of mean cepstra between two voices, and between halves of the recordings of one voice."""
    statistics = [[_cepstral_statistics(half, rate) for half in (pieces[::2], pieces[1::2])] for pieces in voices]
    between = np.mean([_distance(a, b) for a in statistics[0] for b in statistics[1]])
    within = np.mean([_distance(*halves) for halves in statistics])
    return {"distance between voices": float(between), "distance within voices": float(within)}


def _frames(samples: np.ndarray, rate: int) -> np.ndarray:
    size, hop = int(FRAME_SECONDS * rate), int(HOP_SECONDS * rate)
    frames = np.lib.stride_tricks.sliding_window_view(samples, size)[::hop]
    energy = np.sqrt((frames**2).mean(1))
    return frames[energy > LOUD * energy.max()]


def _cepstral_statistics(pieces: list[np.ndarray], rate: int) -> np.ndarray:
    """Mean and standard deviation of cepstra over loud frames, without coefficient 0."""
    rows = np.concatenate([_frames(samples, rate) for samples in pieces])
    power = np.abs(np.fft.rfft(rows * np.hanning(rows.shape[1]))) ** 2
    edges = np.unique(np.geomspace(3, power.shape[1], BANDS + 1).astype(int))
    bands = np.log(np.stack([power[:, a:b].mean(1) for a, b in itertools.pairwise(edges)], 1) + 1e-8)
    count = bands.shape[1]
    basis = np.cos(np.pi * np.outer(np.arange(count) + 0.5, np.arange(1, CEPSTRA + 1)) / count)
    cepstra = bands @ basis
    return np.concatenate([cepstra.mean(0), cepstra.std(0)])


def _distance(a: np.ndarray, b: np.ndarray) -> float:
    return float(1 - a @ b / np.linalg.norm(a) / np.linalg.norm(b))
