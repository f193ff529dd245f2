# SPDX-License-Identifier: Apache-2.0
"""What ASGI cannot express: large or late request headers, clients that stop reading, bodies for HTTP/1.0."""

import asyncio
import logging
import socket
import struct
from collections.abc import Callable
from functools import partial
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.http11 import Request

from polyvox.server.metrics import TimeoutKind
from polyvox.server.synthesis.reader import WRITE_BUFFER

log = logging.getLogger(__name__)

MAX_HEADER_BYTES = 64 * 1024  # of a request's line and headers; the parser has no limit
HEADERS_TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
# ASGI scope entry: resets the connection without sending what is buffered, at once or after a delay.
RESET = "polyvox.reset"
NO_LINGER = struct.pack("ii", 1, 0)  # closing discards what the kernel has not sent, and sends a reset


def close_and_reset(transport: asyncio.Transport, delay: float) -> None:
    """Closes a connection, and resets it after a delay if the client has not read everything by then."""
    if delay:
        transport.close()
        asyncio.get_running_loop().call_later(delay, reset, transport)
    else:
        reset(transport)


def reset(transport: asyncio.Transport) -> None:
    """Ends a connection at once. A normal close waits until the client has read everything."""
    connection = transport.get_extra_info("socket")
    if connection is not None and (not transport.is_closing() or transport.get_write_buffer_size()):  # is open
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, NO_LINGER)
    transport.abort()


class UnchunkedCycle(RequestResponseCycle):
    """A response to HTTP/1.0, which has no chunks: a body of unknown length ends with the connection."""

    _until_close = False

    async def send(self, message: Any) -> None:
        """For uvicorn a body without chunks has a length: here each part is all that it expects."""
        if message["type"] == "http.response.start":
            self._until_close = all(name.lower() != b"content-length" for name, _ in message.get("headers", ()))
            if self._until_close:
                self.chunked_encoding = False
        elif self._until_close and message["type"] == "http.response.body":
            self.expected_content_length = len(message.get("body", b""))
        await super().send(message)


class TimeoutProtocol(HttpToolsProtocol):
    """Closes connections whose request headers do not arrive within `header_timeout` seconds or are too large, and
    resets connections whose client has not read a complete response `reader_timeout` seconds after its end.

    Only methods of asyncio.Protocol and callbacks of httptools' parser are overridden. The time between two requests
    of one connection is limited by uvicorn's `timeout_keep_alive`. on_timeout: called with the kind of each timeout.
    """

    def __init__(
        self,
        *args: Any,
        header_timeout: float,
        reader_timeout: float,
        on_timeout: Callable[[TimeoutKind], None],
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self._header_timeout, self._reader_timeout, self._on_timeout = header_timeout, reader_timeout, on_timeout
        self._header_timer: asyncio.TimerHandle | None = None
        self._unread_timer: asyncio.TimerHandle | None = None
        self._num_active = 0  # requests without a complete response
        self._header_bytes = 0  # received since the last event of the parser: headers, or trailers after a body

    @property
    def busy(self) -> bool:
        """Whether a request has no complete response."""
        return self._num_active > 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.set_write_buffer_limits(WRITE_BUFFER)  # also after an upgrade to a WebSocket
        self._update_timer()

    def data_received(self, data: bytes) -> None:
        self._header_bytes += len(data)
        super().data_received(data)
        if self._header_bytes > MAX_HEADER_BYTES:
            log.info("request rejected", extra={"status": 431, "client": self.client[0] if self.client else None})
            if not self._num_active:
                self.transport.write(HEADERS_TOO_LARGE)
            self.transport.close()
        self._update_timer()

    def send_400_response(self, msg: str) -> None:
        """Called for data that is not HTTP. uvicorn's own log line has no address."""
        log.info(
            "request rejected",
            extra={"status": 400, "error": msg, "client": self.client[0] if self.client else None},
        )
        super().send_400_response(msg)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._cancel_timer()
        for timer in (self._unread_timer, self.timeout_keep_alive_task):  # uvicorn leaves its own after a reset
            if timer is not None:
                timer.cancel()

    def on_message_begin(self) -> None:
        self._header_bytes = 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._header_bytes = 0
        self._num_active += 1
        self.scope[RESET] = partial(close_and_reset, self.transport)  # type: ignore[literal-required]
        super().on_headers_complete()
        if self.cycle is not None and self.scope["http_version"] == "1.0":
            self.cycle.__class__ = UnchunkedCycle  # uvicorn makes it, and its task has not begun

    def on_body(self, body: bytes) -> None:
        self._header_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._header_bytes = 0
        super().on_message_complete()

    def handle_websocket_upgrade(self) -> None:
        """After it another protocol has the connection. The parser refers to this one, and this one to the parser."""
        super().handle_websocket_upgrade()
        self.parser = None  # type: ignore[assignment]

    def on_response_complete(self) -> None:
        self._num_active -= 1
        super().on_response_complete()
        if self._unread_timer is None and self in self.connections and self.transport.get_write_buffer_size():
            self._unread_timer = self.loop.call_later(self._reader_timeout, self._check_unread)

    def _check_unread(self) -> None:
        self._unread_timer = None
        if self.transport.get_write_buffer_size() and not self._num_active:  # a running response has its own timeouts
            self._on_timeout("reader")
            reset(self.transport)

    def _update_timer(self) -> None:
        if self._num_active or self.transport.is_closing():
            self._cancel_timer()
        elif self._header_timer is None:
            self._header_timer = self.loop.call_later(self._header_timeout, self._expire)

    def _expire(self) -> None:
        self._on_timeout("headers")
        self.transport.close()

    def _cancel_timer(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None


class AbortableWebSocketProtocol(WebSocketsSansIOProtocol):
    """Lets the application reset a connection whose client has stopped reading, at once or after a delay."""

    _reset_timer: asyncio.TimerHandle | None = None

    def handle_connect(self, event: Request) -> None:
        super().handle_connect(event)
        if self.response.status_code == 101:  # otherwise there is no scope
            self.scope[RESET] = self._reset  # type: ignore[literal-required]

    async def send(self, message: Any) -> None:
        try:
            await super().send(message)
        except RuntimeError:
            if self.close_sent:  # by uvicorn itself: the client sent no pong in time, or a malformed frame
                raise ClientDisconnected from None
            raise
        if message["type"] == "websocket.http.response.body" and not message.get("more_body", False):
            self.handshake_complete = True  # otherwise uvicorn logs an error for each rejected WebSocket

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.conn.parser.close()  # a generator that refers to the protocol object, which refers to it
        getattr(self, "scope", {}).pop(RESET, None)  # it refers to this object, too
        if self._reset_timer is not None:
            self._reset_timer.cancel()

    def _reset(self, delay: float = 0.0) -> None:
        if delay:
            self._reset_timer = self.loop.call_later(delay, reset, self.transport)
        else:
            reset(self.transport)
