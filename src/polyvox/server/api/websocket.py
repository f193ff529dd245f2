# SPDX-License-Identifier: Apache-2.0
"""WS /v1/audio/speech/stream: text arrives in pieces, audio is sent as it is generated."""

import asyncio
from dataclasses import replace
from typing import Any, Literal

from fastapi import APIRouter, WebSocket
from pydantic import Field

from polyvox.audio.formats import FORMATS
from polyvox.errors import InvalidRequest, PolyvoxError
from polyvox.server.api.live_utterance import LiveUtterance
from polyvox.server.api.openai import SpeechParameters, parse_parameters
from polyvox.server.api.utterance_sender import FIELD_NAMES, UtteranceSender
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
from polyvox.server.responses import APIError, error_body
from polyvox.server.synthesis.options import SynthesisOptions
from polyvox.server.synthesis.segments import Granularity

router = APIRouter()

CONFIG_TIMEOUT = 10.0  # seconds for the first message
MAX_PENDING_UTTERANCES = 32
MESSAGE_TYPES = ("session.config", "input.text", "input.done", "input.cancel", "session.close")


class SessionConfig(SpeechParameters):
    """The parameters of the utterances that follow."""

    response_format: Literal[*FORMATS] = "wav"  # type: ignore[valid-type]
    stream_audio: bool = Field(default=False, description="Send audio as it is generated; otherwise whole files.")
    split_granularity: Literal["none", "sentence", "clause", "token"] = "none"
    word_timestamps: bool = Field(default=False, description="The same as timestamp_granularities with word.")


@router.websocket("/v1/audio/speech/stream")
async def stream(websocket: WebSocket) -> None:
    large_fields = ('"ref_audio"', '"references"', '"speaker_embedding"')
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
        if config.split_granularity == "token" and config.non_streaming_mode:
            raise InvalidRequest("non_streaming_mode", True, "must be false with split_granularity token")
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
                await UtteranceSender(self._connection, index, utterance).send()
            except ClientDisconnected:
                if utterance.interrupted:
                    self._connection.count_abort()
                raise
            finally:
                del self._pending[index]


def _timeout_error(seconds: float) -> APIError:
    return APIError(408, "timeout", f"No message arrived for {seconds:g} s.")
