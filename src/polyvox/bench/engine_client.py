# SPDX-License-Identifier: Apache-2.0
"""Benchmark clients of an engine, in this process or in its own: measurements without an HTTP server."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from polyvox.bench.clients import Client
from polyvox.bench.metrics import RequestTrace
from polyvox.bench.receiver import AudioReceiver, Clock, RequestFailed
from polyvox.errors import PolyvoxError
from polyvox.models.request import Request, Sampling

if TYPE_CHECKING:
    from polyvox.engine.interface import AsyncEngine
    from polyvox.ipc.endpoint import EngineEndpoint

STREAMS_PER_READER = 256  # streams per client process of a remote engine


class EngineClient:
    """Submits requests to an engine and reads the audio in the event loop.

    frames: exact length of each utterance; end of speech is not sampled before it, and the repetition guard is off.
    By default the model decides.
    """

    def __init__(
        self, engine: "AsyncEngine", sampling: Sampling, voice: str | None = None, frames: int | None = None
    ) -> None:
        self.engine, self.voice, self.frames = engine, voice, frames
        self.sampling = None if frames is None else replace(sampling, min_frames=frames)

    def request(self, text: str, seed: int) -> Request:
        fixed = self.frames is not None
        return Request(text, self.voice, seed=seed, sampling=self.sampling, max_frames=self.frames, guard=not fixed)

    async def synthesise(self, text: str, seed: int, trace: RequestTrace, clock: Clock) -> None:
        trace.sample_rate = self.engine.sample_rate
        receiver = AudioReceiver(trace, clock)
        try:
            async for chunk in await self.engine.submit(self.request(text, seed)):
                if len(chunk.audio):
                    now = receiver.now()
                    receiver.on_byte(now)
                    receiver.push_samples(chunk.pcm, now)
        except PolyvoxError as error:
            raise RequestFailed(error.code, str(error)) from error
        receiver.finish()


@asynccontextmanager
async def engine_client(client: EngineClient) -> AsyncIterator[Client]:
    """Adapts a client to the client factory of the load generator; does not close the engine."""
    yield client


@dataclass(frozen=True, slots=True)
class RemoteEngineClient:
    """Client factory that connects to an engine in another process; picklable."""

    endpoint: "EngineEndpoint"
    voice: str | None
    frames: int | None

    @asynccontextmanager
    async def __call__(self) -> AsyncIterator[Client]:
        async with connected(self.endpoint) as engine:
            yield EngineClient(engine, (await engine.info()).sampling, self.voice, self.frames)


@asynccontextmanager
async def connected(endpoint: "EngineEndpoint") -> AsyncIterator["AsyncEngine"]:
    from polyvox.ipc.client import AsyncRemoteEngine

    engine = AsyncRemoteEngine(endpoint)
    try:
        yield engine
    finally:
        await engine.close()


async def remote_stats(endpoint: "EngineEndpoint") -> dict[str, float]:
    """The stats of an engine in another process."""
    async with connected(endpoint) as engine:
        return await engine.stats()
