# SPDX-License-Identifier: Apache-2.0
"""Helpers for tests of an engine in another process. No torch: the tests' server processes import this file."""

import asyncio
import os
import signal
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from multiprocessing import resource_tracker
from multiprocessing.connection import wait
from pathlib import Path

import numpy as np
import pytest

from ipc.fake_engine import CHUNK_SAMPLES, FakeEngine, chunk_samples
from polyvox.audio.pcm import SCALE
from polyvox.audio.samples import Samples
from polyvox.engine.interface import AsyncStream, Chunk
from polyvox.engine.lifecycle import RestartPolicy
from polyvox.errors import EngineDown, Overloaded, StreamFailed
from polyvox.ipc.client import AsyncRemoteEngine
from polyvox.ipc.endpoint import EngineEndpoint, connect
from polyvox.ipc.framing import FrameConnection
from polyvox.ipc.messages import Message, Update, encode, engine_decoder
from polyvox.ipc.process import EngineProcessConfig
from polyvox.ipc.supervisor import EngineProcess
from polyvox.models.request import Request

TIMEOUT = 60.0  # of any wait; long, because none should expire
TOLERANCE = 1.01 / SCALE  # between a stream in a batch and the same one alone: PCM may be rounded to a neighbour
QUICK_RESTARTS = RestartPolicy(initial_delay=0.01, max_delay=0.01)
WORKER_TIMEOUT = 1.5  # of the shared process, so that a stalled server is disconnected soon
RING_SAMPLES = 40 * CHUNK_SAMPLES


def fake_engine_process() -> EngineProcess:
    """A process with an engine without a model, whose limits are small enough to be reached."""
    config = EngineProcessConfig(ring_samples=RING_SAMPLES, worker_timeout=WORKER_TIMEOUT)
    return EngineProcess(partial(FakeEngine, step_seconds=0.001), config)


def request(seed: int, chunks: int = 10, text: str = "hello", live: bool = False) -> Request:
    return Request(text, seed=seed, max_frames=chunks, live=live)


def eventually(condition: Callable[[], bool]) -> None:
    """Repeats a condition that is itself a round trip or a wait."""
    deadline = time.monotonic() + TIMEOUT
    while not condition():
        assert time.monotonic() < deadline, "the condition did not become true"


async def becomes_true(condition: Callable[[], Awaitable[bool]]) -> None:
    """`eventually` in an event loop."""
    deadline = time.monotonic() + TIMEOUT
    while not await condition():
        assert time.monotonic() < deadline, "the condition did not become true"
        await asyncio.sleep(0.005)


async def stat_becomes(engine: AsyncRemoteEngine, name: str, value: float) -> None:
    async def equal() -> bool:
        return (await engine.stats()).get(name) == value

    await becomes_true(equal)


# Streams


async def read(stream: AsyncStream) -> list[Chunk]:
    async with asyncio.timeout(TIMEOUT):
        return [chunk async for chunk in stream]


async def read_samples(stream: AsyncStream) -> Samples:
    """All samples of a stream, with its chunks in order and one end."""
    chunks = await read(stream)
    assert [chunk.index for chunk in chunks] == list(range(len(chunks)))
    assert [chunk.final for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    return np.concatenate([chunk.samples for chunk in chunks])


def assert_complete(chunks: Sequence[Chunk], seed: int, count: int) -> None:
    """All chunks of a `FakeEngine` stream, in order and unchanged."""
    assert [chunk.index for chunk in chunks] == list(range(count))
    assert [chunk.final for chunk in chunks] == [False] * (count - 1) + [True]
    for chunk in chunks:
        np.testing.assert_array_equal(chunk.samples, chunk_samples(seed, chunk.index))


async def assert_lost(stream: AsyncStream, reader: AsyncIterator[Chunk] | None = None) -> None:
    """The stream fails because the engine's process ended; without audio so far, the request may be sent again."""
    with pytest.raises((StreamFailed, Overloaded), match="ended before the stream did"):
        async for _ in reader or stream:
            pass
    assert stream.result is not None
    assert stream.result.finish_reason == "error"


# Processes and what they leave


def children() -> set[int]:
    resource_tracker.ensure_running()  # else the first spawned process starts it, and it stays
    tasks = Path(f"/proc/{os.getpid()}/task").glob("*/children")
    return {int(pid) for task in tasks for pid in task.read_text().split()}


def folders() -> set[Path]:
    return set(Path(tempfile.gettempdir()).glob(f"polyvox-{os.getpid()}-*"))


def resources() -> tuple[object, ...]:
    """All that an engine process and its clients could leave behind in this process."""
    processes = children()  # first: it may open a file for good
    files = len(os.listdir("/proc/self/fd"))
    rings = Path("/proc/self/maps").read_text().count("polyvox-ring")
    shared = [entry for entry in Path("/dev/shm").glob("*") if "polyvox" in entry.name]
    return processes, folders(), threading.enumerate(), files, rings, shared


def send(process: EngineProcess, number: signal.Signals = signal.SIGKILL) -> int:
    """Sends a signal to the engine's process; returns its id."""
    pid = process.pid
    assert pid is not None
    os.kill(pid, number)
    return pid


async def restarted(process: EngineProcess, old_pid: int, *engines: AsyncRemoteEngine) -> None:
    """Waits until another process serves and all clients are connected to it."""

    async def replaced() -> bool:
        return process.pid not in (None, old_pid)

    await becomes_true(replaced)
    for engine in engines:
        await reconnected(engine)


def await_another(process: EngineProcess, old_pid: int) -> None:
    """Waits until another process serves and has no streams."""

    def idle() -> bool:
        try:
            return engine_stats(process.endpoint)["streams"] == 0
        except EngineDown:
            return threading.Event().wait(0.01)

    eventually(lambda: process.pid not in (None, old_pid) or threading.Event().wait(0.01))
    eventually(idle)


def engine_stats(endpoint: EngineEndpoint) -> dict[str, float]:
    """The engine's statistics, by a connection of its own."""

    async def query() -> dict[str, float]:
        engine = AsyncRemoteEngine(endpoint)
        try:
            return await engine.stats()
        finally:
            await engine.close()

    return asyncio.run(query())


async def reconnected(engine: AsyncRemoteEngine) -> None:
    async def idle() -> bool:
        try:
            return (await engine.stats())["streams"] == 0
        except EngineDown:
            return False

    await becomes_true(idle)


def await_end_of(pid: int) -> None:
    """Waits for a process that may not be a child."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    with open(handle) as ended:
        assert wait([ended.fileno()], TIMEOUT)


# A server on the wire


class RawServer:
    """A server that sends what a test gives it and consumes nothing from its ring by itself."""

    def __init__(self) -> None:
        self.updates: asyncio.Queue[Update | None] = asyncio.Queue()
        self.frames = FrameConnection(
            TIMEOUT,
            lambda frame: self.updates.put_nowait(engine_decoder.decode(frame)),
            lambda: self.updates.put_nowait(None),
        )

    @classmethod
    async def connected(cls, endpoint: EngineEndpoint) -> "RawServer":
        server = cls()
        connection, ring = await connect(endpoint)
        ring.close()
        await server.frames.start(connection)
        return server

    def send(self, message: Message) -> None:
        self.frames.send(encode(message))

    async def update(self) -> Update | None:
        """The next one; None at the end of the connection."""
        if self.frames.closed and self.updates.empty():
            return None
        async with asyncio.timeout(TIMEOUT):
            return await self.updates.get()

    async def disconnected(self) -> None:
        while await self.update() is not None:
            pass
