# SPDX-License-Identifier: Apache-2.0
"""What the WebSocket APIs share: messages with limits, and utterances that accept text while they are synthesised."""

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import aclosing
from typing import Any, Protocol, TypeVar

import msgspec
from fastapi import WebSocket
from starlette.websockets import WebSocketDisconnect

from polyvox.errors import InvalidRequest, PolyvoxError
from polyvox.server.app_state import AppState, get_state
from polyvox.server.middleware.auth import AUTHENTICATE, choose_subprotocol
from polyvox.server.middleware.connection import RESET
from polyvox.server.middleware.limits import LIMITER, ConcurrencyLimiter
from polyvox.server.requests import parse_json, request_id_of
from polyvox.server.responses import APIError
from polyvox.server.synthesis.options import SynthesisOptions
from polyvox.server.synthesis.reader import ReaderTimeout, ReaderTimer
from polyvox.server.synthesis.timestamps import TimestampGranularity
from polyvox.server.synthesis.utterance import Utterance, UtteranceEvent

log = logging.getLogger(__name__)

WorkType = TypeVar("WorkType", bound="SessionWork")

MAX_MESSAGE_CHARS = 128 * 1024  # of a message without a recording
APPEND_CHARS = 1000  # characters that are normalised at once, so that a long text does not block the event loop
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


class SpeechConnection(Protocol):
    """What an utterance needs of its connection."""

    @property
    def state(self) -> AppState: ...

    @property
    def limiter(self) -> ConcurrencyLimiter | None: ...


class LiveUtterance:
    """One utterance of a connection. It accepts text at once and is submitted when there is something to say.

    complete_text: submit it only when all of its text has arrived.
    """

    def __init__(
        self, connection: SpeechConnection, options: SynthesisOptions, request_id: str, complete_text: bool = False
    ) -> None:
        self._connection, self._options = connection, options
        self.request_id, self._complete_text = request_id, complete_text
        self._inputs: asyncio.Queue[str | None] = (
            asyncio.Queue()
        )  # text, or None for a flush; bounded by max_text_chars
        self._texts: list[str] = []
        self._num_chars = 0
        self._can_start, self.text_ended = asyncio.Event(), asyncio.Event()
        self._cancelled = asyncio.Event()
        self.finished = False
        self._is_blank = True  # nothing to say so far
        self.flushed = True  # no text since the last flush
        self.failed = False  # nothing more will be synthesised
        self.utterance: Utterance | None = None
        self.reader = ReaderTimer(connection.state.settings.reader_timeout)

    @property
    def playing_seconds(self) -> float:
        """Playing time of the audio so far."""
        return 0.0 if self.utterance is None else self.utterance.playing_seconds

    @property
    def cancelled(self) -> bool:
        return self._cancelled.is_set()

    @property
    def separate_files(self) -> bool:
        return self._options.separate_files

    @property
    def timestamps(self) -> tuple[TimestampGranularity, ...]:
        return self._options.timestamps

    @property
    def format(self) -> str:
        return self._options.format

    @property
    def ignored_fields(self) -> tuple[str, ...]:
        return self._options.ignored_fields

    @property
    def notice(self) -> str | None:
        """For the client: what was done with the recording of the session."""
        return self._options.notice

    @property
    def sample_rate(self) -> int | None:
        return None if self.utterance is None else self.utterance.sample_rate

    @property
    def text(self) -> str:
        """All text so far."""
        return "".join(self._texts)

    @property
    def busy(self) -> bool:
        """Whether something is being synthesised or is about to be."""
        if not self._can_start.is_set() or self.cancelled or self.failed:
            return False
        return self.utterance is None or not self.utterance.awaiting_text or not self._inputs.empty()

    @property
    def interrupted(self) -> bool:
        """Whether the synthesis was cancelled, but not by the client's request."""
        return self.utterance is not None and self.utterance.record.finish_reason == "cancelled" and not self.cancelled

    def append(self, text: str) -> None:
        """More text; raises InvalidRequest if it is too long or the text has ended."""
        if self.finished and text:
            raise InvalidRequest("text", text, "the utterance has already ended")
        limit = self._connection.state.settings.max_text_chars
        if self._num_chars + len(text) > limit:
            raise InvalidRequest("text", text, f"must have at most {limit:,} characters per utterance")
        if not text:
            return
        self._num_chars += len(text)
        self._texts.append(text)
        self._inputs.put_nowait(text)
        if text.strip():
            self.flushed = self._is_blank = False
            if not self._complete_text:
                self._can_start.set()

    def flush(self) -> None:
        """Ends the current segment."""
        if not self.flushed:
            self._inputs.put_nowait(None)
            self.flushed = True

    def finish(self) -> None:
        """Marks the text as complete. Idempotent."""
        if not self.finished:
            self.finished = True
            self._inputs.put_nowait("")
            self._can_start.set()
            self.text_ended.set()

    def cancel(self) -> None:
        """Ends the utterance at once. Idempotent."""
        self._cancelled.set()
        self._can_start.set()
        self.text_ended.set()
        if self.utterance is not None:
            self.utterance.cancel()

    async def events(self) -> AsyncGenerator[UtteranceEvent]:
        """As `Utterance.events`; raises Overloaded too if the utterance is rejected."""
        await self._can_start.wait()
        if self._is_blank or self._cancelled.is_set():
            return
        assert self._connection.limiter is not None, "not authenticated"
        async with self._connection.limiter.request():
            owner = self._connection.limiter.caller.key
            self.utterance = await self._connection.state.synthesis.start(self._options, self.request_id, owner)
            if self._cancelled.is_set():
                self.utterance.cancel()
            appending = asyncio.create_task(self._append_text(self.utterance))
            try:
                async with aclosing(self.utterance.events()) as events:
                    async for event in events:
                        yield event
            finally:
                appending.cancel()
                await asyncio.gather(appending, return_exceptions=True)
            if not appending.cancelled() and (error := appending.exception()) is not None:
                raise error

    async def _append_text(self, utterance: Utterance) -> None:
        try:
            while not (self.finished and self._inputs.empty()):
                text = await self._inputs.get()
                if text is None:
                    utterance.flush()
                for start in range(0, len(text or ""), APPEND_CHARS):
                    utterance.append((text or "")[start : start + APPEND_CHARS])
                    await asyncio.sleep(0)
            utterance.finish()
        except Exception:
            utterance.cancel()
            raise

    def record_failure(self, error: PolyvoxError) -> None:
        """Counts a failure: rejected if nothing was synthesised, otherwise aborted."""
        self.failed = True
        state = self._connection.state
        if self.utterance is None or self.utterance.record.finish_reason is None:
            state.record_rejected(error, self.request_id)
        else:
            state.metrics.aborts.labels("error").inc()
