# SPDX-License-Identifier: Apache-2.0
"""Limits the realtime sessions of one server process."""

from collections.abc import Iterator
from contextlib import contextmanager

from polyvox.errors import Overloaded

RETRY_AFTER = 5.0  # seconds


class SessionLimit:
    """Counts open sessions."""

    def __init__(self, max_sessions: int) -> None:
        self._max_sessions, self._num_sessions = max_sessions, 0

    @contextmanager
    def enter(self) -> Iterator[None]:
        """Counts one session. Raises Overloaded if there are too many."""
        if self._num_sessions >= self._max_sessions:
            message = f"The limit of {self._max_sessions} realtime sessions is reached (max_realtime_sessions)."
            raise Overloaded(message, RETRY_AFTER, "too_many_sessions")
        self._num_sessions += 1
        try:
            yield
        finally:
            self._num_sessions -= 1
