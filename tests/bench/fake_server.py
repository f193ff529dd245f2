# SPDX-License-Identifier: Apache-2.0
"""A scripted speech server and a virtual clock, for tests of the client.

Time is virtual: when no I/O is pending, the event loop advances to its next timer. A script of seconds runs in
milliseconds, and the client must report the scripted times to the microsecond on a machine of any speed.
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

from polyvox.bench.clients import ServerTarget, WireProtocol, connect
from polyvox.bench.load import Load, LoadShard
from polyvox.bench.load_generator import run_shard
from polyvox.bench.metrics import RequestTrace

RATE = 24_000
TEXT = "Say it."
IO_GRACE = 0.001  # real seconds for bytes in transit through the kernel

T = TypeVar("T")


class _Selector(selectors.DefaultSelector):
    skipped = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready or (timeout is not None and timeout <= 0):
            return ready
        ready = super().select(IO_GRACE if timeout is not None else None)
        if not ready and timeout is not None:
            self.skipped += timeout
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """Its clock stops while callbacks run and I/O is pending, and skips idle time."""

    def __init__(self) -> None:
        self._selector_clock = _Selector()
        super().__init__(self._selector_clock)

    def time(self) -> float:
        return 1000.0 + self._selector_clock.skipped


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
class Script:
    """The response to one request: (seconds to wait, bytes) for each piece, then how it ends."""

    pieces: list[tuple[float, bytes]] = field(default_factory=lambda: [(0.1, tone(200))])
    status: int = 200
    end: Literal["complete", "cut", "error", "never"] = "complete"
    end_after: float = 0.0  # seconds from the last piece to the end
    accept_after: float = 0.0  # seconds before the response starts
    content_type: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass
class FakeServer:
    """Responds by the script of the text, or else by the default script."""

    scripts: Mapping[str, Script] = field(default_factory=dict)
    default: Script = field(default_factory=Script)
    bodies: list[dict[str, Any]] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)  # that arrived over a WebSocket
    address: str = ""

    def script(self, text: str) -> Script:
        return self.scripts.get(text, self.default)

    async def speech(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.bodies.append(body)
        script = self.script(body["input"])
        await asyncio.sleep(script.accept_after)
        if script.status != 200:
            return web.json_response({"error": {"message": "scripted"}}, status=script.status)
        events = body.get("stream_format") == "sse"
        kind = script.content_type or ("text/event-stream" if events else f"audio/{body['response_format']}")
        response = web.StreamResponse(headers={"content-type": kind, **script.headers})
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
            kind = "speech.audio.done" if script.end == "complete" else "speech.audio.error"
            event = {"type": kind, "error": {"message": "scripted"}} if script.end == "error" else {"type": kind}
            await response.write(b": a comment\n\nevent: x\ndata: " + json.dumps(event).encode() + b"\n\n")
        await response.write_eof()
        return response

    @staticmethod
    def _event(data: bytes) -> bytes:
        event = {"type": "speech.audio.delta", "audio": base64.b64encode(data).decode()}
        return b"event: speech.audio.delta\ndata: " + json.dumps(event).encode() + b"\n\n"

    async def stream(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        text = ""
        async for message in socket:
            assert message.type == WSMsgType.TEXT
            event = json.loads(message.data)
            if event["type"] == "session.config":
                self.bodies.append(event)
            elif event["type"] == "input.text":
                text += event["text"]
            elif event["type"] == "input.done":
                self.texts.append(text)
                await self._respond(socket, self.script(text))
            else:
                break
        return socket

    async def _respond(self, socket: web.WebSocketResponse, script: Script) -> None:
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
        await socket.send_json(
            {"type": "session.done", "utterance_index": 0, "total_sentences": 1, "server_timing": {"words": 250.0}}
        )

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
    """Runs the server in a thread, in real time."""
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


def scripted_traces(
    script: Script, protocol: WireProtocol, load: Load | None = None, **target: Any
) -> tuple[list[RequestTrace], FakeServer]:
    """The traces of a load, by default one request, on a server with this script; on the virtual clock."""
    server = FakeServer(default=script)
    load = load or Load("closed", 1, warmup=0.0, num_prompts=1, timeout=2)

    async def collect() -> list[RequestTrace]:
        async with server.running():
            addressed = ServerTarget(server.address, protocol, **target)
            result = await run_shard(lambda: connect(addressed, 100), LoadShard(load, (TEXT,)), [0, 0])
        return result.traces

    return run_virtual(collect()), server
