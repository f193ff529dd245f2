# SPDX-License-Identifier: Apache-2.0
"""The engine's lock: no caller waits for a posted change, and none is lost."""

import threading

import pytest

from engine.held_lock import TIMEOUT, holding
from polyvox.engine.engine_lock import EngineLock, try_lock


def test_a_change_is_applied_at_once_if_the_lock_is_free() -> None:
    lock, applied = EngineLock(), list[int]()
    lock.post(lambda: applied.append(1))
    assert applied == [1]


def test_a_change_of_the_thread_that_has_the_lock_is_applied_when_it_releases_it() -> None:
    """It may be in the middle of another change, as in a callback."""
    lock, applied = EngineLock(), list[int]()
    with lock:
        with lock:
            lock.post(lambda: applied.append(1))
        assert applied == []
    assert applied == [1]


def test_a_posted_change_precedes_all_that_is_done_under_the_lock_after_it() -> None:
    """Also if another thread acquires the lock before the one that has released it could apply the change."""
    lock, applied = EngineLock(), list[int]()
    lock._posted.append(lambda: applied.append(1))  # posted, and not applied yet
    with lock:
        assert applied == [1]
    lock._posted.append(lambda: applied.append(2))
    with try_lock(lock, 0.0) as locked:
        assert locked
        assert applied == [1, 2]


def test_changes_are_applied_in_order_by_the_thread_that_has_the_lock() -> None:
    lock, applied = EngineLock(), list[tuple[int, threading.Thread]]()
    with holding(lock):
        for number in range(3):
            lock.post(lambda number=number: applied.append((number, threading.current_thread())))  # type: ignore[misc]
        assert applied == []
    assert [number for number, _ in applied] == [0, 1, 2]
    assert all(thread is not threading.current_thread() for _, thread in applied)


def test_the_inner_of_two_releases_applies_no_change() -> None:
    lock, applied = EngineLock(), list[int]()
    with lock:
        with lock:
            thread = threading.Thread(target=lambda: lock.post(lambda: applied.append(1)))
            thread.start()
            thread.join(TIMEOUT)
        assert applied == []
    assert applied == [1]


def test_a_change_wakes_a_thread_that_is_about_to_wait() -> None:
    lock, changed = EngineLock(), threading.Event()
    condition = lock.new_condition()

    def change() -> None:
        changed.set()
        condition.notify_all()

    with lock:
        thread = threading.Thread(target=lambda: lock.post(change))
        thread.start()
        thread.join(TIMEOUT)
        assert not changed.is_set()
        assert condition.wait(TIMEOUT)
    assert changed.is_set()


def test_a_change_that_fails_is_logged_and_the_others_are_applied(caplog: pytest.LogCaptureFixture) -> None:
    lock, applied = EngineLock(), list[int]()
    with holding(lock):
        lock.post(lambda: applied.append(1 // 0))
        lock.post(lambda: applied.append(2))
    assert applied == [2]
    assert "change of a stream failed" in caplog.text
    assert lock.acquire(blocking=False)


def test_no_change_of_many_threads_is_lost() -> None:
    lock, count = EngineLock(), 0
    num_threads, num_changes = 4, 2_000

    def add() -> None:
        nonlocal count
        count += 1

    def run() -> None:
        for number in range(num_changes):
            lock.post(add)
            if number % 7 == 0:
                with lock:
                    pass

    threads = [threading.Thread(target=run) for _ in range(num_threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT)
    assert count == num_threads * num_changes


def test_an_attempt_to_lock_ends_after_its_timeout() -> None:
    lock = EngineLock()
    with holding(lock), try_lock(lock, 0.001) as locked:
        assert not locked
    with try_lock(lock, 0.0) as locked:
        assert locked
    with holding(lock):  # it was released
        pass
