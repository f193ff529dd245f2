# SPDX-License-Identifier: Apache-2.0
"""Loudness after EBU R 128, measured by FFmpeg's ebur128 filter."""

from fractions import Fraction

import numpy as np

from polyvox.audio.samples import Samples

TARGET_LUFS = -23.0  # the programme level of EBU R 128; it leaves headroom for the peaks of speech
SILENCE_LUFS = -70.0  # the absolute gate: what the filter reports for silence
MIN_SECONDS = 0.4  # one gating block; shorter audio has no integrated loudness
MAX_GAIN_DB = 30.0
LIMITER_KNEE = 0.8  # of full scale: peaks above it are compressed


def integrated_loudness(samples: Samples, sample_rate: int) -> float | None:
    """The integrated loudness in LUFS, which ignores pauses. None for silence.

    Audio shorter than a gating block is repeated until it fills one.
    """
    import av  # takes 0.1 s to import

    if not samples.any():
        return None
    shortest = int(np.ceil(MIN_SECONDS * sample_rate))
    if len(samples) < shortest:
        samples = np.tile(samples, -(-shortest // len(samples)))
    graph = av.filter.Graph()
    source = graph.add_abuffer(sample_rate=sample_rate, format="flt", layout="mono", time_base=Fraction(1, sample_rate))
    meter = graph.add("ebur128", "metadata=1:framelog=quiet")
    sink = graph.add("abuffersink")
    source.link_to(meter)
    meter.link_to(sink)
    graph.configure()
    frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(samples, np.float32)[None], format="flt", layout="mono")
    frame.sample_rate, frame.time_base, frame.pts = sample_rate, Fraction(1, sample_rate), 0
    graph.push(frame)
    graph.push(None)
    loudness = SILENCE_LUFS
    while True:
        try:
            metered = graph.pull()
        except (av.EOFError, av.BlockingIOError):
            break
        loudness = float(metered.metadata.get("lavfi.r128.I", loudness))
    return loudness if loudness > SILENCE_LUFS else None


def normalize_loudness(samples: Samples, sample_rate: int) -> Samples:
    """A copy of the samples at the target loudness, with limited peaks."""
    loudness = integrated_loudness(samples, sample_rate)
    gain_db = 0.0 if loudness is None else min(TARGET_LUFS - loudness, MAX_GAIN_DB)
    scaled = samples * np.float32(10 ** (gain_db / 20))
    over = np.abs(scaled) > LIMITER_KNEE
    headroom = 1 - LIMITER_KNEE
    limited = LIMITER_KNEE + headroom * np.tanh((np.abs(scaled[over]) - LIMITER_KNEE) / headroom)
    scaled[over] = np.sign(scaled[over]) * limited
    return scaled
