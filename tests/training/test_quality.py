# SPDX-License-Identifier: Apache-2.0
"""Tone levels of recordings."""

import numpy as np
import pytest

from training.quality import tone_level

RATE = 24_000


def test_the_level_of_a_tone_is_relative_to_the_recording() -> None:
    time = np.arange(2 * RATE) / RATE
    noise = np.random.default_rng(0).normal(0, 0.1, len(time))
    tone = 0.1 * 10 ** (-30 / 20) * np.sqrt(2) * np.sin(2 * np.pi * 4500 * time)
    assert tone_level(noise + tone, RATE, 4500) == pytest.approx(-30, abs=2)
    assert tone_level(noise, RATE, 4500) < -40


def test_a_recording_that_is_too_short_has_no_tone_level() -> None:
    assert np.isnan(tone_level(np.ones(1000), RATE, 4500))
