# SPDX-License-Identifier: Apache-2.0
"""Length-prefixed frames over a Unix socket in an event loop, with limits on size and time."""

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import cast

from polyvox.ipc.messages import MAX_MESSAGE_BYTES

log = logging.getLogger(__name__)

LENGTH_BYTES = 4
MAX_BUFFERED_BYTES = 64 << 20  # that may wait for a peer that does not read


class FrameConnection(asyncio.Protocol):
    """One end of a connection. It ends by itself if the peer sends a frame that is too long or does not read.

    on_frame: called for each frame; the connection ends if it raises. on_close: called once, with no frame after it.
    on_writable: called when the peer reads again after `writable` was False.
    """

    def __init__(
        self,
        timeout: float,
        on_frame: Callable[[bytes], None],
        on_close: Callable[[], None],
        on_writable: Callable[[], None] = lambda: None,
    ) -> None:
        self._timeout = timeout  # seconds that a peer may leave data unread
        self._on_frame, self._on_close, self._on_writable = on_frame, on_close, on_writable
        self._received = bytearray()
        self._transport: asyncio.Transport | None = None
        self._write_timer: asyncio.TimerHandle | None = None
        self.writable = True
        self.closed = False

    async def start(self, connected: socket.socket) -> None:
        """Takes over a connected socket; frames may arrive from now on."""
        await asyncio.get_running_loop().create_unix_connection(lambda: self, sock=connected)

    def send(self, data: bytes) -> None:
        """Sends one frame. It is dropped if the connection has ended."""
        if self.closed or self._transport is None:
            return
        self._transport.writelines((len(data).to_bytes(LENGTH_BYTES), data))
        if self._transport.get_write_buffer_size() > MAX_BUFFERED_BYTES:
            self._abort("unread data exceeds the limit")

    def pause_reading(self) -> None:
        if self._transport is not None and not self.closed:
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if self._transport is not None and not self.closed:
            self._transport.resume_reading()

    def abort(self) -> None:
        """Ends the connection now; unsent data is lost. Idempotent."""
        self.closed = True
        if self._transport is not None:
            self._transport.abort()

    # Called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        received = self._received
        received += data
        start = 0
        try:
            while not self.closed and len(received) - start >= LENGTH_BYTES:
                size = int.from_bytes(received[start : start + LENGTH_BYTES])
                if size > MAX_MESSAGE_BYTES:
                    raise ValueError(f"a frame of {size} bytes exceeds the limit of {MAX_MESSAGE_BYTES}")
                end = start + LENGTH_BYTES + size
                if end > len(received):
                    break
                self._on_frame(bytes(received[start + LENGTH_BYTES : end]))
                start = end
        except Exception as error:
            self._abort(repr(error))
        del received[:start]

    def eof_received(self) -> None:
        return None  # the transport closes itself

    def pause_writing(self) -> None:
        self.writable = False
        loop = asyncio.get_running_loop()
        self._write_timer = loop.call_later(self._timeout, self._abort, f"data unread for {self._timeout:g} s")

    def resume_writing(self) -> None:
        self.writable = True
        self._stop_timer()
        self._on_writable()

    def connection_lost(self, error: Exception | None) -> None:
        log.debug("connection closed error=%r", error)
        self._stop_timer()
        self.closed = True
        self._received.clear()
        self._on_close()

    def _abort(self, reason: str) -> None:
        if not self.closed:
            log.warning("connection aborted reason=%s", reason)
            self.abort()

    def _stop_timer(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None
