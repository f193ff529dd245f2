# SPDX-License-Identifier: Apache-2.0
"""Sharpening raises the contrast over frequency and keeps the mean; flattening is its inverse."""

import pytest
import torch

from training.contrast import GAIN, NEIGHBOURS, Flattening, sharpening
from training.features import MELS


def test_a_narrow_peak_is_raised_and_a_level_spectrum_does_not_change() -> None:
    level, peak = torch.ones(MELS, dtype=torch.float64), torch.zeros(MELS, dtype=torch.float64)
    peak[20] = 1.0
    assert torch.allclose(sharpening() @ level, level)
    found = sharpening() @ peak
    assert float(found[20]) == pytest.approx(GAIN + (1 - GAIN) / (2 * NEIGHBOURS + 1))
    assert bool((found[21 : 21 + NEIGHBOURS] < 0).all())
    assert not found[21 + NEIGHBOURS :].any()


def test_flattening_is_the_inverse_and_leaves_other_channels_alone() -> None:
    features = torch.randn(2, 5 + MELS, 7)
    flat = Flattening()(features)
    assert torch.equal(flat[:, :5], features[:, :5])
    assert torch.allclose(sharpening().float() @ flat[:, 5:], features[:, 5:], atol=1e-4)
