# SPDX-License-Identifier: Apache-2.0
"""OpenAI's speech endpoint, with the additional fields that vLLM-Omni's clients send."""

from dataclasses import replace
from functools import partial
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, ConfigDict, Field

from polyvox.audio.formats import FORMATS
from polyvox.errors import NOT_SHOWN, InvalidRequest
from polyvox.models.info import Capability, ModelInfo
from polyvox.models.request import ClonedVoice, Sampling
from polyvox.server.app_state import AppState, State
from polyvox.server.ignored_fields import IgnoredFields
from polyvox.server.languages import parse_language
from polyvox.server.middleware.limits import LIMITER
from polyvox.server.requests import STRICT, RecordingRoute, RequestModel, is_strict, request_id_of
from polyvox.server.responses import APIError
from polyvox.server.synthesis.options import SynthesisOptions
from polyvox.server.synthesis.streaming import EVENT_STREAM, SpeechResponse
from polyvox.text import Pronunciation
from polyvox.text.phonemes import mark_phonemes

router = APIRouter(route_class=RecordingRoute)

# The capability that each `task_type` of vLLM-Omni's API requires.
TASK_CAPABILITIES: dict[str, Capability] = {
    "CustomVoice": "voices",
    "VoiceDesign": "designs_voices",
    "Base": "can_clone",
}
MAX_PRONUNCIATIONS = 1_000  # of one request
NOTICE_HEADER = "x-polyvox-notice"  # what was done with the recording of a request
SAMPLING_FIELDS = ("temperature", "top_k", "top_p", "repetition_penalty")
RECORDING_FIELDS = ("ref_audio", "recording", "audio")  # of errors about a recording

FiniteFloat = Annotated[float, Field(allow_inf_nan=False)]


class VoiceId(BaseModel):
    model_config = ConfigDict(strict=True)

    id: str


class PronunciationFields(RequestModel):
    """How a word is spoken: `respelling`, or `phonemes` for models that take them."""

    respelling: str = ""
    phonemes: str = ""
    alphabet: Literal["ipa", "cmu-arpabet"] = "ipa"
    match_case: bool = False


class ReferenceRecording(RequestModel):
    """A recording of the voice, as clients of Higgs Audio and vLLM-Omni send it."""

    audio_path: str = Field(default="", description="The same as ref_audio.")
    text: str | None = Field(default=None, description="The same as ref_text.")


class SpeechParameters(RequestModel):
    """Everything of a speech request but its text. Every field is optional."""

    model: str | None = Field(default=None, description="Any name: one model is loaded; x-polyvox-model names it.")
    voice: str | VoiceId | None = Field(default=None, description="A voice of the model or of the voice library.")
    speaker: str | None = Field(default=None, description="Alias of voice.")
    instructions: str | None = Field(default=None, description="Speaking style, for models that support it.")
    response_format: Literal[*FORMATS] = "mp3"  # type: ignore[valid-type]
    speed: float = Field(default=1.0, ge=0.25, le=4.0, allow_inf_nan=False)
    language: str | None = None
    seed: int | None = Field(default=None, ge=0, lt=2**64)
    task_type: Literal["CustomVoice", "VoiceDesign", "Base"] | None = None
    ref_audio: str | list[str] | None = Field(
        default=None, description="A recording of the voice: data URI, base64, URL or file://."
    )
    ref_text: str | None = Field(default=None, description="Transcript of ref_audio.")
    x_vector_only_mode: bool | None = Field(default=None, description="Ignore ref_text.")
    references: list[ReferenceRecording] | None = Field(
        default=None, description="One recording with its transcript; the same as ref_audio and ref_text."
    )
    speaker_embedding: list[FiniteFloat] | None = Field(default=None, max_length=65_536)
    sample_rate: int | None = Field(default=None, gt=0)
    temperature: FiniteFloat | None = None
    top_k: int | None = None
    top_p: FiniteFloat | None = None
    repetition_penalty: FiniteFloat | None = None
    max_new_tokens: int | None = Field(default=None, ge=1, description="Maximum frames of 80 ms per sentence.")
    initial_codec_chunk_frames: int | None = Field(default=None, ge=0, description="Frames of the first chunk.")
    non_streaming_mode: bool | None = Field(default=None, description="Prefill the whole text before generation.")
    normalize: bool = Field(default=True, description="Convert numbers, dates and markup to words.")
    pronunciations: dict[str, str | PronunciationFields] | None = Field(
        default=None,
        max_length=MAX_PRONUNCIATIONS,
        description="Words and how they are spoken: a respelling or phonemes.",
    )
    extra_params: dict[str, Any] | None = Field(default=None, description="Sampling parameters.")
    timestamp_granularities: list[Literal["word", "segment"]] | None = Field(
        default=None, max_length=4, description="Send the times of words (estimated) or segments (exact), in events."
    )

    def unknown_fields(self) -> list[str]:
        nested = [f"extra_params.{name}" for name in self.extra_params or {} if name not in SAMPLING_FIELDS]
        return super().unknown_fields() + nested


