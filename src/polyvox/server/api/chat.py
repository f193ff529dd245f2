# SPDX-License-Identifier: Apache-2.0
"""OpenAI's chat completions: an LLM's answers as text, or spoken while the LLM writes them."""

from dataclasses import replace
from typing import Any, Literal

from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import Field

from polyvox.audio.formats import FORMATS
from polyvox.errors import InvalidRequest
from polyvox.server.api.openai import SpeechParameters, VoiceId, parse_parameters
from polyvox.server.app_state import AppState, State
from polyvox.server.conversation.chat_response import SpokenChatResponse, TextChatResponse
from polyvox.server.ignored_fields import IgnoredFields
from polyvox.server.middleware.limits import LIMITER
from polyvox.server.requests import STRICT, RecordingRoute, RequestModel, is_strict, request_id_of
from polyvox.server.synthesis.options import SynthesisOptions
from polyvox.server.synthesis.streaming import EVENT_STREAM

router = APIRouter(route_class=RecordingRoute)

PCM16, PCM16_RATE = "pcm16", 24_000  # as OpenAI's clients expect it
VLLM_OMNI_FORMATS = ("wav", "pcm", PCM16)  # that streams in vLLM-Omni's format may have
# Fields that are ours; all others go to the LLM.
SPEECH_FIELDS = ("modalities", "audio", "voice", "speaker")


class ChatAudio(SpeechParameters):
    """How the answer is spoken: the parameters of /v1/audio/speech, with OpenAI's name for the format."""

    format: Literal[*FORMATS, PCM16] | None = Field(  # type: ignore[valid-type]
        default=None, description="By default wav, and pcm16 in a stream."
    )

    def unknown_fields(self) -> list[str]:
        without_effect = self.model_fields_set & {"response_format", "timestamp_granularities"}
        return sorted([*super().unknown_fields(), *without_effect])


class ChatStreamOptions(RequestModel):
    include_usage: bool = False


class ChatRequest(RequestModel):
    """A chat completion request in OpenAI's format. Fields that are not listed go to the LLM."""

    messages: list[dict[str, Any]] = Field(min_length=1)
    model: str | None = Field(default=None, description="The LLM, unless the server has llm_model.")
    modalities: list[Literal["text", "audio"]] | None = Field(
        default=None, min_length=1, description='With "audio" the answer is spoken.'
    )
    audio: ChatAudio | None = Field(default=None, description="How the answer is spoken; implies audio.")
    voice: str | VoiceId | None = Field(default=None, description="Alias of audio.voice.")
    speaker: str | None = Field(default=None, description="Alias of audio.voice.")
    stream: bool = False
    stream_options: ChatStreamOptions | None = None
    n: int | None = Field(default=None, ge=1)

    @property
    def is_spoken(self) -> bool:
        return self.audio is not None if self.modalities is None else "audio" in self.modalities


@router.post(
    "/v1/chat/completions",
    response_class=Response,
    responses={200: {"content": {"application/json": {}, EVENT_STREAM: {}}}},
    summary="An answer of the LLM, spoken while it is written.",
)
async def create_chat_completion(request: Request, body: ChatRequest, state: State, strict: str = STRICT) -> Response:
    request_id = request_id_of(request)
    state.conversation.require_llm()
    owner = request.scope[LIMITER].caller.key
    given: dict[str, Any] = await request.json()
    messages = await state.conversation.transcripts.resolve(owner, body.messages)
    forwarded = {key: value for key, value in given.items() if key not in SPEECH_FIELDS} | {"messages": messages}
    if not body.is_spoken:
        return TextChatResponse(state, forwarded, request_id, {})
    audio = body.audio or ChatAudio()
    ignored = IgnoredFields(is_strict(strict), prefix="audio.")
    options = await parse_chat_audio(body, audio, state, ignored)
    headers = ignored.report(request_id)
    include_usage = body.stream_options is not None and body.stream_options.include_usage
    wav_chunks = body.stream and audio.format in (None, "wav")
    return SpokenChatResponse(state, forwarded, options, request_id, headers, include_usage, wav_chunks)


async def parse_chat_audio(
    body: ChatRequest, audio: ChatAudio, state: AppState, ignored: IgnoredFields
) -> SynthesisOptions:
    """Raises InvalidRequest for what cannot be spoken."""
    if body.n not in (None, 1):
        raise InvalidRequest("n", body.n, "must be 1 for an answer with audio")
    options = await parse_parameters(audio, state, ignored)
    requested = audio.format or (PCM16 if body.stream else "wav")
    sample_rate = audio.sample_rate or (PCM16_RATE if requested == PCM16 else None)
    if state.settings.chat_format == "vllm-omni" and body.stream:
        if audio.format not in (None, *VLLM_OMNI_FORMATS):
            raise InvalidRequest("format", audio.format, VLLM_OMNI_FORMATS)
        requested = PCM16  # of which each chunk becomes a file
    voice = body.voice.id if isinstance(body.voice, VoiceId) else body.voice
    return replace(
        options,
        voice=options.voice or voice or body.speaker,
        format="pcm" if requested == PCM16 else requested,
        sample_rate=sample_rate,
        ssml=False,  # an LLM's mistakes in it are no reason to fail
        live=True,
        streaming=body.stream,
        granularity="token",
        timestamps=(),
    )
