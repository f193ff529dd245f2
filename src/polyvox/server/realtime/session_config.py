# SPDX-License-Identifier: Apache-2.0
"""The configuration of a realtime session: how updates are merged, validated and shown."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from pydantic import Field

from polyvox.audio.formats import RATES, TELEPHONE_RATES
from polyvox.server.api.openai import SpeechParameters, VoiceId, parse_parameters
from polyvox.server.app_state import AppState
from polyvox.server.ignored_fields import IgnoredFields
from polyvox.server.requests import RequestModel, validate
from polyvox.server.synthesis.options import SynthesisOptions

DEFAULT_RATE = 24_000  # of PCM, as OpenAI's clients expect it
FORMAT_NAMES = {"audio/pcm": "pcm", "audio/pcmu": "ulaw", "audio/pcma": "alaw"}
MAX_INSTRUCTION_CHARS = 200_000
MAX_TOOLS = 128
MAX_MILLISECONDS = 30_000
MERGED = ("audio", "input", "output")  # objects of which an update names only some fields
OPTIONAL = ("transcription", "turn_detection")  # objects that null turns off; any other null changes nothing
# How long semantic_vad waits, which is server_vad with the silence that OpenAI's eagerness stands for.
EAGERNESS_SILENCE = {"low": 1000, "medium": 500, "auto": 500, "high": 300}
DEFAULTS: dict[str, Any] = {
    "output_modalities": ["audio"],
    "instructions": "",
    "tools": [],
    "tool_choice": "auto",
    "max_output_tokens": "inf",
    "audio": {
        "input": {
            "format": {"type": "audio/pcm", "rate": DEFAULT_RATE},
            "transcription": None,
            "turn_detection": {"type": "server_vad"},
        },
        "output": {"format": {"type": "audio/pcm", "rate": DEFAULT_RATE}, "speed": 1.0},
    },
}


class AudioFormat(RequestModel):
    """rate: of audio/pcm; the telephone encodings have 8 kHz."""

    type: Literal["audio/pcm", "audio/pcmu", "audio/pcma"]
    rate: Literal[*RATES] | None = None  # type: ignore[valid-type]

    @property
    def sample_rate(self) -> int:
        return TELEPHONE_RATES[0] if self.type != "audio/pcm" else self.rate or DEFAULT_RATE

    def as_dict(self) -> dict[str, Any]:
        return {"type": self.type} | ({"rate": self.sample_rate} if self.type == "audio/pcm" else {})


class TurnDetection(RequestModel):
    """When a turn of the user starts and ends."""

    type: Literal["server_vad", "semantic_vad"] = "server_vad"
    threshold: float = Field(default=0.5, ge=0, le=1)
    prefix_padding_ms: int = Field(default=300, ge=0, le=MAX_MILLISECONDS)
    silence_duration_ms: int | None = Field(default=None, ge=0, le=MAX_MILLISECONDS)
    create_response: bool = True
    interrupt_response: bool = True
    idle_timeout_ms: int | None = Field(default=None, ge=5_000, le=MAX_MILLISECONDS)
    eagerness: Literal["low", "medium", "high", "auto"] = "auto"

    @property
    def silence_ms(self) -> int:
        return EAGERNESS_SILENCE[self.eagerness] if self.silence_duration_ms is None else self.silence_duration_ms

    def as_dict(self) -> dict[str, Any]:
        common = {"create_response": self.create_response, "interrupt_response": self.interrupt_response}
        if self.type == "semantic_vad":
            return {"type": self.type, "eagerness": self.eagerness, **common}
        times = {"prefix_padding_ms": self.prefix_padding_ms, "silence_duration_ms": self.silence_ms}
        idle = {"idle_timeout_ms": self.idle_timeout_ms}
        return {"type": self.type, "threshold": self.threshold, **times, **idle, **common}


class InputTranscription(RequestModel):
    """Options of the STT server. Transcripts of the user are sent to the client only if they are set."""

    model: str | None = None
    language: str | None = None
    prompt: str | None = None


class RealtimeInput(RequestModel):
    format: AudioFormat = AudioFormat(type="audio/pcm")
    transcription: InputTranscription | None = None
    turn_detection: TurnDetection | None = None


class RealtimeOutput(SpeechParameters):
    """How answers are spoken: the parameters of /v1/audio/speech, with OpenAI's object for the format."""

    format: AudioFormat = AudioFormat(type="audio/pcm")

    @property
    def voice_name(self) -> str | None:
        return self.voice.id if isinstance(self.voice, VoiceId) else self.voice

    def unknown_fields(self) -> list[str]:
        overridden = self.model_fields_set & {"response_format", "sample_rate"}
        return sorted([*super().unknown_fields(), *overridden])


class RealtimeAudio(RequestModel):
    input: RealtimeInput = RealtimeInput()
    output: RealtimeOutput = RealtimeOutput()


class FunctionTool(RequestModel):
    type: Literal["function"] = "function"
    name: str = Field(min_length=1, max_length=256)
    description: str | None = None
    parameters: dict[str, Any] | None = None

    def chat_tool(self) -> dict[str, Any]:
        """As chat completions have it."""
        given = {"description": self.description, "parameters": self.parameters}
        function = {"name": self.name} | {name: value for name, value in given.items() if value is not None}
        return {"type": "function", "function": function}


class FunctionChoice(RequestModel):
    type: Literal["function"]
    name: str


