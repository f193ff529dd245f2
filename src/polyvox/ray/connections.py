# SPDX-License-Identifier: Apache-2.0
"""Counts the requests of a replica, and closes WebSockets that are quiet while the replica drains."""

import asyncio
import time
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

SERVICE_RESTART = 1012  # close code of a WebSocket: the client connects again, to another replica
REQUEST_ID = b"x-request-id"
QUIET_SECONDS = 5.0  # without a message in either direction


class Connections:
    """The HTTP requests and WebSockets of a replica."""

    def __init__(self) -> None:
        self.num_open = 0
        self.num_ended = 0  # since the start
        self.draining = asyncio.Event()  # set while Ray Serve removes the replica


class ConnectionsMiddleware:
    """Counts in `connections`, and closes quiet WebSockets while `draining` is set.

    Ray Serve waits for the requests of a replica that it removes. A WebSocket has no end of its own, so it would be cut
    off after graceful_shutdown_timeout_s, perhaps in the middle of an utterance.
    """

    def __init__(self, app: ASGIApp, connections: Connections) -> None:
        self.app, self._connections = app, connections

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        self._connections.num_open += 1
        try:
            if scope["type"] == "websocket":
                await self._serve_websocket(scope, receive, send)
            else:
                await self.app(scope, receive, _without_request_id(scope, send))
        finally:
            self._connections.num_open -= 1
            self._connections.num_ended += 1

    async def _serve_websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        last_message = time.monotonic()

        async def receive_or_drain() -> Message:
            nonlocal last_message
            receiving = asyncio.ensure_future(receive())
            waiting: asyncio.Future[Any] = receiving
            try:
                while True:
                    draining = self._connections.draining
                    quiet = last_message + QUIET_SECONDS - time.monotonic()
                    if draining.is_set() and quiet <= 0:
                        await send({"type": "websocket.close", "code": SERVICE_RESTART})
                        return {"type": "websocket.disconnect", "code": SERVICE_RESTART}
                    waiting = asyncio.ensure_future(asyncio.sleep(quiet) if draining.is_set() else draining.wait())
                    await asyncio.wait({receiving, waiting}, return_when=asyncio.FIRST_COMPLETED)
                    waiting.cancel()
                    if receiving.done():
                        last_message = time.monotonic()
                        return receiving.result()
            finally:
                receiving.cancel()
                waiting.cancel()

        async def send_and_note(message: Message) -> None:
            nonlocal last_message
            last_message = time.monotonic()
            await send(message)

        await self.app(scope, receive_or_drain, send_and_note)


def _without_request_id(scope: Scope, send: Send) -> Send:
    """Removes the request id from responses if the request has one: the proxy returns that one, also a malformed one
    that the application does not use."""
    if not any(name == REQUEST_ID for name, _ in scope["headers"]):
        return send

    async def send_without(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [header for header in message["headers"] if header[0] != REQUEST_ID]}
        await send(message)

    return send_without
