# SPDX-License-Identifier: Apache-2.0
"""The messages and the audio of one utterance of WS /v1/audio/speech/stream."""

from contextlib import aclosing, closing
from typing import Any

from polyvox.alignment import TimedText
from polyvox.errors import PolyvoxError
from polyvox.server.api.live_utterance import LiveUtterance
from polyvox.server.api.websocket_connection import WebSocketConnection
from polyvox.server.responses import OPENAI_FIELDS, error_body
from polyvox.server.synthesis.first_packet import milliseconds
from polyvox.server.synthesis.segments import Segment
from polyvox.server.synthesis.spool import SpooledFile
from polyvox.server.synthesis.timestamps import timestamp_messages
from polyvox.server.synthesis.utterance import UtteranceEvent

FIELD_NAMES = {**OPENAI_FIELDS, "text": "text"}
MAX_FRAME_BYTES = 1000 * 1024  # of a WebSocket; below the default limit of many clients, 1 MiB


class UtteranceSender:
    """Sends audio.start, audio and audio.done of each file, then session.done or audio.cancelled. Used once."""

    def __init__(self, connection: WebSocketConnection, index: int, live: LiveUtterance) -> None:
        self._connection, self._index, self._live = connection, index, live
        self._num_files = 0  # started; a file is a sentence, or the whole utterance
        self._num_bytes = 0  # of the current file
        self._failed = False
        self._timed: list[TimedText] = []  # of the audio that follows
        self._file_start = self._timed_seconds = 0.0  # start of the current file, end of the timed audio so far
        self._seconds_before = 0.0  # of audio, before the next whole file

    async def send(self) -> None:
        live = self._live
        try:
            async with aclosing(live.events()) as events:
                async for event in events:
                    await self._send_event(event)
            if not live.cancelled:
                await self._send_timestamps()
        except PolyvoxError as error:
            await self._send_error(error)
        await self._send_done()
        await live.text_ended.wait()  # after a failure more text may arrive
        await self._send_end()

    async def _send_event(self, event: UtteranceEvent) -> None:
        live = self._live
        match event:
            case TimedText():
                self._timed.append(event)
                self._timed_seconds = event.end
            case bytes():
                if not live.cancelled:
                    self._num_bytes += len(event)
                    await self._send_timestamps()
                    await self._connection.send_bytes(event, live)
            case SpooledFile():
                await self._send_timestamps()
                await self._send_file(event)
            case Segment():
                if live.separate_files or not self._num_files:
                    await self._send_timestamps()
                    await self._send_done()
                    await self._send_start(event)

    async def _send_start(self, segment: Segment) -> None:
        live = self._live
        start: dict[str, Any] = {
            "type": "audio.start",
            "utterance_index": self._index,
            "sentence_index": self._num_files,
            "sentence_text": segment.written_text if live.separate_files else live.text,
            "format": live.format,
            "sample_rate": live.sample_rate,
            "request_id": live.request_id,
        }
        if live.ignored_fields:
            start["ignored_fields"] = live.ignored_fields
        if live.notice is not None and not self._num_files:
            start["notice"] = live.notice
        await self._connection.send_json(start, live)
        self._file_start = self._timed_seconds
        self._num_files, self._num_bytes = self._num_files + 1, 0

    async def _send_file(self, spooled: SpooledFile) -> None:
        """Sends a whole file in as few frames as possible."""
        live = self._live
        with closing(spooled) as file:
            file_seconds = live.playing_seconds - self._seconds_before
            while part := await self._connection.state.synthesis.in_thread(file.read, MAX_FRAME_BYTES):
                if live.cancelled:
                    break
                self._num_bytes += len(part)
                sent_seconds = file_seconds * self._num_bytes / file.num_bytes
                await self._connection.send_bytes(part, live, self._seconds_before + sent_seconds)
        self._seconds_before = live.playing_seconds

    async def _send_timestamps(self) -> None:
        for message in timestamp_messages(self._timed, self._live.timestamps, "audio", self._file_start):
            await self._connection.send_json({**message, **self._position()}, self._live)
        self._timed.clear()

    async def _send_done(self) -> None:
        """Ends the current file, if one was started."""
        if self._num_files:
            done = {"type": "audio.done", **self._position(), "total_bytes": self._num_bytes, "error": self._failed}
            await self._connection.send_json(done, self._live)

    async def _send_error(self, error: PolyvoxError) -> None:
        self._failed = True
        self._live.record_failure(error)
        partial = {"partial_audio": True, "action": "discard"} if self._num_bytes else {}
        body = error_body(error, FIELD_NAMES)["error"]
        await self._connection.send_json({**body, **self._position(), **partial, "type": "error"}, self._live)

    async def _send_end(self) -> None:
        live = self._live
        end: dict[str, Any] = {"utterance_index": self._index, "total_sentences": self._num_files}
        if live.utterance is not None:
            record = live.utterance.record
            end |= {"request_id": record.request_id, "seed": record.seed, "finish_reason": record.finish_reason}
            end["usage"] = record.usage()
            if record.stages:
                end["server_timing"] = milliseconds(record.stages)
        if live.cancelled:
            self._connection.state.metrics.aborts.labels("cancel").inc()
        await self._connection.send_json({"type": "audio.cancelled" if live.cancelled else "session.done", **end}, live)

    def _position(self) -> dict[str, int]:
        return {"utterance_index": self._index, "sentence_index": max(0, self._num_files - 1)}
