# SPDX-License-Identifier: Apache-2.0
"""Streams of an engine in another process: order, cancellation, live text, values and errors."""

import asyncio
import multiprocessing
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import pytest

from ipc.engine_processes import (
    RING_SAMPLES,
    TIMEOUT,
    assert_complete,
    read,
    request,
    stat_becomes,
)
from ipc.fake_engine import ABOUT, SAMPLE_RATE, FakeEngine
from polyvox.audio.pcm import to_pcm
from polyvox.engine.interface import AsyncEngine, AsyncStream, Chunk
from polyvox.errors import InvalidRequest, Overloaded, PolyvoxError, StreamFailed
from polyvox.ipc.client import AsyncRemoteEngine
from polyvox.ipc.endpoint import EngineEndpoint
from polyvox.ipc.supervisor import EngineProcess
from polyvox.models.request import ClonedVoice, Request

SPAWN = multiprocessing.get_context("spawn")
pytestmark = [pytest.mark.anyio, pytest.mark.slow]


async def test_a_remote_engine_implements_the_interface(engine: AsyncRemoteEngine) -> None:
    plain: AsyncEngine = engine
    stream: AsyncStream = await plain.submit(request(1))
    assert plain.sample_rate == SAMPLE_RATE
    assert stream.seed == 1
    assert_complete(await read(stream), seed=1, count=10)
    assert stream.result is not None
    assert stream.result.finish_reason == "stop"
    assert stream.result.frames == 10
    assert await read(stream) == []  # the end was read


def serve_streams(endpoint: EngineEndpoint, seeds: list[int], chunks: int, results: Connection) -> None:
    """A server process: all its streams at once, their chunks back to the test."""

    async def main() -> None:
        engine = AsyncRemoteEngine(endpoint)
        streams = [await engine.submit(request(seed, chunks)) for seed in seeds]
        for received in await asyncio.gather(*(read(stream) for stream in streams)):
            results.send([(chunk.audio, chunk.index, chunk.final) for chunk in received])
        await engine.close()

    asyncio.run(main())


def test_several_server_processes_get_their_own_chunks_in_order(process: EngineProcess) -> None:
    groups = [[100 * server + stream for stream in range(8)] for server in range(1, 4)]
    pipes = [SPAWN.Pipe(duplex=False) for _ in groups]
    servers = [
        SPAWN.Process(target=serve_streams, args=(process.endpoint, seeds, 60, pipe[1]))
        for seeds, pipe in zip(groups, pipes, strict=True)
    ]
    for server in servers:
        server.start()
    for seeds, (results, _) in zip(groups, pipes, strict=True):
        for seed in seeds:
            assert results.poll(TIMEOUT)
            assert_complete([Chunk(*values) for values in results.recv()], seed, count=60)
    for server in servers:
        server.join(TIMEOUT)
        assert server.exitcode == 0


async def test_a_cancelled_stream_ends_at_once_and_cancel_is_idempotent(engine: AsyncRemoteEngine) -> None:
    stream = await engine.submit(request(3, chunks=1_000_000))
    chunks = aiter(stream)
    await anext(chunks)
    stream.cancel()
    stream.cancel()
    assert [chunk async for chunk in chunks][-1].final
    assert stream.result is not None
    assert stream.result.finish_reason == "cancelled"
    stream.cancel()
    await stat_becomes(engine, "streams", 0)


async def test_a_cancelled_task_cancels_its_stream(engine: AsyncRemoteEngine) -> None:
    stream = await engine.submit(request(48, text="two words", live=True))
    started = asyncio.Event()

    async def read_forever() -> None:
        async for _ in stream:
            started.set()  # then it waits for text that never comes

    task = asyncio.create_task(read_forever())
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await stat_becomes(engine, "streams", 0)
    assert stream.result is not None
    assert stream.result.finish_reason == "cancelled"


async def test_a_cancelled_submit_cancels_its_stream(engine: AsyncRemoteEngine) -> None:
    before = (await engine.stats())["cancelled"]
    task = asyncio.create_task(engine.submit(request(49, chunks=1_000_000)))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await stat_becomes(engine, "cancelled", before + 1)


# Live text


async def test_no_text_is_lost_between_a_check_and_a_wait(engine: AsyncRemoteEngine) -> None:
    stream = await engine.submit(request(5, text="", live=True))
    chunks = aiter(stream)
    for word in range(500):
        stream.append("word ")
        assert (await anext(chunks)).index == word
    stream.finish_text()
    assert [chunk.final async for chunk in chunks] == [True]


async def test_rejected_text_raises_or_ends_the_stream(engine: AsyncRemoteEngine) -> None:
    finished = await engine.submit(request(6, text="", live=True))
    finished.finish_text()
    finished.finish_text()
    not_live = await engine.submit(request(7))
    for stream in (finished, not_live):
        with pytest.raises(InvalidRequest, match="requires a live request"):
            stream.append("more")
    rejected = await engine.submit(request(8, text="", live=True))
    rejected.append("impossible")
    with pytest.raises(StreamFailed, match="got 'impossible'"):
        await read(rejected)
    assert rejected.result is not None
    assert rejected.result.finish_reason == "error"
    for stream in (finished, not_live):
        stream.cancel()
    await stat_becomes(engine, "streams", 0)


