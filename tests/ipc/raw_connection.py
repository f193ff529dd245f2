# SPDX-License-Identifier: Apache-2.0
"""The engine's end of one connection in this process, with a server at the other end that sends raw messages."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec

from ipc.engine_processes import TIMEOUT, RawServer
from ipc.fake_engine import FakeEngine
from polyvox.engine.key_counts import KeyCounts
from polyvox.engine.preparation import PreparationPool
from polyvox.ipc import messages
from polyvox.ipc.audio_ring import AudioRing, create_shared_memory
from polyvox.ipc.worker_connection import WorkerConnection
from polyvox.models.request import Request


@asynccontextmanager
async def connected(
    engine: FakeEngine, ring_samples: int = 0, max_pending: int = 100, file: int | None = None
) -> AsyncIterator[tuple[WorkerConnection, RawServer]]:
    """A connection, and the server at its other end. file: memory of its ring, instead of new memory."""
    here, there = socket.socketpair()
    file = create_shared_memory(ring_samples) if file is None else file
    pool = PreparationPool(max_pending=max_pending)
    connection = WorkerConnection(engine, pool, KeyCounts(), AudioRing(file), TIMEOUT)
    os.close(file)
    server = RawServer()
    await connection.frames.start(here)
    await server.frames.start(there)
    try:
        yield connection, server
    finally:
        connection.close()
        await server.disconnected()
        pool.close()
        await asyncio.to_thread(engine.close)


def submit(id: int, asked: Request, credit: int) -> messages.Submit:
    return messages.Submit(id, msgspec.Raw(messages.encode(asked)), credit)


async def next_update(server: RawServer) -> messages.Update:
    update = await server.update()
    assert update is not None
    return update
