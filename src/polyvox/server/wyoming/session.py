# SPDX-License-Identifier: Apache-2.0
"""One connection of the Wyoming protocol: it describes the voices and synthesises whole or streamed text."""

import asyncio
import logging
import secrets
from contextlib import aclosing
from typing import Any

from polyvox import __version__
from polyvox.errors import InvalidRequest, PolyvoxError
from polyvox.server.api.live_utterance import LiveUtterance
from polyvox.server.api.websocket_connection import cancel_all, raise_first
from polyvox.server.app_state import AppState
from polyvox.server.ignored_fields import IgnoredFields
from polyvox.server.languages import parse_language
from polyvox.server.middleware.limits import Caller, ConcurrencyLimiter
from polyvox.server.synthesis.options import SynthesisOptions
from polyvox.server.synthesis.reader import WRITE_BUFFER, ReaderTimeout, ReaderTimer
from polyvox.server.wyoming.events import Event, read_event
from polyvox.text.languages.language_codes import CODES

log = logging.getLogger(__name__)

SAMPLE_BYTES = 2
ATTRIBUTION = {"name": "Polyvox", "url": ""}


class WyomingSession:
    """Handles the events of one client. Its utterances are synthesised one after the other.

    The protocol has no API keys, so the limit per address applies.
    """

    def __init__(
        self, state: AppState, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, address: str
    ) -> None:
        self.state = state
        self.limiter = ConcurrencyLimiter(state.engine, Caller("", address), state.settings)
        self._reader, self._writer = reader, writer
        writer.transport.set_write_buffer_limits(high=WRITE_BUFFER)
        self._id, self._num_utterances = f"wyoming-{secrets.token_hex(6)}", 0
        self._current: LiveUtterance | None = None  # accepts streamed text
        self._sending: asyncio.Task[None] | None = None  # the audio of the last utterance
        self._live: LiveUtterance | None = None  # whose audio that is

    async def run(self) -> None:
        """Serves the client until it disconnects, is idle for too long, or sends something invalid."""
        try:
            while (event := await self._receive()) is not None:
                await self._handle(event)
        except PolyvoxError as error:
            await self._send_error(error)
        except ReaderTimeout as error:
            self.state.metrics.count_timeout(error.problem)
            self.state.metrics.aborts.labels("timeout").inc()
            log.warning("request aborted", extra={"request_id": self._id, "reason": error.problem})
            self._writer.transport.abort()
        except OSError:  # the client has left
            pass
        finally:
            if self._sending is not None:
                if not self._sending.done():
                    self.state.metrics.aborts.labels("disconnect").inc()
                await cancel_all(self._sending)

    async def _receive(self) -> Event | None:
        """The next event; None at the end of the connection, or if it does not arrive while the client is idle."""
        receiving = asyncio.create_task(read_event(self._reader))
        try:
            while True:
                tasks: set[asyncio.Task[Any]] = {receiving}
                if self._sending is not None:
                    tasks.add(self._sending)
                timeout = self.state.settings.websocket_idle_timeout
                done, _ = await asyncio.wait(tasks, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
                if receiving in done:
                    return receiving.result()
                if not done and (self._live is None or not self._live.busy):
                    self.state.metrics.count_timeout("websocket_idle")
                    return None
                if self._sending in done:
                    await self._finish_sending()
        finally:
            receiving.cancel()
            await asyncio.gather(receiving, return_exceptions=True)

    async def _finish_sending(self) -> None:
        """Waits for the audio of the last utterance; raises what it raised."""
        if (task := self._sending) is not None:
            self._sending = self._live = None
            results = await asyncio.gather(task, return_exceptions=True)
            del task
            raise_first([result for result in results if isinstance(result, BaseException)])

    async def _handle(self, event: Event) -> None:
        """Events that are unknown, or make no sense at this point, are ignored."""
        match event.type:
            case "describe":
                await self._send(Event("info", await self._info()))
            case "ping":
                await self._send(Event("pong", {"text": str(event.data.get("text", ""))}))
            case "synthesize" if self._current is None:  # after streamed text comes a copy of the whole
                utterance = await self._start(event, streamed=False)
                utterance.append(_text(event))
                utterance.finish()
            case "synthesize-start":
                self._current = await self._start(event, streamed=True)
            case "synthesize-chunk" if self._current is not None:
                self._current.append(_text(event))
            case "synthesize-stop" if self._current is not None:
                self._current.finish()
                self._current = None

    async def _start(self, event: Event, streamed: bool) -> LiveUtterance:
        """A new utterance, when the audio of the last one is sent. Streamed text that was not ended is complete."""
        if self._current is not None:
            self._current.finish()
            self._current = None
        await self._finish_sending()
        options = self._parse_options(event)
        await self.state.synthesis.validate(options)
        request_id = f"{self._id}.{self._num_utterances}"
        self._num_utterances += 1
        utterance = self._live = LiveUtterance(self, options, request_id, complete_text=not streamed)
        self._sending = asyncio.create_task(self._send_audio(utterance, streamed))
        return utterance

    def _parse_options(self, event: Event) -> SynthesisOptions:
        voice = event.data.get("voice") or {}
        if not isinstance(voice, dict):
            raise InvalidRequest("voice", voice, "must be an object")
        name, language = voice.get("speaker") or voice.get("name"), voice.get("language")
        for field, value in (("voice", name), ("language", language)):
            if value is not None and not isinstance(value, str):
                raise InvalidRequest(field, value, "must be a string")
        ignored = IgnoredFields()
        options = SynthesisOptions(
            voice=name,
            language=parse_language(language, self.state.info, ignored),
            format="pcm",
            live=True,
            ssml=event.data.get("text_format") != "text",  # without a format, text that starts with <speak> is SSML
        )
        ignored.report(self._id)
        return options

    async def _send_audio(self, utterance: LiveUtterance, streamed: bool) -> None:
        """Sends the audio of one utterance, and its end even if there was nothing to say: clients wait for it."""
        format = {"rate": self.state.engine.sample_rate, "width": SAMPLE_BYTES, "channels": 1}
        num_bytes = 0
        await self._send(Event("audio-start", {**format, "timestamp": 0}), utterance)
        try:
            async with aclosing(utterance.events()) as events:
                async for event in events:
                    if isinstance(event, bytes):
                        position = 1000 * num_bytes // (SAMPLE_BYTES * format["rate"])
                        await self._send(Event("audio-chunk", {**format, "timestamp": position}, event), utterance)
                        num_bytes += len(event)
        except PolyvoxError as error:
            utterance.record_failure(error)
            raise
        position = 1000 * num_bytes // (SAMPLE_BYTES * format["rate"])
        await self._send(Event("audio-stop", {"timestamp": position}), utterance)
        if streamed:
            await self._send(Event("synthesize-stopped"), utterance)

    async def _send(self, event: Event, live: LiveUtterance | None = None) -> None:
        """Raises ReaderTimeout or OSError."""
        timer = ReaderTimer(self.state.settings.reader_timeout) if live is None else live.reader
        data = event.to_bytes()
        self._writer.write(data)
        try:
            await timer.write(self._writer.drain(), len(data), 0.0 if live is None else live.playing_seconds)
        finally:
            if live is None:
                timer.close()

    async def _send_error(self, error: PolyvoxError) -> None:
        """The connection is closed after it: Home Assistant ignores errors and waits for audio."""
        if self._live is None or not self._live.failed:
            self.state.record_rejected(error, self._id)
        try:
            await self._send(Event("error", {"text": str(error), "code": error.code}))
        except (OSError, ReaderTimeout):
            self._writer.transport.abort()

    async def _info(self) -> dict[str, Any]:
        info = self.state.info
        languages = [CODES[name] for name in info.languages if name in CODES]
        voices = await self.state.synthesis.in_thread(self.state.voices.list)
        common = {"attribution": ATTRIBUTION, "installed": True, "version": __version__}
        program = {
            **common,
            "name": "polyvox",
            "description": f"Polyvox with {info.identity.name}",
            "supports_synthesize_streaming": True,
            "voices": [
                {**common, "name": voice["id"], "description": voice["name"], "languages": languages, "speakers": None}
                for voice in voices
            ],
        }
        others = ("asr", "handle", "intent", "wake", "mic", "snd")
        return {"tts": [program], **{name: [] for name in others}}


def _text(event: Event) -> str:
    text = event.data.get("text", "")
    if not isinstance(text, str):
        raise InvalidRequest("text", text, "must be a string")
    return text
