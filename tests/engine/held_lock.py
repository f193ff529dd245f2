# SPDX-License-Identifier: Apache-2.0
"""A lock that another thread has."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from polyvox.engine.engine_lock import EngineLock

TIMEOUT = 30  # seconds


@contextmanager
def holding(lock: EngineLock | threading.Condition) -> Iterator[threading.Thread]:
    """Another thread has the lock in this block, for at most TIMEOUT: it is alive as long as it has the lock."""
    acquired, release = threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            acquired.set()
            release.wait(TIMEOUT)

    thread = threading.Thread(target=hold)
    thread.start()
    assert acquired.wait(TIMEOUT)
    try:
        yield thread
    finally:
        release.set()
        thread.join(TIMEOUT)