class SpeechRequest(SpeechParameters):
    """A text and how to synthesise it. Every field but `input` is optional."""

    input: str = Field(description="The text, up to max_text_chars characters.")
    stream_format: Literal["audio", "sse"] | None = None
    stream: bool | None = Field(default=None, description="false: one file at the end, with its length.")


@router.post(
    "/v1/audio/speech",
    response_class=Response,
    responses={
        200: {"content": {kind: {} for kind in (*(entry.media_type for entry in FORMATS.values()), EVENT_STREAM)}}
    },
    summary="Synthesise a text; audio is streamed as it is generated.",
)
async def create_speech(request: Request, body: SpeechRequest, state: State, strict: str = STRICT) -> Response:
    request_id = request_id_of(request)
    ignored = IgnoredFields(is_strict(strict))
    options = await parse_speech_request(body, state, ignored)
    headers = ignored.report(request_id)
    if options.notice is not None:
        headers[NOTICE_HEADER] = options.notice
    as_events = body.stream_format == "sse"
    if options.timestamps and not as_events:
        raise InvalidRequest("timestamp_granularities", body.timestamp_granularities, "requires stream_format sse")
    return SpeechResponse(state, options, request_id, as_events, headers)


@router.get("/v1/audio/speech/{request_id}", summary="The record of a finished request of the same key.")
async def get_record(request: Request, state: State, request_id: str) -> JSONResponse:
    found = await state.request_log.get(request.scope[LIMITER].caller.key, request_id)
    if found is None:
        raise APIError(404, "not_found", "No finished request with this id is known.", "request_id")
    return JSONResponse(found)


async def parse_speech_request(body: SpeechRequest, state: AppState, ignored: IgnoredFields) -> SynthesisOptions:
    """Raises InvalidRequest or APIError. Fields that have no effect are added to `ignored`."""
    streaming = body.stream is not False or body.stream_format is not None
    return replace(await parse_parameters(body, state, ignored), text=body.input, streaming=streaming)


async def parse_parameters(body: SpeechParameters, state: AppState, ignored: IgnoredFields) -> SynthesisOptions:
    """The options without the text; raises InvalidRequest for a voice that the loaded model cannot have.

    Other fields that the model does not support are added to `ignored`.
    """
    info = state.info
    ignored.add_unknown(body.unknown_fields())
    if body.task_type is not None and not info.supports(TASK_CAPABILITIES[body.task_type]):
        error = info.unsupported("task_type", body.task_type, TASK_CAPABILITIES[body.task_type])
        ignored.add_unsupported("task_type", error)
    instructions = body.instructions or None
    if instructions and not info.takes_instructions:
        ignored.add_unsupported("instructions", info.unsupported("instructions", instructions, "takes_instructions"))
        instructions = None
    name = body.voice.id if isinstance(body.voice, VoiceId) else body.voice
    cloned, notice = await _clone_voice(body, state, ignored)
    voice = cloned or name or body.speaker
    layout = None if body.non_streaming_mode is None else ("whole" if body.non_streaming_mode else "streaming")
    return SynthesisOptions(
        voice=voice,
        language=parse_language(body.language, info, ignored),
        instructions=instructions,
        seed=body.seed,
        sampling=_sampling(body, info),
        layout=layout,  # type: ignore[arg-type]
        max_frames=body.max_new_tokens,
        first_chunk=body.initial_codec_chunk_frames or None,
        format=body.response_format,
        sample_rate=body.sample_rate,
        speed=body.speed,
        normalize=body.normalize,
        pronunciations=_pronunciations(body, info, ignored),
        notice=notice,
        timestamps=tuple(body.timestamp_granularities or ()),
    )


