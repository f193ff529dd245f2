# SPDX-License-Identifier: Apache-2.0
"""The voice library over HTTP: list voices, add one from a recording or an embedding, remove one."""

from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from pydantic import Field

from polyvox.errors import NOT_SHOWN, InvalidRequest, UnknownVoice
from polyvox.models.request import ClonedVoice
from polyvox.server.api.openai import NOTICE_HEADER, embedded_voice
from polyvox.server.app_state import AppState, State
from polyvox.server.forms import FORM_TYPE, check_content_type, parse_form
from polyvox.server.ignored_fields import IgnoredFields
from polyvox.server.middleware.auth import is_anonymous
from polyvox.server.requests import (
    RequestModel,
    load_json,
    parse_json,
    read_body,
    request_id_of,
    validate,
)
from polyvox.server.voice_catalog import built_in_voice, library_voice

router = APIRouter()

RECORDING_FIELD = "audio_sample"
UPLOAD_TYPES = ("application/json", FORM_TYPE)


class VoiceUpload(RequestModel):
    """A voice to add: a recording, optionally with its transcript, or a speaker embedding."""

    name: str
    consent: str | None = Field(default=None, description="The owner's consent; stored with the voice.")
    audio_sample: str | None = Field(default=None, description="The recording: data URI, base64, URL or file://.")
    speaker_embedding: list[float] | None = Field(default=None, max_length=65_536)
    ref_text: str | None = Field(default=None, description="Transcript of the recording; enables in-context cloning.")
    speaker_description: str | None = None
    replace: bool = Field(default=False, description="Replace a voice of the same name.")


_FORM_TEXTS = ("name", "consent", "ref_text", "speaker_description", "speaker_embedding", "replace")
_FORM_SCHEMA = {
    "type": "object",
    "properties": {RECORDING_FIELD: {"type": "string", "format": "binary"}}
    | {name: {"type": "string"} for name in _FORM_TEXTS},
    "required": ["name"],
}
_REQUEST_BODY = {
    "required": True,
    "content": {
        "application/json": {"schema": VoiceUpload.model_json_schema()},
        "multipart/form-data": {"schema": _FORM_SCHEMA},
    },
}


@router.get("/v1/audio/voices", summary="The available voices.")
async def list_voices(request: Request, state: State) -> JSONResponse:
    """Without a key, where keys are configured, voices have only id, name, object and type."""
    voices = await state.synthesis.in_thread(state.voices.list, is_anonymous(request))
    return JSONResponse({"object": "list", "voices": voices, "data": voices})


@router.post("/v1/audio/voices", status_code=201, openapi_extra={"requestBody": _REQUEST_BODY}, summary="Add a voice.")
async def add_voice(request: Request, state: State) -> JSONResponse:
    """The body is JSON, or a form with `audio_sample` as a file."""
    recording: bytes | None = None
    filename = None
    content_type = check_content_type(request, UPLOAD_TYPES)
    body = await read_body(request, state.settings, state.settings.max_body_bytes)
    if content_type == FORM_TYPE:
        texts, files = await parse_form(request, body, state.settings, (RECORDING_FIELD,))
        fields = _parse_texts(texts)
        for file in files:
            recording, filename = file.content, file.name
    else:
        fields = await parse_json(body, "request body")
    upload = validate(VoiceUpload, fields)
    ignored = IgnoredFields()
    ignored.add_unknown(upload.unknown_fields())
    headers = ignored.report(request_id_of(request))
    if not state.info.can_clone:
        raise state.info.unsupported(RECORDING_FIELD, NOT_SHOWN, "can_clone")
    if upload.name.lower() in state.info.voices:
        raise InvalidRequest("name", upload.name, "is the name of a built-in voice")
    if not upload.replace:
        await state.synthesis.in_thread(state.voices.library.check_free, upload.name)  # before cloning
    voice, seconds, notice = await _clone(state, upload, recording)
    added = await state.synthesis.in_thread(
        state.voices.library.add,
        upload.name,
        voice,
        state.info.identity,
        consent=upload.consent,
        source=filename,
        seconds=seconds,
        description=upload.speaker_description,
        replace=upload.replace,
    )
    if notice is not None:
        headers[NOTICE_HEADER] = notice
    return JSONResponse(library_voice(added), status_code=201, headers=headers)


@router.get("/v1/audio/voices/{name}", summary="One voice.")
async def get_voice(request: Request, state: State, name: str) -> JSONResponse:
    """Without a key, where keys are configured, it has only id, name, object and type."""
    if name.lower() in state.info.voices:
        return JSONResponse(built_in_voice(name.lower()))
    found = await state.synthesis.in_thread(state.voices.library.get, name)
    return JSONResponse(library_voice(found, is_anonymous(request)))


@router.delete("/v1/audio/voices/{name}", summary="Remove a voice and its data.")
async def remove_voice(state: State, name: str) -> JSONResponse:
    if name.lower() in state.info.voices:
        raise InvalidRequest("name", name, "is a built-in voice, which cannot be removed")
    library = state.voices.library
    try:
        await state.synthesis.in_thread(library.remove, name)
    except UnknownVoice:  # it may be a content id
        found = await state.synthesis.in_thread(library.get, name)
        await state.synthesis.in_thread(library.remove, found.name)
    return JSONResponse({"id": name, "object": "audio.voice.deleted", "deleted": True})


async def _clone(
    state: AppState, upload: VoiceUpload, recording: bytes | None
) -> tuple[ClonedVoice, float | None, str | None]:
    """The voice, the length of its recording in seconds, and a notice if the recording was cut."""
    has_recording = recording is not None or upload.audio_sample is not None
    if has_recording == (upload.speaker_embedding is not None):
        requirement = "exactly one of audio_sample and speaker_embedding is required"
        raise InvalidRequest(RECORDING_FIELD, NOT_SHOWN, requirement)
    if upload.speaker_embedding is not None:
        return embedded_voice(upload.speaker_embedding, state.info), None, None
    if recording is not None:
        read = partial(state.recordings.decode, recording)
    else:
        read = partial(state.recordings.read, upload.audio_sample or "")
    return await state.synthesis.clone(read, upload.ref_text or None)


def _parse_texts(fields: dict[str, str]) -> dict[str, Any]:
    """The fields of a form, of which some have other types."""
    found: dict[str, Any] = dict(fields)
    if "speaker_embedding" in fields:
        try:
            found["speaker_embedding"] = load_json(fields["speaker_embedding"], "field speaker_embedding")
        except ValueError:
            requirement = "must be a JSON list of numbers"
            raise InvalidRequest("speaker_embedding", fields["speaker_embedding"], requirement) from None
    if "replace" in fields:
        found["replace"] = fields["replace"].lower() in ("1", "true", "yes")
    return found
