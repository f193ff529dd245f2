# SPDX-License-Identifier: Apache-2.0
"""What the user says: audio becomes messages of the conversation, with transcripts, and starts responses."""

import asyncio
from typing import Any

from polyvox.audio.voice_activity import SpeechStarted, SpeechStopped
from polyvox.errors import PolyvoxError
from polyvox.server.realtime.chat_messages import SILENCE
from polyvox.server.realtime.events import error_fields, new_id
from polyvox.server.realtime.input_audio import InputAudioBuffer, decode_audio
from polyvox.server.realtime.items import ContentPart, ConversationItem, InputAudio, MessageItem
from polyvox.server.realtime.responses import ResponseRunner
from polyvox.server.realtime.session_config import InputTranscription, RealtimeConfig
from polyvox.server.realtime.session_context import SessionContext
from polyvox.server.responses import APIError

MAX_TRANSCRIPTIONS = 8  # of one session at once


class UserTurns:
    """The audio input of one session. Speech of the user interrupts the assistant."""

    def __init__(self, context: SessionContext, responses: ResponseRunner, config: RealtimeConfig) -> None:
        self._state, self._sender, self._conversation = context.state, context.sender, context.conversation
        self._clock, self._tasks = context.clock, context.tasks
        self._responses, self._config = responses, config
        self._buffer = InputAudioBuffer(config.fields.audio.input.format, config.fields.audio.input.turn_detection)
        self._item_id = new_id("item")  # of the next message
        self._speech_start_ms = 0
        self._answering: asyncio.Task[None] | None = None  # starts the response to a turn
        self._idle: asyncio.Task[None] | None = None  # waits for idle_timeout_ms
        self._num_transcriptions = 0
        self._is_rejected = False  # the client knows that audio cannot be understood

    @property
    def _llm_takes_audio(self) -> bool:
        """Whether audio goes to the LLM as it is."""
        return self._state.info.takes_conversations

    def configure(self, config: RealtimeConfig) -> None:
        self._config = config
        self._buffer.configure(config.fields.audio.input.format, config.fields.audio.input.turn_detection)

    async def append(self, audio: str) -> None:
        """More audio, in base64. Raises APIError."""
        if not self._llm_takes_audio and self._state.conversation.stt is None:
            if not self._is_rejected:
                self._is_rejected = True
                self._state.conversation.require_stt()
            return
        data = await decode_audio(audio, self._config.fields.audio.input.format, "audio")
        for event in await self._buffer.append(data):
            match event:
                case SpeechStarted():
                    await self._on_speech_started(event.start_ms)
                case SpeechStopped():
                    await self._on_speech_stopped(event.end_ms)

    async def commit(self) -> None:
        """Ends the turn. Raises APIError if there is no audio."""
        await self._commit(self._buffer.take())

    async def clear(self) -> None:
        self._buffer.clear()
        await self._sender.send("input_audio_buffer.cleared", {})

    def transcribe(self, item: ConversationItem) -> None:
        """Starts to transcribe the audio of an item, if the LLM needs text or the client wants it."""
        for index, part in enumerate(item.content if isinstance(item, MessageItem) else []):
            wanted = self._config.fields.audio.input.transcription
            if part.audio is None or part.transcription is not None:
                continue
            if self._llm_takes_audio and (wanted is None or self._state.conversation.stt is None):
                continue
            self._num_transcriptions += 1
            part.transcription = self._tasks.start(self._transcribe(item.id, index, part, part.audio, wanted))

    def watch_idle(self) -> None:
        """After a response: if the user says nothing for idle_timeout_ms, the assistant goes on."""
        detection = self._config.fields.audio.input.turn_detection
        if self._idle is not None:
            self._idle.cancel()
        if detection is not None and detection.idle_timeout_ms is not None:
            self._idle = self._tasks.start(self._wait_idle(detection.idle_timeout_ms / 1000))

    async def _on_speech_started(self, start_ms: int) -> None:
        detection = self._config.fields.audio.input.turn_detection
        self._speech_start_ms = start_ms
        self._stop_waiting()
        await self._sender.send(
            "input_audio_buffer.speech_started", {"audio_start_ms": start_ms, "item_id": self._item_id}
        )
        if detection is not None and detection.interrupt_response:
            await self._responses.cancel(None, "turn_detected")
            await self._conversation.interrupt()

    async def _on_speech_stopped(self, end_ms: int) -> None:
        detection = self._config.fields.audio.input.turn_detection
        fields = {"audio_end_ms": end_ms, "item_id": self._item_id}
        await self._sender.send("input_audio_buffer.speech_stopped", fields)
        part = await self._commit(self._buffer.take_until(end_ms, self._speech_start_ms))
        if detection is not None and detection.create_response:
            self._answering = self._tasks.start(self._answer(part))

    async def _commit(self, audio: InputAudio) -> ContentPart:
        part = ContentPart("input_audio", audio=audio)
        await self._add_message(part)
        return part

    async def _add_message(self, part: ContentPart) -> None:
        item, self._item_id = MessageItem(self._item_id, "user", [part]), new_id("item")
        fields = {"previous_item_id": self._conversation.items.last_id, "item_id": item.id}
        await self._sender.send("input_audio_buffer.committed", fields)
        await self._conversation.add_complete(item)
        self.transcribe(item)

    async def _transcribe(
        self, item_id: str, index: int, part: ContentPart, audio: InputAudio, wanted: InputTranscription | None
    ) -> None:
        """Sets the text of the part, or its failure. wanted: None if the client wants no transcripts."""
        asked = wanted or InputTranscription()
        position: dict[str, Any] = {"item_id": item_id, "content_index": index}
        try:
            if self._num_transcriptions > MAX_TRANSCRIPTIONS:
                message = f"At most {MAX_TRANSCRIPTIONS} transcriptions may run at once."
                raise APIError(429, "too_many_transcriptions", message)
            found = await self._state.conversation.require_stt().transcribe(
                audio.pcm, audio.sample_rate, model=asked.model, language=asked.language, prompt=asked.prompt
            )
        except PolyvoxError as error:
            part.failure = None if self._llm_takes_audio else error
            if wanted is None:
                await self._sender.send_error(error)
            else:
                fields = {**position, "error": error_fields(error)}
                await self._sender.send("conversation.item.input_audio_transcription.failed", fields)
        else:
            part.text = found.text.strip()
            if wanted is not None:
                usage = found.usage or {"type": "duration", "seconds": found.seconds or round(audio.seconds, 3)}
                fields = {**position, "transcript": part.text, "usage": usage}
                await self._sender.send("conversation.item.input_audio_transcription.completed", fields)
        finally:
            self._num_transcriptions -= 1
            if not self._llm_takes_audio:
                part.audio = None

    async def _answer(self, part: ContentPart) -> None:
        """Starts the response to a turn in which something was said."""
        if part.transcription is not None:
            await asyncio.wait({part.transcription})
        if part.failure is None and (part.text or part.audio is not None):
            await self._responses.wait()
            await self._start_response()

    async def _wait_idle(self, seconds: float) -> None:
        start = self._buffer.end_ms
        await asyncio.sleep(self._clock.remaining + seconds)
        self._idle = None  # a new response waits anew
        if self._buffer.has_speech or self._responses.current is not None:
            return
        times = {"audio_start_ms": start, "audio_end_ms": self._buffer.end_ms}
        await self._sender.send("input_audio_buffer.timeout_triggered", {**times, "item_id": self._item_id})
        await self._add_message(ContentPart("input_audio", SILENCE))
        await self._start_response()

    async def _start_response(self) -> None:
        try:
            self._responses.start(self._config)
        except PolyvoxError as error:
            await self._sender.send_error(error)

    def _stop_waiting(self) -> None:
        """The user speaks: neither the last turn nor the silence starts a response."""
        for task in (self._answering, self._idle):
            if task is not None:
                task.cancel()
        self._answering = self._idle = None
