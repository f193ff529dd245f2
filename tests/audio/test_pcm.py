# SPDX-License-Identifier: Apache-2.0
"""Conversion between float samples and 16-bit PCM."""

import numpy as np

from polyvox.audio.pcm import from_pcm, to_pcm


def test_a_round_trip_loses_nothing_and_louder_samples_are_clipped() -> None:
    values = np.arange(-32767, 32768).astype(np.int16)
    np.testing.assert_array_equal(to_pcm(from_pcm(values)), values)
    np.testing.assert_array_equal(to_pcm(np.array([2.0, -2.0], np.float32)), [32767, -32767])
