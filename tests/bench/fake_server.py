"""A speech server that does what a script says, and a clock that does not wait: for tests of the client.

Time is virtual: where nothing is to be read, the event loop jumps to its next timer. So a script of seconds runs in
milliseconds, and what the client reports must be what was scripted, to the microsecond, however busy the machine is.
"""

import asyncio
import base64
import json
import selectors
import struct
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

import numpy as np
from aiohttp import WSMsgType, web

RATE = 24_000
GRACE = 0.001  # real seconds for bytes that are on their way through the kernel

T = TypeVar("T")


class _Selector(selectors.DefaultSelector):
    skipped = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready or (timeout is not None and timeout <= 0):
            return ready
        ready = super().select(GRACE if timeout is not None else None)
        if not ready and timeout is not None:
            self.skipped += timeout
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """Its time stands still while something happens, and jumps while nothing does."""

    def __init__(self) -> None:
        self._waits = _Selector()
        super().__init__(self._waits)

    def time(self) -> float:
        return 1000.0 + self._waits.skipped


def run_virtual(work: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(work)


def tone(milliseconds: float, level: float = 0.1) -> bytes:
    samples = np.arange(int(milliseconds * RATE / 1000))
    return np.rint(np.sin(samples * 0.2) * level * 32767).astype("<i2").tobytes()


def silence(milliseconds: float) -> bytes:
    return tone(milliseconds, 0.0)


def wav_header(size: int = 0xFFFFFFFF, rate: int = RATE) -> bytes:
    riff = min(size + 36, 0xFFFFFFFF)
    form = struct.pack("<HHIIHH", 1, 1, rate, rate * 2, 2, 16)
    return struct.pack("<4sI8sI16s4sI", b"RIFF", riff, b"WAVEfmt ", 16, form, b"data", size)


@dataclass(frozen=True)
class SegmentQueue:
    """What happens with one request: seconds to wait, then bytes, again and again; then how it ends."""

    pieces: list[tuple[float, bytes]] = field(default_factory=lambda: [(0.1, tone(200))])
    status: int = 200
    end: Literal["well", "cut", "error", "never"] = "well"
    end_after: float = 0.0  # seconds from the last piece to the end
    accept_after: float = 0.0  # seconds before anything is answered
    content_type: str | None = None


@dataclass
class FakeServer:
    """Its scripts by text; every other text gets the standard one."""

    scripts: Mapping[str, SegmentQueue] = field(default_factory=dict)
    standard: SegmentQueue = field(default_factory=SegmentQueue)
    bodies: list[dict[str, Any]] = field(default_factory=list)
    address: str = ""

    def script(self, text: str) -> SegmentQueue:
        return self.scripts.get(text, self.standard)

    async def speech(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.bodies.append(body)
        script = self.script(body["input"])
        await asyncio.sleep(script.accept_after)
        if script.status != 200:
            return web.json_response({"error": {"message": "scripted"}}, status=script.status)
        events = body.get("stream_format") == "sse"
        kind = script.content_type or ("text/event-stream" if events else f"audio/{body['response_format']}")
        response = web.StreamResponse(headers={"content-type": kind})
        await response.prepare(request)
        for seconds, data in script.pieces:
            await asyncio.sleep(seconds)
            await response.write(self._event(data) if events else data)
        await asyncio.sleep(script.end_after)
        if script.end == "never":
            await asyncio.sleep(1e6)
        if script.end == "cut":
            assert request.transport is not None
            request.transport.abort()
            return response
        if events:
            kind = "speech.audio.done" if script.end == "well" else "speech.audio.error"
            told = {"type": kind, "error": {"message": "scripted"}} if script.end == "error" else {"type": kind}
            await response.write(b": a comment\n\nevent: x\ndata: " + json.dumps(told).encode() + b"\n\n")
        await response.write_eof()
        return response

    @staticmethod
    def _event(data: bytes) -> bytes:
        told = {"type": "speech.audio.delta", "audio": base64.b64encode(data).decode()}
        return b"event: speech.audio.delta\ndata: " + json.dumps(told).encode() + b"\n\n"

    async def stream(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        text = ""
        async for message in socket:
            assert message.type == WSMsgType.TEXT
            told = json.loads(message.data)
            if told["type"] == "session.config":
                self.bodies.append(told)
            elif told["type"] == "input.text":
                text += told["text"]
            elif told["type"] == "input.done":
                await self._flush(socket, self.script(text))
            else:
                break
        return socket

    async def _flush(self, socket: web.WebSocketResponse, script: SegmentQueue) -> None:
        await asyncio.sleep(script.accept_after)
        await socket.send_json({"type": "audio.start", "utterance_index": 0, "sentence_index": 0, "format": "pcm"})
        for seconds, data in script.pieces:
            await asyncio.sleep(seconds)
            await socket.send_bytes(data)
        await asyncio.sleep(script.end_after)
        if script.end == "never":
            await asyncio.sleep(1e6)
        if script.end == "cut":
            await socket.close(code=1011)
            return
        if script.end == "error":
            await socket.send_json({"type": "error", "message": "scripted"})
            return
        await socket.send_json({"type": "audio.done", "utterance_index": 0, "sentence_index": 0})
        await socket.send_json({"type": "session.done", "utterance_index": 0, "total_sentences": 1})

    @asynccontextmanager
    async def running(self) -> AsyncIterator["FakeServer"]:
        app = web.Application()
        app.router.add_post("/v1/audio/speech", self.speech)
        app.router.add_get("/v1/audio/speech/stream", self.stream)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        self.address = f"http://{host}:{port}"
        try:
            yield self
        finally:
            await runner.cleanup()


@contextmanager
def serving(server: FakeServer) -> Iterator[FakeServer]:
    """In a thread of its own and in real time, as servers are elsewhere."""
    ready, loop, stop = threading.Event(), asyncio.new_event_loop(), asyncio.Event()

    async def serve() -> None:
        async with server.running():
            ready.set()
            await stop.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    try:
        assert ready.wait(20)
        yield server
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(20)
        loop.close()