async def test_rows_travel_as_arrays_and_the_last_ones_finish_the_text(engine: AsyncRemoteEngine) -> None:
    stream = await engine.submit(request(20, text="word", live=True))
    before = (await engine.stats()).get("rows", 0)
    stream.append_rows(np.ones((3, 48), np.float32))
    stream.append_rows(np.full((2, 48), 2, np.float32), last=True)
    stream.finish_text()
    with pytest.raises(InvalidRequest, match="text is not finished"):
        stream.append_rows(np.ones((1, 48), np.float32))
    assert_complete(await read(stream), seed=20, count=6)
    assert (await engine.stats())["rows"] - before == (3 + 2 * 2) * 48


async def test_tokens_travel_in_order(engine: AsyncRemoteEngine) -> None:
    stream = await engine.submit(request(21, text="word", live=True))
    before = (await engine.stats()).get("tokens", 0)
    stream.append_tokens([151_643, 7])
    stream.append_tokens((1,))
    stream.finish_text()
    with pytest.raises(InvalidRequest, match="text is not finished"):
        stream.append_tokens([1])
    assert_complete(await read(stream), seed=21, count=4)
    assert (await engine.stats())["tokens"] - before == 151_651


async def test_rejected_tokens_end_only_their_stream(engine: AsyncRemoteEngine) -> None:
    other = await engine.submit(request(22, chunks=100))
    rejected = await engine.submit(request(23, text="word", live=True))
    rejected.append_tokens([-1])
    with pytest.raises(StreamFailed, match="must be token ids"):
        await read(rejected)
    assert_complete(await read(other), seed=22, count=100)


# Values and errors


async def test_a_stream_that_times_out_in_the_queue_raises_overloaded(engine: AsyncRemoteEngine) -> None:
    stream = await engine.submit(Request("expires"))
    with pytest.raises(Overloaded, match="the queue timeout expired") as caught:
        await read(stream)
    assert type(caught.value) is Overloaded
    assert caught.value.retry_after == 2.5


async def test_errors_keep_their_class_fields_and_message(engine: AsyncRemoteEngine) -> None:
    local = FakeEngine()
    for text, kind in (("invalid", InvalidRequest), ("overloaded", Overloaded)):
        with pytest.raises(kind) as here:
            local.submit(Request(text))
        with pytest.raises(kind) as there:
            await engine.submit(Request(text))
        assert type(there.value) is kind
        assert str(there.value) == str(here.value)
        assert vars(there.value) == vars(here.value)
    local.close()


async def test_a_bug_in_the_engine_fails_only_its_request(engine: AsyncRemoteEngine) -> None:
    with pytest.raises(PolyvoxError, match="ZeroDivisionError: a bug"):
        await engine.submit(Request("bug"))
    assert_complete(await read(await engine.submit(request(9))), seed=9, count=10)


async def test_a_cloned_voice_travels_unchanged(engine: AsyncRemoteEngine) -> None:
    vector = np.linspace(-1, 1, 2048).astype(np.float32)
    voice = ClonedVoice(vector, np.arange(16_000).reshape(1000, 16), "what was said")
    (chunk,) = await read(await engine.submit(Request("hello", voice=voice, max_frames=1)))
    np.testing.assert_array_equal(chunk.pcm, to_pcm(vector))


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        (Request("hello", voice=ClonedVoice([0.5] * 4)), "vector"),  # type: ignore[arg-type]
        (Request("hello", voice=ClonedVoice(np.zeros(4, np.float64))), "vector"),
        (Request("hello", layout="sideways"), "layout"),  # type: ignore[arg-type]
        (Request("hello", max_frames="many"), "max_frames"),  # type: ignore[arg-type]
        (Request("hello", seed=2**64), "request"),
        (Request("half a \ud800 pair"), "request"),
    ],
)
async def test_a_request_with_a_wrong_type_is_rejected_alone(
    engine: AsyncRemoteEngine, asked: Request, field: str
) -> None:
    other = await engine.submit(request(21))
    with pytest.raises(InvalidRequest) as caught:
        await engine.submit(asked)
    assert caught.value.field == field
    assert_complete(await read(other), seed=21, count=10)


async def test_a_chunk_larger_than_the_ring_ends_only_its_stream(engine: AsyncRemoteEngine) -> None:
    huge = ClonedVoice(np.zeros(RING_SAMPLES + 1, np.float32), np.zeros((1, 16), np.int64))
    with pytest.raises(StreamFailed, match="exceeds the ring's capacity"):
        await read(await engine.submit(Request("hello", voice=huge)))
    assert_complete(await read(await engine.submit(request(10))), seed=10, count=10)
    await stat_becomes(engine, "streams", 0)


async def test_model_info_and_voices_of_recordings_travel(engine: AsyncRemoteEngine) -> None:
    assert await engine.info() == ABOUT
    voice = await engine.clone(np.full(1000, 0.5, np.float32), "What is said.")
    assert voice.vector.tolist() == [0.5] * 4
    assert voice.codes is not None
    assert voice.codes.dtype == np.int64
    assert voice.transcript == "What is said."
    with pytest.raises(InvalidRequest, match="silence"):
        await engine.clone(np.zeros(0, np.float32))


async def test_only_this_user_can_connect(process: EngineProcess) -> None:
    assert process.endpoint.folder.stat().st_mode & 0o077 == 0
    assert Path(process.endpoint.socket_path).is_socket()
