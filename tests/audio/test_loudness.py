# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

from audio.signals import speech, vowel
from polyvox.audio.loudness import MAX_GAIN_DB, TARGET_LUFS, integrated_loudness, normalize_loudness
from polyvox.audio.samples import Samples

RATE = 24_000


def loudness(samples: Samples) -> float:
    found = integrated_loudness(samples, RATE)
    assert found is not None
    return found


def test_a_tone_of_1_khz_at_full_scale_has_minus_3_lufs() -> None:
    """The calibration of ITU-R BS.1770: a 997 Hz sine at 0 dBFS in one channel measures -3.01 LKFS."""
    tone = np.sin(2 * np.pi * 997 * np.arange(2 * RATE) / RATE).astype(np.float32)
    assert loudness(tone) == pytest.approx(-3.01, abs=0.1)
    assert loudness(0.1 * tone) == pytest.approx(-23.01, abs=0.1)


def test_pauses_do_not_count() -> None:
    sound = speech(1.0)
    with_pause = np.concatenate([sound, np.zeros(4 * RATE, np.float32), sound])
    assert loudness(with_pause) == pytest.approx(loudness(sound), abs=1)


@pytest.mark.parametrize("gain", [0.05, 0.5, 1.0, 2.0])
@pytest.mark.parametrize("seconds", [0.1, 0.3, 0.39, 0.4, 0.5, 3.0])
def test_audio_of_any_length_is_normalized_to_the_target(seconds: float, gain: float) -> None:
    """Below a gating block of 400 ms, too."""
    normalized = normalize_loudness(gain * vowel(seconds, RATE), RATE)
    assert len(normalized) == round(seconds * RATE)
    assert loudness(normalized) == pytest.approx(TARGET_LUFS, abs=0.1)


def test_silence_stays_silent() -> None:
    for length in (0, 100, RATE):
        assert not normalize_loudness(np.zeros(length, np.float32), RATE).any()
        assert integrated_loudness(np.zeros(length, np.float32), RATE) is None


def test_the_gain_is_limited() -> None:
    quiet = 4e-3 * speech(1.0)
    gain = np.abs(normalize_loudness(quiet, RATE)).max() / np.abs(quiet).max()
    assert gain == pytest.approx(10 ** (MAX_GAIN_DB / 20), rel=1e-3)


def test_peaks_are_limited_below_full_scale() -> None:
    clicks = 0.02 * speech(2.0)
    clicks[::4800] = 1.0
    assert np.abs(normalize_loudness(clicks, RATE)).max() <= 1.0
