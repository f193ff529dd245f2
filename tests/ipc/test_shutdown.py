# SPDX-License-Identifier: Apache-2.0
"""The end of an engine process, of its clients and of its supervisor: quick, and nothing is left behind."""

import asyncio
import multiprocessing
import os
import signal
import threading
import time
from contextlib import ExitStack
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from ipc.engine_processes import TIMEOUT, await_end_of, read, request, resources
from ipc.fake_engine import FakeEngine, gated
from polyvox.errors import EngineDown, StreamFailed
from polyvox.ipc.client import AsyncRemoteEngine
from polyvox.ipc.process import EngineProcessConfig
from polyvox.ipc.supervisor import EngineProcess

pytestmark = pytest.mark.slow

SPAWN = multiprocessing.get_context("spawn")


@pytest.mark.anyio
async def test_close_under_load_waits_for_no_stream_and_leaves_nothing() -> None:
    before = resources()
    process = EngineProcess(FakeEngine)
    engine = AsyncRemoteEngine(process.endpoint)
    streams = [await engine.submit(request(seed, chunks=1_000_000)) for seed in range(32)]
    readers = [asyncio.create_task(read(stream)) for stream in streams[:4]]
    began = time.monotonic()
    await engine.close()
    process.close()
    assert time.monotonic() - began < TIMEOUT / 2
    await asyncio.gather(*readers)
    assert {stream.result.finish_reason for stream in streams if stream.result} == {"cancelled"}
    assert all(stream.result for stream in streams)
    await engine.close()
    process.close()
    with pytest.raises(EngineDown, match="closed"):
        await engine.submit(request(1))
    assert resources() == before


@pytest.mark.anyio
async def test_an_engine_that_does_not_end_is_killed_and_its_streams_fail() -> None:
    process = EngineProcess(partial(FakeEngine, close_seconds=TIMEOUT), EngineProcessConfig(shutdown_timeout=0.2))
    engine = AsyncRemoteEngine(process.endpoint)
    stream = await engine.submit(request(1, chunks=1_000_000))
    reader = aiter(stream)
    await anext(reader)  # without audio a request is rejected instead, and may be sent again
    began = time.monotonic()
    process.close()
    assert time.monotonic() - began < TIMEOUT / 2
    with pytest.raises(StreamFailed):
        async for _ in reader:
            pass
    with pytest.raises(EngineDown, match="closed"):
        await engine.submit(request(1))
    await engine.close()


@pytest.mark.anyio
async def test_a_client_that_is_never_used_opens_nothing() -> None:
    with EngineProcess(FakeEngine) as process:
        before = resources()
        engine = AsyncRemoteEngine(process.endpoint)
        await engine.close()
        assert resources() == before


def supervise(results: Connection, gate: str) -> None:
    os.setsid()
    process = EngineProcess(partial(gated, gate))
    results.send((process.pid, process.endpoint.folder))
    threading.Event().wait(TIMEOUT)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("starting", [False, True])
def test_a_killed_supervisor_leaves_neither_engine_nor_folder(
    number: signal.Signals, starting: bool, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    results, theirs = SPAWN.Pipe(duplex=False)
    supervisor = SPAWN.Process(target=supervise, args=(theirs, str(gate)))
    supervisor.start()
    assert results.poll(TIMEOUT)
    pid, folder = results.recv()
    assert supervisor.pid is not None
    with ExitStack() as stack:
        if starting:
            os.mkfifo(gate)
            os.kill(pid, signal.SIGKILL)
            stack.enter_context(gate.open("w"))  # returns when the next process has opened it
            (pid,) = {int(name) for name in os.listdir("/proc") if name.isdigit() and has_open(int(name), gate)}
        if number == signal.SIGTERM:  # as a service manager does it
            os.killpg(supervisor.pid, number)
        else:
            os.kill(supervisor.pid, number)
        supervisor.join(TIMEOUT)
        await_end_of(pid)
        assert not folder.exists()


def forget(results: Connection) -> None:
    results.send(EngineProcess(FakeEngine).endpoint.folder)


def test_a_program_that_does_not_close_its_engine_process_exits_all_the_same() -> None:
    results, theirs = SPAWN.Pipe(duplex=False)
    forgetful = SPAWN.Process(target=forget, args=(theirs,))
    forgetful.start()
    assert results.poll(TIMEOUT)
    folder = results.recv()
    forgetful.join(TIMEOUT)
    assert forgetful.exitcode == 0
    assert not folder.exists()


def has_open(pid: int, file: Path) -> bool:
    """Whether another process has the file open."""
    try:
        files = [os.readlink(entry) for entry in Path(f"/proc/{pid}/fd").iterdir()]
    except OSError:
        return False
    return pid != os.getpid() and str(file) in files
