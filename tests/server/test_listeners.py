# SPDX-License-Identifier: Apache-2.0
"""Listeners of several server processes: connections are spread over them, and none is lost to a process that died."""

import asyncio
import socket
import sys

import pytest
import uvloop

from polyvox.server.listeners import MAX_ACCEPTED, Listeners, duplicate

TIMEOUT = 30.0
COUNT = 4
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs SO_REUSEPORT that spreads connections")


def accepted(listeners: Listeners, indices: list[int], num_connections: int) -> list[int]:
    """Opens connections, and returns how many of them each of these listeners accepts."""
    address = listeners[indices[0]].getsockname()
    clients = [socket.create_connection(address, TIMEOUT) for _ in range(num_connections)]
    counts = []
    for index in indices:
        listeners[index].setblocking(False)
        counts.append(0)
        while True:
            try:
                listeners[index].accept()[0].close()
            except BlockingIOError:
                break
            counts[-1] += 1
    for client in clients:
        client.close()
    return counts


def test_connections_are_spread_over_all_processes_that_listen() -> None:
    listeners = Listeners(socket.create_server(("127.0.0.1", 0), backlog=512), COUNT)
    try:
        assert accepted(listeners, [0], 40) == [40]  # the others do not listen yet
        for index in range(1, COUNT):
            listeners[index].listen(512)
        counts = accepted(listeners, list(range(COUNT)), 400)
        assert sum(counts) == 400
        assert min(counts) > 40  # 100 are expected, with a standard deviation of 9
        for index in (2, 0):  # processes that die; their successors do not listen yet
            listeners.replace(index)
        assert sum(accepted(listeners, [1, 3], 100)) == 100
        for index in (2, 0):
            listeners[index].listen(512)
        counts = accepted(listeners, list(range(COUNT)), 400)
        assert sum(counts) == 400
        assert min(counts) > 40
    finally:
        listeners.close()


def test_an_address_in_use_is_an_error_for_another_server() -> None:
    first = socket.create_server(("127.0.0.1", 0))
    listeners = Listeners(first, COUNT)
    try:
        with pytest.raises(OSError, match="in use"):
            socket.create_server(first.getsockname())
    finally:
        listeners.close()


def test_a_burst_of_connections_is_accepted_in_a_few_iterations_of_the_event_loop() -> None:
    async def num_iterations(listener: socket.socket) -> int:
        loop, iterations, num_accepted = asyncio.get_running_loop(), 0, 0

        class Accepted(asyncio.Protocol):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                nonlocal num_accepted
                num_accepted += 1
                transport.close()

        clients = [socket.create_connection(listener.getsockname(), TIMEOUT) for _ in range(2 * MAX_ACCEPTED)]
        servers = [await loop.create_server(Accepted, sock=each) for each in duplicate(listener)]
        async with asyncio.timeout(TIMEOUT):
            while num_accepted < len(clients):
                await asyncio.sleep(0)
                iterations += 1
        for server in servers:
            server.close()
        for client in clients:
            client.close()
        return iterations

    listener = socket.create_server(("127.0.0.1", 0), backlog=512)
    assert uvloop.run(num_iterations(listener)) < MAX_ACCEPTED
