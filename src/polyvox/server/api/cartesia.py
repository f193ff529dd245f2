# SPDX-License-Identifier: Apache-2.0
"""Cartesia's speech API as LiveKit and Pipecat use it: POST /tts/bytes and WS /tts/websocket, with several contexts."""

import base64
import re
from dataclasses import replace
from typing import Any, Literal

from fastapi import APIRouter, Request, WebSocket
from fastapi.responses import Response
from pydantic import Field

from polyvox.alignment import WordTime
from polyvox.errors import InvalidRequest, PolyvoxError
from polyvox.server.api.live_session import LiveSession
from polyvox.server.api.live_utterance import LiveUtterance
from polyvox.server.api.websocket_connection import WebSocketConnection, serve_websocket
from polyvox.server.app_state import AppState, State
from polyvox.server.ignored_fields import IgnoredFields
from polyvox.server.languages import parse_language
from polyvox.server.requests import JSONRoute, RequestModel, request_id_of, validate
from polyvox.server.responses import CARTESIA_FIELDS, error_body
from polyvox.server.synthesis.options import SynthesisOptions
from polyvox.server.synthesis.streaming import SpeechResponse

router = APIRouter(route_class=JSONRoute)

ENCODINGS = {"pcm_s16le": "pcm", "pcm_mulaw": "ulaw", "pcm_alaw": "alaw"}
OWN_VOICE = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")  # of Cartesia; each is the default voice here
IDLE_TIMEOUT = 300.0  # seconds, as Cartesia
MAX_CONTEXT_NAME = 200


class CartesiaVoice(RequestModel):
    mode: Literal["id"] = "id"
    id: str | None = None


class CartesiaFormat(RequestModel):
    container: Literal["raw", "wav", "mp3"] = "raw"
    encoding: Literal["pcm_s16le", "pcm_mulaw", "pcm_alaw"] = "pcm_s16le"
    sample_rate: int = Field(default=24_000, gt=0)
    bit_rate: int | None = Field(default=None, gt=0)


class GenerationConfig(RequestModel):
    speed: float = Field(default=1.0, ge=0.25, le=4.0, allow_inf_nan=False)


class BytesRequest(RequestModel):
    """A text, or a piece of one with `continue`."""

    transcript: str = ""
    model_id: str | None = Field(default=None, description="Any name: one model is loaded.")
    voice: CartesiaVoice | None = None
    output_format: CartesiaFormat | None = None
    language: str | None = None
    generation_config: GenerationConfig | None = None


class ContextMessage(BytesRequest):
    """continues: more text follows."""

    context_id: str = Field(max_length=MAX_CONTEXT_NAME)
    continues: bool = Field(default=False, alias="continue")
    cancel: bool = False
    flush: bool = False
    add_timestamps: bool = Field(default=False, description="Send the times of words, which are estimated.")


def parse_options(body: BytesRequest, state: AppState, request_id: str) -> SynthesisOptions:
    """Raises InvalidRequest."""
    voice, ignored = body.voice.id if body.voice else None, IgnoredFields()
    format = body.output_format or CartesiaFormat()
    if format.container == "wav" and format.encoding != "pcm_s16le":
        raise InvalidRequest("output_format.encoding", format.encoding, "must be pcm_s16le in the container wav")
    options = SynthesisOptions(
        voice=None if voice is None or OWN_VOICE.fullmatch(voice.lower()) else voice,
        language=parse_language(body.language, state.info, ignored),
        format=ENCODINGS[format.encoding] if format.container == "raw" else format.container,
        sample_rate=format.sample_rate,
        bit_rate=format.bit_rate if format.container == "mp3" else None,
        speed=body.generation_config.speed if body.generation_config else 1.0,
    )
    ignored.report(request_id)
    return options


@router.post("/tts/bytes", response_class=Response, summary="Synthesise a text as Cartesia does; audio is streamed.")
async def create_bytes(request: Request, body: BytesRequest, state: State) -> Response:
    request_id = request_id_of(request)
    options = replace(parse_options(body, state, request_id), text=body.transcript)
    return SpeechResponse(state, options, request_id)


@router.websocket("/tts/websocket")
async def open_websocket(websocket: WebSocket) -> None:
    await serve_websocket(websocket, lambda connection: CartesiaSession(connection).run())


class CartesiaSession(LiveSession):
    """Each context is an utterance."""

    def __init__(self, connection: WebSocketConnection) -> None:
        super().__init__(connection, IDLE_TIMEOUT)
        self._contexts: dict[str, LiveUtterance] = {}  # that accept text, by name
        self._names: dict[LiveUtterance, str] = {}
        self._context: str | None = None  # of the message that is handled

    async def handle(self, message: dict[str, Any]) -> bool:
        context = message.get("context_id")
        self._context = context if isinstance(context, str) else None
        found = validate(ContextMessage, message)
        utterance = self._contexts.get(found.context_id)
        if found.cancel:
            for each, name in self._names.items():
                if name == found.context_id:
                    each.cancel()
            self._contexts.pop(found.context_id, None)
            return True
        if utterance is None:
            options = parse_options(found, self.connection.state, self.connection.request_id)
            options = replace(options, live=True, timestamps=("word",) if found.add_timestamps else ())
            await self.connection.state.synthesis.validate(options)
            utterance = self._contexts[found.context_id] = self.start(options)
            self._names[utterance] = found.context_id
        try:
            utterance.append(found.transcript)
        except InvalidRequest:  # the error ends the context
            utterance.cancel()
            del self._contexts[found.context_id]
            raise
        if found.flush:
            utterance.flush()
        if not found.continues:
            utterance.finish()
            del self._contexts[found.context_id]
        return True

    async def speak(self, utterance: LiveUtterance) -> None:
        try:
            await super().speak(utterance)
        finally:
            name = self._names.pop(utterance, "")
            if self._contexts.get(name) is utterance:
                del self._contexts[name]

    async def send_audio(self, utterance: LiveUtterance, part: bytes) -> None:
        data = base64.b64encode(part).decode()
        message = {"type": "chunk", "data": data, "done": False, "status_code": 206, "step_time": 0.0}
        await self.connection.send_json({**message, "context_id": self._names[utterance]}, utterance)

    async def send_words(self, utterance: LiveUtterance, words: list[WordTime]) -> None:
        times = {
            "words": [each.word for each in words],
            "start": [each.start for each in words],
            "end": [each.end for each in words],
        }
        message = {"type": "timestamps", "done": False, "status_code": 206, "word_timestamps": times}
        await self.connection.send_json({**message, "context_id": self._names[utterance]}, utterance)

    async def send_end(self, utterance: LiveUtterance) -> None:
        message = {"type": "done", "done": True, "status_code": 200, "context_id": self._names[utterance]}
        await self.connection.send_json(message, utterance)

    async def send_error(self, error: PolyvoxError, utterance: LiveUtterance | None = None) -> None:
        context = self._context if utterance is None else self._names.get(utterance)
        text = error_body(error, CARTESIA_FIELDS)["error"]["message"]
        message = {"type": "error", "done": True, "error": text, "status_code": error.status, "context_id": context}
        await self.connection.send_json(message, utterance)
