# SPDX-License-Identifier: Apache-2.0
"""The server's end of one connection: which stream gets which samples, and what its reader gets at the end."""

import os
from collections.abc import Iterator

import numpy as np
import pytest

from ipc.engine_processes import read, request
from ipc.fake_engine import CHUNK_SAMPLES, chunk_samples
from polyvox.audio.pcm import to_pcm
from polyvox.engine.interface import Chunk, Result
from polyvox.errors import EngineDown, StreamFailed
from polyvox.ipc import messages
from polyvox.ipc.audio_ring import AudioRing, create_shared_memory
from polyvox.ipc.client import AsyncRemoteStream, _EngineConnection

pytestmark = pytest.mark.anyio


@pytest.fixture
def connection() -> _EngineConnection:
    """A connection without a socket: what it sends is dropped."""
    return _EngineConnection(8, 1.0, "The engine", lambda: EngineDown("down", 1.0))


@pytest.fixture
def ring(connection: _EngineConnection) -> Iterator[AudioRing]:
    """The engine's end of the connection's ring."""
    file = create_shared_memory(8 * CHUNK_SAMPLES)
    writer, connection._ring = AudioRing(file), AudioRing(file)
    os.close(file)
    yield writer
    writer.close()
    connection._ring.close()


def new_stream(connection: _EngineConnection, id: int) -> AsyncRemoteStream:
    stream = connection._streams[id] = AsyncRemoteStream(connection, id, request(id))
    return stream


async def test_samples_of_a_removed_stream_are_not_given_to_another(
    connection: _EngineConnection, ring: AudioRing
) -> None:
    """A submit that was cancelled may be accepted and send audio until the engine knows of it."""
    stream = new_stream(connection, 1)
    ring.write([to_pcm(chunk_samples(seed, 0)) for seed in (0, 1)])
    headers = [messages.ChunkHeader(id, 0, CHUNK_SAMPLES, final=True) for id in (0, 1)]
    connection._dispatch(messages.encode(messages.Update([], headers, {1: Result("stop", 1)})))
    (chunk,) = await read(stream)
    assert np.array_equal(chunk.audio, to_pcm(chunk_samples(1, 0)))
    assert connection._ring.consumed == 2 * CHUNK_SAMPLES


async def test_a_failed_stream_raises_without_the_audio_that_was_not_read(connection: _EngineConnection) -> None:
    stream = new_stream(connection, 1)
    stream.put(Chunk(to_pcm(chunk_samples(1, 0)), 0, False))
    stream.end(Result("error", 1, "the engine failed"))
    with pytest.raises(StreamFailed, match="the engine failed"):
        await anext(aiter(stream))


async def test_a_stream_that_has_ended_takes_no_more_audio(connection: _EngineConnection) -> None:
    stream = new_stream(connection, 1)
    stream.end(Result("cancelled", 1))
    stream.put(Chunk(to_pcm(chunk_samples(1, 0)), 0, False))
    (chunk,) = await read(stream)
    assert chunk.final
    assert len(chunk.audio) == 0
