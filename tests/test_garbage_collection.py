# SPDX-License-Identifier: Apache-2.0
"""Full garbage collections wait until a process has no streams, or has grown."""

import gc
import subprocess
import sys
from collections.abc import Iterator
from unittest import mock

import pytest

from polyvox.garbage_collection import (
    CHECK_INTERVAL,
    DEFAULT_THRESHOLDS,
    IDLE_INTERVAL,
    MAX_INTERVAL,
    MAX_NEW_BLOCKS,
    MAX_NEW_BYTES,
    MIN_GARBAGE,
    NEVER,
    FullCollections,
    MemoryUse,
)


@pytest.fixture
def collected() -> Iterator[mock.Mock]:
    with mock.patch.object(gc, "collect", return_value=0) as collect, mock.patch.object(gc, "freeze"):
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


@pytest.mark.parametrize("growth", [MemoryUse(MAX_NEW_BLOCKS, 0), MemoryUse(0, MAX_NEW_BYTES)])
def test_a_process_with_streams_that_has_grown_collects_once(collected: mock.Mock, growth: MemoryUse) -> None:
    now, used = 0.0, MemoryUse(1_000_000, 1 << 30)

    def check(more: MemoryUse) -> int:
        nonlocal now, used
        now, used = now + CHECK_INTERVAL, MemoryUse(*map(sum, zip(used, more, strict=True)))
        collections.collect_if_due(num_streams=2048)
        return collected.call_count

    collections = FullCollections(lambda: now, lambda: used)
    assert check(growth) == 0  # at the limit
    assert check(MemoryUse(1, 1)) == 1
    assert check(MemoryUse(0, 0)) == 1  # the collection found nothing: the memory is in use
    assert check(growth) == 1
    assert check(MemoryUse(1, 1)) == 2


def test_growth_that_was_garbage_leaves_no_capacity_for_more_garbage(collected: mock.Mock) -> None:
    """Freed memory stays resident, and garbage that uses it again does not show."""
    now, used = 0.0, MemoryUse(0, 0)
    collections = FullCollections(lambda: now, lambda: used)
    used = MemoryUse(0, MAX_NEW_BYTES + 1)
    for garbage, collections_so_far in ((MIN_GARBAGE, 1), (MIN_GARBAGE, 2), (0, 3), (0, 3)):
        collected.return_value = garbage
        now += CHECK_INTERVAL
        collections.collect_if_due(num_streams=1)
        assert collected.call_count == collections_so_far


def test_growth_is_not_measured_at_every_call() -> None:
    measure = mock.Mock(return_value=MemoryUse(0, 0))
    collections = FullCollections(lambda: 0.0, measure)
    for _ in range(100):
        collections.collect_if_due(num_streams=1)
    assert measure.call_count == 1


def test_objects_and_arrays_count_as_memory_in_use() -> None:
    """In a process of its own: other threads, and garbage of other tests, would change the memory meanwhile."""
    program = """if True:
        from polyvox.garbage_collection import memory_use
        before = memory_use()
        objects, array = [[number] for number in range(10_000)], b"1" * (1 << 26)
        after = memory_use()
        print(after.blocks - before.blocks, after.resident_bytes - before.resident_bytes)
    """
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    blocks, resident_bytes = map(int, found.stdout.split())
    assert blocks >= 10_000
    assert resident_bytes >= (1 << 26) // 2
