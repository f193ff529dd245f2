# SPDX-License-Identifier: Apache-2.0
"""Limits between servers and the engine's process: credit, stalled and killed servers, floods, counts of keys."""

import asyncio
import logging
import multiprocessing
import os
import signal
import socket
import sys
import time
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path

import msgspec
import pytest

from ipc.engine_processes import (
    TIMEOUT,
    RawServer,
    assert_complete,
    assert_lost,
    becomes_true,
    read,
    reconnected,
    request,
    restarted,
    send,
    stat_becomes,
)
from ipc.fake_engine import BUFFER
from polyvox.errors import EngineDown
from polyvox.ipc import client, framing, messages
from polyvox.ipc.client import AsyncRemoteEngine
from polyvox.ipc.endpoint import EngineEndpoint
from polyvox.ipc.status_file import LoadFile, StatusFile
from polyvox.ipc.supervisor import EngineProcess
from polyvox.ipc.worker_connection import MAX_INLINE_BYTES
from polyvox.models.request import Request

SPAWN = multiprocessing.get_context("spawn")
pytestmark = [pytest.mark.anyio, pytest.mark.slow]


@pytest.mark.parametrize("credit", [1, 2, 8])
async def test_a_slow_reader_pauses_only_its_own_stream(process: EngineProcess, credit: int) -> None:
    engine = AsyncRemoteEngine(process.endpoint, credit=credit)
    slow = await engine.submit(request(1000 + credit, chunks=200))
    fast = await engine.submit(request(12, chunks=200))
    assert_complete(await read(fast), seed=12, count=200)
    assert (await engine.stats())[f"made.{slow.seed}"] == credit + BUFFER
    assert_complete(await read(slow), seed=slow.seed, count=200)
    await engine.close()


