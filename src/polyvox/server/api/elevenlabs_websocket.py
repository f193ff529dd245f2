"""ElevenLabs' sockets: stream-input with one utterance, multi-stream-input with several at once, called contexts."""

import asyncio
import base64
import re
from collections import deque
from contextlib import aclosing
from dataclasses import replace
from typing import Any, NoReturn

from fastapi import APIRouter, WebSocket
from pydantic import BaseModel, ConfigDict, Field

from polyvox.errors import InvalidRequest, Overloaded, PolyvoxError
from polyvox.server.api.elevenlabs import VoiceSettings, ignored_settings, speed_of, wanted_of
from polyvox.server.api.sessions import (
    POLICY,
    TRY_AGAIN,
    ClientDisconnected,
    IdleTimeout,
    Socket,
    UtteranceTurn,
    converse,
)
from polyvox.server.middleware.auth import bearer
from polyvox.server.responses import ELEVENLABS_FIELDS, Refused, check_body, error_body
from polyvox.server.synthesis.options import SynthesisOptions

router = APIRouter()

IDLE_SECONDS, MAX_IDLE_SECONDS = 20.0, 180.0  # of inactivity_timeout, as ElevenLabs has them
MAX_CONTEXTS = 16  # of one socket; ElevenLabs has 5
LONGEST_NAME = 200


class Message(BaseModel):
    """What a client may send, on both sockets; what steers ElevenLabs' own buffers has nothing to steer here."""

    model_config = ConfigDict(strict=True, extra="ignore")

    text: str | None = None
    context_id: str | None = Field(default=None, max_length=LONGEST_NAME)
    voice_settings: VoiceSettings | None = None
    flush: bool | None = None
    close_context: bool | None = None
    close_socket: bool | None = None
    xi_api_key: str | None = Field(default=None, repr=False)
    authorization: str | None = Field(default=None, repr=False)


_ENDS = re.compile(r"[.!?…。！？｡][\"'”’)\]」』]*\s*$")
SPELLINGS = {"contextId": "context_id", "xi-api-key": "xi_api_key"}


@router.websocket("/v1/text-to-speech/{voice_id}/stream-input")
async def stream_input(websocket: WebSocket) -> None:
    await converse(websocket, lambda socket: Contexts(socket, several=False).run())


@router.websocket("/v1/text-to-speech/{voice_id}/multi-stream-input")
async def multi_stream_input(websocket: WebSocket) -> None:
    await converse(websocket, lambda socket: Contexts(socket, several=True).run())


