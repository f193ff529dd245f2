"""ElevenLabs' face: its routes, formats and fields, so that its SDK and the plugins for it speak with us."""

from dataclasses import replace
from typing import Any, Literal

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, ConfigDict, Field

from polyvox.audio.formats import FORMATS
from polyvox.errors import InvalidRequest
from polyvox.models.request import AUTO
from polyvox.server.app_state import AppState, of
from polyvox.server.openapi import taken
from polyvox.server.responses import Refused, check_body, read_json, request_id_of, shown_fields, unknown_fields
from polyvox.server.synthesis.options import SynthesisOptions
from polyvox.server.synthesis.streaming import SpeechLines, SpeechResponse

router = APIRouter()

DEFAULT_FORMAT = "mp3_44100_128"
_MP3 = ("22050_32", "24000_48", "44100", "44100_32", "44100_64", "44100_96", "44100_128", "44100_192")
_RATES = (8000, 16000, 22050, 24000, 32000, 44100, 48000)
OUTPUT_FORMATS = (
    *(f"mp3_{rest}" for rest in _MP3),
    *(f"{name}_{rate}" for name in ("pcm", "wav") for rate in _RATES),
    "ulaw_8000",
    "alaw_8000",
    *(f"opus_48000_{rate}" for rate in (32, 64, 96, 128, 192)),
)
# ISO 639-1, by what models call the language.
CODES = {
    "en": "english",
    "zh": "chinese",
    "ja": "japanese",
    "ko": "korean",
    "de": "german",
    "fr": "french",
    "ru": "russian",
    "pt": "portuguese",
    "es": "spanish",
    "it": "italian",
}


class VoiceSettings(BaseModel):
    """Of all that can be set only the speed; models have no dials for the rest."""

    model_config = ConfigDict(strict=True, extra="ignore")

    speed: float | None = Field(default=None, ge=0.25, le=4.0, allow_inf_nan=False)


