"""An utterance as an HTTP answer: headers come with the first sound, and no failure looks like an end."""

import asyncio
import base64
import json
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from polyvox.errors import PolyvoxError
from polyvox.server.app_state import AppState
from polyvox.server.responses import Refused, error_answer, error_body, fields_of
from polyvox.server.synthesis.options import SynthesisOptions
from polyvox.server.synthesis.utterance import Utterance

log = logging.getLogger(__name__)

T = TypeVar("T")
EVENTS = "text/event-stream"


class SpeechResponse(Response):
    """Speaks while it is sent. Whoever goes away ends it at once; whoever reads slowly slows down nobody else."""

    events_type = f"{EVENTS}; charset=utf-8"

    def __init__(
        self,
        desk: AppState,
        wanted: SynthesisOptions,
        request_id: str,
        sse: bool = False,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__()
        self._desk, self._wanted, self._request_id, self._sse = desk, wanted, request_id, sse
        self._more = dict(headers or {})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        speaking = asyncio.create_task(self._speak(scope, receive, send))
        gone = asyncio.create_task(_disconnected(receive))
        try:
            await asyncio.wait({speaking, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not speaking.done():
                self._desk.metrics.aborts.labels("disconnect").inc()
        except asyncio.CancelledError:  # the server's time to drain is over; it closes the connection without an end
            self._desk.metrics.aborts.labels("drain").inc()
            log.warning("a stream was cut, as the server stops", extra={"request_id": self._request_id})
        finally:
            speaking.cancel()  # which does nothing where it has ended
            gone.cancel()
            await asyncio.gather(speaking, gone, return_exceptions=True)
        if not speaking.cancelled() and (error := speaking.exception()) is not None:
            raise error

    async def _speak(self, scope: Scope, receive: Receive, send: Send) -> None:
        begun = False
        try:
            utterance = await self._desk.speaker.start(self._wanted, self._request_id)
            async with aclosing(utterance.sound()) as parts:
                whole = not (self._wanted.streaming or self._sse)
                async for part in self._events(utterance, parts) if self._sse else parts:
                    if not begun:
                        begun = True
                        await send(self._start(utterance, len(part) if whole else None))
                    await send({"type": "http.response.body", "body": part, "more_body": True})
            if not begun:  # all of it was silence, which is not sent
                await send(self._start(utterance, 0 if whole else None))
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        except PolyvoxError as error:
            if not begun:
                self._desk.refused(error, self._request_id)
                await error_answer(error, self._request_id, fields_of(scope))(scope, receive, send)
                return
            # The body has no end now, and the server closes the connection: no client takes that for the whole.
            self._desk.metrics.aborts.labels("error").inc()
            log.error("a stream failed", extra={"request_id": self._request_id, "error": str(error)})

    def _start(self, utterance: Utterance, length: int | None) -> dict[str, object]:
        headers = {
            "content-type": self.events_type if self._sse else utterance.content_type,
            "cache-control": "no-store",
            "x-request-id": self._request_id,
            "x-seed": str(utterance.outcome.seed),
            "x-polyvox-model": _latin(utterance.outcome.model),
            "x-accel-buffering": "no",  # a proxy that collects the sound undoes all of this
            **self._more,
        }
        if length is not None:
            headers["content-length"] = str(length)
        raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
        return {"type": "http.response.start", "status": 200, "headers": raw}

    async def _events(self, utterance: Utterance, parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """The parts as server-sent events; what fails after the first is an event too."""
        begun = False
        try:
            async for part in parts:
                yield _event({"type": "speech.audio.delta", "audio": base64.b64encode(part).decode()})
                begun = True
        except PolyvoxError as error:
            if not begun:
                raise
            self._desk.metrics.aborts.labels("error").inc()
            yield _event({"type": "speech.audio.error", **error_body(error)})
            return
        told = utterance.outcome
        done = {"request_id": told.request_id, "seed": told.seed, "finish_reason": told.finish_reason}
        yield _event({"type": "speech.audio.done", "usage": told.usage(), **done})


class SpeechLines(SpeechResponse):
    """The same as JSON objects, one in each line, as ElevenLabs sends sound with its times; of those we have none."""

    events_type = "application/json"

    async def _events(self, _: Utterance, parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        async for part in parts:
            audio = base64.b64encode(part).decode()
            told = {"audio_base64": audio, "alignment": None, "normalized_alignment": None}
            yield json.dumps(told).encode() + b"\n"


def _event(value: dict[str, object]) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def _latin(text: str) -> str:
    return text.encode("latin-1", "replace").decode("latin-1")


async def while_connected(request: Request, work: "asyncio.Future[T]") -> T:
    """What the work gives; it ends with whoever waits for it."""
    gone = asyncio.create_task(_disconnected(request.receive))
    both: list[asyncio.Future[Any]] = [work, gone]
    try:
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            raise Refused(499, "disconnected", "the client has gone")
        return work.result()
    finally:
        work.cancel()
        gone.cancel()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
