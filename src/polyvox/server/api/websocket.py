# SPDX-License-Identifier: Apache-2.0
"""WS /v1/audio/speech/stream: text arrives in pieces, audio is sent as it is generated."""

import asyncio
from contextlib import aclosing, closing
from dataclasses import replace
from typing import Any, Literal

from fastapi import APIRouter, WebSocket
from pydantic import Field

from polyvox.alignment import TimedText
from polyvox.audio.formats import FORMATS
from polyvox.errors import InvalidRequest, PolyvoxError
from polyvox.server.api.live_utterance import LiveUtterance
from polyvox.server.api.openai import SpeechParameters, parse_parameters
from polyvox.server.api.websocket_connection import (
    POLICY_VIOLATION,
    ClientDisconnected,
    IdleTimeout,
    WebSocketConnection,
    cancel_all,
    raise_first,
    serve_websocket,
)
from polyvox.server.ignored_fields import IgnoredFields
from polyvox.server.requests import is_strict, validate
from polyvox.server.responses import OPENAI_FIELDS, APIError, error_body
from polyvox.server.synthesis.options import SynthesisOptions
from polyvox.server.synthesis.segments import Granularity, Segment
from polyvox.server.synthesis.spool import SpooledFile
from polyvox.server.synthesis.timestamps import timestamp_messages

router = APIRouter()

CONFIG_TIMEOUT = 10.0  # seconds for the first message
FIELD_NAMES = {**OPENAI_FIELDS, "text": "text"}
MAX_PENDING_UTTERANCES = 32
MAX_FRAME_BYTES = 1000 * 1024  # of a WebSocket; below the default limit of many clients, 1 MiB
MESSAGE_TYPES = ("session.config", "input.text", "input.done", "input.cancel", "session.close")


class SessionConfig(SpeechParameters):
    """The parameters of the utterances that follow."""

    response_format: Literal[*FORMATS] = "wav"  # type: ignore[valid-type]
    stream_audio: bool = Field(default=False, description="Send audio as it is generated; otherwise whole files.")
    split_granularity: Literal["none", "sentence", "clause", "token"] = "none"
    word_timestamps: bool = Field(default=False, description="The same as timestamp_granularities with word.")


@router.websocket("/v1/audio/speech/stream")
async def stream(websocket: WebSocket) -> None:
    large_fields = ('"ref_audio"', '"speaker_embedding"')
    await serve_websocket(websocket, lambda connection: Session(connection).run(), large_fields)


