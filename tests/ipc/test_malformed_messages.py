# SPDX-License-Identifier: Apache-2.0
"""Messages that break the protocol, and bytes that are no messages, end their own connection only."""

import asyncio
import random
import socket
from contextlib import suppress
from functools import partial

import pytest

from ipc.engine_processes import RING_SAMPLES, assert_complete, read, request, stat_becomes
from ipc.fake_engine import FakeEngine
from ipc.raw_connection import connected, submit
from ipc.test_messages import EXAMPLES
from polyvox.ipc import messages, worker_connection
from polyvox.ipc.client import AsyncRemoteEngine
from polyvox.ipc.endpoint import connect
from polyvox.ipc.supervisor import EngineProcess

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    "bad",
    [
        messages.Consumed(10**6, {}),  # never written
        messages.ReleaseKey("never acquired"),
        messages.AppendText(0, "before the stream is accepted"),
    ],
    ids=lambda message: type(message).__name__,
)
async def test_a_message_that_breaks_the_protocol_ends_the_connection(
    bad: messages.Message, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_connection, "MAX_INLINE_BYTES", 0)  # a thread accepts the stream, later
    async with connected(FakeEngine(), RING_SAMPLES) as (connection, server):
        server.send(submit(0, request(1, chunks=1_000_000), credit=0))
        server.send(bad)
        await server.disconnected()
        assert connection.frames.closed


async def test_a_stream_id_cannot_be_used_twice() -> None:
    async with connected(FakeEngine(), RING_SAMPLES) as (_, server):
        for _ in range(2):
            server.send(submit(0, request(1, chunks=1_000_000), credit=0))
        await server.disconnected()


def random_frames(chance: random.Random) -> bytes:
    """Whole, mutated, cut and random frames, and lengths that are too large."""
    data = b""
    for _ in range(chance.randrange(1, 8)):
        frame = bytearray(messages.encode(chance.choice(EXAMPLES)))
        for _ in range(chance.randrange(3)):
            frame[chance.randrange(len(frame))] = chance.randrange(256)
        if chance.random() < 0.2:
            frame = bytearray(chance.randbytes(chance.randrange(60)))
        length = len(frame) if chance.random() < 0.9 else chance.randrange(2**32)
        data += length.to_bytes(4) + frame
    return data


async def test_malformed_frames_end_nothing_but_their_own_connection(
    process: EngineProcess, engine: AsyncRemoteEngine
) -> None:
    chance, pid = random.Random(16), process.pid
    mine = await engine.submit(request(1, text="one", live=True))
    for _ in range(300):
        connection, ring = await connect(process.endpoint)
        connection.setblocking(True)
        await asyncio.to_thread(partial(send_ignoring_errors, connection, random_frames(chance)))
        connection.close()
        ring.close()
    mine.append("two three")
    mine.finish_text()
    assert_complete(await read(mine), seed=1, count=3)
    await stat_becomes(engine, "streams", 0)
    assert process.pid == pid


def send_ignoring_errors(connection: socket.socket, data: bytes) -> None:
    with suppress(OSError):  # the engine has closed it
        connection.sendall(data)
