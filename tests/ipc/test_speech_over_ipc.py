# SPDX-License-Identifier: Apache-2.0
"""The real engine in its own process: the same speech as in this one, and failures stay with their own server."""

import asyncio
import itertools
import multiprocessing
import time
from collections.abc import AsyncIterator, Iterator
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import pytest

from conftest import Loaded
from engine.synthesis import request, solo_samples, text_rows
from ipc.engine_processes import (
    QUICK_RESTARTS,
    TIMEOUT,
    TOLERANCE,
    becomes_true,
    read,
    read_samples,
    resources,
    stat_becomes,
)
from ipc.speech_processes import MAX_FRAMES, SLOTS, assert_survives_a_kill, build
from polyvox.errors import InvalidRequest, Overloaded, StreamFailed
from polyvox.ipc.client import AsyncRemoteEngine
from polyvox.ipc.endpoint import EngineEndpoint
from polyvox.ipc.process import EngineProcessConfig
from polyvox.ipc.supervisor import EngineProcess
from polyvox.models.request import ClonedVoice, Request

SPAWN = multiprocessing.get_context("spawn")
TEXT = "the other assistant, the other user"
pytestmark = [pytest.mark.anyio, pytest.mark.slow]


@pytest.fixture(scope="module")
def process(checkpoints: Path) -> Iterator[EngineProcess]:
    factory = partial(build, checkpoints / "custom_voice", "float64")
    with EngineProcess(factory, EngineProcessConfig(restarts=QUICK_RESTARTS)) as running:
        yield running


@pytest.fixture
async def engine(process: EngineProcess) -> AsyncIterator[AsyncRemoteEngine]:
    running = AsyncRemoteEngine(process.endpoint)
    yield running
    await running.close()


async def test_speech_from_another_process_is_the_same(engine: AsyncRemoteEngine, loaded: Loaded) -> None:
    speech = loaded("custom_voice", "float64").model
    asked = [request(voice=voice, seed=seed) for voice in ("serena", "vivian") for seed in (1, 2)]
    streams = [await engine.submit(one) for one in asked]
    for stream, one in zip(streams, asked, strict=True):
        np.testing.assert_allclose(await read_samples(stream), solo_samples(speech, one), atol=TOLERANCE)
        assert stream.result is not None
        assert stream.result.finish_reason in ("stop", "length")


async def test_live_text_gives_the_same_speech_as_the_whole_text(engine: AsyncRemoteEngine, loaded: Loaded) -> None:
    stream = await engine.submit(request("the oth", live=True, guard=False))
    stream.append("er assistant, the")
    stream.append(" other user")
    stream.finish_text()
    whole = solo_samples(loaded("custom_voice", "float64").model, request(TEXT, layout="streaming", guard=False))
    np.testing.assert_allclose(await read_samples(stream), whole, atol=TOLERANCE)


async def test_rows_of_another_model_give_the_same_speech_as_their_text(
    engine: AsyncRemoteEngine, loaded: Loaded
) -> None:
    speech = loaded("custom_voice", "float64").model
    rest = speech.tokenizer.text(TEXT)[len(speech.tokenizer.text("the other")) :]
    stream = await engine.submit(request("the other ", live=True, guard=False))
    middle = len(rest) // 2
    assert middle
    stream.append_rows(text_rows(speech, rest[:middle], last=False))
    stream.append_rows(text_rows(speech, rest[middle:], last=True), last=True)
    whole = solo_samples(speech, request(TEXT, layout="streaming", guard=False))
    np.testing.assert_allclose(await read_samples(stream), whole, atol=TOLERANCE)


async def test_rows_of_the_wrong_size_end_their_stream_with_the_reason(engine: AsyncRemoteEngine) -> None:
    stream = await engine.submit(request("the other ", live=True))
    stream.append_rows(np.zeros((1, 7), np.float32))
    with pytest.raises(StreamFailed, match="rows of 48 finite numbers"):
        await read(stream)
    await stat_becomes(engine, "slots_free", SLOTS)


async def test_an_invalid_request_is_rejected_as_in_the_same_process(engine: AsyncRemoteEngine) -> None:
    with pytest.raises(InvalidRequest, match="serena, eric, vivian") as caught:
        await engine.submit(Request("hello", "unknown"))
    assert caught.value.field == "voice"
    with pytest.raises(InvalidRequest, match="Base"):
        await engine.submit(Request("hello", ClonedVoice(np.zeros(48, np.float32))))


def serve_forever(endpoint: EngineEndpoint, results: Connection) -> None:
    """A server process that keeps one stream open and submits one after another."""

    async def main() -> None:
        engine = AsyncRemoteEngine(endpoint)
        open_stream = await engine.submit(request("the other ", live=True))
        for seed in itertools.count():
            async for _ in await engine.submit(request(seed=seed, frames=MAX_FRAMES, guard=False)):
                results.send(open_stream.seed)

    asyncio.run(main())


async def test_a_killed_server_does_not_affect_another(
    process: EngineProcess, engine: AsyncRemoteEngine, loaded: Loaded
) -> None:
    cancelled = (await engine.stats()).get("finished_cancelled", 0)
    results, theirs = SPAWN.Pipe(duplex=False)
    server = SPAWN.Process(target=serve_forever, args=(process.endpoint, theirs))
    server.start()
    assert await asyncio.to_thread(results.poll, TIMEOUT)
    asked = request(TEXT, seed=3, frames=MAX_FRAMES, guard=False)
    chunks = aiter(await engine.submit(asked))
    received = [await anext(chunks)]
    server.kill()
    received += [chunk async for chunk in chunks]
    server.join(TIMEOUT)
    assert [chunk.index for chunk in received] == list(range(len(received)))
    samples = np.concatenate([chunk.samples for chunk in received])
    np.testing.assert_allclose(samples, solo_samples(loaded("custom_voice", "float64").model, asked), atol=TOLERANCE)
    await stat_becomes(engine, "slots_free", SLOTS)
    assert (await engine.stats())["finished_cancelled"] > cancelled


async def test_an_engine_that_is_killed_repeatedly_serves_the_next_request(
    process: EngineProcess, engine: AsyncRemoteEngine, loaded: Loaded
) -> None:
    for _ in range(2):
        await assert_survives_a_kill(process, engine, loaded("custom_voice", "float64").model)


async def test_close_under_load_waits_for_no_stream_and_leaves_nothing(checkpoints: Path) -> None:
    before = resources()
    process = EngineProcess(partial(build, checkpoints / "custom_voice", "float32"))
    pid, engine = process.pid, AsyncRemoteEngine(process.endpoint)
    assert pid is not None
    streams = [await engine.submit(request(seed=seed, frames=MAX_FRAMES, guard=False)) for seed in range(SLOTS + 2)]
    readers = [asyncio.create_task(read(stream)) for stream in streams]

    async def running() -> bool:
        return (await engine.stats()).get("frames", 0) > 10

    await becomes_true(running)
    began = time.monotonic()
    process.close()
    assert time.monotonic() - began < TIMEOUT / 2
    ends = await asyncio.gather(*readers, return_exceptions=True)
    assert all(isinstance(end, StreamFailed | Overloaded) for end in ends)
    await engine.close()
    assert not Path(f"/proc/{pid}").exists()
    assert resources() == before
