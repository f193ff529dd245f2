# SPDX-License-Identifier: Apache-2.0
"""ElevenLabs' endpoints for voices: list, search, clone from recordings, edit and delete."""

from dataclasses import replace
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse

from polyvox.audio.samples import Samples
from polyvox.errors import NOT_SHOWN, InvalidRequest, UnknownVoice
from polyvox.models.request import ClonedVoice
from polyvox.server.api.openai import NOTICE_HEADER
from polyvox.server.app_state import AppState, State
from polyvox.server.default_voices import substitute
from polyvox.server.forms import FORM_TYPE, FormFile, check_content_type, parse_form
from polyvox.server.ignored_fields import IgnoredFields
from polyvox.server.middleware.auth import is_anonymous
from polyvox.server.requests import parse_integer, read_body, request_id_of
from polyvox.voices import Voice
from polyvox.voices.voice import new_voice

router = APIRouter()

RECORDING_FIELDS = ("files", "files[]")
MAX_RECORDINGS = 10  # of one voice
MAX_PAGE = 100
CLONED, PREMADE = "cloned", "premade"
# The models have no such parameters. SDKs require a number for each.
DEFAULT_SETTINGS = {"stability": 0.5, "similarity_boost": 0.75, "style": 0.0, "use_speaker_boost": True, "speed": 1.0}
_FORM_SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "files": {"type": "array", "items": {"type": "string", "format": "binary"}},
        "description": {"type": "string"},
    },
}
_REQUEST_BODY = {"required": True, "content": {FORM_TYPE: {"schema": _FORM_SCHEMA}}}
SORT_FIELDS = ("name", "created_at_unix")


@router.get("/v1/voices", summary="The voices in ElevenLabs' format.")
async def list_voices(request: Request, state: State) -> JSONResponse:
    return JSONResponse({"voices": await _voices(request, state), "has_more": False})


@router.get("/v2/voices", summary="Search the voices, in ElevenLabs' format and in pages.")
async def search_voices(
    request: Request,
    state: State,
    voice_ids: Annotated[list[str], Query(default_factory=list)],
    search: str = "",
    category: str = "",
    sort: str = "",
    sort_direction: str = "asc",
    page_size: int = 10,
    next_page_token: str = "",
) -> JSONResponse:
    if not 1 <= page_size <= MAX_PAGE:
        raise InvalidRequest("page_size", page_size, f"must be between 1 and {MAX_PAGE}")
    start = parse_integer("next_page_token", next_page_token or "0", "must be the token of the previous page")
    found = [voice for voice in await _voices(request, state) if _matches(voice, search.lower(), category, voice_ids)]
    if sort in SORT_FIELDS:
        found.sort(key=lambda voice: voice[sort] or 0, reverse=sort_direction == "desc")
    end = start + page_size
    has_more = end < len(found)
    page = {"voices": found[start:end], "has_more": has_more, "total_count": len(found)}
    return JSONResponse({**page, "next_page_token": str(end) if has_more else None})


@router.get("/v1/voices/settings/default", summary="Settings of a voice in ElevenLabs' format; only speed is used.")
async def default_settings() -> JSONResponse:
    return JSONResponse(DEFAULT_SETTINGS)


@router.get("/v1/voices/{voice_id}", summary="One voice in ElevenLabs' format.")
async def get_voice(request: Request, state: State, voice_id: str) -> JSONResponse:
    return JSONResponse(await _find(request, state, voice_id))


@router.get("/v1/voices/{voice_id}/settings", summary="Settings of a voice in ElevenLabs' format; only speed is used.")
async def get_settings(request: Request, state: State, voice_id: str) -> JSONResponse:
    await _find(request, state, voice_id)
    return JSONResponse(DEFAULT_SETTINGS)


@router.post("/v1/voices/add", openapi_extra={"requestBody": _REQUEST_BODY}, summary="Clone a voice from recordings.")
async def add_voice(request: Request, state: State) -> JSONResponse:
    """The body is a form with a name and up to 10 recordings, which are joined."""
    fields, files, headers = await _read_form(request, state)
    name = fields.get("name", "")
    if not state.info.can_clone:
        raise state.info.unsupported(RECORDING_FIELDS[0], NOT_SHOWN, "can_clone")
    await _check_name(state, name)
    if not files:
        raise InvalidRequest(RECORDING_FIELDS[0], NOT_SHOWN, "must have a recording")
    voice, seconds = await _clone(state, files, headers)
    await state.synthesis.in_thread(
        state.voices.library.add,
        name,
        voice,
        state.info.identity,
        source=files[0].name,
        seconds=seconds,
        description=fields.get("description"),
    )
    return JSONResponse({"voice_id": name, "requires_verification": False}, headers=headers)


