# SPDX-License-Identifier: Apache-2.0
"""Deepgram's speech API as LiveKit and Pipecat use it: POST and WS /v1/speak."""

import asyncio
from dataclasses import replace
from typing import Any

from fastapi import APIRouter, Request, WebSocket
from fastapi.responses import Response

from polyvox.errors import InvalidRequest, PolyvoxError
from polyvox.server.api.live_session import LiveSession
from polyvox.server.api.live_utterance import LiveUtterance
from polyvox.server.api.websocket_connection import (
    POLICY_VIOLATION,
    WebSocketConnection,
    serve_websocket,
)
from polyvox.server.app_state import State
from polyvox.server.requests import JSONRoute, RequestModel, parse_integer, request_id_of
from polyvox.server.responses import DEEPGRAM_FIELDS, error_body
from polyvox.server.synthesis.options import SynthesisOptions
from polyvox.server.synthesis.streaming import SpeechResponse

router = APIRouter(route_class=JSONRoute)

# The format of each container of an encoding. The first container is the default over HTTP; WebSockets have no WAV.
ENCODINGS = {
    "linear16": {"wav": "wav", "none": "pcm"},
    "mulaw": {"none": "ulaw"},
    "alaw": {"none": "alaw"},
    "mp3": {"none": "mp3"},
    "opus": {"ogg": "opus"},
    "flac": {"none": "flac"},
    "aac": {"none": "aac"},
}
OWN_VOICES = "aura"  # the prefix of Deepgram's voices, each of which is the default voice here
IDLE_TIMEOUT = 60.0  # seconds, as Deepgram


class SpeakRequest(RequestModel):
    text: str


def parse_query(query: dict[str, str], over_websocket: bool) -> SynthesisOptions:
    """Raises InvalidRequest."""
    voice, encoding = query.get("model", ""), query.get("encoding", "linear16" if over_websocket else "mp3")
    if encoding not in ENCODINGS:
        raise InvalidRequest("encoding", encoding, ENCODINGS)
    formats = {name: found for name, found in ENCODINGS[encoding].items() if name != "wav" or not over_websocket}
    container = query.get("container") or next(iter(formats))
    if container not in formats:
        raise InvalidRequest("container", container, f"must be {' or '.join(formats)} for {encoding}")
    rate, bit_rate, speed = query.get("sample_rate"), query.get("bit_rate"), query.get("speed", "1")
    try:
        factor = float(speed)
    except ValueError:
        raise InvalidRequest("speed", speed, "must be a number") from None
    if not 0.25 <= factor <= 4:
        raise InvalidRequest("speed", speed, "must be between 0.25 and 4")
    return SynthesisOptions(
        voice=None if voice.lower().startswith(OWN_VOICES) else voice,
        format=formats[container],
        sample_rate=None if rate is None else parse_integer("sample_rate", rate),
        bit_rate=None if bit_rate is None else parse_integer("bit_rate", bit_rate),
        speed=factor,
    )


@router.post("/v1/speak", response_class=Response, summary="Synthesise a text as Deepgram does; audio is streamed.")
async def speak(request: Request, body: SpeakRequest, state: State) -> Response:
    options = replace(parse_query(dict(request.query_params), over_websocket=False), text=body.text)
    return SpeechResponse(state, options, request_id_of(request))


@router.websocket("/v1/speak")
async def speak_stream(websocket: WebSocket) -> None:
    await serve_websocket(websocket, lambda connection: DeepgramSession(connection).run())


class DeepgramSession(LiveSession):
    """Text until a Flush is one utterance. Its audio is binary, so utterances are sent in their order."""

    def __init__(self, connection: WebSocketConnection) -> None:
        super().__init__(connection, IDLE_TIMEOUT)
        self._options = SynthesisOptions()
        self._current: LiveUtterance | None = None
        self._order = asyncio.Lock()  # first come, first served
        self._num_flushed = 0

    async def run(self) -> None:
        try:
            self._options = replace(parse_query(self.connection.query, over_websocket=True), live=True)
            await self.connection.state.synthesis.validate(self._options)
        except PolyvoxError as error:
            self.connection.state.record_rejected(error, self.connection.request_id)
            await self.send_error(error)
            await self.connection.close(POLICY_VIOLATION, str(error))
            return
        await super().run()

    async def handle(self, message: dict[str, Any]) -> bool:
        match message.get("type"):
            case "Speak":
                text = message.get("text", "")
                if not isinstance(text, str):
                    raise InvalidRequest("text", text, "must be a string")
                if self._current is None:
                    self._current = self.start(self._options)
                self._current.append(text)
            case "Flush":
                utterance = self._current or self.start(self._options)
                utterance.finish()
                self._current = None
            case "Clear":
                self._current = None
                self.cancel_utterances()
                await self.connection.send_json({"type": "Cleared", "sequence_id": self._num_flushed})
            case "Close":
                if self._current is not None:
                    self._current.finish()
                return False
            case other:
                raise InvalidRequest("type", other, ("Speak", "Flush", "Clear", "Close"))
        return True

    async def speak(self, utterance: LiveUtterance) -> None:
        async with self._order:
            await super().speak(utterance)

    async def send_audio(self, utterance: LiveUtterance, part: bytes) -> None:
        await self.connection.send_bytes(part, utterance)

    async def send_end(self, utterance: LiveUtterance) -> None:
        await self.connection.send_json({"type": "Flushed", "sequence_id": self._num_flushed}, utterance)
        self._num_flushed += 1

    async def send_error(self, error: PolyvoxError, utterance: LiveUtterance | None = None) -> None:
        if utterance is not None and utterance is self._current:
            self._current = None
        message = error_body(error, DEEPGRAM_FIELDS)["error"]["message"]
        await self.connection.send_json({"type": "Error", "description": message, "code": error.code}, utterance)
