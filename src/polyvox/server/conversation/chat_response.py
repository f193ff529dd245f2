# SPDX-License-Identifier: Apache-2.0
"""HTTP responses of chat completions: spoken answers, and text that is passed through."""

import base64
import logging
from abc import abstractmethod
from collections.abc import AsyncGenerator
from contextlib import ExitStack, aclosing
from typing import Any

from starlette.types import Receive, Scope

from polyvox.errors import Overloaded, PolyvoxError, UnknownVoice
from polyvox.server.app_state import AppState
from polyvox.server.conversation.chat_format import DONE, OpenAIChatFormat, VLLMOmniChatFormat, event
from polyvox.server.conversation.message import MessageBuilder
from polyvox.server.conversation.spoken_answer import AnswerEvent, SpokenAnswer, start_utterance
from polyvox.server.conversation.transcripts import new_audio_id
from polyvox.server.logs import log_detail, log_request
from polyvox.server.middleware.limits import LIMITER
from polyvox.server.responses import APIError, error_body, error_response, field_names
from polyvox.server.synthesis.client_response import ClientResponse, ResponseWriter, base64_length, read_parts
from polyvox.server.synthesis.options import SynthesisOptions
from polyvox.server.synthesis.spool import SpooledFile
from polyvox.server.synthesis.streaming import EVENT_STREAM
from polyvox.server.synthesis.utterance import Utterance
from polyvox.thinkers.interface import ChatBody, Delta, End, ThinkerTimeout

EVENTS_TYPE = f"{EVENT_STREAM}; charset=utf-8"


class ChatResponse(ClientResponse):
    """Base class. An error before the first byte is a status; after it, it is the last event of a stream."""

    def __init__(self, state: AppState, body: ChatBody, request_id: str, headers: dict[str, str]) -> None:
        super().__init__(state, request_id)
        self._body, self._extra_headers = body, headers

    async def respond(self, scope: Scope, receive: Receive, write: ResponseWriter) -> None:
        metrics = self._state.metrics
        outcome = "cancelled"
        try:
            await self._answer(scope[LIMITER].caller.key, write)
            await write.end()
            outcome = "finished"
        except PolyvoxError as error:
            outcome = outcome_of(error)
            if isinstance(error, UnknownVoice):  # OpenAI's clients take 404 for an unknown model
                error = APIError(400, error.code, error.message_for("audio.voice"), "audio.voice")
            if not write.started:
                if not self._is_recorded():
                    self._state.record_rejected(error, self._request_id)
                await error_response(error, self._request_id, field_names(scope))(scope, receive, write)
                return
            metrics.aborts.labels("error").inc()
            log_request("request failed", self._request_id, {"error": str(error)}, logging.ERROR)
            if self._is_event_stream():
                await write.body(event(error_body(error, field_names(scope))))
                await write.end()
        finally:
            metrics.llm_requests.labels(outcome).inc()

    @abstractmethod
    async def _answer(self, owner: str, write: ResponseWriter) -> None:
        """Sends the answer; raises PolyvoxError."""

    @abstractmethod
    def _is_event_stream(self) -> bool:
        """Whether an error can be sent as an event. Otherwise the body ends without its end."""

    def _is_recorded(self) -> bool:
        """Whether the failed request is counted and logged already."""
        return False

    def _response_headers(self, content_type: str) -> dict[str, str]:
        return {
            "content-type": content_type,
            "cache-control": "no-store",
            "x-request-id": self._request_id,
            "x-accel-buffering": "no",  # a proxy that buffers would delay the answer
            **self._extra_headers,
        }


class TextChatResponse(ChatResponse):
    """The LLM's response as it is."""

    _content_type = ""

    async def _answer(self, owner: str, write: ResponseWriter) -> None:  # noqa: ARG002
        self._state.synthesis.check_draining()
        async with self._state.conversation.require_llm().open(self._body) as (self._content_type, parts):
            async for part in parts:
                if not write.started:
                    await write.start(self._response_headers(self._content_type))
                await write.body(part)
        if not write.started:
            await write.start(self._response_headers(self._content_type))

    def _is_event_stream(self) -> bool:
        return self._content_type.startswith(EVENT_STREAM)


