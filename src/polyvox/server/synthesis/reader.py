# SPDX-License-Identifier: Apache-2.0
"""Time limits for the client that reads an utterance."""

import asyncio
from collections.abc import Awaitable
from typing import Literal

# Bytes that the kernel buffers for a client (SO_SNDBUF). Its default is megabytes: a minute of audio, which the engine
# would generate for a client that reads nothing.
SEND_BUFFER = 64 * 1024
WRITE_BUFFER = 16 * 1024  # bytes that the server buffers beside it before a write waits
# Bytes that may be between a completed write and the client: the kernel uses up to twice SO_SNDBUF.
MAX_BUFFERED = 2 * SEND_BUFFER + WRITE_BUFFER

# reader: nothing was read for too long; reader_slow: the audio was read slower than it plays.
ReaderProblem = Literal["reader", "reader_slow"]


class ReaderTimeout(Exception):
    """The client reads too slowly, and its connection must be reset. problem: the kind of the timeout."""

    def __init__(self, problem: ReaderProblem) -> None:
        super().__init__(problem)
        self.problem = problem


class ReaderTimer:
    """Limits the time that one client spends on reading one utterance.

    A write takes at most `timeout` seconds longer than the audio in the connection's buffers plays, and all writes
    together at most `timeout` seconds longer than the audio so far. The time between writes, when the client waits for
    audio, does not count. All writes share one timer of the event loop: most of them do not wait, and a timer for each
    would cost more than the write.
    """

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._blocked = 0.0  # seconds spent in writes
        self._num_bytes = 0
        self._timer: asyncio.TimerHandle | None = None  # checks the deadline, which may be later by then
        self._deadline = 0.0  # of the write in progress
        self._writing: asyncio.Task[object] | None = None  # the task of the write in progress
        self._expired = False

    async def write(self, send: Awaitable[None], num_bytes: int, audio_seconds: float) -> None:
        """Awaits a write. audio_seconds: playing time of all audio so far. Raises ReaderTimeout."""
        self._num_bytes += num_bytes
        buffered = audio_seconds * min(1.0, MAX_BUFFERED / max(1, self._num_bytes))
        without_reading = self._timeout + buffered
        behind = self._timeout + audio_seconds - self._blocked
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        start = loop.time()
        self._deadline, self._writing, cancelling = start + min(without_reading, behind), task, task.cancelling()
        if self._timer is None or self._timer.when() > self._deadline:
            self._set_timer(loop)
        try:
            await send
        except asyncio.CancelledError:
            # Another cancellation at the same time has precedence.
            if self._expired and task.uncancel() <= cancelling:
                raise ReaderTimeout("reader" if without_reading <= behind else "reader_slow") from None
            raise
        finally:
            self._writing = task = None  # an exception of the task refers to this frame
            self._blocked += loop.time() - start

    def close(self) -> None:
        """Cancels the timer, which otherwise ends by itself at the deadline of an earlier write."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _set_timer(self, loop: asyncio.AbstractEventLoop) -> None:
        self.close()
        self._timer = loop.call_at(self._deadline, self._check, loop)

    def _check(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        if self._writing is None:
            return  # the next write sets it
        if loop.time() < self._deadline:
            self._set_timer(loop)
        else:
            self._expired = True
            self._writing.cancel()
