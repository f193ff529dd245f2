# SPDX-License-Identifier: Apache-2.0
"""The engine's lock, with changes that no caller waits for."""

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

log = logging.getLogger(__name__)

LOCK_TIMEOUT = 0.005  # seconds for which work of an event loop waits for the lock
LOCK_RETRY = 0.001  # seconds after which that work tries again, without waiting


class EngineLock:
    """A reentrant lock. `post` applies a change under it without waiting for it.

    The thread that has the lock applies the changes of others when it releases it. If another thread acquires it first,
    that one does so before anything else: a posted change precedes all that is done under the lock after it.
    """

    def __init__(self) -> None:
        self._lock: Any = threading.RLock()  # Any: Condition uses methods that the type does not declare
        self._posted: deque[Callable[[], None]] = deque()

    def new_condition(self) -> threading.Condition:
        return threading.Condition(cast(threading._RLock, self))  # it uses the methods below

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        is_nested = self._lock._is_owned()
        if not self._lock.acquire(blocking, timeout):
            return False
        if self._posted and not is_nested:
            self._apply_posted()
        return True

    def release(self) -> None:
        self._lock.release()
        if self._posted and not self._lock._is_owned():
            self._apply_posted()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    def post(self, change: Callable[[], None]) -> None:
        """Applies a change under the lock: now if no thread has it, otherwise when it is released.

        Changes are applied in the order in which they are posted.
        """
        self._posted.append(change)
        if not self._lock._is_owned():  # its owner may be in the middle of a change
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
        self._apply_posted()


@contextmanager
def try_lock(lock: EngineLock | threading.Condition, timeout: float) -> Iterator[bool]:
    """Keeps the lock, if it is free within this many seconds; gives whether it is."""
    locked = lock.acquire(timeout=timeout)
    try:
        yield locked
    finally:
        if locked:
            lock.release()