class SpokenChatResponse(ChatResponse):
    """An answer of the LLM with its speech, streamed or as one JSON object.

    wav_chunks: in vLLM-Omni's format, each chunk of PCM gets a WAV header.
    """

    def __init__(
        self,
        state: AppState,
        body: ChatBody,
        options: SynthesisOptions,
        request_id: str,
        headers: dict[str, str],
        include_usage: bool,
        wav_chunks: bool,
    ) -> None:
        super().__init__(state, body, request_id, headers)
        self._options, self._include_usage, self._wav_chunks = options, include_usage, wav_chunks
        self._utterance: Utterance | None = None

    def _is_event_stream(self) -> bool:
        return self._options.streaming

    def _is_recorded(self) -> bool:
        return self._utterance is not None and self._utterance.record.finish_reason is not None

    async def _answer(self, owner: str, write: ResponseWriter) -> None:
        state = self._state
        thinker = state.conversation.require_llm()
        utterance = await start_utterance(state.synthesis, self._options, self._request_id, owner, self._body)
        self._utterance = utterance
        by_tokens = state.info.takes_conversations
        answer = SpokenAnswer(thinker, self._body, utterance, state.settings.max_text_chars, by_tokens)
        audio_id, message = new_audio_id(), MessageBuilder()
        async with (
            aclosing(answer.events()) as answered,
            aclosing(self._store_transcript(answered, owner, audio_id, message)) as events,
        ):
            chat = self._format(audio_id, utterance)
            if self._options.streaming:
                await self._send_stream(chat, events, write)
            else:
                await self._send_whole(chat, events, message, write)
        record_answer(state, answer, self._request_id)
        await state.request_log.flush()

    async def _store_transcript(
        self, events: AsyncGenerator[AnswerEvent], owner: str, audio_id: str, message: MessageBuilder
    ) -> AsyncGenerator[AnswerEvent]:
        """The events, joined to the message, whose transcript is stored before its client can refer to it."""
        async for item in events:
            if isinstance(item, Delta):
                message.add(item)
            elif isinstance(item, End):
                await self._state.conversation.transcripts.put(owner, audio_id, message.text)
            yield item

    def _format(self, audio_id: str, utterance: Utterance) -> OpenAIChatFormat:
        model = str(self._body.get("model") or self._state.settings.llm_model or utterance.record.model)
        if self._state.settings.chat_format == "vllm-omni":
            return VLLMOmniChatFormat(audio_id, model, utterance.sample_rate if self._wav_chunks else None)
        return OpenAIChatFormat(audio_id, model)

    async def _send_stream(
        self,
        chat: OpenAIChatFormat,
        events: AsyncGenerator[AnswerEvent],
        write: ResponseWriter,
    ) -> None:
        assert self._utterance is not None
        has_audio = False

        async def send(*chunks: dict[str, Any]) -> None:
            if not write.started:
                await write.start(self._response_headers(EVENTS_TYPE))
            write.audio_seconds = utterance.playing_seconds
            await write.body(b"".join(map(event, chunks)))

        utterance = self._utterance
        async for item in events:
            match item:
                case Delta():
                    await send(chat.text(item))
                case bytes():
                    has_audio = True
                    await send(chat.audio(item))
                case End():
                    usage = [chat.usage(item, utterance.record)] if self._include_usage else []
                    await send(*chat.end(item, has_audio), *usage)
                    await write.body(DONE)

    async def _send_whole(
        self,
        chat: OpenAIChatFormat,
        events: AsyncGenerator[AnswerEvent],
        message: MessageBuilder,
        write: ResponseWriter,
    ) -> None:
        assert self._utterance is not None
        file: SpooledFile | None = None
        with ExitStack() as files:
            async for item in events:
                match item:
                    case SpooledFile():
                        file = files.enter_context(item)
                    case End():
                        before, after = chat.completion(message, item, self._utterance.record, file is not None)
                        await self._send_completion(before, file, after, write)

    async def _send_completion(
        self, before: bytes, file: SpooledFile | None, after: bytes, write: ResponseWriter
    ) -> None:
        assert self._utterance is not None
        size = len(before) + len(after) + (0 if file is None else base64_length(file.num_bytes))
        await write.start(self._response_headers("application/json") | {"content-length": str(size)})
        write.set_size(size, self._utterance.playing_seconds)
        await write.body(before)
        if file is not None:
            async with aclosing(read_parts(file, self._state.synthesis)) as parts:
                async for part in parts:
                    await write.body(base64.b64encode(part))
            await write.body(after)


def record_answer(state: AppState, answer: SpokenAnswer, request_id: str) -> None:
    """Counts and logs what the LLM did."""
    if answer.first_token is not None:
        state.metrics.llm_first_token.observe(answer.first_token)
        fields: dict[str, object] = {"llm_first_token": round(answer.first_token, 3)}
        if answer.lacks_media:  # the talker does not read the audio and images of the prompt
            fields["media_rows"] = "zeros"
        log_detail("llm answered", request_id, fields)


def outcome_of(error: PolyvoxError) -> str:
    """The outcome of a failed LLM request in the metrics."""
    if isinstance(error, ThinkerTimeout):
        return "timeout"
    return "rejected" if error.status < 500 or isinstance(error, Overloaded) else "failed"
