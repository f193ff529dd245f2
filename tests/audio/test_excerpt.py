# SPDX-License-Identifier: Apache-2.0
"""The best excerpt of a long recording."""

import numpy as np
import pytest

from polyvox.audio.excerpt import fit_recording
from polyvox.audio.samples import Samples

RATE = 16_000


def noise(seconds: float, level: float = 0.2, seed: int = 0) -> Samples:
    samples = np.random.default_rng(seed).standard_normal(round(seconds * RATE)) * level
    return np.clip(samples, -1, 1).astype(np.float32)


def silence(seconds: float) -> Samples:
    return np.zeros(round(seconds * RATE), np.float32)


def test_a_short_recording_is_unchanged() -> None:
    samples = noise(5.0)
    fitted, notice = fit_recording(samples, RATE, 30)
    assert fitted is samples
    assert notice is None


def test_silence_at_the_ends_is_trimmed_first() -> None:
    fitted, notice = fit_recording(np.concatenate([silence(20), noise(20), silence(20)]), RATE, 30)
    assert notice is None
    assert len(fitted) / RATE == pytest.approx(20, abs=0.1)


def test_a_long_recording_is_cut_at_pauses_with_a_notice() -> None:
    words = [part for seed in range(20) for part in (noise(2.0, seed=seed), silence(0.5))]
    fitted, notice = fit_recording(np.concatenate(words), RATE, 30)
    assert notice == "The recording has 49.5 s of speech; its best 29.5 s are used."
    assert 25 < len(fitted) / RATE <= 30
    assert len(fitted) / RATE % 2.5 == pytest.approx(2.0, abs=0.1)  # whole words


def test_the_excerpt_has_the_most_speech() -> None:
    sparse = [part for seed in range(10) for part in (noise(0.5, seed=seed), silence(4.0))]
    dense = [part for seed in range(14) for part in (noise(1.9, 0.21, seed), silence(0.2))]
    fitted, notice = fit_recording(np.concatenate([*sparse, *dense, *sparse]), RATE, 30)
    assert notice is not None
    assert np.mean(np.abs(fitted) > 0) > 0.85


def test_clipped_speech_is_avoided() -> None:
    clipped, clean = np.sign(noise(40.0)).astype(np.float32), noise(40.0, 0.1)
    fitted, _ = fit_recording(np.concatenate([clipped, silence(1), clean]), RATE, 30)
    assert np.abs(fitted).max() < 0.9


def test_speech_without_pauses_is_cut_to_the_limit() -> None:
    fitted, notice = fit_recording(noise(100.0), RATE, 30)
    assert notice is not None
    assert len(fitted) / RATE == pytest.approx(30, abs=0.1)


@pytest.mark.parametrize("value", [0.0, np.nan, np.inf])
def test_a_recording_without_speech_is_unchanged(value: float) -> None:
    samples = silence(40)
    samples[100] = value
    assert fit_recording(samples, RATE, 30)[1] is None
