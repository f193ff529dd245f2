# SPDX-License-Identifier: Apache-2.0
"""The engine's process dies, hangs or cannot start: it is replaced, its streams fail, calls raise EngineDown."""

import asyncio
import os
import signal
import threading
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from ipc.engine_processes import (
    assert_complete,
    assert_lost,
    becomes_true,
    children,
    folders,
    read,
    request,
    restarted,
    send,
    stat_becomes,
)
from ipc.fake_engine import BUFFER, FakeEngine, gated, mortal, unbuildable
from polyvox.errors import EngineDown, Overloaded, StreamFailed
from polyvox.ipc.client import CREDIT, AsyncRemoteEngine
from polyvox.ipc.process import HEARTBEATS, EngineProcessConfig
from polyvox.ipc.supervisor import EngineProcess
from polyvox.models.request import Request

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
SHORT_HANG = EngineProcessConfig(hang_timeout=1.5, shutdown_timeout=0.1, max_failures=100)


async def test_an_engine_that_is_killed_twenty_times_under_load_serves_the_next_request() -> None:
    before = children()
    config = EngineProcessConfig(max_failures=100)
    with EngineProcess(partial(FakeEngine, step_seconds=0.001), config) as process:
        engines = [AsyncRemoteEngine(process.endpoint) for _ in range(2)]
        for _ in range(20):
            streams = [await engine.submit(request(seed, chunks=1_000_000)) for engine in engines for seed in range(4)]
            readers = [aiter(stream) for stream in streams]
            for reader in readers:
                assert (await anext(reader)).index == 0
            killed = send(process)
            for stream, reader in zip(streams, readers, strict=True):
                await assert_lost(stream, reader)
            await restarted(process, killed, *engines)
        for engine in engines:
            assert_complete(await read(await engine.submit(request(18))), seed=18, count=10)
            await engine.close()
    assert children() == before


@pytest.mark.parametrize("text", ["hangs", "deadlocks"])
async def test_an_engine_that_hangs_is_replaced_and_its_stacks_are_logged(
    text: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with EngineProcess(FakeEngine, SHORT_HANG) as process:
        engine, pid = AsyncRemoteEngine(process.endpoint), process.pid
        assert pid is not None
        streams = [await engine.submit(request(1, chunks=1_000_000))]
        with suppress(EngineDown):  # if the engine hangs before it has replied
            streams.append(await engine.submit(Request(text)))
        for stream in streams:
            await assert_lost(stream)
        await restarted(process, pid, engine)
        assert_complete(await read(await engine.submit(request(2))), seed=2, count=10)
        await engine.close()
    assert "in _wait_forever" in capfd.readouterr().err


async def test_a_stopped_process_is_replaced() -> None:
    before = children()
    with EngineProcess(FakeEngine, SHORT_HANG) as process:
        engine = AsyncRemoteEngine(process.endpoint)
        stream = await engine.submit(request(1, chunks=1_000_000))
        reader = aiter(stream)
        await anext(reader)
        stopped = send(process, signal.SIGSTOP)
        await assert_lost(stream, reader)
        await restarted(process, stopped, engine)
        assert (await engine.stats())["restarts"] == 1
        assert_complete(await read(await engine.submit(request(2))), seed=2, count=10)
        await engine.close()
    assert children() == before


async def test_streams_that_wait_for_text_or_for_their_reader_do_not_count_as_a_hang() -> None:
    with EngineProcess(FakeEngine, SHORT_HANG) as process:
        engine, pid = AsyncRemoteEngine(process.endpoint), process.pid
        for_text = await engine.submit(request(1, text="", live=True))
        for_reader = await engine.submit(request(2, chunks=50))
        await stat_becomes(engine, "made.2", CREDIT + BUFFER)
        steps, asked, since = (await engine.stats())["steps"], 0, time.monotonic()
        while time.monotonic() < since + 2 * SHORT_HANG.hang_timeout or asked < 2 * HEARTBEATS:
            await asyncio.sleep(SHORT_HANG.hang_timeout / HEARTBEATS)
            asked = int((await engine.stats())["asked"])
        assert (await engine.stats())["steps"] == steps
        for_text.append("now")
        for_text.finish_text()
        assert len(await read(for_text)) in (1, 2)  # the end may come with the word, or after it
        assert_complete(await read(for_reader), seed=2, count=50)
        assert process.pid == pid
        await engine.close()


async def test_a_request_without_audio_is_rejected_with_a_retry_time_when_the_engine_dies() -> None:
    with EngineProcess(FakeEngine) as process:
        engine = AsyncRemoteEngine(process.endpoint)
        without_audio = await engine.submit(request(1, text="", live=True))
        with_audio = aiter(stream := await engine.submit(request(2, chunks=1_000_000)))
        await anext(with_audio)
        send(process)
        with pytest.raises(Overloaded) as rejected:
            await read(without_audio)
        assert rejected.value.retry_after >= 1
        with pytest.raises(StreamFailed):
            await anext(with_audio)
        assert stream.result is not None
        await engine.close()


async def test_requests_are_rejected_with_a_retry_time_while_the_engine_restarts(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with EngineProcess(partial(gated, str(gate))) as process:
        engine = AsyncRemoteEngine(process.endpoint)
        stream = await engine.submit(request(1, chunks=1_000_000))
        os.mkfifo(gate)
        killed = send(process)
        await assert_lost(stream)
        for call in (
            lambda: engine.submit(request(1)),
            engine.stats,
            engine.info,
            lambda: engine.acquire_key("key", 1),
        ):
            with pytest.raises(EngineDown, match="restarting") as down:
                await call()
            assert down.value.retry_after >= 1
        await asyncio.to_thread(gate.write_text, "open")  # returns when the new process reads it
        await restarted(process, killed, engine)
        killed = send(process)

        async def ended() -> bool:
            return process.pid is None

        await becomes_true(ended)
        began = time.monotonic()
        process.close()  # the third process waits at the gate
        assert time.monotonic() - began < 2
        await engine.close()


async def test_after_three_failures_in_a_minute_the_engine_is_not_restarted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    flag = tmp_path / "removed"
    now = [0.0]
    process = EngineProcess(partial(mortal, str(flag)), clock=lambda: now[0])
    engine = AsyncRemoteEngine(process.endpoint)
    for _ in range(2):  # too far apart to count together
        await restarted(process, send(process), engine)
        now[0] = 61.0
    assert "failed 3 times" not in caplog.text
    flag.touch()  # the second failure within the minute is the broken engine, the third the start that follows
    with pytest.raises(EngineDown):
        await engine.submit(Request("broken"))

    async def noticed() -> bool:
        return process.endpoint.failure_notice.exists()

    await becomes_true(noticed)
    for _ in range(2):
        with pytest.raises(EngineDown, match=r"failed 3 times in 60 s.*the checkpoint is missing"):
            await engine.submit(request(1))
    assert [record.levelname for record in caplog.records if "failed 3 times" in record.getMessage()] == ["ERROR"]
    await engine.close()
    process.close()


def test_an_engine_that_cannot_be_built_raises_at_the_start() -> None:
    before = (children(), folders(), threading.enumerate())
    with pytest.raises(EngineDown, match="ValueError: no such checkpoint"):
        EngineProcess(unbuildable)
    assert (children(), folders(), threading.enumerate()) == before
