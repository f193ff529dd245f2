# SPDX-License-Identifier: Apache-2.0
"""An STT server that follows a script, as a real HTTP server with OpenAI's transcriptions."""

import argparse
import asyncio
import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from server.scripted_server import Action, ScriptedServer, started

FORMATS = {
    "text": ("text/plain", "{text}\n"),
    "srt": ("text/plain", "1\n00:00:00,000 --> 00:00:01,000\n{text}\n"),
    "vtt": ("text/vtt", "WEBVTT\n\n00:00.000 --> 00:01.000\n{text}\n"),
}


@dataclass(slots=True)
class TranscriptScript:
    """texts: of the requests in turn; the last one is repeated. steps: before the answer, or instead of its body."""

    texts: Sequence[str] = ("hello there",)
    status: int = 200
    error: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    steps: Sequence[Action | float] = ()
    body: bytes | None = None  # instead of the transcript
    content_type: str | None = None


@dataclass(frozen=True, slots=True)
class TranscriptionRequest:
    path: str
    headers: dict[str, str]
    fields: list[tuple[str, str]]
    file: bytes
    file_name: str | None
    file_type: str | None


class ScriptedSTT(ScriptedServer):
    """Records requests."""

    def __init__(self, script: TranscriptScript | None = None) -> None:
        super().__init__()
        self.script = script or TranscriptScript()
        self.requests: list[TranscriptionRequest] = []
        self._num_answers = 0

    def reset(self) -> None:
        """The default script; forgets all requests."""
        super().reset()
        self.script = TranscriptScript()
        self.requests.clear()
        self._num_answers = 0

    def add_routes(self, app: web.Application) -> None:
        app.router.add_post("/v1/audio/transcriptions", self._transcribe)
        app.router.add_post("/v1/audio/translations", self._transcribe)

    async def _transcribe(self, request: web.Request) -> web.StreamResponse:
        self._record_connection(request)
        self.requests.append(await _parse(request))
        with self._recorded():
            return await self._answer(request, self.script, dict(self.requests[-1].fields))

    async def _answer(
        self, request: web.Request, script: TranscriptScript, fields: dict[str, str]
    ) -> web.StreamResponse:
        text = script.texts[min(self._num_answers, len(script.texts) - 1)]
        self._num_answers += 1
        if fields.get("stream") == "true" and script.status == 200:
            return await self._stream(request, script, text)
        for step in script.steps:
            if not await self._wait(request, step):
                return web.Response()
        if script.status != 200:
            return web.json_response(script.error, status=script.status, headers=script.headers)
        if script.body is not None:
            return web.Response(body=script.body, content_type=script.content_type or "application/json")
        requested = fields.get("response_format", "json")
        if requested in FORMATS:
            content_type, template = FORMATS[requested]
            return web.Response(text=template.format(text=text), content_type=content_type)
        verbose = {"language": "english", "duration": 1.5, "segments": []} if requested == "verbose_json" else {}
        return web.json_response({"text": text, "usage": {"type": "duration", "seconds": 2}, **verbose})

    async def _stream(self, request: web.Request, script: TranscriptScript, text: str) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for word in text.split():
            await response.write(_event({"type": "transcript.text.delta", "delta": f"{word} "}))
        for step in script.steps:
            if not await self._wait(request, step):
                return response
        await response.write(_event({"type": "transcript.text.done", "text": text}))
        await response.write_eof()
        return response

    async def _wait(self, request: web.Request, step: Action | float) -> bool:
        """False if the connection is closed."""
        assert self._released is not None
        assert request.transport is not None
        match step:
            case Action.DISCONNECT:
                request.transport.abort()
                return False
            case Action.WAIT:
                await self._released.wait()
            case float():
                await asyncio.sleep(step)
        return True


async def _parse(request: web.Request) -> TranscriptionRequest:
    form = await request.post()
    fields = [(name, value) for name, value in form.items() if isinstance(value, str)]
    file = form["file"]
    assert isinstance(file, web.FileField)
    headers = {name.lower(): value for name, value in request.headers.items()}
    with file.file:
        return TranscriptionRequest(request.path, headers, fields, file.file.read(), file.filename, file.content_type)


def _event(data: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(data).encode() + b"\n\n"


@contextmanager
def scripted_stt(script: TranscriptScript | None = None) -> Iterator[ScriptedSTT]:
    with started(ScriptedSTT(script)) as stt:
        yield stt


def main() -> None:
    """Serves texts until it is interrupted; prints its URL."""
    parser = argparse.ArgumentParser()
    parser.add_argument("texts", nargs="+")
    options = parser.parse_args()
    with scripted_stt(TranscriptScript(options.texts)) as stt:
        print(stt.url, flush=True)  # noqa: T201
        threading.Event().wait()


if __name__ == "__main__":
    main()
