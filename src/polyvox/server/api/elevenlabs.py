# SPDX-License-Identifier: Apache-2.0
"""ElevenLabs' HTTP endpoints, for its SDK and the plugins built on it."""

from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import Response
from pydantic import Field

from polyvox.audio.formats import FORMATS
from polyvox.errors import InvalidRequest
from polyvox.models.info import ModelInfo
from polyvox.server.api.elevenlabs_dictionaries import DictionaryLocator, find_lexicons
from polyvox.server.app_state import AppState, State
from polyvox.server.ignored_fields import IgnoredFields
from polyvox.server.languages import parse_language
from polyvox.server.middleware.limits import LIMITER
from polyvox.server.requests import STRICT, JSONRoute, RequestModel, is_strict, request_id_of
from polyvox.server.synthesis.options import SynthesisOptions
from polyvox.server.synthesis.streaming import JSON_LINES, JSONLinesSpeechResponse, SpeechResponse
from polyvox.text.languages.language_codes import CODES

router = APIRouter(route_class=JSONRoute)

DEFAULT_FORMAT = "mp3_44100_128"
_MP3 = ("22050_32", "24000_48", "44100", "44100_32", "44100_64", "44100_96", "44100_128", "44100_192")
_SAMPLE_RATES = (8000, 16000, 22050, 24000, 32000, 44100, 48000)
OUTPUT_FORMATS = (
    *(f"mp3_{rest}" for rest in _MP3),
    *(f"{name}_{rate}" for name in ("pcm", "wav") for rate in _SAMPLE_RATES),
    "ulaw_8000",
    "alaw_8000",
    *(f"opus_48000_{rate}" for rate in (32, 64, 96, 128, 192)),
)


class VoiceSettings(RequestModel):
    """Only the speed is used; the models have no parameters for the other settings."""

    speed: float | None = Field(default=None, ge=0.25, le=4.0, allow_inf_nan=False)

    def unknown_fields(self) -> list[str]:
        return [f"voice_settings.{name}" for name in self.model_extra or {}]


class TextToSpeechRequest(RequestModel):
    text: str = Field(description="The text, up to max_text_chars characters.")
    model_id: str | None = Field(default=None, description="Any name: one model is loaded; x-polyvox-model names it.")
    language_code: str | None = Field(default=None, description="ISO 639-1, such as en.")
    voice_settings: VoiceSettings | None = None
    seed: int | None = Field(default=None, ge=0, lt=2**64)
    apply_text_normalization: Literal["auto", "on", "off"] | None = None
    pronunciation_dictionary_locators: list[DictionaryLocator] | None = None

    def unknown_fields(self) -> list[str]:
        nested = [] if self.voice_settings is None else self.voice_settings.unknown_fields()
        return super().unknown_fields() + nested


OutputFormat = Annotated[str, Query(json_schema_extra={"enum": list(OUTPUT_FORMATS)})]


@dataclass(frozen=True, slots=True)
class SpeechCall:
    """What the endpoints that return speech have beside their path and body."""

    request: Request
    state: AppState
    output_format: str
    strict: str

    @property
    def request_id(self) -> str:
        return request_id_of(self.request)

    @property
    def owner(self) -> str:
        return self.request.scope[LIMITER].caller.key

    def ignored_fields(self, body: RequestModel) -> IgnoredFields:
        """With the unknown fields of the body; raises APIError if the request is strict."""
        ignored = IgnoredFields(is_strict(self.strict))
        ignored.add_unknown(body.unknown_fields())
        return ignored


async def speech_call(
    request: Request, state: State, output_format: OutputFormat = DEFAULT_FORMAT, strict: str = STRICT
) -> SpeechCall:
    """Async, because FastAPI runs other dependencies in a thread."""
    return SpeechCall(request, state, output_format, strict)


Call = Annotated[SpeechCall, Depends(speech_call)]
AUDIO_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {"content": {entry.media_type: {} for entry in FORMATS.values()}}
}


