"""OpenAI's face: POST /v1/audio/speech with its fields and those that other engines' users send, and batches of it."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, ConfigDict, Field

from polyvox.audio.formats import FORMATS
from polyvox.errors import InvalidRequest
from polyvox.models.info import Capability, ModelInfo
from polyvox.models.request import AUTO, ClonedVoice, Sampling
from polyvox.server.app_state import AppState, of
from polyvox.server.openapi import taken
from polyvox.server.responses import (
    Refused,
    check_body,
    read_json,
    request_id_of,
    shown_fields,
    unknown_fields,
)
from polyvox.server.synthesis.options import SynthesisOptions
from polyvox.server.synthesis.streaming import EVENTS, SpeechResponse

router = APIRouter()

# The capability that each `task_type` of vLLM-Omni's API requires.
TASK_CAPABILITIES: dict[str, Capability] = {
    "CustomVoice": "voices",
    "VoiceDesign": "designs_voices",
    "Base": "can_clone",
}

Unit = Annotated[float, Field(allow_inf_nan=False)]


class VoiceId(BaseModel):
    model_config = ConfigDict(strict=True)

    id: str


class SpeechParameters(BaseModel):
    """How to say something; every field may be left out."""

    model_config = ConfigDict(strict=True, extra="ignore")

    model: str | None = Field(default=None, description="Any name: one model is loaded, and the answer tells which.")
    voice: str | VoiceId | None = Field(default=None, description="A voice of the model or of the library.")
    speaker: str | None = Field(default=None, description="The same as voice.")
    instructions: str | None = Field(default=None, description="How to speak, for models that take it.")
    response_format: Literal[*FORMATS] = "mp3"  # type: ignore[valid-type]
    speed: float = Field(default=1.0, ge=0.25, le=4.0, allow_inf_nan=False)
    language: str | None = None
    seed: int | None = Field(default=None, ge=0, lt=2**64)
    task_type: Literal["CustomVoice", "VoiceDesign", "Base"] | None = None
    ref_audio: str | list[str] | None = Field(
        default=None, description="A recording: data URI, base64, URL or file://."
    )
    ref_text: str | None = None
    x_vector_only_mode: bool | None = None
    speaker_embedding: list[Unit] | None = Field(default=None, max_length=65_536)
    sample_rate: int | None = Field(default=None, gt=0)
    temperature: Unit | None = None
    top_k: int | None = None
    top_p: Unit | None = None
    repetition_penalty: Unit | None = None
    max_new_tokens: int | None = Field(default=None, ge=1, description="Frames of 80 ms that a sentence may have.")
    initial_codec_chunk_frames: int | None = Field(default=None, ge=0)
    non_streaming_mode: bool | None = None
    normalize: bool = Field(default=True, description="Numbers, dates, markup and the like become words.")
    extra_params: dict[str, Any] | None = Field(default=None, description="Sampling, as some clients send it.")


class Speech(SpeechParameters):
    """What to say and how; every field but `input` may be left out."""

    input: str = Field(description="The text, of any length up to the server's limit.")
    stream_format: Literal["audio", "sse"] | None = None
    stream: bool | None = Field(default=None, description="false: the whole file at the end, with its true length.")


Known = TypeVar("Known", bound=SpeechParameters)
STRICT = {"schema": {"type": "string"}, "description": "1: unknown fields are refused."}
SAMPLED = ("temperature", "top_k", "top_p", "repetition_penalty")


@router.post(
    "/v1/audio/speech",
    response_class=Response,
    openapi_extra=taken(Speech, strict=STRICT),
    responses={200: {"content": {kind: {} for kind in (*(entry.media_type for entry in FORMATS.values()), EVENTS)}}},
    summary="Say a text; the sound streams as it is made.",
)
async def speak(request: Request) -> Response:
    desk, request_id = of(request), request_id_of(request)
    found = await read_json(request, desk.settings)
    body, ignored = read_fields(Speech, found, is_strict(request.query_params))
    desk.ignored(ignored, request_id)
    wanted = await wanted_by(body, desk)
    headers = {"x-polyvox-ignored": shown_fields(ignored)} if ignored else {}
    return SpeechResponse(desk, wanted, request_id, sse=body.stream_format == "sse", headers=headers)


@router.get("/v1/audio/speech/{request_id}", summary="How a request went that has ended.")
async def outcome(request: Request, request_id: str) -> JSONResponse:
    found = of(request).outcomes.get(request_id)
    if found is None:
        raise Refused(404, "not_found", "no request of this id has ended here lately", "request_id")
    return JSONResponse(found)


def is_strict(query: Mapping[str, str]) -> bool:
    return query.get("strict", "") in ("1", "true")


def read_fields(model: type[Known], found: dict[str, Any], strict: bool) -> tuple[Known, list[str]]:
    """A body's known fields, checked, and the names of the others; raises Refused."""
    ignored = unknown_fields(model, found)
    body = check_body(model, found)
    ignored += [f"extra_params.{name}" for name in body.extra_params or {} if name not in SAMPLED]
    if ignored and strict:
        raise Refused(400, "unknown_field", f"fields that are not known: {shown_fields(ignored)}", ignored[0])
    return body, ignored