class TextToSpeech(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore", protected_namespaces=())

    text: str = Field(description="What to say, of any length up to the server's limit.")
    model_id: str | None = Field(default=None, description="Any name: one model is loaded, and the answer tells which.")
    language_code: str | None = Field(default=None, description="ISO 639-1, such as en.")
    voice_settings: VoiceSettings | None = None
    seed: int | None = Field(default=None, ge=0, lt=2**64)
    apply_text_normalization: Literal["auto", "on", "off"] | None = None


_BODY = taken(TextToSpeech, output_format={"schema": {"enum": list(OUTPUT_FORMATS), "default": DEFAULT_FORMAT}})
_ANSWERS: dict[int | str, dict[str, Any]] = {200: {"content": {entry.media_type: {} for entry in FORMATS.values()}}}


@router.post(
    "/v1/text-to-speech/{voice_id}",
    response_class=Response,
    openapi_extra=_BODY,
    responses=_ANSWERS,
    summary="Say a text; the answer is a whole file.",
)
async def convert(request: Request, voice_id: str) -> Response:
    return await _speak(request, voice_id, streaming=False)


@router.post(
    "/v1/text-to-speech/{voice_id}/stream",
    response_class=Response,
    openapi_extra=_BODY,
    responses=_ANSWERS,
    summary="Say a text; the sound streams as it is made.",
)
async def stream(request: Request, voice_id: str) -> Response:
    return await _speak(request, voice_id, streaming=True)


@router.post(
    "/v1/text-to-speech/{voice_id}/with-timestamps",
    openapi_extra=_BODY,
    summary="Say a text; the answer has the whole file in base64. Its times are null: the models tell none.",
)
async def convert_with_times(request: Request, voice_id: str) -> Response:
    return await _speak(request, voice_id, streaming=False, lines=True)


@router.post(
    "/v1/text-to-speech/{voice_id}/stream/with-timestamps",
    openapi_extra=_BODY,
    summary="The same as it is made, one object in each line.",
)
async def stream_with_times(request: Request, voice_id: str) -> Response:
    return await _speak(request, voice_id, streaming=True, lines=True)


async def _speak(request: Request, voice: str, streaming: bool, lines: bool = False) -> Response:
    desk, request_id = of(request), request_id_of(request)
    found = await read_json(request, desk.settings)
    body = check_body(TextToSpeech, found)
    ignored = unknown_fields(TextToSpeech, found)
    ignored += ignored_settings(found.get("voice_settings"))
    desk.ignored(ignored, request_id)
    wanted = wanted_of(voice, request.query_params.get("output_format"), body.language_code)
    wanted = replace(
        wanted,
        text=body.text,
        seed=body.seed,
        speed=speed_of(body.voice_settings),
        normalize=body.apply_text_normalization != "off",
        streaming=streaming,
    )
    headers = {"x-polyvox-ignored": shown_fields(ignored)} if ignored else {}
    response = SpeechLines if lines else SpeechResponse
    return response(desk, wanted, request_id, sse=lines, headers={**headers, "request-id": request_id})


def wanted_of(voice: str, output_format: str | None, language_code: str | None) -> SynthesisOptions:
    """What the routes and the sockets have in common; raises InvalidRequest."""
    name, rate, bit_rate = read_format(output_format or DEFAULT_FORMAT)
    language = AUTO
    if language_code:
        language = CODES.get(language_code.lower().split("-")[0], "")
        if not language:
            raise InvalidRequest("language_code", language_code, CODES)
    return SynthesisOptions(voice=voice, language=language, format=name, sample_rate=rate, bit_rate=bit_rate)


def read_format(output_format: str) -> tuple[str, int, int | None]:
    """Format, rate and bits per second, of a name such as mp3_44100_128."""
    if output_format not in OUTPUT_FORMATS:
        raise InvalidRequest("output_format", output_format, OUTPUT_FORMATS)
    name, rate, *bit_rate = output_format.split("_")
    return name, int(rate), int(bit_rate[0]) * 1000 if bit_rate else None


def speed_of(settings: VoiceSettings | None) -> float:
    return 1.0 if settings is None or settings.speed is None else settings.speed


def ignored_settings(found: Any) -> list[str]:
    given = found if isinstance(found, dict) else {}
    return [f"voice_settings.{name}" for name, value in given.items() if name != "speed" and value is not None]


@router.get("/v1/voices", summary="The voices, as ElevenLabs' clients read them.")
@router.get("/v2/voices", summary="The same.")
async def list_voices(request: Request) -> JSONResponse:
    voices = await _voices(of(request))
    return JSONResponse({"voices": voices, "has_more": False, "total_count": len(voices), "next_page_token": None})


@router.get("/v1/voices/{voice_id}", summary="One of them.")
async def show_voice(request: Request, voice_id: str) -> JSONResponse:
    for voice in await _voices(of(request)):
        if voice["voice_id"].lower() == voice_id.lower():
            return JSONResponse(voice)
    raise Refused(
        404, "voice_not_found", f"voice_id: {voice_id[:80]} is not there; GET /v1/voices lists all", "voice_id"
    )


async def _voices(desk: AppState) -> list[dict[str, Any]]:
    found = await desk.speaker.in_thread(desk.voices.list)
    return [
        {
            "voice_id": voice["id"],
            "name": voice["name"],
            "category": "premade" if voice["type"] == "own" else "cloned",
            "labels": {},
            "description": voice.get("speaker_description"),
            "preview_url": None,
        }
        for voice in found
    ]


def model_of(desk: AppState) -> dict[str, Any]:
    """The model that is loaded, as their list of models has it."""
    names = {name: code for code, name in CODES.items()}
    languages = [name for name in desk.facts.languages if name in names]
    return {
        "model_id": desk.facts.identity.name,
        "name": desk.facts.identity.name,
        "can_do_text_to_speech": True,
        "can_do_voice_conversion": False,
        "maximum_text_length_per_request": desk.settings.max_text,
        "languages": [{"language_id": names[name], "name": name.capitalize()} for name in languages],
    }
