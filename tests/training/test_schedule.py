# SPDX-License-Identifier: Apache-2.0
"""Time budgets, learning rate and early stopping."""

import time
from math import nan

import pytest

from training.schedule import MAX_GAP, BestValue, Clock, rate


def test_a_pause_of_the_process_does_not_use_up_the_time_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    clock = Clock(minutes=2.0, before=20.0)
    now += 10
    assert clock.seconds == 30
    now += 10_000
    assert clock.seconds == 30 + MAX_GAP
    now += 15
    assert clock.part == pytest.approx((45 + MAX_GAP) / 120)
    assert not clock.over


def test_the_learning_rate_ends_at_its_floor() -> None:
    assert rate(1.0, 10_000, 1.0, floor=0.0) == pytest.approx(0.0)
    assert rate(1.0, 10_000, 0.5, floor=0.0) == pytest.approx(0.5)
    assert rate(1.0, 99, 0.0) == pytest.approx(0.5)


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
