# SPDX-License-Identifier: Apache-2.0
"""What the WebSocket APIs share: one connection with limits of its messages, and the life of a session."""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Protocol, TypeVar

import msgspec
from fastapi import WebSocket
from starlette.websockets import WebSocketDisconnect

from polyvox.server.app_state import AppState, get_state
from polyvox.server.middleware.auth import AUTHENTICATE, choose_subprotocol
from polyvox.server.middleware.connection import RESET
from polyvox.server.middleware.limits import LIMITER, ConcurrencyLimiter
from polyvox.server.requests import parse_json, request_id_of
from polyvox.server.responses import APIError
from polyvox.server.synthesis.reader import ReaderTimeout, ReaderTimer

log = logging.getLogger(__name__)

WorkType = TypeVar("WorkType", bound="SessionWork")

MAX_MESSAGE_CHARS = 128 * 1024  # of a message without a recording
MAX_INVALID_MESSAGES = 100  # before the connection is closed
# Close codes of RFC 6455, section 7.4.1.
NORMAL, GOING_AWAY, POLICY_VIOLATION, INTERNAL_ERROR, SERVICE_RESTART, TRY_AGAIN = 1000, 1001, 1008, 1011, 1012, 1013
MAX_REASON_BYTES = 123  # RFC 6455, section 5.5
CLOSE_TIMEOUT = 5.0  # seconds


class ClientDisconnected(Exception):
    """The connection is closed."""


class IdleTimeout(Exception):
    """No message arrived in time."""


class ReadProgress(Protocol):
    """An utterance or a response that the client reads, which limits the time of its writes."""

    @property
    def reader(self) -> ReaderTimer: ...

    @property
    def playing_seconds(self) -> float:
        """Playing time of the audio so far."""


class SessionWork(Protocol):
    """What a task of a session does."""

    @property
    def busy(self) -> bool:
        """Whether it is interrupted if the session ends now."""


class WebSocketConnection:
    """One WebSocket: receives JSON objects, sends messages one at a time.

    large_fields: quoted names of fields whose messages may exceed MAX_MESSAGE_CHARS.
    """

    def __init__(self, websocket: WebSocket, large_fields: tuple[str, ...]) -> None:
        self._websocket, self._large_fields = websocket, large_fields
        self.state: AppState = get_state(websocket)
        self.request_id = request_id_of(websocket)
        self.limiter: ConcurrencyLimiter | None = websocket.scope.get(LIMITER)  # None: not authenticated yet
        self._send_lock = asyncio.Lock()
        self._closed = False
        self._abort_reason = "disconnect"
        self._num_invalid = 0

    @property
    def query(self) -> dict[str, str]:
        return dict(self._websocket.query_params)

    @property
    def path(self) -> dict[str, str]:
        return dict(self._websocket.path_params)

    def authenticate(self, key: str) -> None:
        """Accepts a key that was sent in a message; raises APIError if it is invalid."""
        if self.limiter is None:
            self.limiter = self._websocket.scope[AUTHENTICATE](key)

    async def receive_json(self, timeout: float, is_busy: Callable[[], bool] = lambda: False) -> dict[str, Any]:
        """The next message. Raises APIError, ClientDisconnected, or IdleTimeout if it does not arrive while idle."""
        while True:
            try:
                async with asyncio.timeout(timeout):
                    message = await self._websocket.receive()
                break
            except TimeoutError:
                if not is_busy():
                    self.state.metrics.count_timeout("websocket_idle")
                    raise IdleTimeout from None
        if message["type"] == "websocket.disconnect":
            if not self._closed and message.get("code") == SERVICE_RESTART:
                self._abort_reason = "drain"
            self._closed = True
            raise ClientDisconnected
        text = message.get("text")
        if text is None:
            raise APIError(400, "invalid_message", "Messages must be JSON in text frames.")
        if len(text) > MAX_MESSAGE_CHARS and not any(name in text for name in self._large_fields):
            raise APIError(413, "too_large", f"A message must have at most {MAX_MESSAGE_CHARS:,} characters.")
        return await parse_json(text, "message")

    async def send_json(self, message: dict[str, Any], live: ReadProgress | None = None) -> None:
        """live: the utterance or response that the message is part of, which limits the client's time to read it."""
        await self._send({"type": "websocket.send", "text": _encode(message)}, live)

    async def send_bytes(self, data: bytes, live: ReadProgress, sent_seconds: float | None = None) -> None:
        """sent_seconds: playing time of the audio sent so far, if it is not all that was synthesised."""
        await self._send({"type": "websocket.send", "bytes": data}, live, sent_seconds)

    async def close(self, code: int = NORMAL, reason: str = "") -> None:
        """Closes the connection; resets it after CLOSE_TIMEOUT if the client does not read. Idempotent."""
        fitting = reason.encode("utf-8", "replace")[:MAX_REASON_BYTES].decode("utf-8", "ignore")
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT):
                await self._send({"type": "websocket.close", "code": code, "reason": fitting})
            self._reset(self.state.settings.reader_timeout)  # unless the client has read everything by then
        except ClientDisconnected:
            pass
        except TimeoutError:
            self._reset()
        self._closed = True

    def count_abort(self) -> None:
        """Counts an utterance that was interrupted by the end of the connection."""
        self.state.metrics.aborts.labels(self._abort_reason).inc()

    def count_invalid(self) -> None:
        """Raises ClientDisconnected after too many invalid messages."""
        self._num_invalid += 1
        if self._num_invalid > MAX_INVALID_MESSAGES:
            raise ClientDisconnected

    async def _send(
        self, message: dict[str, Any], live: ReadProgress | None = None, sent_seconds: float | None = None
    ) -> None:
        reader = ReaderTimer(self.state.settings.reader_timeout) if live is None else live.reader
        async with self._send_lock:
            if self._closed:
                raise ClientDisconnected
            try:
                num_bytes = len(message.get("bytes") or message.get("text") or "")
                if sent_seconds is None:
                    sent_seconds = 0.0 if live is None else live.playing_seconds
                await reader.write(self._websocket.send(message), num_bytes, sent_seconds)
            except WebSocketDisconnect:
                self._closed = True
                raise ClientDisconnected from None
            except ReaderTimeout as error:
                self._closed, self._abort_reason = True, "timeout"
                self.state.metrics.count_timeout(error.problem)
                log.warning("request aborted", extra={"request_id": self.request_id, "reason": error.problem})
                self._reset()
                raise ClientDisconnected from None
            finally:
                if live is None:
                    reader.close()

    def _reset(self, delay: float = 0.0) -> None:
        """Ends the connection without sending what is buffered, at once or after a delay."""
        if (reset := self._websocket.scope.get(RESET)) is not None:
            reset(delay)


