"""A client of an engine, in this process or behind a door: what is measured has no server in it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from polyvox.audio.pcm import to_pcm
from polyvox.bench.clients import Client
from polyvox.bench.ear import Clock, Ear, Failure
from polyvox.bench.metrics import Trace
from polyvox.errors import PolyvoxError
from polyvox.models.request import Request, Sampling

if TYPE_CHECKING:
    from polyvox.engine.interface import Engine
    from polyvox.ipc.messages import EngineEndpoint


# Streams that one process reads behind a door; each process has threads with the engine, which want its interpreter.
STREAMS_A_READER = 256


class EngineClient:
    """Submits to an engine and reads its chunks in the event loop.

    frames: each utterance has exactly so many; end of speech is not drawn before, and nothing guards against it. By
    default the model decides.
    """

    def __init__(
        self, engine: "Engine", sampling: Sampling, voice: str | None = None, frames: int | None = None
    ) -> None:
        self.engine, self.voice, self.frames = engine, voice, frames
        self.sampling = None if frames is None else replace(sampling, min_frames=frames)

    def request(self, text: str, seed: int) -> Request:
        forced = self.frames is not None
        return Request(text, self.voice, seed=seed, sampling=self.sampling, max_frames=self.frames, guard=not forced)

    async def speak(self, text: str, seed: int, trace: Trace, clock: Clock) -> None:
        trace.sample_rate = self.engine.sample_rate
        ear = Ear(trace, clock)
        try:
            # Preparing a request takes a while, and another process a while to answer.
            stream = await asyncio.to_thread(self.engine.submit, self.request(text, seed))
            async for chunk in stream:
                if len(chunk.samples):
                    now = ear.now()
                    ear.byte(now)
                    ear.samples(to_pcm(chunk.samples), now)
        except PolyvoxError as error:
            raise Failure(error.code, str(error)) from error
        ear.end()


@asynccontextmanager
async def engine_client(client: EngineClient) -> AsyncIterator[Client]:
    """As `load.run_here` wants to be given a client; the engine is not closed by it."""
    yield client


@dataclass(frozen=True, slots=True)
class DoorClient:
    """Connects to an engine in a process of its own; a value, so that several processes may."""

    door: "EngineEndpoint"
    voice: str | None
    frames: int | None

    @asynccontextmanager
    async def __call__(self) -> AsyncIterator[Client]:
        from polyvox.ipc.client import RemoteEngine

        engine = RemoteEngine(self.door)
        try:
            sampling = (await asyncio.to_thread(engine.info)).sampling
            yield EngineClient(engine, sampling, self.voice, self.frames)
        finally:
            await asyncio.to_thread(engine.close)