@router.post(
    "/v1/text-to-speech/{voice_id}",
    response_class=Response,
    responses=AUDIO_RESPONSES,
    summary="Synthesise a text; the response is one file.",
)
async def convert(voice_id: str, body: TextToSpeechRequest, call: Call) -> Response:
    return await _respond(voice_id, body, call, streaming=False)


@router.post(
    "/v1/text-to-speech/{voice_id}/stream",
    response_class=Response,
    responses=AUDIO_RESPONSES,
    summary="Synthesise a text; audio is streamed as it is generated.",
)
async def stream(voice_id: str, body: TextToSpeechRequest, call: Call) -> Response:
    return await _respond(voice_id, body, call, streaming=True)


@router.post(
    "/v1/text-to-speech/{voice_id}/with-timestamps",
    summary="Synthesise a text; the response has the file in base64 and the estimated times of its characters.",
)
async def convert_with_timestamps(voice_id: str, body: TextToSpeechRequest, call: Call) -> Response:
    return await _respond(voice_id, body, call, streaming=False, json_lines=True)


@router.post(
    "/v1/text-to-speech/{voice_id}/stream/with-timestamps",
    responses={200: {"content": {JSON_LINES: {}}}},
    response_class=Response,
    summary="Synthesise a text; audio is streamed as JSON objects with times of characters, one per line.",
)
async def stream_with_timestamps(voice_id: str, body: TextToSpeechRequest, call: Call) -> Response:
    return await _respond(voice_id, body, call, streaming=True, json_lines=True)


async def _respond(
    voice: str, body: TextToSpeechRequest, call: SpeechCall, streaming: bool, json_lines: bool = False
) -> Response:
    state, ignored = call.state, call.ignored_fields(body)
    options = replace(
        parse_options(voice, call.output_format, body.language_code, state.info, ignored),
        text=body.text,
        seed=body.seed,
        speed=parse_speed(body.voice_settings),
        normalize=body.apply_text_normalization != "off",
        streaming=streaming,
        lexicons=await find_lexicons(state, call.owner, body.pronunciation_dictionary_locators, ignored),
        timestamps=("character",) if json_lines else (),
    )
    request_id = call.request_id
    headers = {**ignored.report(request_id), "request-id": request_id}
    response = JSONLinesSpeechResponse if json_lines else SpeechResponse
    return response(state, options, request_id, as_events=json_lines, headers=headers)


def parse_options(
    voice: str, output_format: str | None, language_code: str | None, info: ModelInfo, ignored: IgnoredFields
) -> SynthesisOptions:
    """The options that HTTP requests and WebSockets share; raises InvalidRequest."""
    name, rate, bit_rate = parse_output_format(output_format or DEFAULT_FORMAT)
    language = parse_language(language_code, info, ignored, "language_code")
    return SynthesisOptions(voice=voice, language=language, format=name, sample_rate=rate, bit_rate=bit_rate)


def parse_output_format(output_format: str) -> tuple[str, int, int | None]:
    """Format, sample rate and bit rate of a name such as mp3_44100_128."""
    if output_format not in OUTPUT_FORMATS:
        raise InvalidRequest("output_format", output_format, OUTPUT_FORMATS)
    name, rate, *bit_rate = output_format.split("_")
    return name, int(rate), int(bit_rate[0]) * 1000 if bit_rate else None


def parse_speed(settings: VoiceSettings | None) -> float:
    return 1.0 if settings is None or settings.speed is None else settings.speed


def model_object(state: AppState) -> dict[str, Any]:
    """The loaded model in ElevenLabs' format."""
    languages = [name for name in state.info.languages if name in CODES]
    return {
        "model_id": state.info.identity.name,
        "name": state.info.identity.name,
        "can_do_text_to_speech": True,
        "can_do_voice_conversion": False,
        "maximum_text_length_per_request": state.settings.max_text_chars,
        "languages": [{"language_id": CODES[name], "name": name.capitalize()} for name in languages],
    }
