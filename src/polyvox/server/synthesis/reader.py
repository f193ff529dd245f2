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
    audio, does not count.
    """

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._blocked = 0.0  # seconds spent in writes
        self._num_bytes = 0

    async def write(self, send: Awaitable[None], num_bytes: int, audio_seconds: float) -> None:
        """Awaits a write. audio_seconds: playing time of all audio so far. Raises ReaderTimeout."""
        self._num_bytes += num_bytes
        buffered = audio_seconds * min(1.0, MAX_BUFFERED / max(1, self._num_bytes))
        without_reading = self._timeout + buffered
        behind = self._timeout + audio_seconds - self._blocked
        clock = asyncio.get_running_loop().time
        start = clock()
        try:
            async with asyncio.timeout_at(start + min(without_reading, behind)):
                await send
        except TimeoutError:
            raise ReaderTimeout("reader" if without_reading <= behind else "reader_slow") from None
        finally:
            self._blocked += clock() - start
