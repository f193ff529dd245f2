# SPDX-License-Identifier: Apache-2.0
"""The engine's lock, with changes that no caller waits for."""

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

log = logging.getLogger(__name__)

LOCK_TIMEOUT = 0.005  # seconds that an event loop waits for the lock at once, so that no audio waits for longer
LOCK_RETRY = 0.001  # seconds after which it tries again


class EngineLock:
    """A reentrant lock. `post` applies a change under it without waiting for it.

    The thread that has the lock applies the changes of others when it releases it.
    """

    def __init__(self) -> None:
        self._lock: Any = threading.RLock()  # Any: Condition uses methods that the type does not declare
        self._posted: deque[Callable[[], None]] = deque()

    def new_condition(self) -> threading.Condition:
        return threading.Condition(cast(threading._RLock, self))  # it uses the methods below

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        return bool(self._lock.acquire(blocking, timeout))

    def release(self) -> None:
        self._lock.release()
        if self._posted and not self._lock._is_owned():
            self._apply_posted()

    def __enter__(self) -> bool:
        return bool(self._lock.acquire())

    def __exit__(self, *_: object) -> None:
        self.release()

    @property
    def num_posted(self) -> int:
        """Changes that wait for the thread that has the lock."""
        return len(self._posted)

    def post(self, change: Callable[[], None]) -> None:
        """Applies a change under the lock: now if no other thread has it, otherwise when that thread releases it.

        Changes are applied in the order in which they are posted.
        """
        self._posted.append(change)
        self._apply_posted()

    def _apply_posted(self) -> None:
        # If another thread has the lock, it finds the changes after its release: they were posted before this attempt.
        while self._posted and self._lock.acquire(blocking=False):
            try:
                while self._posted:
                    self._posted.popleft()()
            except Exception:
                log.exception("change of a stream failed")
            finally:
                self._lock.release()

    # For threading.Condition, whose wait releases the lock however often it was acquired

    def _is_owned(self) -> bool:
        return bool(self._lock._is_owned())

    def _release_save(self) -> object:
        state = self._lock._release_save()
        self._apply_posted()
        return state

    def _acquire_restore(self, state: object) -> None:
        self._lock._acquire_restore(state)


@contextmanager
def try_lock(lock: EngineLock | threading.Condition, timeout: float) -> Iterator[bool]:
    """Keeps the lock, if it is free within this many seconds; gives whether it is."""
    locked = lock.acquire(timeout=timeout)
    try:
        yield locked
    finally:
        if locked:
            lock.release()
