# SPDX-License-Identifier: Apache-2.0
"""OpenAI's transcriptions and translations, answered by the STT server."""

import logging
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response
from starlette.types import Receive, Scope

from polyvox.errors import NOT_SHOWN, InvalidRequest, PolyvoxError
from polyvox.server.app_state import AppState, State
from polyvox.server.conversation.chat_format import event
from polyvox.server.forms import FORM_TYPE, check_content_type, parse_form_pairs
from polyvox.server.logs import log_request
from polyvox.server.requests import read_body, request_id_of
from polyvox.server.responses import error_body, error_response
from polyvox.server.synthesis.client_response import ClientResponse, ResponseWriter
from polyvox.server.synthesis.streaming import EVENT_STREAM
from polyvox.transcription.client import Fields, Recording, SpeechTask

router = APIRouter()

FILE_FIELD = "file"
FORM_SCHEMA: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            FORM_TYPE: {
                "schema": {
                    "type": "object",
                    "required": [FILE_FIELD],
                    "properties": {
                        FILE_FIELD: {"type": "string", "format": "binary", "description": "The recording."},
                        "model": {"type": "string", "description": "The STT model, unless the server has stt_model."},
                        "language": {"type": "string", "description": "ISO 639-1 code of the spoken language."},
                        "prompt": {"type": "string"},
                        "response_format": {"type": "string", "description": "json, text, srt, verbose_json or vtt."},
                        "stream": {"type": "string", "enum": ["true", "false"]},
                    },
                    "additionalProperties": True,
                }
            }
        },
    }
}
RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {"content": {"application/json": {}, "text/plain": {}, EVENT_STREAM: {}}}
}


@router.post(
    "/v1/audio/transcriptions",
    response_class=Response,
    responses=RESPONSES,
    openapi_extra=FORM_SCHEMA,
    summary="The text of a recording, by the STT server.",
)
async def create_transcription(request: Request, state: State) -> Response:
    return await _forward(request, state, "transcriptions")


@router.post(
    "/v1/audio/translations",
    response_class=Response,
    responses=RESPONSES,
    openapi_extra=FORM_SCHEMA,
    summary="The English translation of a recording, by the STT server.",
)
async def create_translation(request: Request, state: State) -> Response:
    return await _forward(request, state, "translations")


async def _forward(request: Request, state: AppState, task: SpeechTask) -> Response:
    state.conversation.require_stt().check_capacity()  # before the body is read
    state.synthesis.check_draining()
    check_content_type(request, (FORM_TYPE,))
    body = await read_body(request, state.settings, state.settings.max_stt_bytes)
    fields, files = await parse_form_pairs(request, body, state.settings, (FILE_FIELD,))
    if not files or not files[0].content:
        raise InvalidRequest(FILE_FIELD, NOT_SHOWN, "must be a recording")
    file = files[0]
    recording = Recording(file.content, file.name or "audio", file.content_type or "application/octet-stream")
    return TranscriptionResponse(state, request_id_of(request), task, fields, recording)


class TranscriptionResponse(ClientResponse):
    """The STT server's response as it is. An error before the first byte is a status; after it, an event ends a stream.

    The request to the STT server ends when the client disconnects.
    """

    def __init__(
        self, state: AppState, request_id: str, task: SpeechTask, fields: Fields, recording: Recording
    ) -> None:
        super().__init__(state, request_id)
        self._task, self._fields, self._recording = task, fields, recording
        self._content_type = ""

    async def respond(self, scope: Scope, receive: Receive, write: ResponseWriter) -> None:
        try:
            await self._send_transcript(write)
            await write.end()
        except PolyvoxError as error:
            if not write.started:
                self._state.record_rejected(error, self._request_id)
                await error_response(error, self._request_id)(scope, receive, write)
                return
            self._state.metrics.aborts.labels("error").inc()
            log_request("request failed", self._request_id, {"error": str(error)}, logging.ERROR)
            if self._content_type.startswith(EVENT_STREAM):
                await write.body(event(error_body(error)))
                await write.end()

    async def _send_transcript(self, write: ResponseWriter) -> None:
        transcriber = self._state.conversation.require_stt()
        async with transcriber.open(self._task, self._fields, self._recording) as (self._content_type, parts):
            headers = {
                "content-type": self._content_type,
                "cache-control": "no-store",
                "x-request-id": self._request_id,
                "x-accel-buffering": "no",  # a proxy that buffers would delay the transcript
            }
            async for part in parts:
                if not write.started:
                    await write.start(headers)
                await write.body(part)
            if not write.started:  # silence may have an empty transcript
                await write.start(headers)
