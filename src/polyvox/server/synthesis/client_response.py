# SPDX-License-Identifier: Apache-2.0
"""HTTP responses that take long to make or to send: they end when the client disconnects or reads too slowly."""

import asyncio
import logging
from abc import abstractmethod
from collections.abc import AsyncGenerator
from contextlib import suppress

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from polyvox.server.app_state import AppState
from polyvox.server.logs import log_request
from polyvox.server.middleware.connection import RESET
from polyvox.server.synthesis.reader import ReaderTimeout, ReaderTimer
from polyvox.server.synthesis.service import SynthesisService
from polyvox.server.synthesis.spool import SpooledFile

FILE_PART = 48 * 1024  # bytes that are read from a file at once; a multiple of 3, for base64
RESET_TIMEOUT = 1.0  # seconds for a connection to end after its reset


class ResponseWriter:
    """ASGI's `send` with the time limits of the client. audio_seconds: playing time of all audio sent so far."""

    def __init__(self, send: Send, timeout: float) -> None:
        self._send, self._reader = send, ReaderTimer(timeout)
        self.audio_seconds = 0.0
        self.started = self.incomplete = False  # the headers are sent; and the end is not
        self._seconds_per_byte = 0.0  # of a response whose size is known

    async def __call__(self, message: Message) -> None:
        """Raises ReaderTimeout."""
        self.started = True
        self.incomplete = message["type"] == "http.response.start" or message.get("more_body", False)
        num_bytes = len(message.get("body", b""))
        self.audio_seconds += self._seconds_per_byte * num_bytes
        await self._reader.write(self._send(message), num_bytes, self.audio_seconds)

    def close(self) -> None:
        self._reader.close()

    def set_size(self, num_bytes: int, audio_seconds: float) -> None:
        """For a response of known size: its audio is spread over all bytes."""
        self._seconds_per_byte = audio_seconds / max(1, num_bytes)

    async def start(self, headers: dict[str, str]) -> None:
        raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
        await self({"type": "http.response.start", "status": 200, "headers": raw})

    async def body(self, part: bytes) -> None:
        await self({"type": "http.response.body", "body": part, "more_body": True})

    async def end(self) -> None:
        await self({"type": "http.response.body", "body": b"", "more_body": False})


class ClientResponse(Response):
    """Base class. A client that disconnects or reads too slowly ends its own response only."""

    def __init__(self, state: AppState, request_id: str) -> None:
        super().__init__()
        self._state, self._request_id = state, request_id

    @abstractmethod
    async def respond(self, scope: Scope, receive: Receive, write: ResponseWriter) -> None:
        """Makes and sends the response. It is cancelled if the client disconnects."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        write = ResponseWriter(send, self._state.settings.reader_timeout)
        responding = asyncio.create_task(self.respond(scope, receive, write))
        disconnect = asyncio.create_task(_disconnected(receive))
        aborts = self._state.metrics.aborts
        try:
            await asyncio.wait({responding, disconnect}, return_when=asyncio.FIRST_COMPLETED)
            if not responding.done():
                reason = "drain" if self._state.synthesis.drain_expired else "disconnect"
                aborts.labels(reason).inc()
                if reason == "drain":
                    log_request("request aborted", self._request_id, {"reason": reason}, logging.WARNING)
        finally:
            responding.cancel()
            disconnect.cancel()
            await asyncio.gather(responding, disconnect, return_exceptions=True)
            write.close()
        error = None if responding.cancelled() else responding.exception()
        if isinstance(error, ReaderTimeout):
            aborts.labels("timeout").inc()
            self._state.metrics.count_timeout(error.problem)
            log_request("request aborted", self._request_id, {"reason": error.problem}, logging.WARNING)
            await _end_connection(scope, receive)
        elif error is not None:
            raise error
        elif write.incomplete and not responding.cancelled():
            # It failed: a body without its end shows it. In HTTP/1.0 the connection ends every body, so it is reset.
            ends_bodies = scope.get("http_version") == "1.0"
            await _end_connection(scope, receive, 0.0 if ends_bodies else self._state.settings.reader_timeout)


async def read_parts(file: SpooledFile, synthesis: SynthesisService) -> AsyncGenerator[bytes]:
    """The rest of a file. It is read in a thread."""
    while part := await synthesis.in_thread(file.read, FILE_PART):
        yield part


def base64_length(num_bytes: int) -> int:
    """Characters of this many bytes in base64."""
    return 4 * -(-num_bytes // 3)


async def _end_connection(scope: Scope, receive: Receive, delay: float = 0.0) -> None:
    """Closes the connection, and resets it after a delay if the client has not read the rest by then.

    Waits for the end, because uvicorn logs an error for an incomplete response of an open connection.
    """
    if (reset := scope.get(RESET)) is not None:
        reset(delay)
        with suppress(TimeoutError):
            async with asyncio.timeout(delay + RESET_TIMEOUT):
                await _disconnected(receive)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
