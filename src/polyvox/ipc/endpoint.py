# SPDX-License-Identifier: Apache-2.0
"""The address of an engine's process, and the handshake: the engine sends the file descriptor of a new `AudioRing`."""

import asyncio
import os
import socket
from dataclasses import dataclass
from pathlib import Path

from polyvox.ipc.audio_ring import AudioRing, create_shared_memory

HANDSHAKE_TIMEOUT = 5.0  # seconds
HANDSHAKE = b"R"


@dataclass(frozen=True, slots=True)
class EngineEndpoint:
    """The address of an engine's process. Picklable; the mode of the folder restricts access to this user.

    replica: the index of the process if there are several.
    """

    folder: Path
    replica: int | None = None

    @property
    def name(self) -> str:
        """The subject of error messages."""
        return "The engine" if self.replica is None else f"Replica {self.replica}"

    @property
    def socket_path(self) -> Path:
        return socket_path(self.folder)


def socket_path(folder: Path) -> Path:
    return folder / "engine.sock"


async def connect(endpoint: EngineEndpoint) -> tuple[socket.socket, AudioRing]:
    """Connects a server to the engine; raises OSError if the engine does not answer in time."""
    loop = asyncio.get_running_loop()
    connection = socket.socket(socket.AF_UNIX)
    connection.setblocking(False)
    try:
        async with asyncio.timeout(HANDSHAKE_TIMEOUT):
            await loop.sock_connect(connection, str(endpoint.socket_path))
            await _readable(connection)
        _, files, _, _ = socket.recv_fds(connection, len(HANDSHAKE), 1)
        if not files:
            raise ConnectionError("the engine closed the connection during the handshake")
        with open(files[0], "rb") as file:
            return connection, AudioRing(file.fileno())
    except BaseException:
        connection.close()
        raise


def accept(connection: socket.socket, ring_samples: int) -> AudioRing:
    """The engine's side of the handshake: creates a ring and sends it to the server."""
    descriptor = create_shared_memory(ring_samples)
    try:
        socket.send_fds(connection, [HANDSHAKE], [descriptor])
        return AudioRing(descriptor)
    finally:
        os.close(descriptor)


async def _readable(connection: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(connection, readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(connection)
