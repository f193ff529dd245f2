"""What the WebSockets have in common: messages with limits, and utterances that take text while they are said."""

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, suppress
from typing import Any

from fastapi import WebSocket
from starlette.websockets import WebSocketDisconnect

from polyvox.errors import InvalidRequest, PolyvoxError
from polyvox.server.app_state import AppState, of
from polyvox.server.middleware.auth import KeySlot, chosen_protocol
from polyvox.server.responses import Refused, parse_json, request_id_of
from polyvox.server.synthesis.options import SynthesisOptions
from polyvox.server.synthesis.segments import Segment
from polyvox.server.synthesis.utterance import Utterance

log = logging.getLogger(__name__)

MAX_TEXT_MESSAGE = 128 * 1024  # characters of a message that brings no recording
SLICE = 1000  # characters that are read at once, so that a long text holds up nobody
MAX_ERRORS = 100  # messages that cannot be read, before a socket is closed
# Close codes: RFC 6455, 7.4.1.
NORMAL, GOING_AWAY, POLICY, FAILED, RESTART, TRY_AGAIN = 1000, 1001, 1008, 1011, 1012, 1013
MAX_REASON = 123  # bytes, by the same: 5.5
CLOSE_SECONDS = 5.0


def _fitting(reason: str) -> str:
    """A frame that closes has room for so many bytes."""
    return reason.encode("utf-8", "replace")[:MAX_REASON].decode("utf-8", "ignore")


class ClientDisconnected(Exception):
    """The other side has closed the socket."""


class IdleTimeout(Exception):
    """Nothing came for too long."""


