# SPDX-License-Identifier: Apache-2.0
"""Speaker similarity from given embeddings; the encoder is not needed."""

import numpy as np
import pytest

from training.similarity import mean, similarities


def test_a_recording_is_compared_with_the_other_sentences_of_the_base() -> None:
    base = np.array([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    found = np.array([[0.0, 2.0], [0.0, 1.0], [1.0, 0.0]])
    half = 0.5**0.5
    np.testing.assert_allclose(similarities(found, base), [1.0, half, half])


def test_the_mean_has_its_standard_error() -> None:
    figure = mean(np.array([0.8, 0.9, 1.0]))
    assert figure.value == pytest.approx(0.9)
    assert figure.error == pytest.approx(0.1 / 3**0.5)
