"""WS /v1/audio/speech/stream: text comes in as it is written, sound goes out as it is made, and both can be stopped."""

import asyncio
from contextlib import aclosing
from dataclasses import replace
from typing import Any, Literal

from fastapi import APIRouter, WebSocket
from pydantic import Field

from polyvox.audio.formats import FORMATS
from polyvox.errors import InvalidRequest, PolyvoxError
from polyvox.server.api.openai import SpeechParameters, is_strict, manner_by, read_fields
from polyvox.server.api.sessions import POLICY, ClientDisconnected, IdleTimeout, Socket, UtteranceTurn, converse
from polyvox.server.responses import FIELDS, Refused, error_body
from polyvox.server.synthesis.options import SynthesisOptions
from polyvox.server.synthesis.segments import Granularity, Segment

router = APIRouter()

CONFIG_SECONDS = 10.0  # for the first message
NAMES = {**FIELDS, "text": "text"}
MAX_TURNS = 32  # utterances that wait to be said


class SessionConfig(SpeechParameters):
    """How all that follows is to be said."""

    response_format: Literal[*FORMATS] = "wav"  # type: ignore[valid-type]
    stream_audio: bool = Field(default=False, description="Sound as it is made; else each sentence as a whole file.")
    split_granularity: Literal["none", "sentence", "clause", "token"] = "none"
    word_timestamps: Literal[False] = False


@router.websocket("/v1/audio/speech/stream")
async def stream(websocket: WebSocket) -> None:
    await converse(websocket, lambda socket: Session(socket).run(), large=('"ref_audio"', '"speaker_embedding"'))


