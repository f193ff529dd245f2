# SPDX-License-Identifier: Apache-2.0
"""Full garbage collections wait until a process has no streams."""

import gc
from collections.abc import Iterator
from unittest import mock

import pytest

from polyvox.garbage_collection import DEFAULT_THRESHOLDS, IDLE_INTERVAL, MAX_INTERVAL, NEVER, FullCollections


@pytest.fixture
def collected() -> Iterator[mock.Mock]:
    with mock.patch.object(gc, "collect") as collect, mock.patch.object(gc, "freeze"):
        yield collect


def test_python_starts_no_full_collection_until_the_process_stops(collected: mock.Mock) -> None:
    collections = FullCollections()
    try:
        collections.start()
        assert gc.get_threshold() == (*DEFAULT_THRESHOLDS[:2], NEVER)
    finally:
        collections.stop()
    assert gc.get_threshold() == DEFAULT_THRESHOLDS
    collected.assert_not_called()


def test_a_full_collection_waits_until_there_are_no_streams(collected: mock.Mock) -> None:
    now = 0.0
    collections = FullCollections(lambda: now)
    collections.collect_if_due(num_streams=0)  # too soon
    now = IDLE_INTERVAL
    collections.collect_if_due(num_streams=1)
    collected.assert_not_called()
    collections.collect_if_due(num_streams=0)
    collections.collect_if_due(num_streams=0)
    collected.assert_called_once_with()


def test_a_process_that_always_has_streams_collects_now_and_then(collected: mock.Mock) -> None:
    times = iter([0.0, 0.9 * MAX_INTERVAL, MAX_INTERVAL, MAX_INTERVAL, 1.9 * MAX_INTERVAL, *2 * [2.0 * MAX_INTERVAL]])
    collections = FullCollections(lambda: next(times))
    for _ in range(4):
        collections.collect_if_due(num_streams=2048)
    assert collected.call_count == 2