async def wanted_by(body: Speech, desk: AppState) -> SynthesisOptions:
    """What the speaker is asked; raises InvalidRequest for what the loaded model cannot do."""
    streaming = body.stream is not False or body.stream_format is not None
    return replace(await manner_by(body, desk), text=body.input, streaming=streaming)


async def manner_by(body: SpeechParameters, desk: AppState) -> SynthesisOptions:
    """The same without the text."""
    facts = desk.facts
    if body.task_type is not None and not facts.supports(TASK_CAPABILITIES[body.task_type]):
        raise facts.unsupported("task_type", body.task_type, TASK_CAPABILITIES[body.task_type])
    if body.instructions and not facts.takes_instructions:
        raise facts.unsupported("instructions", body.instructions, "takes_instructions")
    voice: str | ClonedVoice | None = body.voice.id if isinstance(body.voice, VoiceId) else body.voice
    clone = await _cloned(body, desk)
    return SynthesisOptions(
        voice=clone or voice or body.speaker,
        language=(body.language or AUTO).strip().lower(),
        instructions=body.instructions or None,
        seed=body.seed,
        sampling=_sampling(body, facts),
        layout=None if body.non_streaming_mode is None else ("whole" if body.non_streaming_mode else "streaming"),
        max_frames=body.max_new_tokens,
        first_chunk=body.initial_codec_chunk_frames or None,
        format=body.response_format,
        sample_rate=body.sample_rate,
        speed=body.speed,
        normalize=body.normalize,
    )


def _sampling(body: SpeechParameters, facts: ModelInfo) -> Sampling | None:
    given = {name: value for name, value in (body.extra_params or {}).items() if name in SAMPLED}
    given |= {name: value for name in SAMPLED if (value := getattr(body, name)) is not None}
    if not given:
        return None
    sampling = replace(facts.sampling, **given)
    sampling.check()
    return sampling


async def _cloned(body: SpeechParameters, desk: AppState) -> ClonedVoice | None:
    """The voice that a request brings with it, as a recording or as numbers."""
    brought = [name for name in ("ref_audio", "speaker_embedding") if getattr(body, name) is not None]
    told = [name for name in ("ref_text", "x_vector_only_mode") if getattr(body, name)]
    if not brought and not told:
        return None
    if not desk.facts.can_clone:
        raise desk.facts.unsupported((brought + told)[0], "…", "can_clone")
    if len(brought) != 1:
        raise InvalidRequest("ref_audio", brought, "exactly one of ref_audio and speaker_embedding is required")
    if body.speaker_embedding is not None:
        size = desk.facts.hidden_size
        if len(body.speaker_embedding) != size:
            raise InvalidRequest("speaker_embedding", len(body.speaker_embedding), f"must have {size} numbers")
        return ClonedVoice(np.array(body.speaker_embedding, np.float32))
    recordings = [body.ref_audio] if isinstance(body.ref_audio, str) else body.ref_audio or []
    if len(recordings) != 1:
        raise InvalidRequest("ref_audio", len(recordings), "must be one recording")
    transcript = None if body.x_vector_only_mode else body.ref_text or None
    return await desk.speaker.listen(desk.recordings.clone, recordings[0], transcript)
