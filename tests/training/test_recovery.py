# SPDX-License-Identifier: Apache-2.0
"""Recovery from divergence."""

from math import inf, nan

import pytest
import torch

from training.recovery import MAX_RATIO, MIN_RATE_FACTOR, Recovery


@pytest.mark.parametrize("distance", [nan, inf, 1.01 * MAX_RATIO * 0.5])
def test_diverged_weights_are_replaced_in_place_by_those_of_the_validation_before_the_last(distance: float) -> None:
    weight = torch.zeros(3)
    recovery = Recovery([weight])
    for value, good in ((1.0, 0.9), (2.0, 0.5), (3.0, 0.6)):
        weight.fill_(value)
        assert not recovery.has_diverged(good)
    weight.fill_(nan)
    assert recovery.has_diverged(distance)
    assert weight.tolist() == [2.0] * 3
    assert (recovery.best, recovery.rate_factor) == (0.5, 0.5)


def test_a_second_divergence_halves_the_rate_again() -> None:
    weight = torch.ones(3)
    recovery = Recovery([weight])
    assert not recovery.has_diverged(1.0)
    for factor in (0.5, 0.25):
        weight.fill_(nan)
        assert recovery.has_diverged(nan)
        assert weight.tolist() == [1.0] * 3
        assert recovery.rate_factor == factor


def test_a_distance_slightly_above_the_best_is_no_divergence() -> None:
    weight = torch.ones(3)
    recovery = Recovery([weight])
    assert not recovery.has_diverged(1.0)
    weight.fill_(2.0)
    assert not recovery.has_diverged(0.99 * MAX_RATIO)
    assert weight.tolist() == [2.0] * 3
    assert (recovery.best, recovery.rate_factor) == (1.0, 1.0)


def test_invalid_initial_weights_are_an_error() -> None:
    with pytest.raises(RuntimeError, match="validation distance is nan"):
        Recovery([torch.ones(3)]).has_diverged(nan)


def test_training_that_diverges_at_every_rate_fails() -> None:
    recovery = Recovery([torch.ones(3)])
    assert not recovery.has_diverged(1.0)
    while recovery.rate_factor > MIN_RATE_FACTOR:
        assert recovery.has_diverged(nan)
    with pytest.raises(RuntimeError, match="diverges even at"):
        recovery.has_diverged(nan)