def _pronunciations(body: SpeechParameters, info: ModelInfo, ignored: IgnoredFields) -> tuple[Pronunciation, ...]:
    """Raises InvalidRequest for an empty or unknown pronunciation."""
    found = []
    for word, spoken in (body.pronunciations or {}).items():
        fields = PronunciationFields(respelling=spoken) if isinstance(spoken, str) else spoken
        pronunciation = Pronunciation(word, fields.respelling, fields.phonemes, fields.alphabet, fields.match_case)
        if fields.phonemes:
            if not info.takes_phonemes:
                error = info.unsupported("pronunciations", word, "takes_phonemes")
                ignored.add_unsupported(f"pronunciations.{word}", error)
                continue
            try:
                mark_phonemes(word, fields.phonemes, fields.alphabet)
            except ValueError as error:
                raise InvalidRequest("pronunciations", fields.phonemes, str(error)) from None
        found.append(pronunciation)
    return tuple(found)


def _sampling(body: SpeechParameters, info: ModelInfo) -> Sampling | None:
    given = {name: value for name, value in (body.extra_params or {}).items() if name in SAMPLING_FIELDS}
    given |= {name: value for name in SAMPLING_FIELDS if (value := getattr(body, name)) is not None}
    if not given:
        return None
    sampling = replace(info.sampling, **given)
    sampling.check()
    return sampling


async def _clone_voice(
    body: SpeechParameters, state: AppState, ignored: IgnoredFields
) -> tuple[ClonedVoice | None, str | None]:
    """The voice that the request contains as a recording or as an embedding, and a notice if the recording was cut."""
    try:
        return await _voice_of(_with_reference(body), state, ignored)
    except InvalidRequest as error:
        if body.references is not None and error.field in RECORDING_FIELDS:
            error.rename("references")
        raise


async def _voice_of(
    body: SpeechParameters, state: AppState, ignored: IgnoredFields
) -> tuple[ClonedVoice | None, str | None]:
    sources = [name for name in ("ref_audio", "speaker_embedding") if getattr(body, name) is not None]
    related = [name for name in ("ref_text", "x_vector_only_mode") if getattr(body, name)]
    if not sources and not related:
        return None, None
    if not state.info.can_clone:
        if sources:  # another voice than the request's would be no answer to it
            raise state.info.unsupported(sources[0], NOT_SHOWN, "can_clone")
        for name in related:
            ignored.add_unsupported(name, state.info.unsupported(name, NOT_SHOWN, "can_clone"))
        return None, None
    if len(sources) != 1:
        raise InvalidRequest("ref_audio", sources, "exactly one of ref_audio and speaker_embedding is required")
    if body.speaker_embedding is not None:
        return embedded_voice(body.speaker_embedding, state.info), None
    recordings = [body.ref_audio] if isinstance(body.ref_audio, str) else body.ref_audio or []
    if len(recordings) != 1:
        raise InvalidRequest("ref_audio", len(recordings), "must be one recording")
    transcript = None if body.x_vector_only_mode else body.ref_text or None
    voice, _, notice = await state.synthesis.clone(partial(state.recordings.read, recordings[0]), transcript)
    return voice, notice


def _with_reference(body: SpeechParameters) -> SpeechParameters:
    """Its reference as ref_audio and ref_text; raises InvalidRequest unless it is the only recording."""
    if body.references is None:
        return body
    if body.ref_audio is not None or body.ref_text is not None:
        raise InvalidRequest("references", NOT_SHOWN, "must not be sent together with ref_audio or ref_text")
    if len(body.references) != 1 or not body.references[0].audio_path:
        raise InvalidRequest("references", NOT_SHOWN, "must have one recording, with an audio_path")
    (reference,) = body.references
    return body.model_copy(update={"ref_audio": reference.audio_path, "ref_text": reference.text})


def embedded_voice(embedding: list[float], info: ModelInfo) -> ClonedVoice:
    """The voice of a speaker embedding; raises InvalidRequest if its length is not the model's."""
    if len(embedding) != info.hidden_size:
        raise InvalidRequest("speaker_embedding", len(embedding), f"must have {info.hidden_size} numbers")
    return ClonedVoice(np.array(embedding, np.float32))
