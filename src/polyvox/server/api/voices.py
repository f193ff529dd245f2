"""Voices over HTTP: list them, add one from a recording or from numbers, take one away."""

import json
from typing import Any

import numpy as np
from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field
from starlette.datastructures import FormData, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from polyvox.errors import NOT_SHOWN, InvalidRequest, UnknownVoice
from polyvox.models.request import ClonedVoice
from polyvox.server.app_state import AppState, of
from polyvox.server.openapi import schema_of, taken_as
from polyvox.server.responses import (
    Refused,
    check_body,
    read_body,
    read_json,
    request_id_of,
    shown_fields,
    unknown_fields,
)
from polyvox.server.voice_catalog import own, told

router = APIRouter()

MAX_FIELDS = 20


class NewVoice(BaseModel):
    """A voice to keep: a recording, perhaps with what it says, or a speaker's vector."""

    model_config = ConfigDict(strict=True, extra="ignore")

    name: str
    consent: str | None = Field(default=None, description="What the voice's owner agreed to; kept with the voice.")
    audio_sample: str | None = Field(default=None, description="The recording: data URI, base64, URL or file://.")
    speaker_embedding: list[float] | None = Field(default=None, max_length=65_536)
    ref_text: str | None = Field(default=None, description="What the recording says: speech then continues it.")
    speaker_description: str | None = None
    replace: bool = False


@router.get("/v1/audio/voices", summary="The voices that a request can ask for.")
async def list_voices(request: Request) -> JSONResponse:
    desk = of(request)
    voices = await desk.speaker.in_thread(desk.voices.list)
    return JSONResponse({"object": "list", "voices": voices, "data": voices})


_TEXTS = ("name", "consent", "ref_text", "speaker_description", "speaker_embedding", "replace")
_FORM = {
    "type": "object",
    "properties": {"audio_sample": {"type": "string", "format": "binary"}}
    | {name: {"type": "string"} for name in _TEXTS},
    "required": ["name"],
}


@router.post(
    "/v1/audio/voices",
    status_code=201,
    openapi_extra=taken_as({"application/json": schema_of(NewVoice), "multipart/form-data": _FORM}),
    summary="Keep a voice.",
)
async def add_voice(request: Request) -> JSONResponse:
    """JSON, or a form with `audio_sample` as a file."""
    desk = of(request)
    recording: bytes | None = None
    source = None
    if request.headers.get("content-type", "").startswith("multipart/form-data"):
        found, recording, source = await _read_form(request, desk)
    else:
        found = await read_json(request, desk.settings)
    wanted = check_body(NewVoice, found)
    ignored = unknown_fields(NewVoice, found)
    desk.ignored(ignored, request_id_of(request))
    if not desk.facts.can_clone:
        raise desk.facts.unsupported("audio_sample", NOT_SHOWN, "can_clone")
    if wanted.name.lower() in desk.facts.voices:
        raise InvalidRequest("name", wanted.name, "is the name of a built-in voice")
    if not wanted.replace:
        await desk.speaker.in_thread(desk.voices.library.check_free, wanted.name)  # before anything is worked out
    voice, seconds = await desk.speaker.listen(_voice, desk, wanted, recording)
    kept = await desk.speaker.in_thread(
        desk.voices.library.add,
        wanted.name,
        voice,
        desk.facts.identity,
        consent=wanted.consent,
        source=source,
        seconds=seconds,
        description=wanted.speaker_description,
        replace=wanted.replace,
    )
    headers = {"x-polyvox-ignored": shown_fields(ignored)} if ignored else {}
    return JSONResponse(told(kept), status_code=201, headers=headers)


@router.get("/v1/audio/voices/{name}", summary="One voice.")
async def show_voice(request: Request, name: str) -> JSONResponse:
    desk = of(request)
    if name.lower() in desk.facts.voices:
        return JSONResponse(own(name.lower()))
    return JSONResponse(told(await desk.speaker.in_thread(desk.voices.library.get, name)))


@router.delete("/v1/audio/voices/{name}", summary="Take a voice away, with all that is kept of it.")
async def remove_voice(request: Request, name: str) -> JSONResponse:
    desk = of(request)
    if name.lower() in desk.facts.voices:
        raise InvalidRequest("name", name, "is a built-in voice, which cannot be removed")
    try:
        await desk.speaker.in_thread(desk.voices.library.remove, name)
    except UnknownVoice:
        # It may have been asked for by its content id.
        found = await desk.speaker.in_thread(desk.voices.library.get, name)
        await desk.speaker.in_thread(desk.voices.library.remove, found.name)
    return JSONResponse({"id": name, "object": "audio.voice.deleted", "deleted": True})


def _voice(desk: AppState, wanted: NewVoice, recording: bytes | None) -> tuple[ClonedVoice, float | None]:
    """The voice itself, and its recording's length; in a thread, as it takes a while."""
    brought = [recording is not None or wanted.audio_sample is not None, wanted.speaker_embedding is not None]
    if sum(brought) != 1:
        requirement = "exactly one of audio_sample and speaker_embedding is required"
        raise InvalidRequest("audio_sample", NOT_SHOWN, requirement)
    if wanted.speaker_embedding is not None:
        size = desk.facts.hidden_size
        if len(wanted.speaker_embedding) != size:
            raise InvalidRequest("speaker_embedding", len(wanted.speaker_embedding), f"must have {size} numbers")
        return ClonedVoice(np.array(wanted.speaker_embedding, np.float32)), None
    data = desk.recordings.find(wanted.audio_sample or "") if recording is None else recording
    return desk.recordings.clone_bytes(data, wanted.ref_text or None)


async def _read_form(request: Request, desk: AppState) -> tuple[dict[str, Any], bytes | None, str | None]:
    """A form's fields, its recording, and what that was called."""
    body = await read_body(request, desk.settings)

    async def once() -> Any:
        yield body

    try:
        parser = MultiPartParser(
            request.headers, once(), max_files=1, max_fields=MAX_FIELDS, max_part_size=desk.settings.max_body
        )
        form: FormData = await parser.parse()
    except (MultiPartException, KeyError, ValueError) as error:
        raise Refused(400, "invalid_form", f"the form cannot be read: {error}") from None
    found: dict[str, Any] = {}
    recording, source = None, None
    try:
        for name, value in form.multi_items():
            if isinstance(value, UploadFile):
                if name != "audio_sample":
                    raise InvalidRequest(name, NOT_SHOWN, "must not be a file; only audio_sample is one")
                recording, source = await value.read(), value.filename
            elif name in found:
                raise InvalidRequest(name, NOT_SHOWN, "is given more than once")
            else:
                found[name] = value
    finally:
        await form.close()
    if "speaker_embedding" in found:
        try:
            found["speaker_embedding"] = json.loads(found["speaker_embedding"])
        except ValueError:
            raise InvalidRequest(
                "speaker_embedding", found["speaker_embedding"], "must be a JSON list of numbers"
            ) from None
    if "replace" in found:
        found["replace"] = found["replace"].lower() in ("1", "true", "yes")
    return found, recording, source
