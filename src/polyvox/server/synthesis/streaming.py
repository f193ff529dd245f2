# SPDX-License-Identifier: Apache-2.0
"""HTTP responses that stream an utterance: headers are sent with the first audio, failures never look complete."""

import asyncio
import base64
import json
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from polyvox.errors import PolyvoxError
from polyvox.server.app_state import AppState
from polyvox.server.logs import log_request
from polyvox.server.middleware.connection import RESET
from polyvox.server.middleware.limits import LIMITER
from polyvox.server.responses import Disconnected, error_body, error_response, field_names
from polyvox.server.synthesis.options import SynthesisOptions
from polyvox.server.synthesis.reader import ReaderTimeout, ReaderTimer
from polyvox.server.synthesis.utterance import Utterance

T = TypeVar("T")
EVENT_STREAM = "text/event-stream"
JSON_LINES = "application/x-ndjson"


class SpeechResponse(Response):
    """Synthesises while it is sent. A client that disconnects or stops reading ends its own utterance only."""

    def __init__(
        self,
        state: AppState,
        options: SynthesisOptions,
        request_id: str,
        as_events: bool = False,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__()
        self._state, self._options, self._request_id, self._as_events = state, options, request_id, as_events
        self._extra_headers = dict(headers or {})

    @property
    def events_type(self) -> str:
        """Content type of the response with `as_events`."""
        return f"{EVENT_STREAM}; charset=utf-8"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        synthesis = asyncio.create_task(self._synthesise(scope, receive, send))
        disconnect = asyncio.create_task(_disconnected(receive))
        aborts = self._state.metrics.aborts
        try:
            await asyncio.wait({synthesis, disconnect}, return_when=asyncio.FIRST_COMPLETED)
            if not synthesis.done():
                reason = "drain" if self._state.synthesis.drain_expired else "disconnect"
                aborts.labels(reason).inc()
                if reason == "drain":
                    log_request("request aborted", self._request_id, {"reason": reason}, logging.WARNING)
        finally:
            synthesis.cancel()
            disconnect.cancel()
            await asyncio.gather(synthesis, disconnect, return_exceptions=True)
        error = None if synthesis.cancelled() else synthesis.exception()
        if isinstance(error, ReaderTimeout):
            aborts.labels("timeout").inc()
            self._state.metrics.count_timeout(error.problem)
            log_request("request aborted", self._request_id, {"reason": error.problem}, logging.WARNING)
            if (reset := scope.get(RESET)) is not None:
                reset()
        elif error is not None:
            raise error

    async def _synthesise(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = False
        utterance: Utterance | None = None
        reader = ReaderTimer(self._state.settings.reader_timeout)

        async def write(message: Message) -> None:
            audio_seconds = 0.0 if utterance is None else utterance.playing_seconds
            await reader.write(send(message), len(message.get("body", b"")), audio_seconds)

        try:
            owner = scope[LIMITER].caller.key
            utterance = await self._state.synthesis.start(self._options, self._request_id, owner)
            async with aclosing(utterance.audio()) as audio:
                has_length = not (self._options.streaming or self._as_events)
                async for part in self._events(utterance, audio) if self._as_events else audio:
                    if not started:
                        started = True
                        await write(self._start_message(utterance, len(part) if has_length else None))
                    await write({"type": "http.response.body", "body": part, "more_body": True})
            if not started:  # everything was silence, which is trimmed
                await write(self._start_message(utterance, 0 if has_length else None))
            await self._state.request_log.flush()
            await write({"type": "http.response.body", "body": b"", "more_body": False})
        except PolyvoxError as error:
            if not started:
                self._state.record_rejected(error, self._request_id)
                await error_response(error, self._request_id, field_names(scope))(scope, receive, write)
                return
            # The body has no end, so the server closes the connection and clients see a failure.
            self._state.metrics.aborts.labels("error").inc()
            log_request("request failed", self._request_id, {"error": str(error)}, logging.ERROR)

    def _start_message(self, utterance: Utterance, length: int | None) -> dict[str, object]:
        headers = {
            "content-type": self.events_type if self._as_events else utterance.content_type,
            "cache-control": "no-store",
            "x-request-id": self._request_id,
            "x-seed": str(utterance.record.seed),
            "x-polyvox-model": _to_latin1(utterance.record.model),
            "x-accel-buffering": "no",  # a proxy that buffers would delay the audio
            **self._extra_headers,
        }
        if length is not None:
            headers["content-length"] = str(length)
        raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
        return {"type": "http.response.start", "status": 200, "headers": raw}

    async def _events(self, utterance: Utterance, audio: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """Server-sent events. A failure after the first audio is an event too."""
        started = False
        try:
            async for part in audio:
                yield _event({"type": "speech.audio.delta", "audio": base64.b64encode(part).decode()})
                started = True
        except PolyvoxError as error:
            if not started:
                raise
            self._state.metrics.aborts.labels("error").inc()
            yield _event({"type": "speech.audio.error", **error_body(error)})
            return
        record = utterance.record
        done = {"request_id": record.request_id, "seed": record.seed, "finish_reason": record.finish_reason}
        yield _event({"type": "speech.audio.done", "usage": record.usage(), **done})


class JSONLinesSpeechResponse(SpeechResponse):
    """One JSON object per line, as ElevenLabs sends audio with timestamps. The timestamps are null."""

    @property
    def events_type(self) -> str:
        return JSON_LINES if self._options.streaming else "application/json"

    async def _events(self, _: Utterance, audio: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        async for part in audio:
            encoded = base64.b64encode(part).decode()
            line = {"audio_base64": encoded, "alignment": None, "normalized_alignment": None}
            yield json.dumps(line).encode() + b"\n"


def _event(value: dict[str, object]) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def _to_latin1(text: str) -> str:
    return text.encode("latin-1", "replace").decode("latin-1")


async def while_connected(request: Request, work: "asyncio.Future[T]") -> T:
    """Awaits work; cancels it and raises Disconnected if the client disconnects."""
    disconnect = asyncio.create_task(_disconnected(request.receive))
    both: list[asyncio.Future[Any]] = [work, disconnect]
    try:
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            raise Disconnected
        return work.result()
    finally:
        work.cancel()
        disconnect.cancel()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