class Session:
    """One connection. Its utterances are synthesised in the order of their text."""

    def __init__(self, connection: WebSocketConnection) -> None:
        self._connection = connection
        self._options, self._complete_text = SynthesisOptions(), True
        self._queue: asyncio.Queue[tuple[int, LiveUtterance] | None] = asyncio.Queue()
        self._pending: dict[int, LiveUtterance] = {}  # not finished, by index
        self._current: LiveUtterance | None = None  # accepts text
        self._num_utterances = 0

    async def run(self) -> None:
        try:
            await self._configure(await self._receive_config())
        except (PolyvoxError, IdleTimeout) as error:
            reason = _timeout_error(CONFIG_TIMEOUT) if isinstance(error, IdleTimeout) else error
            await self._send_error(reason)
            await self._connection.close(POLICY_VIOLATION, str(reason))
            return
        sending, receiving = asyncio.create_task(self._send_loop()), asyncio.create_task(self._receive_loop())
        try:
            await asyncio.wait({sending, receiving}, return_when=asyncio.FIRST_COMPLETED)
            if receiving.done() and receiving.exception() is None:
                await asyncio.wait({sending})  # the client closed the session: finish what is pending
        finally:
            if not sending.done() and any(utterance.busy for utterance in self._pending.values()):
                self._connection.count_abort()
            results = await cancel_all(receiving, sending)
            del receiving, sending
        raise_first(results)

    async def _receive_config(self) -> dict[str, Any]:
        message = await self._connection.receive_json(CONFIG_TIMEOUT)
        if message.get("type") != "session.config":
            raise InvalidRequest("type", message.get("type"), "the first message must be session.config")
        return message

    async def _receive_loop(self) -> None:
        """Handles messages until the session is closed. Invalid messages are answered and have no effect."""
        timeout = self._connection.state.settings.websocket_idle_timeout
        while True:
            try:
                if not await self._handle(await self._connection.receive_json(timeout, self._is_busy)):
                    break
            except IdleTimeout:
                for utterance in self._pending.values():
                    utterance.cancel()
                await self._send_error(_timeout_error(timeout))
                await self._connection.close(POLICY_VIOLATION, "Idle timeout.")
                raise ClientDisconnected from None
            except PolyvoxError as error:
                await self._send_error(error)
                self._connection.count_invalid()
        if self._current is not None:
            self._current.cancel()
        self._queue.put_nowait(None)

    def _is_busy(self) -> bool:
        return any(utterance.busy for utterance in self._pending.values())

    async def _handle(self, message: dict[str, Any]) -> bool:
        """Handles one message; False if it closes the session."""
        match message.get("type"):
            case "session.config":
                if self._current is not None:
                    raise InvalidRequest("type", "session.config", "requires input.done for the utterance in progress")
                await self._configure(message)
            case "input.text":
                text = message.get("text", "")
                if not isinstance(text, str):
                    raise InvalidRequest("text", text, "must be a string")
                if text:
                    self._current_utterance("input.text").append(text)
            case "input.done":
                self._current_utterance("input.done").finish()
                self._current = None
            case "input.cancel":
                await self._cancel()
            case "session.close":
                return False
            case other:
                raise InvalidRequest("type", other, MESSAGE_TYPES)
        return True

    async def _configure(self, message: dict[str, Any]) -> None:
        state, request_id = self._connection.state, self._connection.request_id
        config = validate(SessionConfig, {name: value for name, value in message.items() if name != "type"})
        ignored = IgnoredFields(is_strict(self._connection.query.get("strict", "")))
        separate_files = config.split_granularity != "none"
        granularity: Granularity = config.split_granularity if config.split_granularity != "none" else "sentence"
        options = replace(
            await parse_parameters(config, state, ignored),
            ignored_fields=tuple(ignored.names),
            live=True,
            streaming=config.stream_audio,
            granularity=granularity,
            separate_files=separate_files,
        )
        if config.word_timestamps and "word" not in options.timestamps:
            options = replace(options, timestamps=("word", *options.timestamps))
        await state.synthesis.validate(options)
        ignored.report(request_id)
        self._options, self._complete_text = options, not separate_files

    def _current_utterance(self, message_type: str) -> LiveUtterance:
        """The utterance that accepts text; a new one if the last has all of its text."""
        if self._current is None:
            if len(self._pending) >= MAX_PENDING_UTTERANCES:
                requirement = f"at most {MAX_PENDING_UTTERANCES} utterances may be pending"
                raise InvalidRequest("type", message_type, requirement)
            index, self._num_utterances = self._num_utterances, self._num_utterances + 1
            request_id = f"{self._connection.request_id}.{index}"
            self._current = LiveUtterance(self._connection, self._options, request_id, self._complete_text)
            self._pending[index] = self._current
            self._queue.put_nowait((index, self._current))
        return self._current

    async def _cancel(self) -> None:
        """Cancels all pending utterances. Answered even if there are none: the last may have just finished."""
        self._current = None
        for utterance in self._pending.values():
            utterance.cancel()
        if not self._pending:
            message = {"type": "audio.cancelled", "utterance_index": None, "total_sentences": 0}
            await self._connection.send_json(message)

    async def _send_error(self, error: PolyvoxError) -> None:
        self._connection.state.record_rejected(error, self._connection.request_id)
        await self._connection.send_json({**error_body(error, FIELD_NAMES)["error"], "type": "error"})

    async def _send_loop(self) -> None:
        while (item := await self._queue.get()) is not None:
            index, utterance = item
            try:
                await self._send_utterance(index, utterance)
            except ClientDisconnected:
                if utterance.interrupted:
                    self._connection.count_abort()
                raise
            finally:
                del self._pending[index]

    async def _send_utterance(self, index: int, live: LiveUtterance) -> None:
        num_sentences = num_bytes = 0
        seconds_before = 0.0  # of audio, before the next file
        failed = False
        timed: list[TimedText] = []  # of the audio that follows
        file_start = timed_seconds = 0.0  # start of the current file, end of the audio so far

        async def send_timestamps() -> None:
            position = {"utterance_index": index, "sentence_index": max(0, num_sentences - 1)}
            for message in timestamp_messages(timed, live.timestamps, "audio", file_start):
                await self._connection.send_json({**message, **position}, live)
            timed.clear()

        async def send_done() -> None:
            if num_sentences:
                position = {"utterance_index": index, "sentence_index": num_sentences - 1}
                done = {"type": "audio.done", **position, "total_bytes": num_bytes, "error": failed}
                await self._connection.send_json(done, live)

        try:
            async with aclosing(live.events()) as events:
                async for event in events:
                    if isinstance(event, TimedText):
                        timed.append(event)
                        timed_seconds = event.end
                    elif isinstance(event, bytes):
                        if not live.cancelled:
                            num_bytes += len(event)
                            await send_timestamps()
                            await self._connection.send_bytes(event, live)
                    elif isinstance(event, SpooledFile):
                        await send_timestamps()
                        num_bytes += await self._send_file(event, live, seconds_before)
                        seconds_before = live.playing_seconds
                    elif live.separate_files or not num_sentences:
                        await send_timestamps()
                        await send_done()
                        file_start = timed_seconds
                        await self._send_start(index, num_sentences, live, event)
                        num_sentences, num_bytes = num_sentences + 1, 0
            if not live.cancelled:
                await send_timestamps()
        except PolyvoxError as error:
            failed = True
            live.record_failure(error)
            position = {"utterance_index": index, "sentence_index": max(0, num_sentences - 1)}
            partial = {"partial_audio": True, "action": "discard"} if num_bytes else {}
            body = error_body(error, FIELD_NAMES)["error"]
            await self._connection.send_json({**body, **position, **partial, "type": "error"}, live)
        await send_done()
        await live.text_ended.wait()  # after a failure more text may arrive
        end: dict[str, Any] = {"utterance_index": index, "total_sentences": num_sentences}
        if live.utterance is not None:
            record = live.utterance.record
            end |= {"request_id": record.request_id, "seed": record.seed, "finish_reason": record.finish_reason}
            end["usage"] = record.usage()
        if live.cancelled:
            self._connection.state.metrics.aborts.labels("cancel").inc()
        await self._connection.send_json({"type": "audio.cancelled" if live.cancelled else "session.done", **end}, live)

    async def _send_file(self, spooled: SpooledFile, live: LiveUtterance, seconds_before: float) -> int:
        """Sends a whole file in as few frames as possible; returns the number of bytes sent."""
        num_bytes = 0
        with closing(spooled) as file:
            while part := await self._connection.state.synthesis.in_thread(file.read, MAX_FRAME_BYTES):
                if live.cancelled:
                    break
                num_bytes += len(part)
                seconds = (live.playing_seconds - seconds_before) * num_bytes / file.num_bytes
                await self._connection.send_bytes(part, live, seconds_before + seconds)
        return num_bytes

    async def _send_start(self, index: int, sentence: int, live: LiveUtterance, segment: Segment) -> None:
        start: dict[str, Any] = {
            "type": "audio.start",
            "utterance_index": index,
            "sentence_index": sentence,
            "sentence_text": segment.written_text if live.separate_files else live.text,
            "format": live.format,
            "sample_rate": live.sample_rate,
            "request_id": live.request_id,
        }
        if live.ignored_fields:
            start["ignored_fields"] = live.ignored_fields
        if live.notice is not None and sentence == 0:
            start["notice"] = live.notice
        await self._connection.send_json(start, live)


def _timeout_error(seconds: float) -> APIError:
    return APIError(408, "timeout", f"No message arrived for {seconds:g} s.")