@router.post("/v1/voices/{voice_id}/edit", openapi_extra={"requestBody": _REQUEST_BODY}, summary="Change a voice.")
async def edit_voice(request: Request, state: State, voice_id: str) -> JSONResponse:
    """The body is a form. A new name is a new id. Recordings replace those of the voice; its consent stays."""
    fields, files, headers = await _read_form(request, state)
    library = state.voices.library
    _check_not_built_in(state, "voice_id", voice_id)
    found = await state.synthesis.in_thread(library.get, voice_id)
    if (name := fields.get("name") or found.name).lower() != found.name.lower():
        await _check_name(state, name)
    cloned, seconds = await _clone(state, files, headers) if files else (None, None)

    def change(voice: Voice) -> Voice:
        name, description = fields.get("name") or voice.name, fields.get("description", voice.description)
        if cloned is None:
            return replace(voice, name=name, description=description)
        return new_voice(name, cloned, state.info.identity, voice.consent, files[0].name, seconds, description)

    await state.synthesis.in_thread(library.edit, found.name, change)
    return JSONResponse({"status": "ok"}, headers=headers)


@router.delete("/v1/voices/{voice_id}", summary="Remove a voice and its data.")
async def delete_voice(state: State, voice_id: str) -> JSONResponse:
    _check_not_built_in(state, "voice_id", voice_id)
    found = await state.synthesis.in_thread(state.voices.library.get, voice_id)
    await state.synthesis.in_thread(state.voices.library.remove, found.name)
    return JSONResponse({"status": "ok"})


async def _read_form(request: Request, state: AppState) -> tuple[dict[str, str], list[FormFile], dict[str, str]]:
    """Fields, recordings, and the header that names ignored fields."""
    check_content_type(request, (FORM_TYPE,))
    body = await read_body(request, state.settings, state.settings.max_body_bytes)
    fields, files = await parse_form(request, body, state.settings, RECORDING_FIELDS, MAX_RECORDINGS)
    ignored = IgnoredFields()
    ignored.add_unknown(sorted(fields.keys() - {"name", "description"}))
    return fields, files, ignored.report(request_id_of(request))


async def _check_name(state: AppState, name: str) -> None:
    """Raises InvalidRequest for an invalid name and VoiceExists for one that is in use."""
    _check_not_built_in(state, "name", name)
    await state.synthesis.in_thread(state.voices.library.check_free, name)


def _check_not_built_in(state: AppState, field: str, name: str) -> None:
    if name.lower() in state.info.voices:
        raise InvalidRequest(field, name, "is a built-in voice, which cannot be changed")


async def _clone(state: AppState, files: list[FormFile], headers: dict[str, str]) -> tuple[ClonedVoice, float]:
    """The voice and the length of its recording. A notice about the recording is added to the headers."""

    def read() -> Samples:
        return np.concatenate([state.recordings.decode(file.content) for file in files])

    voice, seconds, notice = await state.synthesis.clone(read, None)
    if notice is not None:
        headers[NOTICE_HEADER] = notice
    return voice, seconds


async def _find(request: Request, state: AppState, voice_id: str) -> dict[str, Any]:
    """The voice with an id, or the one that a default voice of ElevenLabs maps to."""
    voices = {voice["voice_id"].lower(): voice for voice in await _voices(request, state)}
    if (found := voices.get(voice_id.lower())) is None:
        name = substitute(voice_id, state.info, [voice["voice_id"] for voice in voices.values()])
        found = None if name is None else voices[name.lower()]
    if found is None:
        hint = "GET /v1/voices lists all voices."
        raise UnknownVoice("voice_id", voice_id, "is not a voice of the model or the library", hint)
    return found


async def _voices(request: Request, state: AppState) -> list[dict[str, Any]]:
    """All voices; without description and date for callers without a key where keys are configured."""
    found = await state.synthesis.in_thread(state.voices.list, is_anonymous(request))
    return [
        {
            "voice_id": voice["id"],
            "name": voice["name"],
            "category": PREMADE if voice["type"] == "own" else CLONED,
            "labels": {"gender": gender} if (gender := state.info.voice_genders.get(voice["id"])) else {},
            "description": voice.get("speaker_description"),
            "preview_url": None,
            "created_at_unix": voice.get("created_at"),
            "settings": DEFAULT_SETTINGS,
        }
        for voice in found
    ]


def _matches(voice: dict[str, Any], search: str, category: str, voice_ids: list[str]) -> bool:
    texts = (voice["name"], voice["description"] or "", voice["category"], *voice["labels"].values())
    return (
        any(search in text.lower() for text in texts)
        and category in ("", voice["category"])
        and (not voice_ids or voice["voice_id"] in voice_ids)
    )
