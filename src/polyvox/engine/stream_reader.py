"""The reader's half of a stream, the same for an engine in this process and in another."""

import asyncio
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from typing import Any

from polyvox.engine.interface import Chunk, Result


class StreamReader(ABC):
    """Chunks that wait for their one reader. Whoever makes them calls `_told` with the condition held."""

    def __init__(self, ready: threading.Condition) -> None:
        self._ready = ready  # guards all that follows
        self._buffer: deque[Any] = deque()  # of chunks, or of what they are made of when they are taken
        self._call: Callable[[], object] | None = None  # of a reader in an event loop
        self.result: Result | None = None

    @abstractmethod
    def cancel(self) -> None:
        """Ends the stream; any number of times."""

    @abstractmethod
    def _took(self, taken: list[Any]) -> None:
        """The reader has them; there is room for others."""

    def take(self, max_chunks: int) -> list[Chunk]:
        """What is there, without waiting."""
        return self.pop(max_chunks)

    def pop(self, max_chunks: int) -> list[Any]:
        """The same as the buffer has it."""
        with self._ready:
            taken = [self._buffer.popleft() for _ in range(min(max_chunks, len(self._buffer)))]
        if taken:
            self._took(taken)
        return taken

    def chunks(self, timeout: float | None = None) -> Iterator[Chunk]:
        try:
            while True:
                with self._ready:
                    if not self._ready.wait_for(self._has_news, timeout):
                        raise TimeoutError(f"no audio for {timeout} s")
                taken = self._next()
                if taken is None:
                    return
                yield taken
                if taken.final:
                    return
        finally:
            self.cancel()  # a reader that goes away early wants no more of it

    async def __aiter__(self) -> AsyncIterator[Chunk]:
        loop, news = asyncio.get_running_loop(), asyncio.Event()
        self._call = lambda: loop.call_soon_threadsafe(news.set)
        try:
            while True:
                news.clear()
                if not self._has_news():
                    await news.wait()
                    continue
                taken = self._next()
                if taken is None:
                    return
                yield taken
                if taken.final:
                    return
        finally:
            self._call = None
            self.cancel()

    def _has_news(self) -> bool:
        return bool(self._buffer) or self.result is not None

    def _next(self) -> Chunk | None:
        """The next chunk; None where another reader has had the end. Raises where the stream failed."""
        taken = self.take(1)
        if taken and taken[0].final and self.result is not None:
            self.result.check()
        return taken[0] if taken else None

    def _told(self) -> None:
        """There is something new: wakes whoever waits."""
        self._ready.notify_all()
        if self._call is not None:
            with suppress(RuntimeError):  # its event loop is closed
                self._call()
