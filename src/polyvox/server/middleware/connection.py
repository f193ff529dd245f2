# SPDX-License-Identifier: Apache-2.0
"""Connection-level timeouts that ASGI cannot express: late request headers, and clients that stop reading."""

import asyncio
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.http11 import Request

ABORT = "polyvox.abort"  # ASGI scope entry: closes the connection without sending what is buffered


class TimeoutProtocol(HttpToolsProtocol):
    """Closes connections whose request headers do not arrive within `header_timeout` seconds.

    Only methods of asyncio.Protocol and callbacks of httptools' parser are overridden. The time between two requests
    of one connection is limited by uvicorn's `timeout_keep_alive`.
    """

    def __init__(self, *args: Any, header_timeout: float, on_header_timeout: Callable[[], None], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._header_timeout, self._on_header_timeout = header_timeout, on_header_timeout
        self._header_timer: asyncio.TimerHandle | None = None
        self._num_active = 0  # requests without a complete response

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._update_timer()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._update_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._cancel_timer()

    def on_headers_complete(self) -> None:
        self._num_active += 1
        self.scope[ABORT] = self.transport.abort  # type: ignore[literal-required]
        super().on_headers_complete()

    def handle_websocket_upgrade(self) -> None:
        """After it another protocol has the connection. The parser refers to this one, and this one to the parser."""
        super().handle_websocket_upgrade()
        self.parser = None  # type: ignore[assignment]

    def on_response_complete(self) -> None:
        self._num_active -= 1
        super().on_response_complete()

    def _update_timer(self) -> None:
        if self._num_active or self.transport.is_closing():
            self._cancel_timer()
        elif self._header_timer is None:
            self._header_timer = self.loop.call_later(self._header_timeout, self._expire)

    def _expire(self) -> None:
        self._on_header_timeout()
        self.transport.close()

    def _cancel_timer(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None


class AbortableWebSocketProtocol(WebSocketsSansIOProtocol):
    """Lets the application abort a connection whose client has stopped reading: a normal close waits for the client."""

    def handle_connect(self, event: Request) -> None:
        super().handle_connect(event)
        if self.response.status_code == 101:  # otherwise there is no scope
            self.scope[ABORT] = self.transport.abort  # type: ignore[literal-required]

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.conn.parser.close()  # a generator that refers to the protocol object, which refers to it
