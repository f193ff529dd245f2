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

from server.scripted_llm import Action

START_TIMEOUT = 30.0  # seconds
MAX_BYTES = 100_000_000
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


class ScriptedSTT:
    """Runs in a thread of its own. Requests and their ends are recorded; all methods may be called from any thread."""

    def __init__(self, script: TranscriptScript | None = None) -> None:
        self.script = script or TranscriptScript()
        self.requests: list[TranscriptionRequest] = []
        self.num_active = self.num_cancelled = 0
        self.connections: set[asyncio.Transport] = set()  # that requests came over
        self.url = ""
        self._num_answers = 0
        self._released: asyncio.Event | None = None
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="scripted-stt", daemon=True)

    def reset(self) -> None:
        """The default script; forgets all requests."""
        assert self._released is not None
        self._loop.call_soon_threadsafe(self._released.clear)
        self.script = TranscriptScript()
        self.requests.clear()
        self.connections.clear()
        self.num_cancelled = self._num_answers = 0

    def close_connections(self) -> None:
        for transport in self.connections:
            self._loop.call_soon_threadsafe(transport.abort)

    def release(self) -> None:
        """Lets answers that wait go on, until `reset`."""
        assert self._released is not None
        self._loop.call_soon_threadsafe(self._released.set)

    def start(self) -> None:
        self._thread.start()
        assert self._ready.wait(START_TIMEOUT)

    def stop(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(START_TIMEOUT)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        runner = self._loop.run_until_complete(self._listen())
        self._ready.set()
        self._loop.run_forever()
        self._loop.run_until_complete(runner.cleanup())
        self._loop.close()

    async def _listen(self) -> web.AppRunner:
        self._released = asyncio.Event()
        app = web.Application(client_max_size=MAX_BYTES)
        app.router.add_post("/v1/audio/transcriptions", self._transcribe)
        app.router.add_post("/v1/audio/translations", self._transcribe)
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
        return runner

    async def _transcribe(self, request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        self.connections.add(request.transport)
        self.requests.append(await _parse(request))
        self.num_active += 1
        try:
            return await self._answer(request, self.script, dict(self.requests[-1].fields))
        except (asyncio.CancelledError, ConnectionError):
            self.num_cancelled += 1
            raise
        finally:
            self.num_active -= 1

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
    stt = ScriptedSTT(script)
    stt.start()
    try:
        yield stt
    finally:
        stt.stop()


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