def _encode(message: dict[str, Any]) -> str:
    """As JSON. msgspec is faster, but does not encode surrogates, which a client's text may contain."""
    try:
        return msgspec.json.encode(message).decode()
    except UnicodeEncodeError:
        return json.dumps(message)


async def serve_websocket(
    websocket: WebSocket, session: Callable[[WebSocketConnection], Awaitable[None]], large_fields: tuple[str, ...] = ()
) -> None:
    """Runs a session and closes the connection, whatever the session raises."""
    connection = WebSocketConnection(websocket, large_fields)
    await websocket.accept(choose_subprotocol(websocket.scope.get("subprotocols", [])))
    try:
        await session(connection)
        await connection.close()
    except ClientDisconnected:
        await connection.close(POLICY_VIOLATION)
    except asyncio.CancelledError:  # drain_timeout has passed
        await connection.close(GOING_AWAY, "The server is shutting down.")
        raise
    except Exception:
        log.exception("websocket failed", extra={"request_id": connection.request_id})
        await connection.close(INTERNAL_ERROR, "Internal error. The log has the details under the request id.")


async def cancel_all(*tasks: asyncio.Task[Any]) -> list[BaseException | None]:
    """Cancels tasks and waits for them; returns their exceptions, for `raise_first`."""
    for task in tasks:
        task.cancel()
    return await asyncio.gather(*tasks, return_exceptions=True)


async def run_session(
    connection: "WebSocketConnection",
    receive_loop: Coroutine[Any, Any, None],
    tasks: dict[asyncio.Task[None], WorkType],
    task_failed: asyncio.Event,
) -> None:
    """Receives messages until the client ends the session, then waits for the tasks that send audio.

    A failed task ends the session. All tasks are cancelled at the end, and the first exception is raised.
    """
    receiving = asyncio.create_task(receive_loop)
    failed = asyncio.create_task(task_failed.wait())
    try:
        await asyncio.wait({receiving, failed}, return_when=asyncio.FIRST_COMPLETED)
        if receiving.done() and receiving.exception() is None and tasks:
            await asyncio.wait([*tasks], return_when=asyncio.FIRST_EXCEPTION)
    finally:
        if any(work.busy for work in tasks.values()):
            connection.count_abort()
        results = await cancel_all(receiving, failed, *tasks)
        tasks.clear()
        del receiving, failed
    raise_first(results)


def raise_first(results: list[BaseException | None]) -> None:
    """Raises the first exception that is not a cancellation, and empties the list.

    The traceback of the exception refers to the frames that it passes, so these must not refer to it or to its task:
    such a cycle keeps a whole session in memory until the garbage collector runs.
    """
    failure = next((result for result in results if isinstance(result, Exception)), None)
    results.clear()
    try:
        if failure is not None:
            raise failure
    finally:
        del failure
