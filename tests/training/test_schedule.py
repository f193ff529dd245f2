# SPDX-License-Identifier: Apache-2.0
"""Early stopping."""

from math import nan

from training.schedule import BestValue


def test_only_a_lower_value_replaces_the_best() -> None:
    best = BestValue(max_stale=0.3)
    assert [best.improved(value, 0.1 * i) for i, value in enumerate([2.0, nan, 2.0, 1.5, nan])] == [
        True, False, False, True, False,
    ]  # fmt: skip
    assert best.value == 1.5


def test_a_run_without_a_lower_value_is_stale_after_max_stale() -> None:
    best = BestValue(max_stale=0.3)
    assert best.improved(1.0, 0.5)
    assert not best.improved(nan, 0.7)
    assert not best.is_stale(0.75)
    assert best.is_stale(0.81)
