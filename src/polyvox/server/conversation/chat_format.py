# SPDX-License-Identifier: Apache-2.0
"""Spoken chat completions as JSON: OpenAI's format, and the one of vLLM-Omni."""

import base64
import time
from collections.abc import Mapping
from typing import Any

import msgspec

from polyvox.audio.wav import wav_header
from polyvox.server.conversation.message import MessageBuilder
from polyvox.server.conversation.transcripts import LIFETIME
from polyvox.server.request_log import RequestRecord
from polyvox.thinkers.interface import Delta, End

DONE = b"data: [DONE]\n\n"


class OpenAIChatFormat:
    """The chunks of one answer. Each audio chunk is the continuation of the one before."""

    def __init__(self, audio_id: str, model: str) -> None:
        self.audio_id = audio_id
        self.expires_at = int(time.time()) + LIFETIME
        self.frame: Mapping[str, Any] = {  # of chunks that the LLM has not sent
            "id": f"chatcmpl-{audio_id.removeprefix('audio_')}",
            "object": "chat.completion.chunk",
            "created": int(time.time()),
            "model": model,
        }

    def text(self, delta: Delta) -> dict[str, Any]:
        self.frame = {key: value for key, value in delta.chunk.items() if key != "choices"} or self.frame
        chunk = dict(delta.chunk)
        if delta.text:
            (choice,) = chunk["choices"]
            audio = {"id": self.audio_id, "transcript": delta.text}
            chunk["choices"] = [{**choice, "delta": {**choice["delta"], "audio": audio}}]
        return chunk

    def audio(self, data: bytes) -> dict[str, Any]:
        return self._chunk({"audio": {"id": self.audio_id, "data": base64.b64encode(data).decode()}})

    def end(self, end: End, has_audio: bool) -> list[dict[str, Any]]:
        """What follows the text and the audio, without the usage."""
        expiry = [self._chunk({"audio": {"expires_at": self.expires_at}})] if has_audio else []
        return [*expiry, self._chunk({}, end.finish_reason)]

    def usage(self, end: End, record: RequestRecord) -> dict[str, Any]:
        return {**self.frame, "choices": [], "usage": usage_of(end, record)}

    def completion(
        self, message: MessageBuilder, end: End, record: RequestRecord, has_audio: bool
    ) -> tuple[bytes, bytes]:
        """The JSON of a whole answer before and after its audio in base64; without audio, all of it is the first."""
        mark = f"data of {self.audio_id}"  # the id is random: it stands nowhere else
        audio = None
        if has_audio:
            audio = {"id": self.audio_id, "data": "", "expires_at": self.expires_at, "transcript": message.text}
        choice = {
            "index": 0,
            "message": {"refusal": None, **message.message(), "audio": audio},
            "logprobs": message.logprobs(),
            "finish_reason": end.finish_reason,
        }
        frame = {key: value for key, value in (message.chunk or self.frame).items() if key != "choices"}
        whole = {**frame, "object": "chat.completion", "choices": [choice], "usage": usage_of(end, record)}
        if audio is None:
            return msgspec.json.encode(whole), b""
        audio["data"] = mark
        before, after = msgspec.json.encode(whole).split(mark.encode(), 1)
        return before, after

    def _chunk(self, delta: dict[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
        return {**self.frame, "choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}]}


class VLLMOmniChatFormat(OpenAIChatFormat):
    """Audio in `delta.content` of chunks with `modality`: each chunk is a file of its own, if it is not PCM."""

    def __init__(self, audio_id: str, model: str, wav_rate: int | None) -> None:
        super().__init__(audio_id, model)
        self._wav_rate = wav_rate  # None for PCM

    def text(self, delta: Delta) -> dict[str, Any]:
        self.frame = {key: value for key, value in delta.chunk.items() if key != "choices"} or self.frame
        return {**delta.chunk, "modality": "text"}

    def audio(self, data: bytes) -> dict[str, Any]:
        header = b"" if self._wav_rate is None else wav_header(self._wav_rate, len(data))
        return self._chunk({"content": base64.b64encode(header + data).decode()}) | {"modality": "audio"}

    def end(self, end: End, has_audio: bool) -> list[dict[str, Any]]:
        return [self._chunk({}, end.finish_reason) | {"modality": "audio" if has_audio else "text"}]


def event(chunk: Mapping[str, Any]) -> bytes:
    return b"data: " + msgspec.json.encode(chunk) + b"\n\n"


def usage_of(end: End, record: RequestRecord) -> dict[str, Any]:
    """The LLM's usage with the frames of speech as audio tokens; the text tokens are the engine's if it has none."""
    given = dict(end.usage or {"prompt_tokens": 0, "completion_tokens": record.text_tokens})
    prompt, text = _count(given.get("prompt_tokens")), _count(given.get("completion_tokens"))
    details = given.get("completion_tokens_details")
    return {
        **given,
        "prompt_tokens": prompt,
        "completion_tokens": text + record.frames,
        "total_tokens": prompt + text + record.frames,
        "completion_tokens_details": {
            **(details if isinstance(details, Mapping) else {}),
            "audio_tokens": record.frames,
            "text_tokens": text,
        },
    }


def _count(value: object) -> int:
    return value if isinstance(value, int) else 0