class Contexts:
    """The conversation of one socket. Each context is an utterance and has a task; one that ends is forgotten."""

    def __init__(self, socket: Socket, several: bool) -> None:
        self._socket, self._several = socket, several
        self._wanted = SynthesisOptions()
        self._idle, self._auto = IDLE_SECONDS, False
        self._turns: dict[str, UtteranceTurn] = {}  # that take text, or are at their end, by name
        self._tasks: dict[asyncio.Task[None], UtteranceTurn] = {}  # of all that are being said
        self._failed: deque[str] = deque(maxlen=MAX_CONTEXTS)  # names whose text is no longer wanted
        self._begun = 0
        self._broken = asyncio.Event()  # a task has failed that should not have

    async def run(self) -> None:
        try:
            first = None
            if self._socket.share is None:  # nothing is looked at, or told, before the key
                first = await self._socket.next(IDLE_SECONDS)
                key = first.get("xi_api_key") or first.get("xi-api-key") or bearer(str(first.get("authorization", "")))
                self._socket.admit(str(key))
            await self._read_query()
        except (PolyvoxError, IdleTimeout) as error:
            await self._end_by(_late(IDLE_SECONDS) if isinstance(error, IdleTimeout) else error)
        reading, broken = asyncio.create_task(self._read(first)), asyncio.create_task(self._broken.wait())
        try:
            await asyncio.wait({reading, broken}, return_when=asyncio.FIRST_COMPLETED)
            if reading.done():
                await reading
                await asyncio.gather(*self._tasks)
        finally:
            if any(turn.busy for turn in self._tasks.values()):
                self._socket.count_cut()
            tasks = [reading, broken, *self._tasks]
            for task in tasks:
                task.cancel()
            ends = await asyncio.gather(*tasks, return_exceptions=True)
        for end in ends:
            if isinstance(end, Exception):
                raise end

    async def _read_query(self) -> None:
        query = self._socket.query
        self._wanted = replace(
            wanted_of(self._socket.path["voice_id"], query.get("output_format"), query.get("language_code")),
            seed=_whole_number("seed", query["seed"]) if "seed" in query else None,
            normalize=query.get("apply_text_normalization") != "off",
            live=True,
        )
        self._auto = query.get("auto_mode", "").lower() == "true"
        if "inactivity_timeout" in query:
            self._idle = min(
                max(1.0, _whole_number("inactivity_timeout", query["inactivity_timeout"])), MAX_IDLE_SECONDS
            )
        await self._socket.desk.speaker.check(self._wanted)

    # What comes in

    async def _read(self, first: dict[str, Any] | None) -> None:
        """Until the end is asked for; then all contexts say what they have."""
        while True:
            context = None
            try:
                found = first or await self._socket.next(self._idle, lambda: any(t.busy for t in self._tasks.values()))
                first = None
                found = {SPELLINGS.get(name, name): value for name, value in found.items() if value is not None}
                message = check_body(Message, found)
                context = message.context_id
                ignored = ignored_settings(found.get("voice_settings"))
                self._socket.desk.ignored(ignored, self._socket.request_id)
                if not (self._take_several(message) if self._several else self._take(message)):
                    break
            except IdleTimeout:
                await self._end_by(_late(self._idle))
            except PolyvoxError as error:
                self._socket.desk.refused(error, self._socket.request_id)
                await self._socket.tell(self._error(error, context))
                self._socket.count_error()
        for turn in self._turns.values():
            turn.finish()

    async def _end_by(self, error: PolyvoxError) -> NoReturn:
        self._socket.desk.refused(error, self._socket.request_id)
        await self._socket.tell(self._error(error))
        await self._socket.close(_close_code(error), str(error))
        raise ClientDisconnected

    def _take(self, message: Message) -> bool:
        """Of the socket with one utterance; an empty text is its end."""
        turn = self._context("", message)
        if message.text == "" or message.close_socket:
            return False
        self._append(turn, message.text or "", bool(message.flush))
        return True

    def _take_several(self, message: Message) -> bool:
        name, text = message.context_id or "default", message.text or ""
        if message.close_socket:
            return False
        if message.close_context:
            self._close(name)
            return True
        if name in self._failed:
            if message.flush:  # the end of what could not be said
                self._failed.remove(name)
            elif text.strip():
                raise InvalidRequest("context_id", name, "the context has failed; flush or close it first")
            return True
        if not text and name not in self._turns:
            return True  # to keep the socket open
        self._append(self._context(name, message), text, bool(message.flush))
        return True

    def _append(self, turn: UtteranceTurn, text: str, flush: bool) -> None:
        """In auto mode texts are phrases: words do not go on in the next one, and a sentence need not wait for it."""
        phrase = self._auto and bool(text.strip())
        turn.append(text + " " if phrase and not text[-1].isspace() else text)
        if flush or (phrase and _ENDS.search(text)):
            turn.flush()
        if phrase:  # many carry a flush, so that only one without text tells of the end
            turn.flushed = False

    def _context(self, name: str, message: Message) -> UtteranceTurn:
        turn = self._turns.get(name)
        if turn is None or turn.ended.is_set():
            if len(self._tasks) >= MAX_CONTEXTS:
                raise InvalidRequest("context_id", name, f"at most {MAX_CONTEXTS} contexts may be open")
            wanted = replace(self._wanted, speed=speed_of(message.voice_settings))
            turn = UtteranceTurn(self._socket, wanted, f"{self._socket.request_id}.{self._begun}")
            self._begun += 1
            self._turns[name] = turn
            task = asyncio.create_task(self._say(name, turn))
            self._tasks[task] = turn
            task.add_done_callback(self._said)
        return turn

    def _close(self, name: str) -> None:
        """The end of a context: what was flushed is said, anything else is an interruption, and so is a second end."""
        if name in self._failed:
            self._failed.remove(name)
        if (turn := self._turns.get(name)) is None:
            return
        if turn.flushed and not turn.finished:
            turn.finish()
        else:
            turn.cancel()

    # What goes out

    async def _say(self, name: str, turn: UtteranceTurn) -> None:
        context = {"contextId": name} if self._several else {}
        nothing = {"normalizedAlignment": None, "alignment": None}
        try:
            async with aclosing(turn.parts()) as parts:
                async for part in parts:
                    if isinstance(part, bytes) and not turn.cancelled:
                        audio = base64.b64encode(part).decode()
                        await self._socket.tell({"audio": audio, "isFinal": None, **nothing, **context})
        except PolyvoxError as error:
            turn.count(error)
            await self._socket.tell(self._error(error, name))
            if not self._several:
                await self._socket.close(_close_code(error), str(error))
            elif not turn.ended.is_set():
                self._failed.append(name)
            return
        finally:
            if self._turns.get(name) is turn:
                del self._turns[name]
        if turn.cancelled:
            self._socket.desk.metrics.aborts.labels("cancel").inc()
        await self._socket.tell({"audio": None, "isFinal": True, **nothing, **context})

    def _said(self, task: asyncio.Task[None]) -> None:
        if task.cancelled() or task.exception() is None:
            del self._tasks[task]
        else:
            self._broken.set()

    def _error(self, error: PolyvoxError, context: str | None = None) -> dict[str, Any]:
        told = error_body(error, ELEVENLABS_FIELDS)["error"]
        body = {"message": told["message"], "error": error.code, "code": _close_code(error), "param": told["param"]}
        if isinstance(error, Overloaded):
            body["retry_after"] = told["retry_after"]
        return body | ({"contextId": context} if self._several and context else {})


def _close_code(error: PolyvoxError) -> int:
    return TRY_AGAIN if isinstance(error, Overloaded) else POLICY


def _late(seconds: float) -> Refused:
    return Refused(408, "input_timeout_exceeded", f"no message came for {seconds:g} s")


def _whole_number(name: str, value: str) -> int:
    if not (value.isascii() and value.isdecimal() and len(value) < 20):
        raise InvalidRequest(name, value, "must be an integer")
    return int(value)