class RealtimeFields(RequestModel):
    """The fields of a session, which a response may override."""

    type: Literal["realtime"] = "realtime"
    model: str | None = Field(default=None, description="The LLM, unless the server has llm_model.")
    instructions: str = Field(default="", max_length=MAX_INSTRUCTION_CHARS)
    output_modalities: list[Literal["text", "audio"]] = Field(default=["audio"], min_length=1, max_length=2)
    tools: list[FunctionTool] = Field(default=[], max_length=MAX_TOOLS)
    tool_choice: Literal["auto", "none", "required"] | FunctionChoice = "auto"
    parallel_tool_calls: bool | None = None
    max_output_tokens: Annotated[int, Field(ge=1)] | Literal["inf"] = "inf"
    temperature: float | None = Field(default=None, ge=0, le=2)
    audio: RealtimeAudio = RealtimeAudio()

    @property
    def is_spoken(self) -> bool:
        return "audio" in self.output_modalities

    def ignored_fields(self) -> list[str]:
        """Unknown fields, and those of OpenAI that have no effect here."""
        inner = [*map("audio.input.{}".format, self.audio.input.unknown_fields())]
        return [*self.unknown_fields(), *map("audio.{}".format, self.audio.unknown_fields()), *inner]

    def chat_fields(self) -> dict[str, Any]:
        """The fields of the chat completion, without its messages."""
        found: dict[str, Any] = {"model": self.model}
        if self.tools:
            choice = self.tool_choice
            found["tools"] = [tool.chat_tool() for tool in self.tools]
            found["tool_choice"] = (
                {"type": "function", "function": {"name": choice.name}}
                if isinstance(choice, FunctionChoice)
                else choice
            )
            found["parallel_tool_calls"] = self.parallel_tool_calls
        if self.max_output_tokens != "inf":
            found["max_tokens"] = self.max_output_tokens
        found["temperature"] = self.temperature
        return {name: value for name, value in found.items() if value is not None}


class SessionObject(RequestModel):
    """For errors that name fields as OpenAI does: session.audio.output.speed."""

    session: RealtimeFields


@dataclass(frozen=True, slots=True)
class RealtimeConfig:
    """given: all fields as JSON. options: how answers are spoken, checked against the model."""

    given: Mapping[str, Any]
    fields: RealtimeFields
    options: SynthesisOptions
    ignored_fields: tuple[str, ...] = ()

    @classmethod
    async def create(cls, state: AppState, given: Mapping[str, Any], strict: bool, prefix: str) -> "RealtimeConfig":
        """Raises InvalidRequest or APIError. prefix: of the names of ignored fields."""
        fields = validate(SessionObject, {"session": dict(given)}).session
        ignored = IgnoredFields(strict, prefix)
        ignored.add_unknown(fields.ignored_fields())
        spoken = IgnoredFields(strict, f"{prefix}audio.output.")
        output = fields.audio.output
        options = replace(
            await parse_parameters(output, state, spoken),
            format=FORMAT_NAMES[output.format.type],
            sample_rate=output.format.sample_rate,
            ssml=False,  # an LLM's mistakes in it are no reason to fail
            live=True,
            streaming=True,
            granularity="token",
            timestamps=tuple(output.timestamp_granularities or ()),
            recorded=True,  # an answer that is interrupted is cut at a word
        )
        await state.synthesis.validate(options)
        return cls(given, fields, options, (*ignored.names, *spoken.names))

    async def updated(self, state: AppState, update: Mapping[str, Any], strict: bool, prefix: str) -> "RealtimeConfig":
        """With the fields of an update. Objects such as turn_detection are replaced, null turns OPTIONAL ones off."""
        known = {name: value for name, value in self.given.items() if name in RealtimeFields.model_fields}
        return await self.create(state, _merged(known, update), strict, prefix)

    def as_dict(self, default_voice: str | None) -> dict[str, Any]:
        """The session object without its id. default_voice: of the model."""
        fields, audio = self.fields, self.fields.audio
        choice = fields.tool_choice
        transcription, detection = audio.input.transcription, audio.input.turn_detection
        output: dict[str, Any] = {
            "format": audio.output.format.as_dict(),
            "voice": audio.output.voice_name or default_voice,
            "speed": audio.output.speed,
        }
        if audio.output.timestamp_granularities:
            output["timestamp_granularities"] = audio.output.timestamp_granularities
        return {
            "type": "realtime",
            "object": "realtime.session",
            "model": fields.model,
            "instructions": fields.instructions,
            "output_modalities": ["audio"] if fields.is_spoken else ["text"],
            "tools": [tool.model_dump(exclude_none=True) for tool in fields.tools],
            "tool_choice": choice if isinstance(choice, str) else choice.model_dump(),
            "max_output_tokens": fields.max_output_tokens,
            "audio": {
                "input": {
                    "format": audio.input.format.as_dict(),
                    "transcription": None if transcription is None else transcription.model_dump(exclude_none=True),
                    "noise_reduction": None,
                    "turn_detection": None if detection is None else detection.as_dict(),
                },
                "output": output,
            },
        } | ({"ignored_fields": list(self.ignored_fields)} if self.ignored_fields else {})


def _merged(known: Mapping[str, Any], update: Mapping[str, Any]) -> dict[str, Any]:
    found = dict(known)
    for name, value in update.items():
        inner = found.get(name)
        if name in MERGED and isinstance(inner, dict) and isinstance(value, dict):
            found[name] = _merged(inner, value)
        elif value is not None or name in OPTIONAL:
            found[name] = None if value is False and name == "turn_detection" else value  # as Pipecat turns it off
    return found
