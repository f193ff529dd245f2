# SPDX-License-Identifier: Apache-2.0
"""HTTP responses with one utterance: headers are sent with the first audio, failures never look complete."""

import base64
import json
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, closing

from starlette.types import Receive, Scope

from polyvox.alignment import TimedText
from polyvox.errors import PolyvoxError
from polyvox.server.app_state import AppState
from polyvox.server.logs import log_request
from polyvox.server.middleware.limits import LIMITER
from polyvox.server.responses import error_body, error_response, field_names
from polyvox.server.synthesis.client_response import ClientResponse, ResponseWriter, read_parts
from polyvox.server.synthesis.first_packet import server_timing
from polyvox.server.synthesis.options import SynthesisOptions
from polyvox.server.synthesis.timestamps import http_alignments, timestamp_messages
from polyvox.server.synthesis.utterance import Utterance

EVENT_STREAM = "text/event-stream"
JSON_LINES = "application/x-ndjson"
TimedAudio = AsyncIterator[tuple[bytes, list[TimedText]]]


class SpeechResponse(ClientResponse):
    """Synthesises while it is sent, or sends a whole file at the end, from memory or disk."""

    def __init__(
        self,
        state: AppState,
        options: SynthesisOptions,
        request_id: str,
        as_events: bool = False,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(state, request_id)
        self._options, self._as_events = options, as_events
        self._extra_headers = dict(headers or {})

    @property
    def events_type(self) -> str:
        """Content type of the response with `as_events`."""
        return f"{EVENT_STREAM}; charset=utf-8"

    async def respond(self, scope: Scope, receive: Receive, write: ResponseWriter) -> None:
        try:
            owner = scope[LIMITER].caller.key
            utterance = await self._state.synthesis.start(self._options, self._request_id, owner)
            if self._options.streaming:
                await self._send_stream(utterance, write)
            else:
                await self._send_file(utterance, write)
            await self._state.request_log.flush()
            await write.end()
        except PolyvoxError as error:
            if not write.started:
                self._state.record_rejected(error, self._request_id)
                await error_response(error, self._request_id, field_names(scope))(scope, receive, write)
                return
            # The body has no end, so the server closes the connection and clients see a failure.
            self._state.metrics.aborts.labels("error").inc()
            log_request("request failed", self._request_id, {"error": str(error)}, logging.ERROR)

    async def _send_stream(self, utterance: Utterance, write: ResponseWriter) -> None:
        async with aclosing(self._parts(utterance)) as parts:
            async for part in parts:
                if not write.started:
                    await write.start(self._response_headers(utterance))
                write.audio_seconds = utterance.playing_seconds
                await write.body(part)
        if not write.started:  # everything was silence, which is trimmed
            await write.start(self._response_headers(utterance))

    async def _parts(self, utterance: Utterance) -> AsyncGenerator[bytes]:
        """The parts of the body of a streaming response."""
        if self._as_events:
            async with aclosing(utterance.timed_audio()) as timed_audio:
                async for event in self._events(utterance, timed_audio):
                    yield event
        else:
            async with aclosing(utterance.audio()) as audio:
                async for part in audio:
                    yield part

    async def _send_file(self, utterance: Utterance, write: ResponseWriter) -> None:
        with closing(await utterance.file()) as file:
            length = {} if self._as_events else {"content-length": str(file.num_bytes)}
            await write.start(self._response_headers(utterance) | length)
            write.set_size(file.num_bytes, utterance.playing_seconds)
            async with aclosing(read_parts(file, self._state.synthesis)) as parts:
                async for part in self._file_body(utterance, parts):
                    await write.body(part)

    def _response_headers(self, utterance: Utterance) -> dict[str, str]:
        stages = utterance.record.stages
        return {
            "content-type": self.events_type if self._as_events else utterance.content_type,
            "cache-control": "no-store",
            "x-request-id": self._request_id,
            "x-seed": str(utterance.record.seed),
            "x-polyvox-model": _to_latin1(utterance.record.model),
            "x-accel-buffering": "no",  # a proxy that buffers would delay the audio
            **({"server-timing": server_timing(stages)} if stages and self._options.streaming else {}),
            **self._extra_headers,
        }

    async def _events(self, utterance: Utterance, audio: TimedAudio) -> AsyncIterator[bytes]:
        """Server-sent events. A failure after the first audio is an event too."""
        started = False
        try:
            async for part, timed in audio:
                for message in timestamp_messages(timed, self._options.timestamps, "speech.audio"):
                    yield _event(message)
                if part:
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

    def _file_body(self, _: Utterance, parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """The body of a response with a whole file."""
        return parts


class JSONLinesSpeechResponse(SpeechResponse):
    """One JSON object per line, as ElevenLabs sends audio with timestamps."""

    @property
    def events_type(self) -> str:
        return JSON_LINES if self._options.streaming else "application/json"

    async def _events(self, _: Utterance, audio: TimedAudio) -> AsyncIterator[bytes]:
        async for part, timed in audio:
            line = {"audio_base64": base64.b64encode(part).decode(), **http_alignments(timed)}
            yield json.dumps(line).encode() + b"\n"

    async def _file_body(self, utterance: Utterance, parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        yield json.dumps(http_alignments(utterance.timed_text)).encode()[:-1] + b', "audio_base64": "'
        async for part in parts:
            yield base64.b64encode(part)
        yield b'"}\n'


def _event(value: dict[str, object]) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def _to_latin1(text: str) -> str:
    return text.encode("latin-1", "replace").decode("latin-1")