class Socket:
    """One WebSocket: JSON objects in, messages out, one at a time. large: names of fields that may be long."""

    def __init__(self, websocket: WebSocket, large: tuple[str, ...]) -> None:
        self._large = large
        self._websocket = websocket
        self.desk: AppState = of(websocket)
        self.request_id = request_id_of(websocket)
        self.share: KeySlot | None = websocket.scope.get("polyvox.share")
        self._sending = asyncio.Lock()
        self._closed = False
        self._left = "disconnect"  # why it is closed
        self._errors = 0

    @property
    def query(self) -> dict[str, str]:
        return dict(self._websocket.query_params)

    @property
    def path(self) -> dict[str, str]:
        return dict(self._websocket.path_params)

    def admit(self, key: str) -> None:
        """Takes a key that came with a message; raises Refused where it is not known."""
        if self.share is None:
            self.share = self._websocket.scope["polyvox.admit"](key)

    async def next(self, seconds: float, busy: Callable[[], bool] = lambda: False) -> dict[str, Any]:
        """The next message; raises Refused, ClientDisconnected, or IdleTimeout where none came while idle."""
        while True:
            try:
                async with asyncio.timeout(seconds):
                    message = await self._websocket.receive()
                break
            except TimeoutError:
                if not busy():
                    raise IdleTimeout from None
        if message["type"] == "websocket.disconnect":
            self._closed = True
            self._left = "drain" if message.get("code") == RESTART else "disconnect"
            raise ClientDisconnected
        text = message.get("text")
        if text is None:
            raise Refused(400, "invalid_message", "messages are JSON in text frames, not bytes")
        if len(text) > MAX_TEXT_MESSAGE and not any(name in text for name in self._large):
            raise Refused(413, "too_large", f"the message has more than {MAX_TEXT_MESSAGE:,} characters")
        return parse_json(text, "the message")

    async def tell(self, message: dict[str, Any]) -> None:
        await self._send({"type": "websocket.send", "text": json.dumps(message)})

    async def send(self, data: bytes) -> None:
        await self._send({"type": "websocket.send", "bytes": data})

    async def close(self, code: int = NORMAL, reason: str = "") -> None:
        """At once, or after CLOSE_SECONDS where the other side reads nothing; any number of times."""
        with suppress(ClientDisconnected, TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._send({"type": "websocket.close", "code": code, "reason": _fitting(reason)})
        self._closed = True

    def count_cut(self) -> None:
        """Notes that something was being said when the socket was closed."""
        self.desk.metrics.aborts.labels(self._left).inc()

    def count_error(self) -> None:
        """Raises ClientDisconnected after too many invalid messages in a row."""
        self._errors += 1
        if self._errors > MAX_ERRORS:
            raise ClientDisconnected

    async def _send(self, message: dict[str, Any]) -> None:
        async with self._sending:
            if self._closed:
                raise ClientDisconnected
            try:
                await self._websocket.send(message)
            except WebSocketDisconnect:
                self._closed = True
                raise ClientDisconnected from None


async def converse(
    websocket: WebSocket, conversation: Callable[[Socket], Awaitable[None]], large: tuple[str, ...] = ()
) -> None:
    """One socket from its first message to its close; whatever the conversation raises, it is closed."""
    socket = Socket(websocket, large)
    await websocket.accept(chosen_protocol(websocket.scope.get("subprotocols", [])))
    try:
        await conversation(socket)
        await socket.close()
    except ClientDisconnected:
        await socket.close(POLICY)
    except asyncio.CancelledError:  # the server's time to drain is over
        await socket.close(GOING_AWAY, "the server stops")
    except Exception:
        log.exception("a socket failed", extra={"request_id": socket.request_id})
        await socket.close(FAILED, "something went wrong here; the log has it under the request's id")


class UtteranceTurn:
    """One utterance of a socket. It takes text from the first moment; it asks for a place once there is some.

    whole: or once all of it is there.
    """

    def __init__(self, socket: Socket, wanted: SynthesisOptions, request_id: str, whole: bool = False) -> None:
        self._socket, self._wanted, self.request_id, self._whole = socket, wanted, request_id, whole
        self._steps: asyncio.Queue[str | None] = asyncio.Queue()  # text, or None for a flush; max_text bounds it
        self._text: list[str] = []
        self._characters = 0
        self._begun, self.ended = asyncio.Event(), asyncio.Event()  # ended: no text will come
        self._stopped = asyncio.Event()
        self.finished = False
        self._blank = True  # there is nothing in it to say
        self.flushed = True  # no text has come since the last flush
        self.failed = False  # nothing more will be said, whatever comes
        self.utterance: Utterance | None = None

    @property
    def cancelled(self) -> bool:
        return self._stopped.is_set()

    @property
    def divided(self) -> bool:
        return self._wanted.divided

    @property
    def format(self) -> str:
        return self._wanted.format

    @property
    def sample_rate(self) -> int | None:
        return None if self.utterance is None else self.utterance.sample_rate

    @property
    def text(self) -> str:
        """All of it so far."""
        return "".join(self._text)

    @property
    def busy(self) -> bool:
        """Something is being said, or is on its way."""
        if not self._begun.is_set() or self.cancelled or self.failed:
            return False
        return self.utterance is None or not self.utterance.wants_text or not self._steps.empty()

    def append(self, text: str) -> None:
        """More text; raises InvalidRequest where that is too much, or too late."""
        if self.finished and text:
            raise InvalidRequest("text", text, "the utterance has already ended")
        most = self._socket.desk.settings.max_text
        if self._characters + len(text) > most:
            raise InvalidRequest("text", text, f"must have at most {most:,} characters per utterance")
        if not text:
            return
        self._characters += len(text)
        self._text.append(text)
        self._steps.put_nowait(text)
        if text.strip():
            self.flushed = self._blank = False
            if not self._whole:
                self._begun.set()

    def flush(self) -> None:
        """Says what is there as if it were the end."""
        if not self.flushed:
            self._steps.put_nowait(None)
            self.flushed = True

    def finish(self) -> None:
        """No more text will come; any number of times."""
        if not self.finished:
            self.finished = True
            self._steps.put_nowait("")
            self._begun.set()
            self.ended.set()

    def cancel(self) -> None:
        """Ends it at once; any number of times."""
        self._stopped.set()
        self._begun.set()
        self.ended.set()
        if self.utterance is not None:
            self.utterance.cancel()

    async def parts(self) -> AsyncGenerator[Segment | bytes]:
        """What is said, as `Utterance.parts` gives it; raises as that does, and where there is no place."""
        await self._begun.wait()
        if self._blank or self._stopped.is_set():
            return
        assert self._socket.share is not None, "nobody speaks without having been admitted"
        desk = self._socket.desk
        with self._socket.share.one():
            self.utterance = await desk.speaker.start(self._wanted, self.request_id)
            if self._stopped.is_set():
                self.utterance.cancel()
            feeding = asyncio.create_task(self._feed(self.utterance))
            try:
                async with aclosing(self.utterance.parts()) as parts:
                    async for part in parts:
                        yield part
            finally:
                feeding.cancel()
                await asyncio.gather(feeding, return_exceptions=True)
            if not feeding.cancelled() and (error := feeding.exception()) is not None:
                raise error

    async def _feed(self, utterance: Utterance) -> None:
        try:
            while not (self.finished and self._steps.empty()):
                step = await self._steps.get()
                if step is None:
                    utterance.flush()
                for start in range(0, len(step or ""), SLICE):
                    utterance.append((step or "")[start : start + SLICE])
                    await asyncio.sleep(0)
        except Exception:
            utterance.cancel()
            raise
        utterance.finish()

    def count(self, error: PolyvoxError) -> None:
        """Notes a failure as the other faces do: refused where nothing was said, else cut short."""
        self.failed = True
        desk = self._socket.desk
        if self.utterance is None or self.utterance.outcome.finish_reason is None:
            desk.refused(error, self.request_id)
        else:
            desk.metrics.aborts.labels("error").inc()
            log.error("a stream failed", extra={"request_id": self.request_id, "error": str(error)})
