# SPDX-License-Identifier: Apache-2.0
"""Clients of the server's WebSockets."""

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from server.live_server import TIMEOUT, RunningServer

CLOSE_TIMEOUT = 3.0  # seconds; a client that has not read everything waits for it


class WebSocketClient:
    """One connection."""

    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection

    def send(self, **message: Any) -> None:
        self.connection.send(json.dumps(message))

    def receive(self) -> dict[str, Any] | bytes:
        found = self.connection.recv(timeout=TIMEOUT)
        return found if isinstance(found, bytes) else json.loads(found)

    def receive_json(self) -> dict[str, Any]:
        """The next message that is not audio."""
        while isinstance(found := self.receive(), bytes):
            pass
        return found

    def until(self, kind: str) -> tuple[list[dict[str, Any]], bytes]:
        """All messages up to one of a type, and all audio before it."""
        messages, sound = list[dict[str, Any]](), b""
        while True:
            found = self.receive()
            if isinstance(found, bytes):
                sound += found
                continue
            messages.append(found)
            if found["type"] == kind:
                return messages, sound

    def final(self, context: str | None = None) -> tuple[list[dict[str, Any]], bytes]:
        """All messages of ElevenLabs' protocol up to the end of a context, and its audio."""
        messages, sound = list[dict[str, Any]](), b""
        while True:
            found = self.receive()
            assert isinstance(found, dict)
            messages.append(found)
            if found.get("contextId") == context and found.get("audio"):
                sound += base64.b64decode(found["audio"])
            if found.get("contextId") == context and (found.get("isFinal") or "error" in found):
                return messages, sound

    def closed(self) -> int:
        """Waits for the server to close; returns its code."""
        with suppress(ConnectionClosed):
            while True:
                self.connection.recv(timeout=TIMEOUT)
        code = self.connection.close_code
        assert code is not None
        return code


@contextmanager
def connect_websocket(server: RunningServer, path: str, **more: Any) -> Iterator[WebSocketClient]:
    address = f"ws://127.0.0.1:{server.port}{path}"
    with connect(address, max_size=None, proxy=None, close_timeout=CLOSE_TIMEOUT, **more) as connection:
        yield WebSocketClient(connection)
