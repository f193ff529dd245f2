# SPDX-License-Identifier: Apache-2.0
"""The engine's process dies, hangs or cannot start: it is replaced, its streams fail, calls raise EngineDown."""

import asyncio
import errno
import os
import signal
import threading
import time
from contextlib import suppress
from functools import partial
from multiprocessing.connection import wait
from pathlib import Path
from types import SimpleNamespace

import pytest

from ipc.engine_processes import (
    QUICK_RESTARTS,
    TIMEOUT,
    assert_complete,
    assert_lost,
    becomes_true,
    children,
    eventually,
    folders,
    read,
    request,
    restarted,
    send,
    stat_becomes,
)
from ipc.fake_engine import BUFFER, FakeEngine, gated, mortal, staged, unbuildable
from polyvox.engine.engine_status import EngineState
from polyvox.engine.lifecycle import RestartPolicy
from polyvox.errors import EngineDown, Overloaded, StreamFailed
from polyvox.ipc.client import CREDIT, AsyncRemoteEngine, _EngineConnection
from polyvox.ipc.endpoint import EngineEndpoint
from polyvox.ipc.process import HEARTBEATS, EngineProcessConfig
from polyvox.ipc.status_file import StatusFile
from polyvox.ipc.supervisor import EngineProcess
from polyvox.models.request import Request

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
SHORT_HANG = EngineProcessConfig(hang_timeout=1.5, shutdown_timeout=0.1, restarts=QUICK_RESTARTS)


async def test_an_engine_that_is_killed_twenty_times_under_load_serves_the_next_request() -> None:
    before = children()
    config = EngineProcessConfig(restarts=QUICK_RESTARTS)
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


async def test_a_server_connects_again_after_any_error(monkeypatch: pytest.MonkeyPatch) -> None:
    open_connection, errors = _EngineConnection.open, [ValueError("not a message"), OSError("not reachable")]

    async def fail_twice(connection: _EngineConnection, endpoint: EngineEndpoint) -> None:
        if errors:
            raise errors.pop(0)
        await open_connection(connection, endpoint)

    monkeypatch.setattr(_EngineConnection, "open", fail_twice)
    with EngineProcess(FakeEngine) as process:
        engine = AsyncRemoteEngine(process.endpoint)
        with pytest.raises(EngineDown):
            await engine.submit(request(1))
        async with asyncio.timeout(TIMEOUT):
            while engine._connection is None:
                await asyncio.sleep(0.01)
        assert_complete(await read(await engine.submit(request(1))), seed=1, count=10)
        await engine.close()


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
        assert engine.status().num_restarts == 1
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
        assert time.monotonic() - began < TIMEOUT / 2
        await engine.close()


async def test_an_engine_that_cannot_be_restarted_is_tried_again_until_it_can(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    flag, policy = tmp_path / "removed", RestartPolicy(initial_delay=0.01, max_delay=0.05)
    with EngineProcess(partial(mortal, str(flag)), EngineProcessConfig(restarts=policy)) as process:
        engine = AsyncRemoteEngine(process.endpoint)
        flag.touch()
        killed = send(process)

        async def failed_five_times() -> bool:
            return engine.status().num_restarts >= 5

        await becomes_true(failed_five_times)
        with pytest.raises(EngineDown, match="restarting") as down:
            await engine.submit(request(1))
        assert down.value.retry_after >= 1
        assert engine.status().reason == "The engine could not be started: ValueError: the checkpoint is missing"
        assert engine.status().down_seconds(time.monotonic()) > 0
        flag.unlink()
        await restarted(process, killed, engine)
        assert_complete(await read(await engine.submit(request(2))), seed=2, count=10)
        assert (engine.status().running, engine.status().down_seconds(time.monotonic())) == (True, 0)
        await engine.close()
    assert sum("engine restarting" in record.getMessage() for record in caplog.records) >= 5


async def test_a_full_disk_does_not_hide_the_status(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flag = tmp_path / "removed"
    policy = RestartPolicy(initial_delay=600, max_delay=600)
    with EngineProcess(partial(mortal, str(flag)), EngineProcessConfig(restarts=policy)) as process:
        engine = AsyncRemoteEngine(process.endpoint)

        def full(*_: object, **__: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        for name in ("open", "write", "rename", "replace"):
            monkeypatch.setattr(os, name, full)
        monkeypatch.setattr("pathlib.Path.open", full)
        send(process)

        async def seen() -> bool:
            return engine.status().state is EngineState.RESTARTING

        await becomes_true(seen)
        with pytest.raises(EngineDown) as down:
            await engine.submit(request(1))
        assert 250 < down.value.retry_after < 660
        monkeypatch.undo()
        await engine.close()


async def test_the_retry_time_counts_down_to_the_next_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = RestartPolicy(initial_delay=600, max_delay=600)
    with EngineProcess(FakeEngine, EngineProcessConfig(restarts=policy)) as process:
        engine = AsyncRemoteEngine(process.endpoint)
        await engine.stats()
        send(process)

        async def seen() -> bool:
            return engine.status().state is EngineState.RESTARTING

        await becomes_true(seen)
        waits, begin = [], time.monotonic()
        for now in (begin, begin + 100):
            monkeypatch.setattr("polyvox.ipc.client.time", SimpleNamespace(monotonic=lambda now=now: now))
            with pytest.raises(EngineDown) as down:
                await engine.stats()
            waits.append(down.value.retry_after)
        assert waits[0] - waits[1] == pytest.approx(100)
        await engine.close()


def test_the_stages_of_a_start_are_seen_by_other_processes(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    reported: list[tuple[str, int, int]] = []
    started: list[tuple[int, set[str]]] = []
    process = EngineProcess(
        partial(staged, str(gate)),
        wait_for_start=False,
        on_progress=lambda *stage: reported.append(stage),
        on_started=lambda engine, seconds: started.append((engine.sample_rate, set(seconds))),
    )
    with process:
        with gate.open("w"):  # when the process has opened it, it has reported the stage
            eventually(lambda: process.status.stage == "capture" or threading.Event().wait(0.01))
            seen = StatusFile(process.endpoint.folder).read()
            assert (seen.state, seen.stage, seen.progress) == (EngineState.STARTING, "capture", 0.25)
            assert seen.retry_after(time.monotonic()) > 0
        eventually(lambda: bool(started) or threading.Event().wait(0.01))
        assert process.status.running
        assert reported == [("load", 1, 2), ("capture", 1, 4)]
        assert started == [(24_000, {"total", "load", "capture"})]


def test_a_first_start_that_fails_is_reported_without_waiting_for_it() -> None:
    with EngineProcess(unbuildable, wait_for_start=False) as process:
        assert wait([process.start_failed], TIMEOUT)
        with pytest.raises(EngineDown, match="ValueError: no such checkpoint"):
            process.check()


def test_an_engine_that_cannot_be_built_raises_at_the_start() -> None:
    before = (children(), folders(), threading.enumerate())
    with pytest.raises(EngineDown, match="ValueError: no such checkpoint"):
        EngineProcess(unbuildable)
    assert (children(), folders(), threading.enumerate()) == before
