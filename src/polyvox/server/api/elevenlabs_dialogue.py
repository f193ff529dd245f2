# SPDX-License-Identifier: Apache-2.0
"""ElevenLabs' dialogue endpoints: texts of several voices in one stream."""

from dataclasses import replace
from typing import Literal

from fastapi import APIRouter
from fastapi.responses import Response
from pydantic import Field

from polyvox.server.api.elevenlabs import AUDIO_RESPONSES, Call, SpeechCall, parse_options
from polyvox.server.api.elevenlabs_dictionaries import DictionaryLocator, find_lexicons
from polyvox.server.requests import JSONRoute, RequestModel
from polyvox.server.synthesis.options import Turn
from polyvox.server.synthesis.streaming import SpeechResponse

router = APIRouter(route_class=JSONRoute)

MAX_TURNS = 1000


class DialogueTurn(RequestModel):
    """A text and the voice that speaks it."""

    text: str
    voice_id: str


class DialogueRequest(RequestModel):
    inputs: list[DialogueTurn] = Field(min_length=1, max_length=MAX_TURNS)
    model_id: str | None = Field(default=None, description="Any name: one model is loaded; x-polyvox-model names it.")
    language_code: str | None = Field(default=None, description="ISO 639-1, such as en.")
    seed: int | None = Field(default=None, ge=0, lt=2**64)
    apply_text_normalization: Literal["auto", "on", "off"] | None = None
    pronunciation_dictionary_locators: list[DictionaryLocator] | None = None

    def unknown_fields(self) -> list[str]:
        nested = {f"inputs.{name}" for turn in self.inputs for name in turn.unknown_fields()}
        return super().unknown_fields() + sorted(nested)


@router.post(
    "/v1/text-to-dialogue",
    response_class=Response,
    responses=AUDIO_RESPONSES,
    summary="Synthesise texts of several voices; the response is one file.",
)
async def convert_dialogue(body: DialogueRequest, call: Call) -> Response:
    return await _respond(body, call, streaming=False)


@router.post(
    "/v1/text-to-dialogue/stream",
    response_class=Response,
    responses=AUDIO_RESPONSES,
    summary="Synthesise texts of several voices; audio is streamed as it is generated.",
)
async def stream_dialogue(body: DialogueRequest, call: Call) -> Response:
    return await _respond(body, call, streaming=True)


async def _respond(body: DialogueRequest, call: SpeechCall, streaming: bool) -> Response:
    state, ignored = call.state, call.ignored_fields(body)
    turns = tuple(Turn(turn.text, turn.voice_id) for turn in body.inputs)
    options = replace(
        parse_options(turns[0].voice, call.output_format, body.language_code, state.info, ignored),
        text="\n\n".join(turn.text for turn in turns),
        turns=turns,
        seed=body.seed,
        normalize=body.apply_text_normalization != "off",
        streaming=streaming,
        lexicons=await find_lexicons(state, call.owner, body.pronunciation_dictionary_locators, ignored),
    )
    request_id = call.request_id
    headers = {**ignored.report(request_id), "request-id": request_id}
    return SpeechResponse(state, options, request_id, headers=headers)