class Session:
    """One session: its utterances are said in the order of their text."""

    def __init__(self, socket: Socket) -> None:
        self._socket = socket
        self._wanted, self._whole = SynthesisOptions(), True
        self._turns: asyncio.Queue[tuple[int, UtteranceTurn] | None] = asyncio.Queue()
        self._open: dict[int, UtteranceTurn] = {}  # those that are not at their end, by number
        self._turn: UtteranceTurn | None = None  # the one that takes text
        self._begun = 0

    async def run(self) -> None:
        try:
            await self._configure(await self._first())
        except (PolyvoxError, IdleTimeout) as error:
            refused = _late(CONFIG_SECONDS) if isinstance(error, IdleTimeout) else error
            await self._refuse(refused)
            await self._socket.close(POLICY, str(refused))
            return
        speaking, reading = asyncio.create_task(self._speak()), asyncio.create_task(self._read())
        try:
            await asyncio.wait({speaking, reading}, return_when=asyncio.FIRST_COMPLETED)
            if reading.done() and reading.exception() is None:
                await speaking  # what was said to be done is said
        finally:
            if not speaking.done() and any(turn.busy for turn in self._open.values()):
                self._socket.count_cut()
            speaking.cancel()
            reading.cancel()
            await asyncio.gather(speaking, reading, return_exceptions=True)
        for task in (reading, speaking):
            if not task.cancelled() and (failure := task.exception()) is not None:
                raise failure

    # What comes in

    async def _first(self) -> dict[str, Any]:
        message = await self._socket.next(CONFIG_SECONDS)
        if message.get("type") != "session.config":
            raise InvalidRequest("type", message.get("type"), "the first message must be session.config")
        return message

    async def _read(self) -> None:
        """Until the session is closed; what cannot be read is told and changes nothing."""
        seconds = self._socket.desk.settings.idle_seconds
        while True:
            try:
                message = await self._socket.next(seconds, lambda: any(turn.busy for turn in self._open.values()))
                if not await self._take(message):
                    break
            except IdleTimeout:
                for turn in self._open.values():
                    turn.cancel()
                await self._refuse(_late(seconds))
                await self._socket.close(POLICY, "nothing came for too long")
                raise ClientDisconnected from None
            except PolyvoxError as error:
                await self._refuse(error)
                self._socket.count_error()
        if self._turn is not None:
            self._turn.cancel()
        self._turns.put_nowait(None)

    async def _take(self, message: dict[str, Any]) -> bool:
        """Does what a message asks for; False where that is the end."""
        match message.get("type"):
            case "session.config":
                if self._turn is not None:
                    raise InvalidRequest("type", "session.config", "requires input.done for the utterance in progress")
                await self._configure(message)
            case "input.text":
                text = message.get("text", "")
                if not isinstance(text, str):
                    raise InvalidRequest("text", text, "must be a string")
                if text:
                    self._current("input.text").append(text)
            case "input.done":
                self._current("input.done").finish()
                self._turn = None
            case "input.cancel":
                await self._cancel()
            case "session.close":
                return False
            case other:
                kinds = ["session.config", "input.text", "input.done", "input.cancel", "session.close"]
                raise InvalidRequest("type", other, kinds)
        return True

    async def _configure(self, message: dict[str, Any]) -> None:
        found = {name: value for name, value in message.items() if name != "type"}
        config, ignored = read_fields(SessionConfig, found, is_strict(self._socket.query))
        self._socket.desk.ignored(ignored, self._socket.request_id)
        divided = config.split_granularity != "none"
        granularity: Granularity = config.split_granularity if config.split_granularity != "none" else "sentence"
        wanted = replace(
            await manner_by(config, self._socket.desk),
            live=True,
            streaming=config.stream_audio,
            granularity=granularity,
            divided=divided,
        )
        await self._socket.desk.speaker.check(wanted)
        self._wanted, self._whole = wanted, not divided

    def _current(self, kind: str) -> UtteranceTurn:
        """The utterance that takes text; a new one where the last has all of its own."""
        if self._turn is None:
            if len(self._open) >= MAX_TURNS:
                raise InvalidRequest("type", kind, f"at most {MAX_TURNS} utterances may be pending")
            index, self._begun = self._begun, self._begun + 1
            self._turn = UtteranceTurn(self._socket, self._wanted, f"{self._socket.request_id}.{index}", self._whole)
            self._open[index] = self._turn
            self._turns.put_nowait((index, self._turn))
        return self._turn

    async def _cancel(self) -> None:
        """All that is not said yet. Where there is nothing, that is told too: it may have ended a moment ago."""
        self._turn = None
        for turn in self._open.values():
            turn.cancel()
        if not self._open:
            await self._socket.tell({"type": "audio.cancelled", "utterance_index": None, "total_sentences": 0})

    async def _refuse(self, error: PolyvoxError) -> None:
        self._socket.desk.refused(error, self._socket.request_id)
        await self._socket.tell({**error_body(error, NAMES)["error"], "type": "error"})

    # What goes out

    async def _speak(self) -> None:
        while (coming := await self._turns.get()) is not None:
            index, turn = coming
            try:
                await self._say(index, turn)
            finally:
                del self._open[index]

    async def _say(self, index: int, turn: UtteranceTurn) -> None:
        sentences = size = 0
        failed = False

        async def end_sentence() -> None:
            if sentences:
                place = {"utterance_index": index, "sentence_index": sentences - 1}
                await self._socket.tell({"type": "audio.done", **place, "total_bytes": size, "error": failed})

        try:
            async with aclosing(turn.parts()) as parts:
                async for part in parts:
                    if isinstance(part, bytes):
                        if not turn.cancelled:
                            size += len(part)
                            await self._socket.send(part)
                    elif turn.divided or not sentences:
                        await end_sentence()
                        await self._start(index, sentences, turn, part)
                        sentences, size = sentences + 1, 0
        except PolyvoxError as error:
            failed = True
            turn.count(error)
            place = {"utterance_index": index, "sentence_index": max(0, sentences - 1)}
            partial = {"partial_audio": True, "action": "discard"} if size else {}
            await self._socket.tell({**error_body(error, NAMES)["error"], **place, **partial, "type": "error"})
        await end_sentence()
        await turn.ended.wait()  # after a failure there may be text on its way
        end: dict[str, Any] = {"utterance_index": index, "total_sentences": sentences}
        if turn.utterance is not None:
            told = turn.utterance.outcome
            end |= {"request_id": told.request_id, "seed": told.seed, "finish_reason": told.finish_reason}
            end["usage"] = told.usage()
        if turn.cancelled:
            self._socket.desk.metrics.aborts.labels("cancel").inc()
        await self._socket.tell({"type": "audio.cancelled" if turn.cancelled else "session.done", **end})

    async def _start(self, index: int, sentence: int, turn: UtteranceTurn, said: Segment) -> None:
        start: dict[str, Any] = {
            "type": "audio.start",
            "utterance_index": index,
            "sentence_index": sentence,
            "sentence_text": said.text if turn.divided else turn.text,
            "format": turn.format,
            "sample_rate": turn.sample_rate,
            "request_id": turn.request_id,
        }
        await self._socket.tell(start)


def _late(seconds: float) -> Refused:
    return Refused(408, "timeout", f"no message came for {seconds:g} s")
