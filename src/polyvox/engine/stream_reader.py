# SPDX-License-Identifier: Apache-2.0
"""The reader's side of a stream: buffered chunks, iteration and notification."""

import asyncio
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from typing import Generic, TypeVar

from polyvox.engine.engine_lock import LOCK_RETRY, LOCK_TIMEOUT, try_lock
from polyvox.engine.interface import Chunk, Result

Buffered = TypeVar("Buffered")  # how a stream buffers a chunk


class StreamReader(ABC, Generic[Buffered]):
    """Chunks that wait for their one reader. The producer calls `_notify` while it has the condition's lock,
    which is reentrant.
    """

    def __init__(self, ready: threading.Condition) -> None:
        self._ready = ready  # guards the attributes below
        self._buffer: deque[Buffered] = deque()
        self._call: Callable[[], object] | None = None  # wakes a reader in an event loop
        self.result: Result | None = None

    @abstractmethod
    def cancel(self) -> None:
        """Ends the stream. Idempotent."""

    @abstractmethod
    def _on_taken(self, taken: list[Buffered]) -> None:
        """Called with the chunks that the reader took."""

    @abstractmethod
    def _own(self, taken: Buffered) -> Chunk:
        """A buffered chunk with samples of its own; called without the lock, because it may copy them."""

    def take(self, max_chunks: int) -> list[Chunk]:
        """At most this many of the buffered chunks, without waiting."""
        return [self._own(chunk) for chunk in self.pop(max_chunks)]

    def pop(self, max_chunks: int) -> list[Buffered]:
        """The same as the buffer stores them."""
        with self._ready:
            taken = [self._buffer.popleft() for _ in range(min(max_chunks, len(self._buffer)))]
        if taken:
            self._on_taken(taken)
        return taken

    def chunks(self, timeout: float | None = None) -> Iterator[Chunk]:
        try:
            while True:
                with self._ready:
                    if not self._ready.wait_for(self._has_data, timeout):
                        raise TimeoutError(f"no audio for {timeout} s")
                taken = self._checked(self.pop(1))
                if taken is None:
                    return
                yield taken
                if taken.final:
                    return
        finally:
            self.cancel()  # a reader that stops early

    async def __aiter__(self) -> AsyncIterator[Chunk]:
        loop, has_data = asyncio.get_running_loop(), asyncio.Event()

        def call() -> None:
            loop.call_soon_threadsafe(has_data.set)

        self._call = call
        lock_timeout = LOCK_TIMEOUT
        try:
            while True:
                has_data.clear()
                if not self._has_data():
                    await has_data.wait()
                    continue
                with try_lock(self._ready, lock_timeout) as locked:
                    popped = self.pop(1) if locked else []
                if not locked:
                    lock_timeout = 0.0
                    await asyncio.sleep(LOCK_RETRY)
                    continue
                lock_timeout, taken = LOCK_TIMEOUT, self._checked(popped)
                if taken is None:
                    return
                yield taken
                if taken.final:
                    return
        finally:
            if self._call is call:  # asyncio may close a loop that was left after a later loop has begun
                self._call = None
            self.cancel()

    def _has_data(self) -> bool:
        return bool(self._buffer) or self.result is not None

    def _checked(self, popped: list[Buffered]) -> Chunk | None:
        """The popped chunk; None if another reader took the final one. Raises if the stream failed."""
        if not popped:
            return None
        taken = self._own(popped[0])
        if taken.final and self.result is not None:
            self.result.check()
        return taken

    def _notify(self) -> None:
        """Wakes the reader after a new chunk or the result."""
        self._ready.notify_all()
        if self._call is not None:
            with suppress(RuntimeError):  # the event loop is closed
                self._call()