async def test_a_large_request_that_takes_long_to_prepare_delays_no_stream(
    engine: AsyncRemoteEngine, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    large = replace(request(19, text=f"gate {gate}"), instructions="x" * MAX_INLINE_BYTES)
    slow = asyncio.create_task(engine.submit(large))
    try:
        assert_complete(await read(await engine.submit(request(11, chunks=100))), seed=11, count=100)
        assert not slow.done()
    finally:
        await asyncio.to_thread(gate.write_text, "open")
    assert_complete(await read(await slow), seed=19, count=10)


async def test_an_engine_that_does_not_read_blocks_no_caller(process: EngineProcess, engine: AsyncRemoteEngine) -> None:
    stream = await engine.submit(Request("one", live=True, seed=1))
    pid = send(process, signal.SIGSTOP)
    try:
        began = time.monotonic()
        stream.append("word " * (1 << 20))  # more than the socket buffers
        for _ in range(100):
            stream.cancel()
        assert time.monotonic() - began < client.WRITE_TIMEOUT / 2
    finally:
        os.kill(pid, signal.SIGCONT)
    assert (await read(stream))[-1].final
    assert stream.result is not None
    assert stream.result.finish_reason == "cancelled"


async def test_a_connection_ends_if_the_engine_leaves_too_much_unread(
    process: EngineProcess, engine: AsyncRemoteEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(framing, "MAX_BUFFERED_BYTES", 1 << 20)
    stream = await engine.submit(Request("one", live=True, seed=1))
    pid = send(process, signal.SIGSTOP)
    try:
        for _ in range(20):
            stream.append("word " * 20_000)
        await assert_lost(stream)
        stream.cancel()
    finally:
        os.kill(pid, signal.SIGCONT)
    await reconnected(engine)


async def test_a_connection_ends_if_the_engine_does_not_read_in_time(
    process: EngineProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "WRITE_TIMEOUT", 0.1)
    engine = AsyncRemoteEngine(process.endpoint)
    stream = await engine.submit(Request("one", live=True, seed=1))
    pid = send(process, signal.SIGSTOP)
    try:
        stream.append("word " * (1 << 20))
        await assert_lost(stream)
    finally:
        os.kill(pid, signal.SIGCONT)
    await engine.close()


async def test_a_call_without_an_answer_times_out(process: EngineProcess, engine: AsyncRemoteEngine) -> None:
    hurried = AsyncRemoteEngine(process.endpoint, timeout=0.1)
    await reconnected(hurried)
    pid = send(process, signal.SIGSTOP)
    try:
        with pytest.raises(EngineDown, match=r"did not answer within 0.1 s"):
            await hurried.submit(request(18, chunks=1_000_000))
        with pytest.raises(EngineDown, match=r"did not answer within 0.1 s"):
            await hurried.acquire_key("late", 1)
    finally:
        os.kill(pid, signal.SIGCONT)
    await stat_becomes(engine, "streams", 0)
    assert await engine.acquire_key("late", 1)  # the late answer was given back
    engine.release_key("late")
    await hurried.close()


async def test_a_count_that_arrives_together_with_the_timeout_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    connection = client._EngineConnection(1, 0.0, "The engine", lambda: EngineDown("down", 1.0))
    sent: list[messages.Message] = []

    def send_and_reply(message: messages.Message) -> None:
        sent.append(message)
        if isinstance(message, messages.AcquireKey):  # in the iteration of the loop in which the timeout expires
            reply = messages.KeyReply(message.id, message.key, True)
            asyncio.get_running_loop().call_soon(connection._on_reply, reply)

    monkeypatch.setattr(connection, "send", send_and_reply)
    with pytest.raises(EngineDown, match="did not answer"):
        await connection.call(messages.AcquireKey(0, "late", 1), messages.KeyReply)
    assert sent[1:] == [messages.ReleaseKey("late")]


async def test_a_call_that_waits_for_the_first_connection_ends_when_the_client_is_closed(tmp_path: Path) -> None:
    endpoint = EngineEndpoint(tmp_path)
    StatusFile(tmp_path, create=True).close()
    LoadFile(tmp_path, create=True).close()
    with socket.socket(socket.AF_UNIX) as listener:  # accepts, but sends no handshake
        listener.bind(str(endpoint.socket_path))
        listener.listen()
        connecting = AsyncRemoteEngine(endpoint)
        call = asyncio.create_task(connecting.stats())
        while connecting._task is None:
            await asyncio.sleep(0)
        await connecting.close()
        with pytest.raises(EngineDown):
            await asyncio.wait_for(call, TIMEOUT)


async def test_a_server_that_consumes_nothing_is_disconnected_and_delays_no_other(
    process: EngineProcess, engine: AsyncRemoteEngine
) -> None:
    stalled = await RawServer.connected(process.endpoint)
    for seed in range(2000, 2010):  # 80 chunks for a ring of 40
        encoded = msgspec.Raw(messages.encode(request(seed, chunks=1_000_000)))
        stalled.send(messages.Submit(seed, encoded, credit=8))
    assert_complete(await read(await engine.submit(request(15, chunks=50))), seed=15, count=50)
    assert (await engine.stats())["streams"] == 10  # the other stream did not wait for the disconnection
    await stat_becomes(engine, "streams", 0)
    await stalled.disconnected()


async def test_a_server_that_does_not_read_its_socket_is_disconnected(
    process: EngineProcess, engine: AsyncRemoteEngine
) -> None:
    stalled = await RawServer.connected(process.endpoint)
    encoded = msgspec.Raw(messages.encode(request(2100, text="one", live=True)))
    stalled.send(messages.Submit(0, encoded, credit=8))
    await stat_becomes(engine, "streams", 1)
    stalled.frames.pause_reading()
    for id in range(1, 20_000):
        stalled.send(messages.GetInfo(id))
    await stat_becomes(engine, "streams", 0)
    stalled.frames.abort()


def hold_streams(endpoint: EngineEndpoint, ready: Connection) -> None:
    """A server process that is killed while it has streams and counts of a key."""

    async def main() -> None:
        engine = AsyncRemoteEngine(endpoint)
        assert await engine.acquire_key("shared", 3)
        assert await engine.acquire_key("shared", 3)
        streams = [await engine.submit(request(seed, chunks=1_000_000)) for seed in range(8)]
        readers = [aiter(stream) for stream in streams]
        for reader in readers:
            ready.send((await anext(reader)).index)
        await asyncio.sleep(TIMEOUT)

    asyncio.run(main())


async def test_a_killed_server_releases_its_streams_and_its_keys(
    process: EngineProcess, engine: AsyncRemoteEngine
) -> None:
    mine = await engine.submit(request(16, chunks=300))
    before = (await engine.stats())["cancelled"]
    assert await engine.acquire_key("shared", 3)
    ready, theirs = SPAWN.Pipe(duplex=False)
    server = SPAWN.Process(target=hold_streams, args=(process.endpoint, theirs))
    server.start()
    for _ in range(8):
        assert await asyncio.to_thread(ready.poll, TIMEOUT)
        assert ready.recv() == 0
    assert not await engine.acquire_key("shared", 3)
    assert (await engine.stats())["cancelled"] == before
    server.kill()
    server.join(TIMEOUT)
    assert_complete(await read(mine), seed=16, count=300)
    await stat_becomes(engine, "cancelled", before + 8)
    assert await engine.acquire_key("shared", 3)
    assert await engine.acquire_key("shared", 3)
    assert not await engine.acquire_key("shared", 3)
    for _ in range(3):
        engine.release_key("shared")


async def test_keys_are_counted_over_all_servers(process: EngineProcess, engine: AsyncRemoteEngine) -> None:
    other = AsyncRemoteEngine(process.endpoint)
    assert await engine.acquire_key("key", 2)
    assert await other.acquire_key("key", 2)
    assert not await engine.acquire_key("key", 2)
    assert await engine.acquire_key("another", 1)
    other.release_key("key")

    async def acquired() -> bool:
        return await engine.acquire_key("key", 2)

    await becomes_true(acquired)  # the release travels on its own connection
    await other.close()
    with pytest.raises(ValueError, match="without acquire_key"):
        other.release_key("key")
    for key in ("key", "key", "another"):
        engine.release_key(key)


async def test_a_key_may_have_any_limit(engine: AsyncRemoteEngine) -> None:
    stream = await engine.submit(request(20, chunks=100))
    assert await engine.acquire_key("key", sys.maxsize)
    engine.release_key("key")
    assert_complete(await read(stream), seed=20, count=100)


async def test_counts_of_keys_survive_a_restart_of_the_engine(
    process: EngineProcess, engine: AsyncRemoteEngine
) -> None:
    for _ in range(2):
        assert await engine.acquire_key("key", 2)
    killed = send(process)
    await restarted(process, killed, engine)
    assert not await engine.acquire_key("key", 2)
    engine.release_key("key")
    assert await engine.acquire_key("key", 2)
    for _ in range(2):
        engine.release_key("key")


async def test_a_cancelled_acquire_gives_its_count_back(engine: AsyncRemoteEngine) -> None:
    task = asyncio.create_task(engine.acquire_key("cancelled", 1))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    async def acquired() -> bool:
        return await engine.acquire_key("cancelled", 1)

    await becomes_true(acquired)
    engine.release_key("cancelled")


async def test_a_lost_connection_is_logged_with_its_reason(
    process: EngineProcess, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = AsyncRemoteEngine(process.endpoint)
    await reconnected(engine)
    monkeypatch.setattr(framing, "MAX_MESSAGE_BYTES", 10)
    with caplog.at_level(logging.WARNING), pytest.raises(EngineDown):
        await engine.info()
    assert "connection aborted reason=" in caplog.text
    assert "exceeds the limit of 10" in caplog.text
    monkeypatch.undo()
    await reconnected(engine)
    await engine.close()
